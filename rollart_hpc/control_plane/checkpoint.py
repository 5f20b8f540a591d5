"""Checkpoints of a run: one directory each, published whole or not at all.

    RUN/checkpoints/step-000020/
        trainer/         Megatron distributed checkpoint, written by the trainer ranks
        controller.json  step, cursors of the tasks
        COMPLETE.json    every file above with its size and checksum; written last

Everything is written into a directory whose name starts with a dot, made durable, renamed, and only then are older
ones pruned; ``latest`` is a hint for people. The newest complete checkpoint is found by scanning.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import msgspec
import xxhash

from rollart_hpc.control_plane.rollout_scheduler import TaskCursor
from rollart_hpc.errors import CheckpointError

_log = logging.getLogger(__name__)
_MARKER = "COMPLETE.json"
_CHUNK_BYTES = 16 << 20
_CONTROLLER = "controller.json"
_TRAINER = "trainer"
_KEPT = 2


class ControllerState(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's part of a checkpoint."""

    step: int
    """Optimizer steps done; also the version of the weights."""
    cursors: dict[str, TaskCursor]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint."""

    size_bytes: int
    checksum: str
    """xxh3-64 of its bytes, hexadecimal."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint on disk."""

    directory: Path
    state: ControllerState

    @property
    def trainer(self) -> Path:
        """The trainer's part."""
        return self.directory / _TRAINER


def _root(run_directory: Path) -> Path:
    return run_directory / "checkpoints"


def begin(run_directory: Path, step: int) -> Path:
    """A new unpublished directory for the checkpoint of ``step``; the trainer writes into its ``trainer`` part."""
    unfinished = _root(run_directory) / f".step-{step:06d}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    return unfinished


def trainer_part(unfinished: Path) -> Path:
    """Where the trainer ranks write; not created yet."""
    return unfinished / _TRAINER


def publish(unfinished: Path, state: ControllerState) -> Checkpoint:
    """Completes and publishes what `begin` opened, then prunes older ones down to two."""
    (unfinished / _CONTROLLER).write_bytes(msgspec.json.encode(state))
    parts: dict[str, Part] = {}
    for path in _files(unfinished):
        _sync(path)
        parts[str(path.relative_to(unfinished))] = Part(size_bytes=path.stat().st_size, checksum=_checksum(path))
    (unfinished / _MARKER).write_bytes(msgspec.json.encode(parts))
    _sync(unfinished / _MARKER)
    _sync(unfinished)
    final = unfinished.with_name(f"step-{state.step:06d}")
    replaced = final.with_name(f".replaced-{final.name}")
    if final.exists():
        final.rename(replaced)
    unfinished.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)
    _sync(final.parent)
    _point_latest(final)
    complete = find_all(final.parent.parent)
    for old in complete[:-_KEPT]:
        shutil.rmtree(old.directory, ignore_errors=True)
    return Checkpoint(directory=final, state=state)


def find_all(run_directory: Path) -> list[Checkpoint]:
    """Every complete checkpoint of a run, oldest first."""
    found = [_read(directory) for directory in _root(run_directory).glob("step-*")]
    return sorted((one for one in found if one is not None), key=lambda one: one.state.step)


def find_newest(run_directory: Path) -> Checkpoint | None:
    """The newest complete checkpoint, if there is one."""
    return next(reversed(find_all(run_directory)), None)


def find_sound(run_directory: Path) -> Checkpoint | None:
    """The newest complete checkpoint whose files are as they were written; damaged ones are passed over and told."""
    for candidate in reversed(find_all(run_directory)):
        damaged = damaged_parts(candidate)
        if not damaged:
            return candidate
        _log.warning("%s is damaged (%s) and passed over", candidate.directory, ", ".join(damaged))
    return None


def damaged_parts(found: Checkpoint) -> list[str]:
    """The files of a checkpoint that are not as they were written; reads all of it."""
    parts = msgspec.json.decode((found.directory / _MARKER).read_bytes(), type=dict[str, Part])
    return [name for name, part in parts.items() if _checksum(found.directory / name) != part.checksum]


def find_step(run_directory: Path, step: int) -> Checkpoint:
    """The complete checkpoint of a step.

    Raises:
        CheckpointError: there is none; the text lists the steps that have one.
    """
    complete = {one.state.step: one for one in find_all(run_directory)}
    if step not in complete:
        raise CheckpointError(f"{run_directory}: no complete checkpoint of step {step}; there are {sorted(complete)}")
    return complete[step]


def _read(directory: Path) -> Checkpoint | None:
    """The checkpoint in ``directory``; None when any part is missing or has another size."""
    try:
        parts = msgspec.json.decode((directory / _MARKER).read_bytes(), type=dict[str, Part])
        whole = all((directory / name).stat().st_size == part.size_bytes for name, part in parts.items())
        state = msgspec.json.decode((directory / _CONTROLLER).read_bytes(), type=ControllerState)
    except (OSError, msgspec.MsgspecError):
        return None
    return Checkpoint(directory=directory, state=state) if whole else None


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _point_latest(final: Path) -> None:
    temporary = final.with_name(".latest")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(final.name)
    temporary.replace(final.with_name("latest"))
