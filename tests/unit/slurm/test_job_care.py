"""When a job that Slurm has forgotten is helped, and when it is left alone."""

from dataclasses import dataclass, field

import pytest

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.queue.job_care import JobCare
from rollart_hpc.slurm.queue.job_facts import JobFacts, parse_job_facts
from rollart_hpc.slurm.queue.job_state import JobStatus, parse_time
from rollart_hpc.slurm.queue.squeue import parse_queue

ELIGIBLE = "2026-11-30T10:00:00"


@dataclass
class Slurm:
    """What was asked of it; the clock counts from when the job may start."""

    said: list[str] = field(default_factory=list[str])
    now: float = 20.0
    eligible: str = ELIGIBLE
    refuses: bool = False

    def care(self) -> JobCare:
        since = parse_time(ELIGIBLE)
        assert since is not None
        return JobCare(
            clock=lambda: since.timestamp() + self.now, read_facts=self._facts, mend=self._mend, nudge=self._nudge
        )

    def _facts(self, job_id: str) -> JobFacts:
        return parse_job_facts(job_id, f"JobId={job_id} JobState=PENDING Requeue=0 EligibleTime={self.eligible}")

    def _mend(self, job_id: str) -> None:
        self.said.append(f"mend {job_id}")

    def _nudge(self, job_id: str, *, may_requeue: bool) -> None:
        self.said.append(f"nudge {job_id} {may_requeue}")
        if self.refuses:
            raise SlurmError("no")


def job(*parts: str) -> JobStatus:
    lines = [f"7+{offset}|{7 + offset}|{part.replace(' ', '|N/A|p||')}" for offset, part in enumerate(parts)]
    return parse_queue("\n".join(lines))["7"]


def test_a_job_that_waits_without_a_reason_is_nudged_once_a_minute():
    slurm = Slurm()
    care = slurm.care()
    stuck = job("PENDING None", "PENDING None")
    assert "asked to look again" in care.look_after(stuck)
    for slurm.now in (50.0, 79.0):
        assert care.look_after(stuck) == ""
    slurm.now = 81.0
    assert care.look_after(stuck)
    assert slurm.said == ["nudge 7 False"] * 2


@pytest.mark.parametrize(
    ("parts", "now", "eligible"),
    [
        (("PENDING None", "PENDING None"), 14.0, ELIGIBLE),
        (("PENDING None", "PENDING None"), 20.0, "Unknown"),
        (("PENDING BeginTime", "PENDING None"), 20.0, ELIGIBLE),
        (("PENDING Resources", "PENDING Resources"), 20.0, ELIGIBLE),
        (("RUNNING None", "RUNNING None"), 20.0, ELIGIBLE),
        (("COMPLETING None", "PENDING None"), 20.0, ELIGIBLE),
        (("PENDING None", "CANCELLED None"), 20.0, ELIGIBLE),
    ],
    ids=["a moment ago", "not eligible", "later", "a reason", "runs", "ends", "a component that was cancelled"],
)
def test_others_are_left_alone(parts: tuple[str, ...], now: float, eligible: str):
    slurm = Slurm(now=now, eligible=eligible)
    assert slurm.care().look_after(job(*parts)) == ""
    assert slurm.said == []


def test_a_job_that_lost_components_gets_them_back():
    slurm = Slurm()
    care, half = slurm.care(), job("PENDING Resources", "PENDING Resources", "FAILED JobLaunchFailure")
    assert "put back" in care.look_after(half)
    assert care.look_after(half) == ""
    assert slurm.said == ["mend 7"]


def test_what_slurm_refuses_is_not_asked_again_at_once(caplog: pytest.LogCaptureFixture):
    slurm = Slurm(refuses=True)
    care, stuck = slurm.care(), job("PENDING None")
    assert [care.look_after(stuck) for _ in range(3)] == [""] * 3
    assert len(slurm.said) == 1
    assert "could not be helped: no" in caplog.text
