"""Het jobs through submitit, on a real Slurm."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.het_submitit import Component, ComponentJob, HetJob, HetSlurmExecutor, ScriptJob
from rollart_hpc.slurm.het_submitit.watcher import HetInfoWatcher
from rollart_hpc.slurm.queue.job_states import JobStates
from rollart_hpc.slurm.queue.squeue import cancel_job, read_queue

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("cluster", "eager_watcher")
DEADLINE_S = 60.0


@pytest.fixture
def eager_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    states = JobStates(interval_s=0.2, longest_interval_s=0.2, vanished_after_s=0.5)
    monkeypatch.setattr(ComponentJob, "watcher", HetInfoWatcher(states))
    monkeypatch.setattr(ComponentJob, "_results_timeout_s", 0)


@pytest.fixture
def executor(tmp_path: Path) -> HetSlurmExecutor:
    executor = HetSlurmExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=5, mem_gb=0.1, job_name="test")
    return executor


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def describe(value: object) -> dict[str, object]:
    environment = submitit.JobEnvironment()
    return {
        "value": value,
        "job": environment.job_id,
        "rank": (environment.global_rank, environment.num_tasks, environment.num_nodes),
        "node": os.environ["SLURMD_NODENAME"],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def fail() -> None:
    raise ValueError("the engine is gone")


def sleeper(name: str) -> Component:
    """Ends at once when it is told to, unlike a function that sleeps."""
    return Component(name, command=["sleep", "600"])


def test_each_component_runs_its_own_function_on_its_own_nodes(executor: HetSlurmExecutor):
    job = executor.submit_components(
        [
            Component("trainer", describe, args=(1,), partition="h800", gres="gpu:h800:2", nodes=2, tasks_per_node=2),
            Component("engine", describe, kwargs={"value": 2}, partition="h20", gpus_per_node="h20:3"),
            Component("environment", describe, args=("drei",), partition="cpu", cpus_per_task=2),
        ]
    )
    results = job.result()
    trainers = results.pop("trainer")
    assert [task["rank"] for task in trainers] == [(rank, 4, 2) for rank in range(4)]
    assert [task["node"] for task in trainers] == ["h800-1", "h800-1", "h800-2", "h800-2"]
    assert {task["gpus"] for task in trainers} == {"0,1"}
    one = {"job": job.job_id, "rank": (0, 1, 1)}
    assert results == {
        "engine": {**one, "value": 2, "node": "h20-1", "gpus": "0,1,2"},
        "environment": {**one, "value": "drei", "node": "cpu-1", "gpus": None},
    }
    assert job.num_tasks == 6
    assert [task["value"] for task in job.results()] == [1, 1, 1, 1, 2, "drei"]
    assert job.components["engine"].result()["value"] == 2
    until(lambda: job.state == "COMPLETED", "the job completes")
    assert {part.state for part in job.components.values()} == {"COMPLETED"}


def test_a_component_that_fails_says_why_and_leaves_the_others_alone(executor: HetSlurmExecutor):
    job = executor.submit_components([Component("good", describe, args=(1,)), Component("bad", fail)])
    with pytest.raises(FailedJobError, match="the engine is gone"):
        job.result()
    assert job.components["good"].result()["value"] == 1
    assert job.components["good"].exception() is None
    assert "the engine is gone" in str(job.components["bad"].exception())
    assert "the engine is gone" in (job.components["bad"].stderr() or "")
    until(lambda: job.state == "FAILED", "the job fails")


def test_with_the_patience_of_users_a_killed_component_and_a_cancelled_job_are_told_soon(
    executor: HetSlurmExecutor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ComponentJob, "watcher", HetInfoWatcher())
    monkeypatch.setattr(ComponentJob, "_results_timeout_s", 600)
    job = executor.submit_components([Component("killed", command=["bash", "-c", "kill -9 $PPID"]), sleeper("long")])
    with pytest.raises(UncompletedJobError, match=r"without a result: killed by SIGKILL \(state: RUNNING\)"):
        job.components["killed"].result()
    assert not job.components["long"].done(force_check=True)
    assert not job.done()
    job.cancel()
    began = time.monotonic()
    job.wait()
    until(lambda: job.state == "CANCELLED", "the state follows")
    assert time.monotonic() - began < 15, "the queue is due after 30 s"


def test_a_failure_ends_all_when_asked_to(executor: HetSlurmExecutor):
    executor.update_parameters(stop_on_failure=True)
    job = executor.submit_components([sleeper("long"), Component("bad", fail)])
    assert "the engine is gone" in str(job.exception())
    assert isinstance(job.components["long"].exception(), UncompletedJobError)
    until(lambda: job.state == "FAILED", "the job fails")


def test_one_failed_task_ends_its_component(executor: HetSlurmExecutor):
    def fail_or_hang() -> None:
        if submitit.JobEnvironment().global_rank == 1:
            raise ValueError("rank 1")
        subprocess.run(["sleep", "600"], check=False)

    job = executor.submit_components([Component("ranks", fail_or_hang, tasks_per_node=3)])
    assert "ValueError: rank 1" in str(job.exception())


def test_a_cancelled_job_ends_every_wait(executor: HetSlurmExecutor):
    job = executor.submit_components([sleeper("a"), sleeper("b")])
    assert job.state in {"PENDING", "RUNNING"}
    until(lambda: job.state == "RUNNING", "the job runs")
    job.components["b"].cancel()
    job.wait()
    until(lambda: job.state == "CANCELLED", "both components are cancelled")
    with pytest.raises(UncompletedJobError, match=r"CANCELLED|killed by SIGTERM"):
        job.result()
    job.cancel()


def test_a_job_that_never_started_can_be_cancelled(executor: HetSlurmExecutor):
    held = {"hold": True}
    job = executor.submit_components([Component(name, fail, additional_parameters=held) for name in ("a", "b")])
    assert job.get_info()["Reason"] == "JobHeldUser"
    assert (job.state, job.done(force_check=True)) == ("PENDING", False)
    job.cancel()
    job.wait()
    assert job.get_info()["State"] == "CANCELLED"


def test_a_job_that_nobody_knows_does_not_keep_anyone_waiting(tmp_path: Path):
    job = HetJob(tmp_path, "999999", components={"a": 1})
    assert job.state == "UNKNOWN"
    job.wait()
    assert job.state == "VANISHED"
    assert isinstance(job.exception(), UncompletedJobError)


def test_two_jobs_run_at_once_and_can_be_found_again_by_id(executor: HetSlurmExecutor):
    jobs = [
        executor.submit_components([Component("a", describe, args=(n,)), Component("b", describe, args=(-n,))])
        for n in (1, 2)
    ]
    for n, job in enumerate(jobs, 1):
        again = HetJob(executor.folder, job.job_id)
        assert {name: result["value"] for name, result in again.result().items()} == {"a": n, "b": -n}
        assert again.components["a"].result()["job"] == job.job_id


def test_a_component_of_a_running_het_job_can_submit_another(executor: HetSlurmExecutor):
    folder = executor.folder / "inner"

    def submit() -> str:
        inner = HetSlurmExecutor(folder)
        inner.update_parameters(mem_gb=0.1)
        parts = [Component("x", describe, args=(1,), partition="h20"), Component("y", describe, args=(2,), nodes=2)]
        return inner.submit_components(parts).job_id

    outer = executor.submit_components([Component("a", submit, cpus_per_task=2), Component("b", time.sleep, args=(0,))])
    inner = HetJob(folder, outer.result()["a"])
    assert inner.result()["x"]["node"].startswith("h20-")
    assert [task["rank"] for task in inner.result()["y"]] == [(0, 2, 2), (1, 2, 2)]


def test_a_command_is_a_component_too(executor: HetSlurmExecutor):
    job = executor.submit_components(
        [
            Component("says", command=["printf", "%s", "a  b'c"], stderr_to_stdout=True),
            Component("fails", command=["bash", "-c", "echo so long >&2; exit 3"]),
        ]
    )
    assert job.components["says"].result() == 0
    assert "a  b'c" in (job.components["says"].stdout() or "")
    assert "exit code 3" in str(job.components["fails"].exception())
    assert "so long" in (job.components["fails"].stderr() or "")


def test_names_may_have_spaces_commas_and_any_letters_and_folders_percent_signs(tmp_path: Path):
    executor = HetSlurmExecutor(tmp_path / "läufe, 50%j'" / "%j")
    executor.update_parameters(name="größe, 1|2", mem_gb=0.1)
    job = executor.submit_components(
        [Component("a b,ü'", describe, args=(1,)), Component("c$HOME", describe, args=(2,))]
    )
    assert {name: result["value"] for name, result in job.result().items()} == {"a b,ü'": 1, "c$HOME": 2}
    until(lambda: "component c$HOME ended with exit code 0" in job.paths.stdout.read_text(), "the batch script's log")
    assert read_queue()[job.job_id].components[1].offset == 1


def test_what_sbatch_refuses_leaves_nothing_behind(executor: HetSlurmExecutor):
    with pytest.raises(SlurmError, match="invalid partition specified: nowhere") as refusal:
        executor.submit_components([Component("a", fail), Component("b", fail, partition="nowhere")])
    assert isinstance(refusal.value, FailedSubmissionError)
    assert refusal.value.exit_code == 3
    assert list(executor.folder.iterdir()) == []


def test_auto_executor_knows_it_and_keeps_its_own_choice(tmp_path: Path):
    executor = submitit.AutoExecutor(tmp_path / "%j", cluster="hetslurm")
    executor.update_parameters(timeout_min=3, mem_gb=0.1, hetslurm_partition="h20")
    job = executor.submit(describe, 1)
    assert job.result()["node"].startswith("h20-")
    assert job.paths.stdout.parent.name == job.job_id
    assert submitit.AutoExecutor(tmp_path).cluster == "slurm"
    with executor.batch():
        batched = [executor.submit(describe, value) for value in (2, 3)]
    assert [one.result()["value"] for one in batched] == [2, 3]


def test_a_finished_script_is_submitted_as_it_is(executor: HetSlurmExecutor):
    class RunJob(ScriptJob):
        def read_result(self) -> str:
            return (self.paths.folder / "result").read_text()

    heading = "#!/bin/bash\n#SBATCH --mem=10 --output=/dev/null\n#SBATCH hetjob\n#SBATCH --mem=10 --nodes=1\n"
    text = f"{heading}cat > '{executor.folder}/result' <<'END'\n\tä $HOME  \nEND\n"
    job = executor.submit_script(text, component_names=["one", "two"], job_class=RunJob)
    assert job.result() == "\tä $HOME  \n"
    assert job.paths.submission_file.read_bytes() == text.encode()
    assert [part.state for part in job.components.values()] == ["COMPLETED", "COMPLETED"]
    assert job.components["two"].result() == "\tä $HOME  \n"
    failing = executor.submit_script(heading + "exit 4\n")
    assert "ended as FAILED" in str(failing.exception())
    assert failing.num_tasks == 1


def test_warnings_of_sbatch_are_kept(executor: HetSlurmExecutor):
    text = "#!/bin/bash\n#SBATCH --mem=10 --output=/dev/null --nodes=2 --ntasks=1\ntrue\n"
    job = executor.submit_script(text)
    assert any("can't run 1 processes on 2 nodes" in warning for warning in job.warnings)


def test_only_a_whole_live_job_of_ones_own_is_cancelled(executor: HetSlurmExecutor):
    job = executor.submit_components([sleeper("a"), sleeper("b")])
    until(lambda: job.state == "RUNNING", "the job runs")
    number = read_queue()[job.job_id].components[1].job_id
    for component_id in (number, f"{job.job_id}+1"):
        with pytest.raises(SlurmError, match=f"one component of job {job.job_id}"):
            cancel_job(component_id)
    with pytest.raises(SlurmError, match="not in your queue"):
        cancel_job("999999")
    cancel_job(job.job_id)
    until(lambda: job.state == "CANCELLED", "all of it is cancelled")
    with pytest.raises(SlurmError, match="has ended"):
        cancel_job(job.job_id)


class Counter:
    """Counts to a number, slowly, across restarts."""

    def __init__(self) -> None:
        self.count = 0
        self.starts: list[tuple[int, int]] = []

    def __call__(self, goal: int, started: Path) -> list[tuple[int, int]]:
        environment = submitit.JobEnvironment()
        self.starts.append((int(os.environ.get("SLURM_RESTART_COUNT", "0")), self.count))
        (started / f"{os.environ['SUBMITIT_COMPONENT']}-{environment.global_rank}").touch()
        while self.count < goal or (self.starts[-1][0] == 0 and goal):
            time.sleep(0.1)
            self.count += 1
            if (started / "leave").exists() and not self.starts[-1][0]:
                os._exit(1)
        return self.starts

    def checkpoint(self, *args: object) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(self, *args)


def test_a_preempted_job_saves_everywhere_and_is_requeued_once(executor: HetSlurmExecutor, tmp_path: Path):
    job = executor.submit_components(
        [
            Component("ranks", Counter(), args=(5, tmp_path), partition="cpu", tasks_per_node=2),
            Component("preempted", Counter(), args=(5, tmp_path), partition="h800", gres="gpu:h800:8", nodes=2),
            Component("finished", Counter(), args=(0, tmp_path), partition="cpu"),
        ]
    )
    expected = ["finished-0", "preempted-0", "preempted-1", "ranks-0", "ranks-1"]
    until(lambda: sorted(path.name for path in tmp_path.glob("*-?")) == expected, "all tasks start")
    job.components["finished"].wait()
    leftover = job.components["ranks"].paths.submitted_pickle
    leftover.with_name(f"{job.job_id}_1_result.pkl.save_tmp").touch()
    urgent = ["sbatch", "--parsable", "-p", "h800-urgent", "-N2", "--exclusive", "--mem=10", "-o", "/dev/null"]
    subprocess.run([*urgent, "--wrap", "sleep 1"], check=True, capture_output=True)
    until(lambda: "requeue of job" in job.paths.stdout.read_text(), "the batch script requeues")
    until(lambda: _nudged(job), "the job runs again")
    results = job.result()
    assert results["finished"] == [(0, 0)]
    for part in ("ranks", "preempted"):
        first, second = results[part][0]
        assert first == (0, 0)
        assert second[0] == 1 and second[1] > 0
    log = job.paths.stdout.read_text()
    assert log.count("requeue of job") == 1
    assert log.count("component finished has its results") == 1
    until(lambda: job.state == "COMPLETED", "the job completes")


def test_a_job_that_is_told_by_term_alone_saves_and_waits_for_slurms_requeue(
    executor: HetSlurmExecutor, tmp_path: Path
):
    job = executor.submit_components([Component("a", Counter(), args=(5, tmp_path))])
    until((tmp_path / "a-0").exists, "the task starts")
    subprocess.run(["scancel", "--signal=TERM", job.job_id], check=True)
    subprocess.run(["scancel", "--signal=TERM", job.job_id], check=True)
    until(lambda: "Calling checkpoint" in (job.components["a"].stdout() or ""), "the task saves")
    assert not job.done(force_check=True)
    subprocess.run(["scontrol", "requeue", job.job_id], check=True)
    (tmp_path / "leave").touch()  # else it is killed 5 s later
    assert [restarts for restarts, _ in job.result()["a"]] == [0, 1]
    assert (job.components["a"].stdout() or "").count("Calling checkpoint") == 1


def _nudged(job: HetJob) -> bool:
    """An idle Slurm may look at a requeued het job only when something about it changes."""
    if job.state == "PENDING":
        subprocess.run(["scontrol", "update", "job", job.job_id, "comment=nudge"], check=False, capture_output=True)
    return job.state == "RUNNING"
