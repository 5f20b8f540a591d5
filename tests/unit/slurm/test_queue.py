"""What squeue and sacct printed (Slurm 22.05), and what is made of it."""

from datetime import datetime

import pytest

from rollart_hpc.slurm.queue.accounting import parse_accounting
from rollart_hpc.slurm.queue.job_state import JobStatus, fold_states, split_id
from rollart_hpc.slurm.queue.squeue import parse_queue

SQUEUE = """\
4_[1-3%1]|4|PENDING|N/A|cpu||JobArrayTaskLimit
6|6|PENDING|2026-11-30T08:41:06|cpu||BeginTime
1+0|1|RUNNING|2026-11-30T07:41:06|cpu|cpu-1|None
4_0|7|RUNNING|2026-11-30T07:41:06|cpu|cpu-2|None
1+2|3|RUNNING|2026-11-30T07:41:06|h20|h20-1|None
5|5|PENDING|2026-11-30T07:51:06|h800||Resources
1+1|2|RUNNING|2026-11-30T07:41:06|h800|h800-[1-2]|None
15+2|17|FAILED|2026-11-30T07:53:09|cpu|cpu-1|NonZeroExitCode
12+0|12|RUNNING|2026-11-30T07:47:59|cpu|cpu-1|None
12+2|14|RUNNING|2026-11-30T07:47:59|h20|h20-1|None
12+1|13|CANCELLED|2026-11-30T07:47:59|h800|h800-[1-2]|None
"""
SACCT = """\
4_0|7|COMPLETED|2026-11-30T07:41:06|cpu|cpu-2|0:0
5|5|COMPLETED|2026-11-30T07:41:11|h800|h800-[1-2]|0:0
12+0|12|CANCELLED by 0|2026-11-30T07:47:59|cpu|cpu-1|0:0
12+1|13|CANCELLED by 0|2026-11-30T07:47:59|h800|h800-[1-2]|0:0
15+0|15|FAILED|2026-11-30T07:53:09|h800|h800-[1-2]|1:0
15+1|16|FAILED|2026-11-30T07:53:09|h20|h20-1|1:0
20|20|FAILED|2026-11-30T07:53:24||cpu-1|0:9
21|21|PENDING|Unknown|cpu|None assigned|0:0
"""


def test_the_components_of_a_job_are_folded_under_the_leader():
    job = parse_queue(SQUEUE)["1"]
    assert [(part.offset, part.job_id, part.partition) for part in job.components] == [
        (0, "1", "cpu"),
        (1, "2", "h800"),
        (2, "3", "h20"),
    ]
    assert (job.state, job.ended, job.reason) == ("RUNNING", False, "")
    assert job.nodes == "cpu-1,h800-[1-2],h20-1"
    assert job.start == datetime(2026, 11, 30, 7, 41, 6).astimezone()


def test_a_job_without_components_is_its_own_first_one():
    job = parse_queue(SQUEUE)["5"]
    assert (job.state, job.reason, len(job.components)) == ("PENDING", "Resources", 1)
    assert job.start == datetime(2026, 11, 30, 7, 51, 6).astimezone()


def test_array_tasks_keep_their_ids():
    jobs = parse_queue(SQUEUE)
    assert (jobs["4_0"].state, jobs["4_[1-3%1]"].state) == ("RUNNING", "PENDING")
    assert jobs["4_[1-3%1]"].start is None


def test_a_job_is_unfinished_as_long_as_a_component_is():
    job = parse_queue(SQUEUE)["12"]
    assert (job.state, job.ended) == ("RUNNING", False)
    cancelled = job.component(1)
    assert cancelled is not None and cancelled.state == "CANCELLED"
    assert job.component(3) is None


@pytest.mark.parametrize("output", ["", "\n", "Unable to look\n", "1|2|3\n"], ids=["empty", "line", "words", "short"])
def test_output_that_says_nothing_is_no_job(output: str):
    assert parse_queue(output) == {}
    assert parse_accounting(output) == {}


def test_what_slurm_has_never_said_before_is_kept_as_it_is():
    job = parse_queue("7+0|7|HIBERNATING|soon|größe|knoten-[1-2]|Vom Betreiber|angehalten\n")["7"]
    assert (job.state, job.ended, job.start, job.nodes) == ("HIBERNATING", False, None, "knoten-[1-2]")
    assert job.components[0].partition == "größe"
    assert job.reason == "Vom Betreiber|angehalten"


def test_accounting_tells_how_jobs_ended():
    jobs = parse_accounting(SACCT)
    assert (jobs["12"].state, jobs["12"].ended, jobs["12"].reason) == ("CANCELLED", True, "by 0")
    assert (jobs["15"].state, jobs["15"].exit_code) == ("FAILED", 1)
    assert (jobs["20"].exit_code, jobs["5"].exit_code) == (137, 0)
    assert (jobs["21"].nodes, jobs["21"].start) == ("", None)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], "UNKNOWN"),
        (["COMPLETED", "COMPLETED"], "COMPLETED"),
        (["COMPLETED", "FAILED", "CANCELLED"], "FAILED"),
        (["FAILED", "NODE_FAIL"], "NODE_FAIL"),
        (["FAILED", "RUNNING"], "RUNNING"),
        (["RUNNING", "PENDING"], "PENDING"),
        (["FAILED", "NEW_STATE"], "NEW_STATE"),
        (["COMPLETED", "VANISHED"], "VANISHED"),
    ],
    ids=" ".join,
)
def test_states_fold_unfinished_first_then_worst(states: list[str], expected: str):
    assert fold_states(states) == expected


@pytest.mark.parametrize(
    ("text", "parts"), [("12", ("12", 0)), ("12+1", ("12", 1)), ("12_3", ("12_3", 0)), ("12+x", ("12+x", 0))]
)
def test_ids_split_into_leader_and_offset(text: str, parts: tuple[str, int]):
    assert split_id(text) == parts


def test_a_job_that_nobody_has_seen_is_unknown_and_not_over():
    job = JobStatus(job_id="1")
    assert (job.state, job.ended, job.start, job.exit_code) == ("UNKNOWN", False, None, None)
