"""Checkpoints of a run: one directory each, published whole or not at all.

    RUN/checkpoints/step-000020/
        trainer/         Megatron distributed checkpoint, written by the trainer ranks
        controller.json  step, cursors of the tasks, identity of the model
        COMPLETE.json    every file above with its size and checksum; written last

Everything is written into a directory whose name starts with a dot, made durable, renamed, and only then are older
ones removed, again by way of a name with a dot. So whatever has such a name at the start of an attempt is a leftover,
and `sweep` removes it. ``latest`` is a hint for people: the newest checkpoint is found by scanning.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import xxhash

from rollart_hpc.control_plane.model_identity import ModelIdentity
from rollart_hpc.control_plane.task_cursor import TaskCursor
from rollart_hpc.errors import CheckpointError

_log = logging.getLogger(__name__)
_MARKER = "COMPLETE.json"
_CHUNK_BYTES = 16 << 20
_CONTROLLER = "controller.json"
_TRAINER = "trainer"
_LATEST = "latest"
_REPLACED = ".replaced-"
_REMOVED = ".removed-"
_KEPT = 2
"""Newest checkpoints that are kept, so that one may turn out to be damaged."""


class ControllerState(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's part of a checkpoint."""

    step: int
    """Optimizer steps done; also the version of the weights."""
    cursors: dict[str, TaskCursor]
    model: ModelIdentity


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint."""

    size_bytes: int
    checksum: str
    """xxh3-64 of its bytes, hexadecimal."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a checkpoint complete."""

    parts: dict[str, Part]
    """Every other file, by its path in the checkpoint."""
    kept_for_good: bool
    """Newer ones never cause its removal."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint on disk."""

    directory: Path
    state: ControllerState
    marker: Marker

    @property
    def trainer(self) -> Path:
        """The trainer's part."""
        return self.directory / _TRAINER


def begin(run_directory: Path, step: int) -> Path:
    """A new unpublished directory for the checkpoint of ``step``, with a name that none ever had.

    A writer of an earlier attempt that is not quite gone can so never reach into it.
    """
    unfinished = _root(run_directory) / f".step-{step:06d}-{secrets.token_hex(4)}"
    unfinished.mkdir(parents=True)
    return unfinished


def trainer_part(unfinished: Path) -> Path:
    """Where the trainer ranks write; not created yet."""
    return unfinished / _TRAINER


def seal(directory: Path) -> dict[str, Part]:
    """Makes the files in a directory durable and reads them for their checksums; by their paths in it."""
    return {str(path.relative_to(directory)): _seal(path) for path in _files(directory)}


def publish(
    unfinished: Path, state: ControllerState, *, sealed: Mapping[str, Part] | None = None, kept_for_good: bool = False
) -> Checkpoint:
    """Completes and publishes what `begin` opened; durable on return. Older ones stay until `prune`.

    Args:
        unfinished: With everything that the trainers write.
        state: The controller's part.
        sealed: What `seal` said of files that are there already and do not change any more.
        kept_for_good: Whether `prune` leaves it alone for ever.
    """
    (unfinished / _CONTROLLER).write_bytes(msgspec.json.encode(state))
    parts = dict(sealed or {})
    for path in _files(unfinished):
        name = str(path.relative_to(unfinished))
        parts[name] = parts.get(name) or _seal(path)
    marker = Marker(parts=parts, kept_for_good=kept_for_good)
    (unfinished / _MARKER).write_bytes(msgspec.json.encode(marker))
    _sync(unfinished / _MARKER)
    for directory in (*(path for path in unfinished.rglob("*") if path.is_dir()), unfinished):
        _sync(directory)
    final = unfinished.with_name(f"step-{state.step:06d}")
    replaced = final.with_name(_REPLACED + final.name)
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    unfinished.rename(final)
    _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    _point_latest(final)
    return Checkpoint(directory=final, state=state, marker=marker)


def discard(unfinished: Path) -> None:
    """Removes what `begin` opened, as far as it can be; the rest is swept at the next start."""
    shutil.rmtree(unfinished, ignore_errors=True)


def prune(run_directory: Path, newest_step: int) -> None:
    """Removes checkpoints older than the two newest, unless they are kept for good.

    Args:
        run_directory: The run's.
        newest_step: Of the one that was published just now. One of a later step is no newer: it was found damaged
            when the run went on from an earlier one.
    """
    for old in _up_to(run_directory, newest_step)[:-_KEPT]:
        if not old.marker.kept_for_good:
            removed = old.directory.with_name(_REMOVED + old.directory.name)
            shutil.rmtree(removed, ignore_errors=True)
            old.directory.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)


def oldest_kept_step(run_directory: Path, newest_step: int | None = None) -> int | None:
    """The step of the oldest checkpoint that a resume may have to go on from; None when there is none.

    Older ones are only those that are kept for good: for people, not for a resume. `newest_step` is as in `prune`.
    """
    kept = _up_to(run_directory, newest_step)[-_KEPT:]
    return kept[0].state.step if kept else None


def sweep(run_directory: Path) -> list[str]:
    """Removes what a killed attempt left unfinished; call it before anything of the new attempt is saved.

    A checkpoint that was being replaced by another of its step, which never came, is put back.

    Returns:
        The names of what was removed; each is in the log as well.
    """
    swept: list[str] = []
    for leftover in _leftovers(run_directory):
        if leftover.name.startswith(_REPLACED):
            original = leftover.with_name(leftover.name.removeprefix(_REPLACED))
            if not original.exists():
                leftover.rename(original)
                _log.warning("%s: put back; a save of the same step was cut off while it replaced it", original)
                continue
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
        _log.warning("%s: removed; an earlier attempt ended while it was at it", leftover)
        swept.append(leftover.name)
    return swept


def find_all(run_directory: Path) -> list[Checkpoint]:
    """Every complete checkpoint of a run, oldest first; sizes are compared, bytes are not read."""
    found = list[Checkpoint]()
    for directory in _published(run_directory):
        try:
            found.append(_open(directory))
        except CheckpointError:
            continue
    return found


def find_newest(run_directory: Path) -> Checkpoint | None:
    """The newest complete checkpoint, if there is one; a damaged one that is passed over is told in the log."""
    return _newest(run_directory, read_all=False)


def find_sound(run_directory: Path) -> Checkpoint | None:
    """The newest checkpoint whose files are, byte for byte, as they were written; the one to go on from.

    What is passed over and why is in the log, leftovers and a wrong ``latest`` too.
    """
    for leftover in _leftovers(run_directory):
        _log.warning("%s is passed over: it is a leftover of an unfinished save", leftover)
    newest = _newest(run_directory, read_all=True)
    latest = _root(run_directory) / _LATEST
    if latest.is_symlink() and newest is not None and latest.readlink() != Path(newest.directory.name):
        _log.warning("%s points to %s and is passed over: %s is taken", latest, latest.readlink(), newest.directory)
    return newest


def find_step(run_directory: Path, step: int) -> Checkpoint:
    """The complete checkpoint of a step.

    Raises:
        CheckpointError: there is none; the text lists the steps that have one.
    """
    complete = {one.state.step: one for one in find_all(run_directory)}
    if step not in complete:
        raise CheckpointError(f"{run_directory}: no complete checkpoint of step {step}; there are {sorted(complete)}")
    return complete[step]


def damaged_parts(found: Checkpoint) -> list[str]:
    """What is not as it was written, in words; reads all of it."""
    return list(_faults(found.directory, found.marker, read_all=True))


def _root(run_directory: Path) -> Path:
    return run_directory / "checkpoints"


def _published(run_directory: Path) -> list[Path]:
    """Directories with the name of a checkpoint, oldest step first."""
    named = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in _root(run_directory).glob("step-*")]
    return [path for _, path in sorted((int(match[1]), path) for match, path in named if match)]


def _leftovers(run_directory: Path) -> list[Path]:
    return sorted(_root(run_directory).glob(".*"))


def _up_to(run_directory: Path, step: int | None) -> list[Checkpoint]:
    return [one for one in find_all(run_directory) if step is None or one.state.step <= step]


def _newest(run_directory: Path, *, read_all: bool) -> Checkpoint | None:
    newest = None
    for directory in reversed(_published(run_directory)):
        try:
            newest = _open(directory, read_all=read_all)
            break
        except CheckpointError as error:
            _log.warning("%s is passed over: %s", directory, error)
    return newest


def _open(directory: Path, *, read_all: bool = False) -> Checkpoint:
    """The checkpoint in a published directory.

    Raises:
        CheckpointError: it is not as it was written; the text says what is wrong with it.
    """
    try:
        marker = msgspec.json.decode((directory / _MARKER).read_bytes(), type=Marker)
        faults = list(_faults(directory, marker, read_all=read_all))
        state = msgspec.json.decode((directory / _CONTROLLER).read_bytes(), type=ControllerState)
    except FileNotFoundError as error:
        raise CheckpointError(f"it has no {Path(error.filename).name}") from error
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{_MARKER} or {_CONTROLLER} is not as it was written ({error})") from error
    if f"step-{state.step:06d}" != directory.name:
        faults.append(f"it holds step {state.step}")
    if faults:
        raise CheckpointError("; ".join(faults))
    return Checkpoint(directory=directory, state=state, marker=marker)


def _faults(directory: Path, marker: Marker, *, read_all: bool) -> Iterator[str]:
    for name, part in marker.parts.items():
        path = directory / name
        try:
            size_bytes = path.stat().st_size
            if size_bytes != part.size_bytes:
                yield f"{name} has {size_bytes} bytes instead of {part.size_bytes}"
            elif read_all and _checksum(path) != part.checksum:
                yield f"{name} has other bytes than were written"
        except FileNotFoundError:
            yield f"{name} is missing"
        except OSError as error:
            yield f"{name} cannot be read ({error.strerror})"


def _seal(path: Path) -> Part:
    _sync(path)
    return Part(size_bytes=path.stat().st_size, checksum=_checksum(path))


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
    """Moves the hint; a checkpoint is complete without it."""
    temporary = final.with_name(f".{_LATEST}")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(final.name)
        temporary.replace(final.with_name(_LATEST))
    except OSError as error:
        _log.warning("%s could not be moved to %s: %s", final.with_name(_LATEST), final.name, error.strerror)
