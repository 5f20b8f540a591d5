import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.control_plane.audit import audit
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
    Published,
    Record,
    Sent,
    read_journal,
)
from rollart_hpc.control_plane.trajectory_life import tell_life
from rollart_hpc.errors import ConfigError
from rollart_hpc.types import Outcome, Ticket
from tests.builders import trajectory, turn_log
from tests.unit.control_plane.run_walk import RunWalk


def ticket(trajectory_id: str) -> Ticket:
    return Ticket(trajectory_id=trajectory_id, group_id=trajectory_id[0], task="a", seed=7, admitted_version=0)


def finished(trajectory_id: str, **changes: Any) -> Finished:
    return Finished(trajectory(ticket(trajectory_id), **changes))


def trained(trajectory_id: str) -> Ended:
    return Ended(trajectory_id, Outcome.TRAINED)


def opened(group_id: str, *members: str) -> list[Record]:
    records: list[Record] = [GroupOpened(group_id, "a", 0, 7, 0)]
    for place, member in enumerate(members):
        records += [Dispatched(member, group_id, place, 0), Sent(member, "w")]
    return records


LOG = turn_log(ticket("h1"))
RIGHT: list[Record] = [
    AttemptStarted(1, 0),
    *opened("g", "g1", "g2", "g3"),
    *opened("f", "f1"),
    Published(0, "zero"),
    finished("g1"),
    finished("g2"),
    Ended("g3", Outcome.REDUNDANT, "the group was complete"),
    finished("f1", failure="environment died"),
    Ended("f1", Outcome.FAILED, "environment died"),
    Dispatched("f2", "f", 0, 1),
    Sent("f2", "w"),
    finished("f2", failure="environment died"),
    Ended("f2", Outcome.FAILED, "environment died"),
    GivenUp("f", Outcome.POISONED),
    BatchFormed(0, ("g1", "g2")),
    trained("g1"),
    trained("g2"),
    Published(1, "one"),
    *opened("h", "h1", "h2"),
    HandedIn(LOG),
    finished("h2"),
    AttemptStarted(2, 0),
    Published(0, "zero"),
    Published(1, "one"),
    Sent("h1", "w"),
    finished("h1", num_continued_turns=1),
    BatchFormed(1, ("h1", "h2")),
    trained("h1"),
    trained("h2"),
    Published(2, "two"),
]
SUMMARY: dict[str, Any] = {
    "attempt": 2,
    "steps": 2,
    "trajectories": {
        "dispatched": 7,
        "trained": 4,
        "stale": 0,
        "redundant": 1,
        "failed": 2,
        "truncated": 0,
        "poisoned": 0,
        "pending": 0,
    },
    "causes": {"redundant: the group was complete": 1, "failed: environment died": 2},
}


def made(run: Path, records: list[Record] = RIGHT, *, metrics: str = "12", summary: Any = SUMMARY) -> Path:
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text(json.dumps({"run": {"steps": 2}, "rollout": {}}))
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": int(step), "loss": 0.5}) + "\n" for step in metrics))
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary))
    journal = Journal(run)
    for record in records:
        journal.append([record])
    journal.close()
    return run


def without(*unwanted: Record) -> list[Record]:
    assert all(any(record is one for one in RIGHT) for record in unwanted)
    return [record for record in RIGHT if not any(record is one for one in unwanted)]


def changed(place: int | Record, *new: Record) -> list[Record]:
    """With other records in place of one."""
    at = next(i for i, one in enumerate(RIGHT) if one is place) if not isinstance(place, int) else place
    return [*RIGHT[:at], *new, *RIGHT[at + 1 :]]


def find(kind: type, which: int = 0) -> Any:
    return [record for record in RIGHT if isinstance(record, kind)][which]


def test_the_books_of_a_right_run_hold(tmp_path: Path):
    result = audit(made(tmp_path))
    assert (result.findings, result.notes) == ((), ())
    assert (result.num_batches, result.num_attempts, result.last_step) == (2, 2, 2)
    assert result.total.as_summary() == SUMMARY["trajectories"]
    assert result.total.causes == SUMMARY["causes"]


@given(length=st.integers(0, len(RIGHT)))
@settings(max_examples=len(RIGHT))
def test_a_run_that_was_killed_at_any_record_holds(length: int):
    with tempfile.TemporaryDirectory() as directory:
        batches = sum(isinstance(record, BatchFormed) for record in RIGHT[:length])
        run = made(Path(directory), RIGHT[:length], metrics="12"[: max(0, batches - 1)], summary=None)
        assert audit(run).findings == ()


@pytest.mark.parametrize("seed", range(12))
def test_a_run_of_the_real_scheduler_holds_after_every_kill_stop_and_resume(tmp_path: Path, seed: int):
    walk = RunWalk(tmp_path / "run", seed)
    for _ in range(4):
        walk.attempts(1)
        result = audit(walk.run)
        assert (result.findings, result.notes) == ((), ())
    assert result.num_batches > 1
    assert result.total == walk.recovery(0).ledger.balance()


def test_the_walks_have_everything_in_them(tmp_path: Path):
    kinds: set[str] = set()
    for seed in range(12):
        walk = RunWalk(tmp_path / str(seed), seed)
        walk.attempts(3)
        kinds |= {type(record).__name__ for record in read_journal(walk.run)}
        kinds |= {str(record.outcome) for record in read_journal(walk.run) if isinstance(record, Ended)}
        kinds |= {
            "continued"
            for record in read_journal(walk.run)
            if isinstance(record, Finished) and record.trajectory.num_continued_turns
        }
    assert kinds >= {"HandedIn", "GivenUp", "continued", *map(str, Outcome)}


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([*RIGHT, Dispatched("g1", "g", 0, 0)], ["g1 was dispatched twice", "task a does not balance: 8"]),
        ([*RIGHT, GroupOpened("g", "a", 0, 7, 0)], ["group g was opened twice"]),
        ([*RIGHT, Dispatched("x", "nope", 0, 0)], ["x was dispatched for group nope, which was never opened"]),
        ([*RIGHT, Sent("g1", "w")], ["g1 was sent after it had ended as trained", "g1 was sent to w after it had fin"]),
        ([*RIGHT, Sent("nope", "w")], ["nope was sent, but never dispatched"]),
        ([*RIGHT, *opened("x", "x1"), Sent("x1", "v")], ["x1 was sent twice in attempt 2"]),
        ([*RIGHT, HandedIn(LOG)], ["h1 was handed in after it had ended", "h1 was handed in after it had finished"]),
        ([*RIGHT, finished("g1")], ["g1 was finished after it had ended as trained", "g1 finished twice"]),
        ([*RIGHT, finished("nope")], ["nope was finished, but never dispatched"]),
        ([*RIGHT, *opened("x", "x1")[:2], finished("x1")], ["x1 finished, but was sent to nobody"]),
        ([*RIGHT, Ended("f1", Outcome.FAILED)], ["f1 was ended as failed after it had ended as failed", "not balance"]),
        ([*RIGHT, Ended("nope", Outcome.STALE)], ["nope was ended as stale, but never dispatched"]),
        (
            changed(find(Finished, 0)),
            ["g1 is in the batch of step 0, but has not finished", "g1 was trained, but never"],
        ),
        (
            changed(find(Finished, 0), finished("g1", failure="x")),
            ["g1 is in the batch of step 0, but failed", "g1 was trained, but failed"],
        ),
        (changed(find(BatchFormed), BatchFormed(0, ("g1",))), ["g2 was trained, but is in no batch"]),
        (
            changed(find(BatchFormed, 1), BatchFormed(1, ("h1", "h2", "g1"))),
            ["g1 was taken into the batch of step 1 after it had", "g1 is in the batches of steps 0 and 1"],
        ),
        (changed(find(BatchFormed, 1), BatchFormed(1, ("h1", "h1", "h2"))), ["h1 is in the batches of steps 1 and 1"]),
        (
            changed(find(BatchFormed, 1), BatchFormed(2, ("h1", "h2"))),
            ["the batch of step 2 was formed where that of step 1 was due"],
        ),
        ([*RIGHT, BatchFormed(1, ())], ["the batch of step 1 was formed twice"]),
        (without(find(Ended, 3)), ["the batch of step 0 was trained, but these are still pending: g1"]),
        (
            changed(find(Ended, 3), Ended("g1", Outcome.STALE)),
            ["these are in the batch of step 0, but did not end as trained: g1"],
        ),
        ([*RIGHT, AttemptStarted(2, 0)], ["attempt 2 follows attempt 2"]),
        (
            [*RIGHT, AttemptStarted(3, 3)],
            ["attempt 3 goes on from step 3, but there are only 2 batches before it: the journal has lost"],
        ),
        ([*RIGHT[:-3], AttemptStarted(3, 2)], ["the batch of step 1 was trained, but these are still pending: h1, h2"]),
        ([*RIGHT, GivenUp("g", Outcome.STALE)], ["group g was given up, but not all of it ended so: g1, g2"]),
        ([*RIGHT, *opened("x", "x1"), GivenUp("x", Outcome.STALE)], ["group x was given up, but not all of it ended"]),
        ([*RIGHT, GivenUp("f", Outcome.STALE)], ["group f was given up twice"]),
        ([*RIGHT, GivenUp("nope", Outcome.STALE)], ["group nope was given up, but never opened"]),
        ([*RIGHT, Published(3, "three")], ["version 3 was published, but there are only 2 batches"]),
        (
            [*RIGHT, Published(2, "other")],
            ["version 2 has the digest other in attempt 2 and had two before in the same"],
        ),
    ],
    ids=lambda value: value[0][:50] if isinstance(value[0], str) else "",
)
def test_every_contradiction_of_the_journal_is_found(tmp_path: Path, records: list[Record], said: list[str]):
    findings = audit(made(tmp_path, records, summary=None)).findings
    assert len(findings) == len(said), findings
    assert [text for text, finding in zip(said, findings, strict=True) if text not in finding] == []


@pytest.mark.parametrize(
    ("log", "changes", "said"),
    [
        (LOG, {"num_continued_turns": 1}, ""),
        (LOG, {"restarted": "not replayable"}, ""),
        (LOG, {"failure": "environment died"}, ""),
        (LOG, {}, "says neither that it went on"),
        (LOG, {"num_continued_turns": 2}, "went on from 2 turns, but was sent with 1"),
        (msgspec.structs.replace(LOG, action="b"), {"num_continued_turns": 2}, ""),
        (None, {"num_continued_turns": 1}, "went on from 1 turns, but was sent without any"),
        (LOG, {"num_continued_turns": 1, "token_ids": np.arange(1, 9, dtype=np.int32)}, "its token ids do not begin"),
        (LOG, {"num_continued_turns": 1, "token_ids": np.arange(3, dtype=np.int32)}, "its token ids do not begin"),
        (LOG, {"num_continued_turns": 1, "loss_mask": np.ones(4, np.uint8)}, "its loss mask do not begin"),
        (LOG, {"num_continued_turns": 1, "logprobs": np.zeros(4, np.float32)}, "its logprobs do not begin"),
        (LOG, {"num_continued_turns": 1, "token_ids": np.empty(0, np.int32)}, ""),
        (msgspec.structs.replace(LOG, token_ids=b""), {"num_continued_turns": 1}, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_trajectory_that_goes_on_has_what_was_handed_in(tmp_path: Path, log: Any, changes: Any, said: str):
    handed_in: list[Record] = [HandedIn(log)] if log is not None else []
    again: list[Record] = [AttemptStarted(2, 0), Sent("h1", "w"), finished("h1", **changes)]
    run = made(tmp_path, [AttemptStarted(1, 0), *opened("h", "h1"), *handed_in, *again], metrics="", summary=None)
    findings = audit(run).findings
    assert len(findings) == bool(said), findings
    assert all(said in finding for finding in findings)


def test_what_came_back_from_the_attempt_that_was_handed_in_is_compared_with_what_it_was_sent_with(tmp_path: Path):
    raced = [AttemptStarted(1, 0), *opened("h", "h1"), HandedIn(LOG), finished("h1")]
    assert audit(made(tmp_path, raced, metrics="", summary=None)).findings == ()


def test_other_weights_in_another_attempt_are_a_note(tmp_path: Path):
    result = audit(made(tmp_path, changed(find(Published, 3), Published(1, "other"))))
    assert result.findings == ()
    (note,) = result.notes
    assert "version 1 has the digest other in attempt 2 and had one in attempt 1" in note


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ("", []),
        ("1", []),
        ("11", ["metrics.jsonl has step 1 again after step 1"]),
        ("121", ["metrics.jsonl has step 1 again after step 2"]),
        ("2", ["metrics.jsonl has step 2 where step 1 was due"]),
        ("123", ["metrics.jsonl goes to step 3, but there are only 2 batches"]),
    ],
)
def test_metrics_have_each_step_once(tmp_path: Path, metrics: str, said: list[str]):
    assert list(audit(made(tmp_path, metrics=metrics, summary=None)).findings) == said


def test_a_line_of_metrics_that_is_none_is_torn_at_the_end_and_a_fault_before(tmp_path: Path):
    path = made(tmp_path, metrics="1", summary=None) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "lo')
    assert audit(tmp_path).findings == ()
    assert audit(tmp_path).notes == ("metrics.jsonl: the last line was not written whole",)
    path.write_text(path.read_text() + '\n{"step": 2}\n')
    assert audit(tmp_path).findings == ("metrics.jsonl: line 2 cannot be read",)


def edited(**changes: Any) -> dict[str, Any]:
    return {**SUMMARY, **changes}


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (edited(trajectories={"dispatched": 1}), "summary.json says trajectories = {'dispatched': 1}, the run's files"),
        (edited(causes={}), "summary.json says causes = {}, the run's files say"),
        (edited(attempt=1, causes={}), ""),
        (edited(steps=1, causes={}), ""),
        (None, ""),
    ],
)
def test_the_summary_of_a_run_that_is_done_agrees(tmp_path: Path, summary: Any, said: str):
    findings = audit(made(tmp_path, summary=summary)).findings
    assert len(findings) == bool(said), findings
    assert all(said in finding for finding in findings)


def test_a_run_that_is_done_has_trained_its_last_batch_and_said_so(tmp_path: Path):
    findings = audit(made(tmp_path, without(RIGHT[-2]), metrics="1")).findings
    assert "the batch of step 1 was trained, but these are still pending: h2" in findings
    assert "summary.json says steps and the last of metrics.jsonl = 2, the run's files say 1" in findings


def test_a_summary_that_is_none_is_found(tmp_path: Path):
    (made(tmp_path) / "summary.json").write_text("{")
    assert "summary.json: not the summary of a run" in audit(tmp_path).findings[0]


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("harm", "is_fault"), [(torn, False), (damaged, True)])
def test_a_torn_end_is_a_note_and_damage_a_fault(tmp_path: Path, harm: Callable[[Path], None], is_fault: bool):
    run = made(tmp_path, metrics="", summary=None)
    harm(run / JOURNAL_DIRECTORY / "000001.bin")
    result = audit(run)
    assert len(result.findings) == is_fault
    assert len(result.notes) == (not is_fault)
    assert "000001.bin cannot be read from byte" in (*result.findings, *result.notes)[0]
    Journal(run).close()
    assert audit(run).findings == ()
    assert "were set aside" in audit(run).notes[0]


# --- the life of one ----------------------------------------------------------------------------------


def told(run: Path, wanted: str) -> list[str]:
    return [f"{event.attempt} {event.event}: {event.text}" for event in tell_life(run, wanted).events]


def test_the_life_of_a_trajectory_is_told_in_order(tmp_path: Path):
    run = made(tmp_path)
    assert told(run, "h1") == [
        "1 opened: for seed 7, number 0 of task a, at version 0",
        "1 dispatched: for place 0 of group h",
        "1 sent: to w",
        "1 handed in: after 1 turns",
        "2 resumed: attempt 2 went on from step 0",
        "2 sent: again to w",
        "2 finished: on environment-0: reward 0, 1 turns, sampled by version 0; went on from 1 turns",
        "2 batch: in the batch of step 1",
        "2 trained: ",
    ]
    assert told(run, "g1")[-2:] == [
        "1 trained: ",
        "2 resumed: attempt 2 went on from step 0: its batch is trained again",
    ]
    assert told(run, "f2")[1:] == [
        "1 dispatched: for place 0 of group f, after 1 failures there",
        "1 sent: to w",
        "1 failed: on environment-0: environment died",
        "1 failed: environment died",
        "1 given up: the group was given up as poisoned: its seed is not played again",
    ]


def test_the_life_of_a_group_has_its_members(tmp_path: Path):
    run = made(tmp_path)
    life = tell_life(run, "f")
    assert (life.state, [member.id for member in life.members]) == ("poisoned", ["f1", "f2"])
    assert [event.event for event in life.events] == ["opened", "given up"]
    life = tell_life(run, "g")
    assert life.state == "redundant, trained"
    assert [(member.id, member.state) for member in life.members] == [
        ("g1", "trained"),
        ("g2", "trained"),
        ("g3", "redundant"),
    ]


def test_what_has_not_ended_is_pending(tmp_path: Path):
    run = made(tmp_path, RIGHT[:5], metrics="", summary=None)
    assert tell_life(run, "g1").state == "pending"
    assert tell_life(run, "g").state == "pending"


@pytest.mark.parametrize(("wanted", "similar"), [("f22", "f2"), ("hh", "h2"), ("zzz", "f")])
def test_an_unknown_id_is_refused_with_similar_ones(tmp_path: Path, wanted: str, similar: str):
    with pytest.raises(ConfigError, match=f"{wanted}: the journal knows no .*similar ones: .*{similar}"):
        tell_life(made(tmp_path), wanted)
