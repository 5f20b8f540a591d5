"""Pulling the images of a run before they are needed, a few at a time.

A child process does it: unpacking is work in Python, and whoever plans ahead here has turns to serve meanwhile. The
child ends with the thread that waits for it; what it was at is gone on with by the next pull.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec

from rollart_hpc.config.node import ImagesSection, NodeSettings
from rollart_hpc.errors import ImageError
from rollart_hpc.images.cache import ImageCache
from rollart_hpc.observe.logs import log_to_stderr
from rollart_hpc.processes import die_with_parent

_log = logging.getLogger(__name__)
_PULLED_AT_ONCE = 4


class Prefetched(msgspec.Struct, frozen=True, kw_only=True):
    """How one pull went."""

    reference: str
    digest: str = ""
    error: str = ""
    """Empty when the image is here."""
    retryable: bool = False
    seconds: float = 0.0


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    references: tuple[str, ...]
    node_settings: str


def prefetch(references: Iterable[str], settings: ImagesSection | None = None) -> tuple[Prefetched, ...]:
    """Pulls images, each once; blocks until all are here or have failed, and logs those that have.

    Args:
        references: as for `use_image`.
        settings: levels and bounds; those of the run when absent.
    """
    current = NodeSettings.current()
    node_settings = current.model_copy(update={"images": settings or current.images})
    order = _Order(references=tuple(dict.fromkeys(references)), node_settings=node_settings.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", "from rollart_hpc.images.prefetch import serve; serve()"],
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        check=False,
    )
    results = {one.reference: one for one in map(_decode, done.stdout.splitlines())}
    ended = f"the process that pulled it ended with code {done.returncode}"
    found = tuple(
        results.get(reference) or Prefetched(reference=reference, error=ended, retryable=True)
        for reference in order.references
    )
    for one in found:
        if one.error:
            _log.warning("not pulled in advance: %s", one.error)
    return found


def pull_all(references: Iterable[str], settings: NodeSettings) -> Iterator[Prefetched]:
    """Pulls images in threads of this process; gives each as it is done."""
    with ThreadPoolExecutor(_PULLED_AT_ONCE, thread_name_prefix="pull") as pool:
        pulls = [pool.submit(_pull, reference, settings) for reference in dict.fromkeys(references)]
        try:
            for done in as_completed(pulls):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def serve() -> None:
    """The child: takes an order from standard input and writes a line for each image."""
    die_with_parent()
    log_to_stderr("images")
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    for one in pull_all(order.references, NodeSettings.model_validate_json(order.node_settings)):
        sys.stdout.buffer.write(msgspec.json.encode(one) + b"\n")
        sys.stdout.buffer.flush()


def _pull(reference: str, settings: NodeSettings) -> Prefetched:
    begun = time.monotonic()
    try:
        with ImageCache(settings.images, settings.run_directory).use(reference) as image:
            return Prefetched(reference=reference, digest=image.digest, seconds=time.monotonic() - begun)
    except (ImageError, OSError) as error:
        seconds, retryable = time.monotonic() - begun, not isinstance(error, ImageError) or error.retryable
        return Prefetched(reference=reference, error=str(error), retryable=retryable, seconds=seconds)


def _decode(line: bytes) -> Prefetched:
    return msgspec.json.decode(line, type=Prefetched)
