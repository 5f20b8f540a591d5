"""What tags mean: asked of the registry once per run, and the same for all of the run's members from then on.

The run's directory has one file for each tag; the first node that asked wrote it. Without a run, in a notebook or a
test, what the node was told within the last hour holds. The node also keeps what it was last told for the day on which
no registry answers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from pathlib import Path

import msgspec

from rollart_hpc.images.node_directory import NodeDirectory, hashed, write_whole
from rollart_hpc.images.reference import is_digest

_log = logging.getLogger(__name__)
_WITHOUT_RUN_S = 3600.0
_FOLDER = "images"


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """A reference and the digest that it stood for."""

    reference: str
    digest: str
    at: float
    """Unix time."""


class Names:
    """Those that this node knows, and those of the run.

    Args:
        node: keeps them.
        run_directory: of the run; None when there is none.
    """

    def __init__(self, node: NodeDirectory, run_directory: Path | None) -> None:
        self._node = node
        self._pins = run_directory / _FOLDER if run_directory else None

    def pinned(self, reference: str) -> str | None:
        """The digest that holds; None when the registry is to be asked."""
        if self._pins is not None:
            return digest if (digest := _digest_in(self._pin(self._pins, reference))) else None
        known = _read(self._node.name(reference))
        return known.digest if known and 0 <= time.time() - known.at < _WITHOUT_RUN_S else None

    def pin(self, reference: str, digest: str) -> str:
        """Records what the registry said; gives what holds, which another node may have pinned first."""
        if self._pins is not None:
            digest = self._first(self._pins, Name(reference=reference, digest=digest, at=time.time()))
        self.record(reference, digest)
        return digest

    def record(self, reference: str, digest: str) -> None:
        """Records for this node alone."""
        name = Name(reference=reference, digest=digest, at=time.time())
        write_whole(self._node.name(reference), msgspec.json.encode(name))

    def last_known(self, reference: str) -> str | None:
        """What the node was last told, however long ago."""
        return _digest_in(self._node.name(reference))

    def all(self) -> list[Name]:
        """All tags that the node was told."""
        found = (_read(file) for file in (self._node.root / "names").glob("*"))
        tags = (name for name in found if name and not name.reference.startswith("sha256:"))
        return sorted(tags, key=lambda name: name.reference)

    def _first(self, pins: Path, name: Name) -> str:
        target = self._pin(pins, name.reference)
        fresh = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
        try:
            pins.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(name))
            _publish(fresh, target)
        except OSError as error:
            _log.warning("%s is not pinned for the run: %s: %s", name.reference, target, error.strerror or error)
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
        return _digest_in(target) or name.digest

    def _pin(self, pins: Path, reference: str) -> Path:
        return pins / f"{hashed(reference)}.json"


def _publish(fresh: Path, target: Path) -> None:
    """Gives it its name, unless another node was first; a rename would replace what that one wrote."""
    try:
        os.link(fresh, target)
    except FileExistsError:
        return
    except OSError:
        if not target.exists():  # a file system without hard links: the first is then not always the one that holds
            fresh.rename(target)


def _digest_in(file: Path) -> str | None:
    name = _read(file)
    return name.digest if name else None


def _read(file: Path) -> Name | None:
    try:
        name = msgspec.json.decode(file.read_bytes(), type=Name)
    except (OSError, msgspec.DecodeError):
        return None
    return name if is_digest(name.digest) else None
