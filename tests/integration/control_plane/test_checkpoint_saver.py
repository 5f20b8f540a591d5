"""The saver with real trainer ranks: beside training, on a full disk, and with a rank killed in every phase."""

import asyncio
import contextlib
import errno
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from rollart_hpc.control_plane import checkpoint
from rollart_hpc.control_plane.checkpoint_saver import CheckpointSaver
from rollart_hpc.control_plane.protocol import ProtocolStep
from rollart_hpc.errors import BusError
from tests.integration.control_plane.trainers import Trainers, state_of, trainers

DEADLINE_S = 100
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def step_found(run: Path) -> int:
    found = checkpoint.find_sound(run)
    assert found is not None
    return found.state.step


async def test_training_goes_on_while_checkpoints_are_written_and_from_them_with_fewer_ranks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with trainers(tmp_path, tmp_path / "first", tensor_parallel=2) as first:
        saver = CheckpointSaver(tmp_path, first.cluster, keep_every=2)
        assert await saver.settle(wait=True) is None
        await first.train(0)
        await saver.begin(state_of(1))
        at_first = await first.probe()
        await first.train(1)
        await saver.begin(state_of(2))
        assert saver.failures == 0
        [line] = [line for line in caplog.text.splitlines() if "no checkpoint of step 2" in line]
        assert "that of step 1 has been under way for" in line
        assert "raise run.checkpoint_every" in line
        async with asyncio.timeout(DEADLINE_S):
            while (complete := await saver.settle(wait=False)) is None:
                await first.train(2)
        assert (complete.state.step, saver.saved_step) == (1, 1)
        await first.restore(complete)
        assert await first.probe() == at_first
        before = names(tmp_path)
        await saver.begin(state_of(1))
        assert await saver.settle(wait=True) is None
        assert names(tmp_path) == before
        for step in (2, 3, 4, 5):
            await first.train(step)
            complete = await saver.save(state_of(step))
            assert complete is not None
            assert complete.marker.kept_for_good == (step in {2, 4})
        await saver.close()
        assert names(tmp_path) == ["latest", "step-000002", "step-000004", "step-000005"]
        assert saver.seconds["stall"] > 0
        assert saver.seconds["background"] > 0
        saved = await first.probe()
    assert checkpoint.sweep(tmp_path) == []
    async with trainers(tmp_path, tmp_path / "second", tensor_parallel=1) as second:
        await second.restore(checkpoint.find_step(tmp_path, step_found(tmp_path)))
        assert await second.probe() == pytest.approx(saved, abs=1e-5) != at_first


class Disk(Protocol):
    directory: Path
    refusal: int

    def fill(self, ranks: Trainers) -> None: ...

    def make_room(self, ranks: Trainers) -> None: ...


class SmallDisk:
    """A file system of its own, filled to the last byte."""

    refusal = errno.ENOSPC

    def __init__(self, directory: Path) -> None:
        self.directory, self._filler = directory, directory / "filler"

    def fill(self, ranks: Trainers) -> None:
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def make_room(self, ranks: Trainers) -> None:
        self._filler.unlink(missing_ok=True)


class LimitedFiles:
    """Without the right to mount: the ranks' files may not grow."""

    refusal = errno.EFBIG

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self, ranks: Trainers) -> None:
        for rank in ranks.ranks:
            _, hard = resource.prlimit(rank.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (100, hard))

    def make_room(self, ranks: Trainers) -> None:
        for rank in ranks.ranks:
            _, hard = resource.prlimit(rank.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(rank.pid, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield LimitedFiles(directory)
        return
    yield SmallDisk(directory)
    subprocess.run(["umount", str(directory)], check=True)


async def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run, full_at = disk.directory, list[ProtocolStep]()
    async with trainers(run, tmp_path / "first", tensor_parallel=2) as first:

        async def announce(step: ProtocolStep, _version: int) -> None:
            disk.make_room(first)
            if step in full_at:
                disk.fill(first)

        saver = CheckpointSaver(run, first.cluster, keep_every=None, announce=announce)
        await first.train(0)
        (run / "checkpoints").write_text("in the way of the directory")
        assert await saver.save(state_of(1)) is None
        assert "newest complete checkpoint does not exist yet" in caplog.text
        (run / "checkpoints").unlink()
        assert await saver.save(state_of(1)) is not None
        for step, phase in ((2, ProtocolStep.CHECKPOINT), (3, ProtocolStep.COMMIT)):
            caplog.clear()
            full_at[:] = [phase]
            assert await saver.save(state_of(step)) is None
            disk.make_room(first)
            assert f"THE CHECKPOINT OF STEP {step} COULD NOT BE WRITTEN to {run / 'checkpoints'}" in caplog.text
            assert f"rank 0: [Errno {disk.refusal}] {os.strerror(disk.refusal)}" in caplog.text
            assert "bytes are free; training goes on, the newest complete checkpoint is that of step 1" in caplog.text
            assert names(run) == ["latest", "step-000001"]
            assert saver.failures == step
            await first.train(step)
        assert step_found(run) == 1
        full_at.clear()
        assert (await saver.save(state_of(4))).state.step == 4  # pyright: ignore[reportOptionalMemberAccess]
        saved = await first.probe()
        await first.train(4)
        assert await first.probe() != saved
        await first.restore(checkpoint.find_step(run, 4))
        assert await first.probe() == saved
        await saver.close()


def wait_for_file(directory: Path, pattern: str) -> None:
    while not list(directory.rglob(pattern)):
        time.sleep(0.01)


async def killed_in_begin(first: Trainers, saver: CheckpointSaver) -> None:
    first.freeze(1)
    beginning = asyncio.create_task(saver.begin(state_of(2)))
    await asyncio.sleep(0.2)
    await first.kill(1)
    await beginning


async def killed_in_write(first: Trainers, saver: CheckpointSaver) -> None:
    """The other rank's files are there, its own are not."""
    await saver.begin(state_of(2))
    [unfinished] = (saver._run_directory / "checkpoints").glob(".step-000002-*")
    await asyncio.to_thread(wait_for_file, unfinished, "__0_*.distcp")
    assert not list(unfinished.rglob("__1_*.distcp"))
    await first.kill(1)
    await saver.settle(wait=True)


async def killed_in_commit(first: Trainers, saver: CheckpointSaver) -> None:
    """All files are there but the marker."""
    await saver.begin(state_of(2))
    settling = asyncio.create_task(saver.settle(wait=True))
    await asyncio.sleep(0.2)
    await first.kill(1)
    await settling


@pytest.mark.parametrize(
    ("play", "frozen_at"),
    [
        pytest.param(killed_in_begin, None, id="begin"),
        pytest.param(killed_in_write, ProtocolStep.CHECKPOINT, id="write"),
        pytest.param(killed_in_commit, ProtocolStep.COMMIT, id="commit"),
    ],
)
async def test_a_rank_that_is_killed_leaves_the_checkpoint_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, play, frozen_at: ProtocolStep | None
):
    async with trainers(tmp_path, tmp_path / "first", tensor_parallel=2) as first:

        async def announce(step: ProtocolStep, version: int) -> None:
            if (step, version) == (frozen_at, 2):
                first.freeze(1)

        saver = CheckpointSaver(tmp_path, first.cluster, keep_every=None, announce=announce)
        await first.train(0)
        await saver.save(state_of(1))
        await first.train(1)
        with pytest.raises(BusError):
            async with asyncio.timeout(DEADLINE_S):
                await play(first, saver)
        await saver.close()
    assert step_found(tmp_path) == 1
    assert "is passed over: it is a leftover of an unfinished save" in caplog.text
    [swept] = checkpoint.sweep(tmp_path)
    assert swept.startswith(".step-000002-")
    assert names(tmp_path) == ["latest", "step-000001"]
