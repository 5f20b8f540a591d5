"""When Slurm is asked, and what becomes of jobs that leave the queue."""

from collections.abc import Iterable

from rollart_hpc.errors import NoSlurmError
from rollart_hpc.slurm.queue.job_state import JobStatus
from rollart_hpc.slurm.queue.job_states import JobStates
from rollart_hpc.slurm.queue.squeue import parse_queue


class Slurm:
    """squeue, sacct and the clock, as told."""

    def __init__(self, *, accounting: bool = True) -> None:
        self.now = 0.0
        self.queue: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.accounting = accounting
        self.is_down = False
        self.asked: list[float] = []
        self.accounting_asked = 0
        self.states = JobStates(
            clock=lambda: self.now,
            queue=self.read_queue,
            accounting=self.read_accounting,
            look_after=lambda job: "",
        )

    def read_queue(self) -> dict[str, JobStatus]:
        self.asked.append(self.now)
        if self.is_down:
            raise NoSlurmError("squeue: Unable to contact slurm controller")
        return _jobs(self.queue)

    def read_accounting(self, job_ids: Iterable[str]) -> dict[str, JobStatus] | None:
        self.accounting_asked += 1
        return (
            _jobs({job_id: self.ended[job_id] for job_id in job_ids if job_id in self.ended})
            if self.accounting
            else None
        )

    def state_at(self, second: float, job_id: str = "1") -> str:
        self.now = second
        return self.states.status(job_id).state


def _jobs(states: dict[str, str]) -> dict[str, JobStatus]:
    return parse_queue("".join(f"{job_id}|{job_id}|{state}|N/A|cpu||None\n" for job_id, state in states.items()))


def test_slurm_is_asked_every_30_s_and_less_often_while_nothing_changes():
    slurm = Slurm()
    slurm.queue = {"1": "RUNNING"}
    for second in range(600):
        slurm.state_at(second)
    assert slurm.asked == [0, 30, 90, 210, 330, 450, 570]


def test_a_change_brings_the_short_interval_back():
    slurm = Slurm()
    slurm.queue = {"1": "PENDING"}
    for second in range(91):
        slurm.state_at(second)
    slurm.queue = {"1": "RUNNING"}
    for second in range(91, 300):
        slurm.state_at(second)
    assert slurm.asked == [0, 30, 90, 210, 240]
    assert slurm.state_at(300) == "RUNNING"


def test_all_jobs_share_one_question_and_ended_ones_need_none():
    slurm = Slurm()
    slurm.queue = {"1": "COMPLETED", "2": "RUNNING"}
    slurm.states.watch("2")
    assert slurm.state_at(0) == "COMPLETED"
    assert slurm.state_at(1, "2") == "RUNNING"
    slurm.queue = {}
    assert slurm.states.status("1", force=True).state == "COMPLETED"
    assert slurm.asked == [0]


def test_force_asks_at_once():
    slurm = Slurm()
    slurm.queue = {"1": "RUNNING"}
    slurm.state_at(0)
    slurm.queue = {"1": "CANCELLED"}
    assert slurm.state_at(1) == "RUNNING"
    assert slurm.states.status("1", force=True).state == "CANCELLED"


def test_what_was_just_submitted_is_pending_without_a_question():
    slurm = Slurm()
    slurm.states.watch("1", state="PENDING")
    assert slurm.states.known("1").state == "PENDING"
    assert slurm.asked == []


def test_accounting_is_asked_for_jobs_that_left_the_queue():
    slurm = Slurm()
    slurm.queue = {"1": "RUNNING"}
    slurm.state_at(0)
    slurm.queue, slurm.ended = {}, {"1": "TIMEOUT"}
    assert slurm.state_at(30) == "TIMEOUT"


def test_accounting_that_lags_behind_is_waited_for():
    slurm = Slurm()
    slurm.queue = {"1": "RUNNING"}
    slurm.state_at(0)
    slurm.queue, slurm.ended = {}, {"1": "RUNNING"}
    assert slurm.state_at(30) == "RUNNING"
    slurm.ended = {"1": "FAILED"}
    slurm.now = 32
    assert slurm.states.status("1", force=True).state == "FAILED"


def test_a_job_that_is_nowhere_has_vanished_after_a_while_and_is_over():
    slurm = Slurm()
    assert slurm.state_at(0) == "UNKNOWN"
    slurm.now = 14
    assert not slurm.states.status("1", force=True).ended
    slurm.now = 15
    assert slurm.states.status("1", force=True).state == "VANISHED"
    assert slurm.states.status("1").ended


def test_a_cluster_without_accounting_is_asked_for_it_once():
    slurm = Slurm(accounting=False)
    slurm.queue = {"1": "RUNNING", "2": "RUNNING"}
    slurm.states.watch("2")
    slurm.state_at(0)
    slurm.queue = {}
    slurm.state_at(30)
    assert slurm.state_at(60) == "VANISHED"
    assert slurm.accounting_asked == 1


def test_a_job_that_comes_back_has_not_vanished():
    slurm = Slurm()
    slurm.state_at(0)
    slurm.queue = {"1": "PENDING"}
    assert slurm.state_at(30) == "PENDING"
    slurm.queue = {}
    assert slurm.state_at(100) == "PENDING"


def test_a_slurm_that_is_down_changes_nothing_and_is_left_in_peace():
    slurm = Slurm()
    slurm.queue = {"1": "RUNNING"}
    slurm.state_at(0)
    slurm.is_down = True
    states = [slurm.state_at(second) for second in range(1, 300)]
    assert set(states) == {"RUNNING"}
    assert slurm.asked == [0, 30, 90, 210]
