"""Blobs on the node: fetched once for all of its processes, verified whenever they are about to be used.

A blob is written to ``partial/`` while it comes, and renamed when its bytes have its digest. What a fetcher that died
left there is gone on with. A copy that does not have its digest, on the node or on the second level, is dropped and
fetched again from the next source.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rollart_hpc.errors import ImageError
from rollart_hpc.images.deadline import Deadline
from rollart_hpc.images.locks import exclusive, in_use
from rollart_hpc.images.manifest import Descriptor
from rollart_hpc.images.node_directory import NodeDirectory, is_full, write_whole
from rollart_hpc.images.shared import SharedDirectory
from rollart_hpc.images.source import CHUNK_BYTES, Source, SourceDownError, SourceError

_log = logging.getLogger(__name__)
_TRIES_OF_CORRUPT = 4


class _CorruptError(SourceError):
    """What the source gave does not have the digest."""


class Blobs:
    """The blobs that one image needs.

    Args:
        node: where they are kept.
        sources: where they come from, the nearest first.
        shared: that of them which gets copies of what the others gave.
        deadline: of the pull.
    """

    def __init__(
        self, node: NodeDirectory, sources: Sequence[Source], *, shared: SharedDirectory | None, deadline: Deadline
    ) -> None:
        self._node, self._sources, self._shared, self._deadline = node, sources, shared, deadline
        self._verified: set[str] = set()

    @contextmanager
    def held(self, descriptor: Descriptor) -> Generator[Path]:
        """A blob's file, which is not collected as long as the block lasts.

        Raises:
            ImageError: no source can give it.
            OSError: the node's disk does not take it.
        """
        path = self._node.blob(descriptor.digest)
        while True:
            with in_use(path) as there:
                if there and self._is_good(path, descriptor.digest):
                    yield path
                    return
            self._fetch_once(descriptor, path)

    def manifest(self, digest: str) -> bytes:
        """A manifest or an index by its digest; how long it is, nobody says before.

        Raises:
            ImageError: no source can give it.
            OSError: the node's disk does not take it.
        """
        path = self._node.blob(digest)
        with exclusive(self._node.lock("blob", digest), self._deadline, f"manifest {digest}"):
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                if digest_of(data) == digest:
                    os.utime(path)
                    return data
                _log.warning("the copy of %s on this node is corrupt; it is fetched again", digest)

            def fetch(source: Source) -> None:
                data = source.manifest(digest)
                if digest_of(data) != digest:
                    raise _CorruptError(f"{source.name} gave other bytes for the manifest {digest}", retryable=False)
                write_whole(path, data)

            self._fetch_from_first(digest, path, fetch)
            return path.read_bytes()

    def put(self, data: bytes) -> str:
        """Takes a manifest that came under a tag; gives its digest."""
        digest = digest_of(data)
        write_whole(self._node.blob(digest), data)
        self._share(digest, self._node.blob(digest), source=None)
        return digest

    def forget(self, descriptor: Descriptor) -> None:
        """Removes a blob that is not needed any more, where room is short."""
        self._node.blob(descriptor.digest).unlink(missing_ok=True)

    def _is_good(self, path: Path, digest: str) -> bool:
        if digest in self._verified:
            return True
        if _digest_of_file(path) != digest:
            return False
        os.utime(path)
        self._verified.add(digest)
        return True

    def _fetch_once(self, descriptor: Descriptor, path: Path) -> None:
        digest = descriptor.digest
        with exclusive(self._node.lock("blob", digest), self._deadline, f"blob {digest}"):
            if path.exists():
                if self._is_good(path, digest):
                    return
                _log.warning("the copy of %s on this node is corrupt; it is fetched again", digest)
                path.unlink(missing_ok=True)
            self._fetch_from_first(digest, path, lambda source: self._fetch(source, descriptor, path))
            self._verified.add(digest)

    def _fetch_from_first(self, digest: str, path: Path, fetch: Callable[[Source], None]) -> None:
        """Of the sources that can give it."""
        failures: list[SourceError] = []
        for source in self._sources:
            try:
                _fetch_uncorrupted(source, digest, fetch)
            except SourceError as error:
                failures.append(error)
            else:
                self._share(digest, path, source)
                return
        raise combined(failures)

    def _share(self, digest: str, path: Path, source: Source | None) -> None:
        if self._shared is not None and source is not self._shared:
            # The breaker says that it is down; a pull does not need it.
            with contextlib.suppress(SourceDownError):
                self._shared.keep(digest, path)

    def _fetch(self, source: Source, descriptor: Descriptor, path: Path) -> None:
        partial = self._node.partial(descriptor.digest)
        try:
            self._write(source, descriptor, partial)
        except OSError as error:
            if is_full(error):
                partial.unlink(missing_ok=True)
            raise
        except _CorruptError:
            partial.unlink(missing_ok=True)
            raise
        partial.rename(path)

    def _write(self, source: Source, descriptor: Descriptor, partial: Path) -> None:
        hasher = hashlib.sha256()
        with partial.open("a+b", buffering=0) as file:
            file.seek(0)
            while chunk := file.read(CHUNK_BYTES):
                hasher.update(chunk)
            size = file.tell()
            if size < descriptor.size:
                with contextlib.closing(source.blob(descriptor, size)) as chunks:
                    for chunk in chunks:
                        _write_all(file.fileno(), chunk)
                        hasher.update(chunk)
                        size += len(chunk)
                        if size > descriptor.size:
                            break
            os.fsync(file.fileno())
        if (size, f"sha256:{hasher.hexdigest()}") != (descriptor.size, descriptor.digest):
            raise _CorruptError(
                f"{source.name} gave {size} bytes with the digest sha256:{hasher.hexdigest()} for "
                f"{descriptor.digest} of {descriptor.size} bytes; the copy there is corrupt",
                retryable=False,
            )


def _fetch_uncorrupted(source: Source, digest: str, fetch: Callable[[Source], None]) -> None:
    """Again where the bytes are wrong: what a killed process left may have been, or the way from a registry."""
    for last in range(1, _TRIES_OF_CORRUPT + 1):
        try:
            fetch(source)
        except _CorruptError as error:
            source.discard(digest)
            _log.warning("%s", error)
            if last == _TRIES_OF_CORRUPT:
                raise
        else:
            return


def combined(failures: Sequence[ImageError]) -> ImageError:
    """One error that says what every source said; trying again may help when it may with one of them."""
    return ImageError("; ".join(map(str, failures)), retryable=any(error.retryable for error in failures))


def digest_of(data: bytes) -> str:
    """The digest of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
