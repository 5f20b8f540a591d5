"""Saves checkpoints beside training: the step pays for a copy to host memory, everything else goes on behind it.

    step boundary      begin: copy ─┐                       settle: commit, publish      step boundary ...
    train_step ...                  └▶ write files, checksums ─▲                └▶ prune

Consumes the controller's state at a step boundary; produces complete checkpoints; waits for the trainers.

Invariants:
- Collective calls of the trainers (`begin_save`, `commit_save`) are made inside `begin` and `settle` only, which the
  training loop awaits at step boundaries: every rank sees them in one order with the train steps. Writing is not
  collective and has a thread of its own in each rank.
- One checkpoint is under way at most.
- A checkpoint that cannot be written costs itself alone: its directory is removed, the run goes on, the newest
  complete one stays.

Who waits for whom: `begin` and `settle` wait for all ranks, and the ranks in them for each other (a rank that is gone
ends the wait at once; one that hangs ends it with the Cluster's deadline, or its peers' own collective deadline).
The writing waits for the slowest rank's disk, under the Cluster's deadline too; nothing waits for the writing but
``settle(wait=True)`` and `save`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rollart_hpc.control_plane import checkpoint
from rollart_hpc.control_plane.checkpoint import Checkpoint, ControllerState, Part
from rollart_hpc.control_plane.protocol import Announce, ProtocolStep, unobserved
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.errors import NotReachableError
from rollart_hpc.observe.growing_file import free_space

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """The checkpoint under way."""

    state: ControllerState
    unfinished: Path
    began: float
    """`time.perf_counter` when the step went on."""
    writing: asyncio.Task[_Written]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What became of the trainers' files."""

    failure: str = ""
    """Why they could not be written; empty when they are."""
    parts: dict[str, Part] = field(default_factory=dict[str, Part])


class CheckpointSaver:
    """The checkpoints of one attempt; used by the training loop between two steps."""

    def __init__(
        self,
        run_directory: Path,
        trainers: Cluster[ActorTrainCls],
        *,
        keep_every: int | None,
        saved_step: int = -1,
        announce: Announce = unobserved,
    ) -> None:
        """Nothing is written before `begin`.

        Args:
            run_directory: On the file system that the trainers share.
            trainers: Every rank.
            keep_every: `run.checkpoint_keep_every`.
            saved_step: Of the checkpoint that the attempt goes on from; -1 when there is none.
            announce: Told of CHECKPOINT when the state is copied and the files are about to be written, of COMMIT
                when they are about to be committed.
        """
        self._run_directory, self._trainers = run_directory, trainers
        self._keep_every, self._announce = keep_every, announce
        self._saving: _Saving | None = None
        self._pruning: asyncio.Task[None] | None = None
        self.saved_step = saved_step
        """Step of the newest complete checkpoint; -1 when there is none."""
        self.failures = 0
        """Checkpoints that could not be written."""
        self.seconds: dict[str, float] = {"stall": 0.0, "background": 0.0}
        """Sums of this attempt: what steps waited for, and what was written beside them."""

    async def begin(self, state: ControllerState) -> None:
        """Begins a checkpoint of the step that is done; returns when training may go on.

        While one is under way, another is skipped with a warning. A step that is saved already is not saved again.

        Raises:
            BusError: a trainer is gone, or failed otherwise than by its disk.
        """
        if state.step == self.saved_step:
            return
        if self._saving is not None:
            _log.warning(
                "no checkpoint of step %d: that of step %d has been under way for %.1f s; raise run.checkpoint_every",
                state.step, self._saving.state.step, time.perf_counter() - self._saving.began,
            )  # fmt: skip
            return
        with self._stalled():
            try:
                unfinished = await asyncio.to_thread(checkpoint.begin, self._run_directory, state.step)
            except OSError as error:
                await self._failed(state.step, str(error))
                return
            part = str(checkpoint.trainer_part(unfinished))
            if failure := _joined(await self._trainers.call(ActorTrainCls.begin_save, part)):
                await self._give_up(state.step, unfinished, failure)
                return
        await self._announce(ProtocolStep.CHECKPOINT, state.step)
        self._saving = _Saving(
            state=state,
            unfinished=unfinished,
            began=time.perf_counter(),
            writing=asyncio.create_task(self._write(unfinished)),
        )

    async def settle(self, *, wait: bool) -> Checkpoint | None:
        """Completes the checkpoint under way if its files are written; called at every step boundary.

        Args:
            wait: Waits until they are.

        Returns:
            The newly complete checkpoint; None when there is none, or when it could not be written, which is told
            in the log.

        Raises:
            BusError: a trainer is gone, or failed otherwise than by its disk.
        """
        saving = self._saving
        if saving is None or not (wait or saving.writing.done()):
            return None
        with self._stalled():
            written = await saving.writing
        self._saving = None
        await self._announce(ProtocolStep.COMMIT, saving.state.step)
        with self._stalled():
            failure = written.failure or _joined(await self._trainers.call(ActorTrainCls.commit_save))
            if not failure:
                try:
                    return await self._publish(saving, written)
                except OSError as error:
                    failure = str(error)
            await self._give_up(saving.state.step, saving.unfinished, failure)
            return None

    async def save(self, state: ControllerState) -> Checkpoint | None:
        """The last one of an attempt: waits for the one under way, then saves ``state`` and waits for that.

        Returns:
            The newest checkpoint that this call completed; None when the step was saved already, or when it could
            not be written.
        """
        before = await self.settle(wait=True)
        await self.begin(state)
        return await self.settle(wait=True) or before

    async def close(self) -> None:
        """Gives up what is under way and waits until older checkpoints are removed; at the end of every attempt."""
        if self._saving is not None:
            self._saving.writing.cancel()
        if self._pruning is not None:
            await self._pruning

    async def _write(self, unfinished: Path) -> _Written:
        begin, ranks = time.perf_counter(), self._ranks()
        try:
            if failure := _joined(await self._trainers.call(ActorTrainCls.write_save)):
                return _Written(failure=failure)
            return _Written(parts=await asyncio.to_thread(checkpoint.seal, unfinished))
        except NotReachableError as error:
            if self._ranks() != ranks:
                raise
            return _Written(failure=str(error))
        except OSError as error:
            return _Written(failure=str(error))
        finally:
            self.seconds["background"] += time.perf_counter() - begin

    async def _publish(self, saving: _Saving, written: _Written) -> Checkpoint:
        step = saving.state.step
        published = await asyncio.to_thread(
            checkpoint.publish,
            saving.unfinished,
            saving.state,
            sealed=written.parts,
            kept_for_good=self._keep_every is not None and step % self._keep_every == 0,
        )
        self.saved_step = step
        _log.info("checkpoint of step %d is complete", step)
        if self._pruning is not None:
            await self._pruning
        self._pruning = asyncio.create_task(self._prune(step))
        return published

    async def _prune(self, newest_step: int) -> None:
        try:
            await asyncio.to_thread(checkpoint.prune, self._run_directory, newest_step)
        except OSError as error:
            _log.warning("checkpoints before step %d could not be removed: %s", newest_step, error)

    async def _give_up(self, step: int, unfinished: Path, failure: str) -> None:
        await self._failed(step, failure)
        await self._trainers.call(ActorTrainCls.discard_save)
        await asyncio.to_thread(checkpoint.discard, unfinished)

    async def _failed(self, step: int, failure: str) -> None:
        self.failures += 1
        free = await asyncio.to_thread(free_space, self._run_directory)
        newest = f"is that of step {self.saved_step}" if self.saved_step >= 0 else "does not exist yet"
        _log.warning(
            "THE CHECKPOINT OF STEP %d COULD NOT BE WRITTEN to %s: %s; %s; training goes on, the "
            "newest complete checkpoint %s",
            step, self._run_directory / "checkpoints", failure, free, newest,
        )  # fmt: skip

    def _ranks(self) -> list[tuple[str, int]]:
        return [(member.member_id, member.pid) for member in self._trainers.members()]

    @contextmanager
    def _stalled(self) -> Generator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds["stall"] += time.perf_counter() - begin


def _joined(failures: list[str]) -> str:
    """Of all ranks, each reason once."""
    return "; ".join(dict.fromkeys(filter(None, failures)))
