"""Compaction on runs of the real scheduler: nothing that a resume or a reader asks for changes."""

import logging
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from rollart_hpc.control_plane.audit import audit
from rollart_hpc.control_plane.journal import (
    JOURNAL_DIRECTORY,
    AttemptStarted,
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    GroupOpened,
    HandedIn,
    Journal,
    Published,
    Sent,
    compact,
    read_journal,
)
from rollart_hpc.control_plane.recovery import Recovery
from rollart_hpc.control_plane.trajectory_life import Life, tell_life
from rollart_hpc.types import Outcome, Ticket
from tests.builders import trajectory, turn_log
from tests.unit.control_plane.run_walk import RunWalk


def segments(run: Path) -> list[Path]:
    return sorted((run / JOURNAL_DIRECTORY).glob("*.bin"))


def closed(run: Path) -> None:
    """Begins a new segment, so that all that is there can be compacted."""
    journal = Journal(run)
    journal.rotate()
    journal.close()


def with_tokens(run: Path) -> set[str]:
    found: set[str] = set()
    for record in read_journal(run):
        if isinstance(record, Finished) and len(record.trajectory.token_ids):
            assert len(record.trajectory.logprobs) == len(record.trajectory.loss_mask) == 4
            found.add(record.trajectory.trajectory_id)
        if isinstance(record, HandedIn) and record.log.token_ids:
            assert record.log.turns[0].observation == "o"
            found.add(record.log.trajectory_id)
    return found


def needed(run: Path, before_step: int) -> set[str]:
    """Trajectories that a resume from ``before_step`` or later may want, told in another way than the compaction."""
    ended = {one.trajectory_id: one.outcome for one in read_journal(run) if isinstance(one, Ended)}
    again = {
        member
        for one in read_journal(run)
        if isinstance(one, BatchFormed) and one.step >= before_step
        for member in one.trajectory_ids
    }
    return {one for one in with_tokens(run) if one not in ended or (one in again and ended[one] is Outcome.TRAINED)}


def taken_over(recovery: Recovery) -> tuple[str, object, list[str]]:
    """All of it, arrays included, in a form that can be compared."""
    return (
        repr([recovery.cursors, recovery.groups, recovery.returned, recovery.logs, recovery.batches, recovery.digests]),
        recovery.ledger.balance(),
        recovery.ledger.pending_ids(),
    )


def lives(run: Path) -> list[Life]:
    groups = {record.trajectory.group_id for record in read_journal(run) if isinstance(record, Finished)}
    return [tell_life(run, group) for group in sorted(groups)[::9]]


@pytest.mark.parametrize("seed", range(6))
def test_all_that_a_resume_needs_stays_whole_and_only_that(tmp_path: Path, seed: int):
    walk = RunWalk(tmp_path / "run", seed)
    step = walk.attempts(3)
    closed(walk.run)
    wanted, before, told = needed(walk.run, step), taken_over(walk.recovery(step)), lives(walk.run)
    audited = audit(walk.run)
    assert with_tokens(walk.run) > wanted
    freed = compact(walk.run, before_step=step)
    assert freed > 0
    assert with_tokens(walk.run) == wanted
    assert audit(walk.run) == audited
    assert lives(walk.run) == told
    assert taken_over(walk.recovery(step)) == before
    walk.attempt(checkpoint=step)
    assert audit(walk.run).findings == ()


def test_what_became_trained_is_compacted_later(tmp_path: Path):
    walk = RunWalk(tmp_path / "run", 3)
    version = walk.attempt(num_events=200)
    closed(walk.run)
    for step in range(version + 1):
        compact(walk.run, before_step=step)
        assert with_tokens(walk.run) == needed(walk.run, step)


def test_the_segment_that_is_being_written_is_left_alone(tmp_path: Path):
    walk = RunWalk(tmp_path / "run", 1)
    walk.attempts(2)
    last = segments(walk.run)[-1]
    before = last.read_bytes()
    compact(walk.run, before_step=99)
    assert last.read_bytes() == before
    assert compact(tmp_path / "no run", before_step=99) == 0


def test_segments_that_are_small_already_are_not_read_again(tmp_path: Path):
    journal = Journal(tmp_path)
    for step in range(3):
        write_batch(journal, step)
    assert compact(tmp_path, before_step=3) > 0
    for path in segments(tmp_path)[:3]:
        path.write_bytes(b"?")
    for step in range(3, 5):
        write_batch(journal, step)
    journal.close()
    sizes = [path.stat().st_size for path in segments(tmp_path)]
    freed = compact(tmp_path, before_step=5)
    assert freed > 0
    smaller = [size - freed // 2 for size in sizes[3:5]]
    assert [path.stat().st_size for path in segments(tmp_path)] == [*sizes[:3], *smaller, 0]
    assert compact(tmp_path, before_step=5) == 0


def test_segments_that_follow_damage_are_compacted_though_others_had_their_numbers(tmp_path: Path):
    journal = Journal(tmp_path)
    for step in range(3):
        write_batch(journal, step)
    journal.close()
    compact(tmp_path, before_step=3)
    segments(tmp_path)[0].write_bytes(b"?")
    journal = Journal(tmp_path)
    for step in range(3):
        write_batch(journal, step)
    journal.close()
    assert len(with_tokens(tmp_path)) == 3
    compact(tmp_path, before_step=3)
    assert with_tokens(tmp_path) == set()


def test_a_damaged_journal_is_not_compacted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    journal = Journal(tmp_path)
    for step in range(3):
        write_batch(journal, step)
    journal.close()
    second = segments(tmp_path)[1]
    second.write_bytes(second.read_bytes()[:-1])
    before = [path.read_bytes() for path in segments(tmp_path)]
    assert compact(tmp_path, before_step=9) == 0
    assert [path.read_bytes() for path in segments(tmp_path)] == before
    assert "000002.bin cannot be read" in caplog.text


def test_what_an_interrupted_compaction_leaves_is_ignored_and_swept_by_the_writer(tmp_path: Path):
    journal = Journal(tmp_path)
    write_batch(journal, 0)
    journal.close()
    unfinished = tmp_path / JOURNAL_DIRECTORY / ".000001.bin.compacting"
    unfinished.write_bytes(segments(tmp_path)[0].read_bytes()[:20])
    assert len(list(read_journal(tmp_path))) == 3
    Journal(tmp_path).close()
    assert not unfinished.exists()
    assert len(list(read_journal(tmp_path))) == 3


def test_on_a_full_disk_the_journal_stays_as_it_is_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    journal = Journal(tmp_path)
    write_batch(journal, 0, num_tokens=100_000)
    write_batch(journal, 1)
    journal.append([Finished(trajectory(ticket("long"))), *(Published(1, "x" * 100_000),)])
    journal.rotate()
    journal.append([Ended("long", Outcome.STALE)])
    journal.close()
    before = [path.read_bytes() for path in segments(tmp_path)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        freed = compact(tmp_path, before_step=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = [path.read_bytes() for path in segments(tmp_path)]
    assert freed == len(before[0]) - len(after[0]) > 0
    assert after[1:] == before[1:]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "not compacted" in caplog.text
    assert {path.suffix for path in (tmp_path / JOURNAL_DIRECTORY).iterdir()} == {".bin"}
    assert compact(tmp_path, before_step=1) > 0


def test_a_reader_that_has_begun_reads_on(tmp_path: Path):
    journal = Journal(tmp_path)
    names = [f"t{number}" for number in range(8)]
    for name in names:
        journal.append([Finished(trajectory(ticket(name), token_ids=np.zeros(200_000, np.int32)))])
    for name in names:
        journal.append([Ended(name, Outcome.STALE)])
    journal.rotate()
    reader = read_journal(tmp_path)
    first = next(reader)
    assert compact(tmp_path, before_step=0) > 0
    read = [first, *reader]
    assert [one.trajectory.trajectory_id for one in read if isinstance(one, Finished)] == names
    assert [one.trajectory_id for one in read if isinstance(one, Ended)] == names
    journal.close()


def test_how_many_turns_were_handed_in_stays_known(tmp_path: Path):
    log = turn_log(ticket("t0"), action="b")
    journal = Journal(tmp_path)
    journal.append([AttemptStarted(1, 0), GroupOpened("g", "a", 0, 7, 0), Dispatched("t0", "g", 0, 0), HandedIn(log)])
    journal.append([Sent("t0", "w"), Finished(trajectory(ticket("t0"), num_continued_turns=2))])
    journal.append([Ended("t0", Outcome.STALE)])
    journal.rotate()
    journal.close()
    before = tell_life(tmp_path, "t0")
    assert audit(tmp_path).findings == ()
    assert compact(tmp_path, before_step=0) > 0
    assert with_tokens(tmp_path) == set()
    assert audit(tmp_path).findings == ()
    assert tell_life(tmp_path, "t0") == before


def test_beside_a_writer_nothing_gets_lost(tmp_path: Path):
    journal = Journal(tmp_path)
    is_over = threading.Event()

    def compact_on() -> None:
        while not is_over.is_set():
            compact(tmp_path, before_step=10_000)

    thread = threading.Thread(target=compact_on)
    thread.start()
    for step in range(60):
        write_batch(journal, step)
        trained = [record.step for record in read_journal(tmp_path) if isinstance(record, BatchFormed)]
        assert trained == list(range(step + 1))
    is_over.set()
    thread.join(timeout=60)
    journal.close()
    compact(tmp_path, before_step=10_000)
    assert with_tokens(tmp_path) == set()


def write_batch(journal: Journal, step: int, *, num_tokens: int = 4) -> None:
    """One batch of one trajectory in a segment of its own."""
    journal.append([Finished(trajectory(ticket(f"t{step}"), token_ids=np.zeros(num_tokens, np.int32)))])
    journal.append([BatchFormed(step, (f"t{step}",))])
    journal.append([Ended(f"t{step}", Outcome.TRAINED)])
    journal.rotate()


def ticket(trajectory_id: str) -> Ticket:
    return Ticket(trajectory_id=trajectory_id, group_id="g", task="a", seed=7, admitted_version=0)
