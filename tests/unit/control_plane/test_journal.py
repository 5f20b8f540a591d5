from pathlib import Path

import numpy as np
import pytest

from rollart_hpc.control_plane.journal import (
    ATTEMPT_ENDED,
    AttemptStarted,
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    Journal,
    read_journal,
    replay,
)
from rollart_hpc.control_plane.ledger import Ledger, LedgerError
from rollart_hpc.types import Outcome, Span, Trajectory

RECORDS = [
    Dispatched("t1", "g", "a", 7),
    Dispatched("t2", "g", "a", 7),
    BatchFormed(0, ("g",)),
    Ended("t1", Outcome.TRAINED),
]


def written(path: Path, *records: object) -> Path:
    journal = Journal(path)
    journal.append(records or RECORDS, durable=True)
    journal.close()
    return path


def test_records_come_back_in_order(tmp_path: Path):
    assert list(read_journal(written(tmp_path / "j"))) == RECORDS


def test_a_trajectory_comes_back_bit_by_bit(tmp_path: Path):
    sent = Trajectory(
        trajectory_id="t",
        group_id="g",
        task="a",
        seed=1,
        worker="w",
        token_ids=np.arange(5, dtype=np.int32),
        loss_mask=np.array([0, 0, 1, 1, 1], np.uint8),
        logprobs=np.linspace(-1, 0, 5, dtype=np.float32),
        spans=(Span(3, 2, 4), Span(4, 4, 5)),
        start_version=3,
        reward=0.5,
        success=True,
        truncated=False,
        num_turns=2,
    )
    (got,) = read_journal(written(tmp_path / "j", Finished(sent)))
    assert isinstance(got, Finished)
    assert got.trajectory.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert got.trajectory.logprobs.tobytes() == sent.logprobs.tobytes()
    assert got.trajectory.token_versions().tolist() == [-1, -1, 3, 3, 4]


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_torn_tail_is_ignored_and_then_cut_off(tmp_path: Path, cut: int):
    path = written(tmp_path / "j")
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(read_journal(path)) == RECORDS[:-1]
    written(path, Ended("t1", Outcome.STALE, "overtaken"))
    assert list(read_journal(path)) == [*RECORDS[:-1], Ended("t1", Outcome.STALE, "overtaken")]


def test_a_damaged_record_ends_the_reading(tmp_path: Path):
    path = written(tmp_path / "j")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert list(read_journal(path)) == RECORDS[:-1]


def test_no_file_is_no_record(tmp_path: Path):
    assert list(read_journal(tmp_path / "none")) == []


def test_the_ledger_is_the_fold_of_the_journal():
    balance = replay(RECORDS).balance()
    assert (balance.dispatched, balance.pending, balance.outcomes) == (2, 1, {"trained": 1})


def test_what_was_pending_when_an_attempt_ended_has_failed():
    balance = replay([*RECORDS, AttemptStarted(2, 1)]).balance()
    assert balance.pending == 0
    assert balance.causes == {f"failed: {ATTEMPT_ENDED}": 1}


@pytest.mark.parametrize("wrong", [("t1", "again"), ("t9", "unknown")])
def test_a_trajectory_ends_once_and_only_if_it_was_dispatched(wrong: tuple[str, str]):
    ledger = replay(RECORDS)
    with pytest.raises(LedgerError, match="cannot end"):
        ledger.end(wrong[0], Outcome.STALE)


def test_an_id_is_dispatched_once():
    ledger = Ledger()
    ledger.dispatch("t", "a")
    with pytest.raises(LedgerError, match="dispatched before"):
        ledger.dispatch("t", "a")


def test_zeros_at_the_end_are_no_records(tmp_path: Path):
    path = written(tmp_path / "j")
    path.write_bytes(path.read_bytes() + bytes(64))
    assert list(read_journal(path)) == RECORDS
    written(path, Ended("t2", Outcome.STALE, "overtaken"))
    assert list(read_journal(path)) == [*RECORDS, Ended("t2", Outcome.STALE, "overtaken")]


def test_what_a_writer_cannot_read_is_set_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = written(tmp_path / "j")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    written(path, RECORDS[-1])
    (aside,) = tmp_path.glob("j.damaged-*")
    assert bytes(data).endswith(aside.read_bytes())
    assert "cannot be read" in caplog.text
