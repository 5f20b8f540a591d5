"""What scontrol says about a job, as recorded from Slurm 22.05 in each situation, and what it means to its leader."""

from datetime import datetime

import pytest

from rollart_hpc.slurm.queue.job_facts import Course, JobFacts, parse_job_facts

LINE = (
    "JobId={id} HetJobId=1 HetJobOffset={offset} JobName=Reason=x y HetJobIdSet=1-3 UserId=root(0) QOS=(null) "
    "JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 TimeLimit=00:10:00 "
    "EligibleTime=2026-11-30T10:49:50 StartTime=2026-11-30T10:51:22 EndTime={end} Deadline=N/A {preempt} "
    "Partition={partition} NodeList=h20-1 Comment=Restarts=9 Power= "
)
END = "2026-11-30T11:01:22"
NONE = "PreemptEligibleTime=2026-11-30T10:51:22 PreemptTime=None"


def job(*parts: str) -> JobFacts:
    """From ``STATE``, ``STATE restarts`` or ``STATE restarts what`` of each component, the last one's line first."""
    lines: list[str] = []
    for offset, part in enumerate(parts):
        state, restarts, what = (*part.split(), "0", "")[:3] if " " in part else (part, "0", "")
        lines.append(
            LINE.format(
                id=offset + 1,
                offset=offset,
                state=state,
                restarts=restarts,
                reason="TimeLimit" if what == "limit" else "None",
                preempt=NONE.replace("PreemptTime=None", "PreemptTime=2026-11-30T10:51:23")
                if what == "preempted"
                else NONE,
                end="2026-11-30T10:51:33" if what == "preempted" else END,
                partition=("cpu", "h800", "h20")[offset],
            )
        )
    return parse_job_facts("1", "\n".join(reversed(lines)))


@pytest.mark.parametrize(
    ("parts", "course"),
    [
        (("RUNNING", "RUNNING", "RUNNING"), Course.RUNS),
        (("RUNNING 0 preempted",) * 3, Course.PREEMPTED),
        (("COMPLETING 0 preempted",) * 3, Course.PREEMPTED),
        (("COMPLETING 1",) * 3, Course.REQUEUED),
        (("COMPLETING 1", "PENDING 1", "PENDING 1"), Course.REQUEUED),
        (("COMPLETING 1", "PENDING 1", "RUNNING 0"), Course.HALVED),
        (("PENDING 1", "RUNNING 0", "RUNNING 0"), Course.HALVED),
        (("COMPLETING 0 limit",) * 3, Course.TIME_UP),
        (("COMPLETING",) * 3, Course.CANCELLED),
        (("CANCELLED",) * 3, Course.CANCELLED),
        (("DREAMING",) * 3, Course.UNKNOWN),
    ],
)
def test_the_course_of_a_job(parts: tuple[str, ...], course: Course):
    assert job(*parts).course((0, 0, 0)) is course


def test_what_happened_before_this_start_is_none_of_it():
    again = job("RUNNING 3", "RUNNING 3", "RUNNING 3")
    assert again.course((3, 3, 3)) is Course.RUNS
    assert again.course((2, 2, 2)) is Course.REQUEUED


def test_times_and_names_are_read_by_component():
    facts = job("RUNNING", "RUNNING", "RUNNING 0 preempted")
    assert [component.partition for component in facts.components] == ["cpu", "h800", "h20"]
    assert facts.end == datetime.fromisoformat("2026-11-30T10:51:33").astimezone()
    assert facts.start == datetime.fromisoformat("2026-11-30T10:51:22").astimezone()
    assert facts.restarts == (0, 0, 0)
    assert facts.may_requeue
    assert facts.components[0].qos is None


def test_what_slurm_does_not_say_is_not_known():
    facts = parse_job_facts("1", "JobId=1 JobState=PENDING EligibleTime=Unknown EndTime=Unknown Requeue=0\nnoise\n")
    assert (facts.end, facts.start, facts.eligible, facts.may_requeue) == (None, None, None, False)
    assert parse_job_facts("1", "slurm_load_jobs error").components == ()
