"""In which state a run is: its own records, the lock of its leader and Slurm's word, taken together."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollart_hpc.launcher.run_directory import create, owned
from rollart_hpc.launcher.status import OVER, is_over, read_status
from tests.unit.launcher.runs import History, Slurm, config_in


@dataclass(frozen=True)
class Given:
    """What happened, what Slurm says, and whether a leader holds the run."""

    state: str
    history: tuple[str, ...] = ()
    queue: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] | None = field(default_factory=dict)
    is_owned: bool = False
    is_down: bool = False


CASES = {
    "made, nothing more": Given("lost"),
    "local, before its first record": Given("running", is_owned=True),
    "local, started": Given("running", ("started",), is_owned=True),
    "local, killed": Given("lost", ("started",)),
    "local, done": Given("done", ("done",)),
    "local, stopped": Given("stopped", ("stopped",)),
    "local, failed": Given("failed", ("failed",)),
    "local, resumed a moment ago": Given("running", ("stopped",), is_owned=True),
    "pending": Given("queued", ("submit 5",), {"5+0": "PENDING", "5+1": "PENDING"}),
    "begun by Slurm, not yet by its leader": Given("queued", ("submit 5",), {"5": "RUNNING"}),
    "leading": Given("running", ("submit 5", "started 5"), {"5": "RUNNING"}),
    "leading, a state that nobody knows": Given("running", ("submit 5", "started 5"), {"5": "DREAMING"}),
    "leading, Slurm does not answer": Given("running", ("submit 5", "started 5"), is_down=True),
    "done, its job completes": Given("done", ("submit 5", "done 5"), {"5": "COMPLETING"}),
    "done, requeued all the same": Given("done", ("submit 5", "done 5"), {"5": "PENDING"}),
    "stopped, its leader sees to what follows": Given("running", ("submit 5", "stopped 5"), {"5": "RUNNING"}),
    "stopped, nothing follows": Given("stopped", ("submit 5", "stopped 5", "next 5"), {"5": "RUNNING"}),
    "stopped, about to be requeued": Given("queued", ("submit 5", "stopped 5", "next 5 x"), {"5": "COMPLETING"}),
    "stopped, killed before it could say what follows": Given(
        "stopped", ("submit 5", "stopped 5"), ended={"5": "FAILED"}
    ),
    "failed, the next attempt follows": Given("running", ("submit 5", "failed 5 x"), {"5": "RUNNING"}),
    "stopped, another job goes on": Given(
        "queued", ("submit 5", "stopped 5", "chain 5 6", "next 5 x"), {"5": "COMPLETING", "6": "PENDING"}
    ),
    "still leading, another job waits for it": Given(
        "running", ("submit 5", "started 5", "chain 5 6"), {"5": "RUNNING", "6": "PENDING"}
    ),
    "preempted and killed, another job goes on": Given(
        "queued", ("submit 5", "started 5", "chain 5 6"), {"6": "PENDING"}, ended={"5": "PREEMPTED"}
    ),
    "cancelled, the job that should follow did not go on": Given(
        "stopped", ("submit 5", "stopped 5", "chain 5 6"), ended={"5": "CANCELLED", "6": "COMPLETED"}
    ),
    "done, another job found nothing to do": Given(
        "done", ("submit 5", "done 5", "chain 5 6"), ended={"5": "COMPLETED", "6": "COMPLETED"}
    ),
    "cancelled while it ran": Given("cancelled", ("submit 5", "stopped 5"), {"5": "CANCELLED"}),
    "failed as its leader wrote": Given("failed", ("submit 5", "failed 5"), ended={"5": "COMPLETED"}),
    "killed at the time limit": Given("failed", ("submit 5", "started 5"), ended={"5": "TIMEOUT"}),
    "cancelled, its leader killed": Given("cancelled", ("submit 5", "started 5"), ended={"5": "CANCELLED"}),
    "a node lost, half of it back in the queue": Given(
        "failed", ("submit 5", "failed 5"), {"5+0": "PENDING", "5+1": "PENDING", "5+2": "FAILED"}
    ),
    "killed, no accounting": Given("lost", ("submit 5", "started 5"), ended=None),
    "requeued, a node failed": Given("queued", ("submit 5", "started 5"), {"5": "PENDING"}),
    "requeued, stopped for a preemption": Given("queued", ("submit 5", "stopped 5"), {"5": "REQUEUED"}),
    "requeued, all were told to end": Given("queued", ("submit 5", "stopped 5"), {"5": "PENDING"}),
    "leading again": Given("running", ("submit 5", "stopped 5", "started 5"), {"5": "RUNNING"}),
    "cancelled while it waited": Given("cancelled", ("submit 5",), ended={"5": "CANCELLED"}),
    "ended before its leader began": Given("failed", ("submit 5",), ended={"5": "NODE_FAIL"}),
    "submitted again": Given("queued", ("submit 5", "failed 5", "submit 6"), {"6": "PENDING"}),
    "submitted again, cancelled in the queue": Given(
        "cancelled", ("submit 5", "stopped 5", "submit 6"), ended={"6": "CANCELLED"}
    ),
    "submitted again, ended before its leader began": Given(
        "failed", ("submit 5", "done 5", "submit 6"), ended={"6": "FAILED"}
    ),
    "submitted again, nothing to do": Given("done", ("submit 5", "done 5", "submit 6"), ended={"6": "COMPLETED"}),
    "submitted after a local stop": Given("queued", ("stopped", "submit 5"), {"5": "PENDING"}),
    "local after its job": Given(
        "running", ("submit 5", "stopped 5", "started"), ended={"5": "COMPLETED"}, is_owned=True
    ),
    "local after its job, stopped": Given("stopped", ("submit 5", "failed 5", "stopped"), ended={"5": "FAILED"}),
    "local after its job, done": Given("done", ("submit 5", "stopped 5", "done"), ended={"5": "COMPLETED"}),
}


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_a_run_is_in_the_state_that_all_its_signs_agree_on(tmp_path: Path, given: Given):
    run, slurm = create(config_in(tmp_path / "run")), Slurm()
    history = History(run)
    for text in given.history:
        history.add(text)
    for job_id, state in given.queue.items():
        slurm.queue(job_id, state)
    slurm.ended, slurm.is_down = given.ended, given.is_down
    with owned(run) if given.is_owned else nullcontext():
        assert read_status(run, slurm.states(vanished_after_s=0.0)).state == given.state
        assert is_over(run, slurm.states(vanished_after_s=0.0)) == (given.state in OVER)
