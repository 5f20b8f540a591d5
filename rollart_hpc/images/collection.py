"""Making room on the node: what was not used for longest goes first, and nothing that is in use."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollart_hpc.errors import ImageError
from rollart_hpc.images.deadline import Deadline
from rollart_hpc.images.locks import exclusive, unused
from rollart_hpc.images.node_directory import NodeDirectory
from rollart_hpc.images.node_images import read_record, used_at
from rollart_hpc.images.reference import digest_of_hex, is_digest

_FORGOTTEN_S = 3600.0
Kind = Literal["image", "blob", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One thing on the node."""

    kind: Kind
    digest: str
    path: Path
    size_bytes: int
    used_at: float
    """Unix time."""
    reference: str = ""
    """Of an image, as it was first asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection did."""

    removed: tuple[Kept, ...]
    left_bytes: int

    @property
    def removed_bytes(self) -> int:
        """How much room it made."""
        return sum(one.size_bytes for one in self.removed)


def kept_on(node: NodeDirectory) -> list[Kept]:
    """All that the node keeps, what was used last at the end."""
    return sorted([*_images(node), *_files(node, "blob"), *_files(node, "partial")], key=lambda one: one.used_at)


def collect(node: NodeDirectory, max_bytes: int) -> Collected:
    """Removes until at most ``max_bytes`` are left, or what is left is in use."""
    _sweep(node)
    kept = kept_on(node)
    left = sum(one.size_bytes for one in kept)
    removed: list[Kept] = []
    for one in kept:
        if left <= max_bytes:
            break
        if _remove(node, one):
            removed.append(one)
            left -= one.size_bytes
    return Collected(removed=tuple(removed), left_bytes=left)


def is_in_use(kept: Kept) -> bool:
    """Whether somebody uses it now."""
    with unused(kept.path) as free:
        return not free


def _images(node: NodeDirectory) -> Iterator[Kept]:
    for directory in _of_digests(node.root / "images"):
        record = read_record(directory)
        yield Kept(
            kind="image",
            digest=digest_of_hex(directory.name),
            path=directory,
            size_bytes=record.measure.disk_bytes if record else 0,
            used_at=used_at(directory),
            reference=record.reference if record else "",
        )


def _files(node: NodeDirectory, kind: Literal["blob", "partial"]) -> Iterator[Kept]:
    for path in _of_digests(node.root / ("blobs" if kind == "blob" else kind)):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            digest = digest_of_hex(path.name)
            yield Kept(kind=kind, digest=digest, path=path, size_bytes=status.st_size, used_at=status.st_mtime)


def _of_digests(directory: Path) -> Iterator[Path]:
    """What is ours in a directory: somebody else's files have other names, and are left alone."""
    return (path for path in directory.glob("*") if is_digest(digest_of_hex(path.name)))


def _remove(node: NodeDirectory, one: Kept) -> bool:
    if one.kind == "partial":
        return _remove_partial(node, one)
    with unused(one.path) as free:
        if free and one.kind == "image":
            node.throw_away(one.path)
        elif free:
            one.path.unlink(missing_ok=True)
        return free


def _remove_partial(node: NodeDirectory, one: Kept) -> bool:
    with _not_made_now(node, "blob", one.digest) as free:
        if free:
            one.path.unlink(missing_ok=True)
        return free


def _sweep(node: NodeDirectory) -> None:
    """Removes what processes that died were at, and how tries failed that nobody waits for any more."""
    for left in (node.root / "trash").glob("*"):
        shutil.rmtree(left, ignore_errors=True)
    for note in (node.root / "failed").glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - note.stat().st_mtime > _FORGOTTEN_S:
                note.unlink()
    for left in (node.root / "unpacking").glob("*"):
        with _not_made_now(node, "image", digest_of_hex(left.name)) as free:
            if free:
                node.throw_away(left)


@contextlib.contextmanager
def _not_made_now(node: NodeDirectory, kind: str, digest: str) -> Generator[bool]:
    """Holds the lock of whoever makes something; says whether nobody had it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(node.lock(kind, digest), Deadline(0.0), digest))
        except ImageError:
            yield False
        else:
            yield True
