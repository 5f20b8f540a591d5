"""Level 2: copies of blobs, and what tags meant, on the file system that all nodes share.

Invariants: a name appears by a rename of complete bytes, and nothing under a name is ever changed; so readers and
writers on many nodes need no locks, which many shared file systems do not have. Whoever reads verifies.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from rollart_hpc.images.answering import answered
from rollart_hpc.images.breaker import NodeBreaker
from rollart_hpc.images.manifest import MAX_MANIFEST_BYTES, Descriptor
from rollart_hpc.images.node_directory import hashed
from rollart_hpc.images.reference import absolute, hex_of, is_digest
from rollart_hpc.images.source import CHUNK_BYTES, MissingError, SourceDownError

_LEFT_BEHIND_S = 86400.0


class SharedDirectory:
    """A directory of blobs; made with the first copy that is kept in it.

    Args:
        root: where.
        breaker: what this node knows of it.

    Raises:
        ImageError: its path names a user whom there is not; not retryable.
    """

    def __init__(self, root: Path, breaker: NodeBreaker) -> None:
        self._root, self._breaker = absolute(root, "images.shared_directory"), breaker

    @property
    def name(self) -> str:
        """As users know it."""
        return f"the shared directory {self._root}"

    def manifest(self, wanted: str) -> bytes:
        """A manifest by its digest; what a tag means is not the business of copies."""
        if not is_digest(wanted):
            raise MissingError(f"{self.name} is not asked for tags")
        return self._read(self._blob(wanted))

    def blob(self, descriptor: Descriptor, offset: int) -> Generator[bytes]:
        """The copy, from ``offset`` on."""
        with self._asked(descriptor.digest):
            file = answered(self._blob(descriptor.digest).open, "rb", buffering=0)
            try:
                file.seek(offset)
                while chunk := answered(file.read, CHUNK_BYTES):
                    yield chunk
            finally:
                file.close()

    def discard(self, digest: str) -> None:
        """Drops a corrupt copy."""
        with contextlib.suppress(OSError):
            answered(self._blob(digest).unlink)

    def close(self) -> None:
        """Holds nothing."""

    def keep(self, digest: str, file: Path) -> None:
        """Puts a copy there, unless there is one.

        Raises:
            SourceDownError: it could not be written.
        """
        target = self._blob(digest)
        with self._breaker.guarding():
            if not self._exists(target):
                with file.open("rb") as source:
                    self._write(target, iter(lambda: source.read(CHUNK_BYTES), b""))

    def tagged(self, reference: str) -> str:
        """The digest that a reference with a tag had when some node last asked its registry.

        Raises:
            SourceError: nobody did, or the directory does not answer.
        """
        digest = self._read(self._tag(reference)).decode(errors="replace").strip()
        if not is_digest(digest):
            raise MissingError(f"{self.name} has no digest of {reference}")
        return digest

    def keep_tag(self, reference: str, digest: str) -> None:
        """Records what a tag means now.

        Raises:
            SourceDownError: it could not be written.
        """
        with self._breaker.guarding():
            self._write(self._tag(reference), iter([digest.encode()]))

    def sweep(self) -> None:
        """Removes what writers that died left a day ago or earlier."""
        with contextlib.suppress(OSError):
            for file in answered(lambda: list((self._root / "incoming").iterdir())):
                if time.time() - file.stat().st_mtime > _LEFT_BEHIND_S:
                    file.unlink()

    def _read(self, file: Path) -> bytes:
        def read() -> bytes:
            with file.open("rb") as opened:
                return opened.read(MAX_MANIFEST_BYTES)

        with self._asked(file.name):
            return answered(read)
        raise AssertionError("either read or raised")

    def _write(self, target: Path, chunks: Iterator[bytes]) -> None:
        incoming = self._root / "incoming" / f"{target.name}.{os.uname().nodename}.{secrets.token_hex(4)}"
        try:
            for directory in (self._root, incoming.parent, target.parent.parent, target.parent):
                answered(directory.mkdir, exist_ok=True)
            file = answered(incoming.open, "xb", buffering=0)
            try:
                for chunk in chunks:
                    answered(_write_all, file.fileno(), chunk)
                answered(os.fsync, file.fileno())
            finally:
                file.close()
            answered(incoming.rename, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                answered(incoming.unlink, missing_ok=True)
            raise SourceDownError(f"{self.name}: {target.name} cannot be kept: {error.strerror or error}") from error

    def _blob(self, digest: str) -> Path:
        name = hex_of(digest)
        return self._root / "blobs" / name[:2] / name

    def _tag(self, reference: str) -> Path:
        name = hashed(reference)
        return self._root / "tags" / name[:2] / name

    @contextlib.contextmanager
    def _asked(self, what: str) -> Generator[None]:
        with self._breaker.guarding():
            try:
                yield
            except FileNotFoundError:
                raise MissingError(f"{self.name} has no copy of {what}") from None
            except OSError as error:
                raise SourceDownError(f"{self.name}: {error.strerror or error}") from error

    def _exists(self, file: Path) -> bool:
        try:
            return answered(file.exists)
        except OSError as error:
            raise SourceDownError(f"{self.name}: {error.strerror or error}") from error


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
