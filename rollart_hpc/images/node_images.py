"""Unpacked images on the node: when one is there, what is known of it, whether it is still whole.

An image appears by a rename after all of it was written, with its record. Two things can still take files from it: a
node that lost power, and cleaners of temporary directories, which remove old files one by one. So an image of another
boot, or one that nobody used for a day, is looked through before it is used.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from rollart_hpc.images.image import Image

_RECORD = "image.json"
_ROOT = "root"
_LOOK_THROUGH_AFTER_S = 86400.0
_TOUCH_AFTER_S = 30.0
_BLOCK_BYTES = 512
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory holds."""

    entries: int
    content_bytes: int
    """Lengths of the regular files."""
    disk_bytes: int
    """What they take, each once however many names it has."""


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an unpacked image."""

    reference: str
    """As it was first asked for."""
    digest: str
    measure: Measure
    boot: str
    """Of the node, when it was unpacked or looked through."""
    environment: dict[str, str]
    working_directory: str


def root_of(directory: Path) -> Path:
    """Where an image's root file system is."""
    return directory / _ROOT


def write_record(directory: Path, record: ImageRecord) -> None:
    """Puts the record beside the root."""
    (directory / _RECORD).write_bytes(msgspec.json.encode(record))


def read_record(directory: Path) -> ImageRecord | None:
    """The record of an image; None where there is none."""
    try:
        return msgspec.json.decode((directory / _RECORD).read_bytes(), type=ImageRecord)
    except (OSError, msgspec.DecodeError):
        return None


def used_at(directory: Path) -> float:
    """When an image was last used, within half a minute."""
    try:
        return (directory / _RECORD).stat().st_mtime
    except OSError:
        return 0.0


def is_whole(directory: Path) -> bool:
    """Whether all of an image is there; told by its record and root alone, where nothing can have happened to it."""
    record = read_record(directory)
    if record is None or not root_of(directory).is_dir():
        return False
    age_s = time.time() - used_at(directory)
    if record.boot == boot_id() and age_s < _LOOK_THROUGH_AFTER_S:
        if age_s > _TOUCH_AFTER_S:
            _touch(directory)
        return True
    try:
        found = measure(root_of(directory))
    except FileNotFoundError:
        return False  # it is being cleaned away
    if (found.entries, found.content_bytes) != (record.measure.entries, record.measure.content_bytes):
        return False
    with contextlib.suppress(OSError):
        write_record(directory, msgspec.structs.replace(record, boot=boot_id()))
    return True


def as_image(directory: Path, reference: str) -> Image | None:
    """An image for who asked for it; None where it is not there."""
    record = read_record(directory)
    return record and Image(
        reference=reference,
        digest=record.digest,
        root=root_of(directory),
        environment=record.environment,
        working_directory=record.working_directory,
    )


def boot_id() -> str:
    """Of this node since it was started."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def measure(directory: Path) -> Measure:
    """What is in a directory, links not followed."""
    entries = content = disk = 0
    seen: set[int] = set()
    todo = [str(directory)]
    while todo:
        with os.scandir(todo.pop()) as found:
            for entry in found:
                entries += 1
                status = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    content += status.st_size
                if status.st_nlink == 1 or status.st_ino not in seen:
                    disk += status.st_blocks * _BLOCK_BYTES
                    seen.add(status.st_ino)
    return Measure(entries=entries, content_bytes=content, disk_bytes=disk)


def _touch(directory: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(directory / _RECORD)
