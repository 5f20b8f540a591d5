import errno
import logging
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.bus import codec
from rollart_hpc.control_plane.journal import (
    JOURNAL_DIRECTORY,
    AttemptStarted,
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    GivenUp,
    GroupOpened,
    HandedIn,
    Journal,
    JournalReader,
    Published,
    Record,
    Sent,
    has_journal,
    read_journal,
)
from rollart_hpc.control_plane.journal.frames import frame
from rollart_hpc.errors import JournalError
from rollart_hpc.types import Outcome, Span, Ticket
from tests.builders import trajectory, turn_log

TICKET = Ticket(trajectory_id="t1", group_id="g", task="a", seed=7, admitted_version=0)
EVENTS: list[list[Record]] = [
    [AttemptStarted(1, 0)],
    [GroupOpened("g", "a", 0, 7, 0), Dispatched("t1", "g", 0, 0), Dispatched("t2", "g", 1, 0), Sent("t1", "w")],
    [HandedIn(turn_log(TICKET))],
    [GivenUp("g", Outcome.STALE), Ended("t1", Outcome.STALE, "overtaken"), Ended("t2", Outcome.STALE)],
    [BatchFormed(0, ("t3", "t4"))],
    [Published(1, "abc")],
]
RECORDS = [record for event in EVENTS for record in event]


def write(run: Path, *events: list[Record], each_in_a_segment: bool = False) -> Path:
    journal = Journal(run)
    for event in events or EVENTS:
        journal.append(event)
        if each_in_a_segment:
            journal.rotate()
    journal.close()
    return run


def segment(run: Path, number: int = 1) -> Path:
    return run / JOURNAL_DIRECTORY / f"{number:06d}.bin"


def whole_events(records: list[Record], events: list[list[Record]]) -> bool:
    """Whether the records are those of the first events, each of them whole."""
    prefixes = [[record for event in events[:count] for record in event] for count in range(len(events) + 1)]
    return records in prefixes


# --- what is written is read --------------------------------------------------------------------------


def test_records_come_back_in_order_over_all_segments(tmp_path: Path):
    write(tmp_path, each_in_a_segment=True)
    assert len(list((tmp_path / JOURNAL_DIRECTORY).glob("*.bin"))) == len(EVENTS) + 1
    assert list(read_journal(tmp_path)) == RECORDS
    write(tmp_path, [Published(2, "d")])
    assert list(read_journal(tmp_path)) == [*RECORDS, Published(2, "d")]


def test_segments_are_read_in_the_order_of_their_numbers(tmp_path: Path):
    journal = Journal(tmp_path)
    for version in range(12):
        journal.append([Published(version, "")])
        journal.rotate()
    journal.close()
    assert [record.version for record in read_journal(tmp_path) if isinstance(record, Published)] == list(range(12))


def test_a_trajectory_comes_back_bit_by_bit(tmp_path: Path):
    sent = trajectory(
        TICKET,
        token_ids=np.arange(5, dtype=np.int32),
        loss_mask=np.array([0, 0, 1, 1, 1], np.uint8),
        logprobs=np.linspace(-1, 0, 5, dtype=np.float32),
        spans=(Span(3, 2, 4), Span(4, 4, 5)),
    )
    (got,) = read_journal(write(tmp_path, [Finished(sent)]))
    assert isinstance(got, Finished)
    assert got.trajectory.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert got.trajectory.logprobs.tobytes() == sent.logprobs.tobytes()
    assert got.trajectory.token_versions().tolist() == [-1, -1, 3, 3, 4]


def test_no_journal_is_no_record(tmp_path: Path):
    assert list(read_journal(tmp_path / "none")) == []
    assert not has_journal(tmp_path)
    Journal(tmp_path).close()
    assert not has_journal(tmp_path)
    assert list(read_journal(tmp_path)) == []
    assert has_journal(write(tmp_path))


def test_an_event_without_records_leaves_no_trace(tmp_path: Path):
    write(tmp_path, [], EVENTS[0], [])
    assert list(read_journal(tmp_path)) == EVENTS[0]


def test_a_reader_beside_the_writer_reads_what_is_there(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.append(EVENTS[0])
    reader = read_journal(tmp_path)
    assert next(reader) == EVENTS[0][0]
    journal.append(EVENTS[1])
    journal.rotate()
    journal.append(EVENTS[2])
    assert whole_events([*EVENTS[0], *reader], EVENTS)
    journal.close()


def test_a_record_of_another_version_is_said_and_not_taken_for_damage(tmp_path: Path):
    write(tmp_path)
    with segment(tmp_path).open("ab") as file:
        file.write(frame(codec.encode([[["NotYetInvented", 1]]])))
    write(tmp_path, EVENTS[0])
    with pytest.raises(JournalError, match="another version"):
        list(read_journal(tmp_path))


# --- torn and damaged files ---------------------------------------------------------------------------

events = st.lists(
    st.lists(st.builds(Published, st.integers(0, 9), st.text(max_size=40)), min_size=1, max_size=4), max_size=6
)


@given(events=events, cut=st.floats(0, 1))
def test_any_truncation_is_read_as_the_first_events_and_the_next_writer_goes_on(events: list[list[Record]], cut: float):
    with tempfile.TemporaryDirectory() as directory:
        run = write(Path(directory), *events) if events else Path(directory)
        Journal(run).close()
        os.truncate(segment(run), round(cut * segment(run).stat().st_size))
        kept = list(read_journal(run))
        assert whole_events(kept, events)
        write(run, EVENTS[0])
        assert list(read_journal(run)) == [*kept, *EVENTS[0]]


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_damaged_byte_ends_the_reading_before_its_event(place: float, bit: int):
    with tempfile.TemporaryDirectory() as directory:
        path = segment(write(Path(directory)))
        data = bytearray(path.read_bytes())
        position = int(place * len(data))
        data[position] ^= 1 << bit
        path.write_bytes(data)
        reader = JournalReader(Path(directory))
        records = list(reader)
        assert whole_events(records, EVENTS)
        assert records != RECORDS
        assert reader.damage is not None
        assert reader.damage.offset <= position
        assert reader.damage.offset + reader.damage.size_bytes == len(data)


def test_a_torn_end_is_told_from_damage(tmp_path: Path):
    path = segment(write(tmp_path))
    data = path.read_bytes()
    for end, is_torn in ((data[:-3], True), (data + bytes(64), True), (data + bytes(64) + b"x", False)):
        path.write_bytes(end)
        reader = JournalReader(tmp_path)
        list(reader)
        assert reader.damage is not None
        assert reader.damage.is_torn is is_torn
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    reader = JournalReader(tmp_path)
    list(reader)
    assert reader.damage is not None
    assert not reader.damage.is_torn


def test_what_cannot_be_read_at_the_end_is_set_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = segment(write(tmp_path))
    data = path.read_bytes()[:-3]
    path.write_bytes(data)
    write(tmp_path, [Published(2, "d")])
    assert list(read_journal(tmp_path)) == [*RECORDS[:-1], Published(2, "d")]
    (aside,) = path.parent.glob("*.damaged-*")
    assert data.endswith(aside.read_bytes())
    assert "an interrupted write left it" in caplog.text


def test_nothing_behind_damage_in_the_middle_is_trusted_and_nothing_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write(tmp_path, each_in_a_segment=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / JOURNAL_DIRECTORY).iterdir()}
    path = segment(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert list(read_journal(tmp_path)) == EVENTS[0]
    write(tmp_path, [Published(2, "d")])
    assert list(read_journal(tmp_path)) == [*EVENTS[0], Published(2, "d")]
    aside = {path.name.partition(".damaged-")[0]: path.read_bytes() for path in path.parent.glob("*.damaged-*")}
    del before["000001.bin"]
    assert aside == before | {"000002.bin": bytes(data)}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "JOURNAL DAMAGED" in caplog.text


def test_a_missing_segment_is_damage(tmp_path: Path):
    write(tmp_path, each_in_a_segment=True)
    segment(tmp_path, 3).unlink()
    reader = JournalReader(tmp_path)
    assert list(reader) == EVENTS[0] + EVENTS[1]
    assert reader.damage is not None
    assert "000003.bin is missing" in str(reader.damage)
    write(tmp_path, [Published(2, "d")])
    assert list(read_journal(tmp_path)) == [*EVENTS[0], *EVENTS[1], Published(2, "d")]


def test_setting_aside_that_was_interrupted_is_done_again(tmp_path: Path):
    write(tmp_path, each_in_a_segment=True)
    data = bytearray(segment(tmp_path, 2).read_bytes())
    data[20] ^= 1
    segment(tmp_path, 2).write_bytes(data)
    segment(tmp_path, 7).rename(segment(tmp_path, 7).with_name("000007.bin.damaged-1"))
    write(tmp_path, [Published(2, "d")])
    assert list(read_journal(tmp_path)) == [*EVENTS[0], Published(2, "d")]


# --- disks that are full ------------------------------------------------------------------------------


@contextmanager
def small_tmpfs(directory: Path) -> Iterator[int]:
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "t", directory], check=False).returncode
    ):
        pytest.skip("mounts no tmpfs here")
    try:
        yield errno.ENOSPC
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def small_files(_: Path) -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))  # Python ignores the signal that comes with it
    try:
        yield errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limited", [small_tmpfs, small_files])
def test_on_a_full_disk_the_event_is_taken_back_and_smaller_ones_go_on(
    tmp_path: Path, limited: Callable[[Path], AbstractContextManager[int]]
):
    with limited(tmp_path) as number:
        journal = Journal(tmp_path)
        journal.append([Published(0, "")])
        with pytest.raises(JournalError) as raised:
            for _ in range(10):
                journal.append([Published(0, "x" * 10_000)])
        assert os.strerror(number) in str(raised.value)
        assert str(segment(tmp_path)) in str(raised.value)
        assert "make room" in str(raised.value)
        journal.append([Published(1, "")], durable=True)
        journal.close()
        reader = JournalReader(tmp_path)
        got = [record.version for record in reader if isinstance(record, Published)]
        assert reader.damage is None
        assert got[0] == 0
        assert got[-1] == 1


def test_after_a_disk_that_did_not_sync_nothing_is_written_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(tmp_path)
    journal.append(EVENTS[0], durable=True)
    journal.append(EVENTS[1])

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(JournalError, match=r"could not be written.*Input/output error"):
            journal.append(EVENTS[2], durable=True)
    for again in (lambda: journal.append(EVENTS[3]), journal.rotate):
        with pytest.raises(JournalError, match="Input/output error"):
            again()
    journal.close()
    assert list(read_journal(tmp_path)) == EVENTS[0]


def test_a_segment_that_cannot_be_begun_leaves_the_old_one_open(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.append(EVENTS[0])
    segment(tmp_path, 2).mkdir()
    with pytest.raises(JournalError, match="could not be written"):
        journal.rotate()
    segment(tmp_path, 2).rmdir()
    journal.append(EVENTS[1])
    journal.rotate()
    journal.rotate()
    journal.append(EVENTS[2])
    journal.close()
    assert list(read_journal(tmp_path)) == [*EVENTS[0], *EVENTS[1], *EVENTS[2]]
    assert not segment(tmp_path, 3).exists()


def test_a_journal_that_cannot_be_opened_says_why(tmp_path: Path):
    (tmp_path / JOURNAL_DIRECTORY).write_text("")
    with pytest.raises(JournalError, match=r"could not be written: .*File exists"):
        Journal(tmp_path)
