"""What jobs say of themselves: from their files, and from a Slurm that answers late, wrongly or not at all."""

import pickle
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from submitit.core.utils import FailedJobError, UncompletedJobError

from rollart_hpc.errors import NoSlurmError
from rollart_hpc.slurm.het_submitit import ComponentJob, HetJob, HetSlurmExecutor, ScriptJob, job
from rollart_hpc.slurm.het_submitit.watcher import HetInfoWatcher
from rollart_hpc.slurm.queue.job_state import ComponentStatus, JobStatus
from rollart_hpc.slurm.queue.job_states import JobStates

JOB = "12"


class Slurm:
    """A queue with one job, which was just submitted; it is asked when `now` says that it is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[float] = []
        self.is_down = False
        self.states: tuple[str, ...] = ("PENDING",)
        states = JobStates(
            clock=self.clock, queue=self.read_queue, accounting=self.read_accounting, look_after=lambda job: ""
        )
        self.watcher = HetInfoWatcher(states, self.clock)
        self.watcher.note_submission(JOB)
        self.watcher.update()
        self.asked.clear()

    def clock(self) -> float:
        return self.now

    def read_queue(self) -> dict[str, JobStatus]:
        self.asked.append(self.now)
        if self.is_down:
            raise NoSlurmError("squeue: Unable to contact slurm controller")
        parts = enumerate(self.states)
        components = tuple(ComponentStatus(offset=k, job_id=str(12 + k), state=state) for k, state in parts)
        return {JOB: JobStatus(job_id=JOB, components=components)} if components else {}

    def read_accounting(self, job_ids: Iterable[str]) -> None:
        del job_ids


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(ComponentJob, "watcher", slurm.watcher)
    monkeypatch.setattr(ComponentJob, "_results_timeout_s", 600)
    monkeypatch.setattr(job, "_GRACE_S", 0.2)
    return slurm


def het_job(folder: Path, **sizes: int) -> HetJob:
    for name in sizes:
        (folder / name).mkdir(parents=True)
    return HetJob(folder, JOB, components=sizes)


def leave_result(component: Path, value: object, task: int = 0, outcome: str = "success") -> None:
    beside = component / "result.new"
    beside.write_bytes(pickle.dumps((outcome, value)))
    beside.rename(component / f"{JOB}_{task}_result.pkl")


def leave_exit(component: Path, code: int) -> None:
    (component / f"{JOB}_exit").write_text(f"{code}\n")


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (0, "exit code 0"), (137, "killed by SIGKILL")])
def test_a_task_without_a_result_says_at_once_how_it_ended(tmp_path: Path, slurm: Slurm, code: int, words: str):
    whole = het_job(tmp_path, a=1, b=1)
    leave_exit(tmp_path / "a", code)
    (tmp_path / "a" / f"{JOB}_0_log.err").write_text("cannot pickle 'generator' object\n")
    slurm.states = ("RUNNING", "RUNNING")
    text = str(whole.components["a"].exception())
    assert f"ended without a result: {words} (state: RUNNING)" in text
    assert text.endswith("cannot pickle 'generator' object")
    assert ("sys.exit" in text) == (code == 0)
    assert not whole.done()


def test_many_tasks_without_a_result_share_the_grace(tmp_path: Path, slurm: Slurm):
    component = het_job(tmp_path, a=200).components["a"]
    leave_exit(tmp_path / "a", 1)
    begin = time.monotonic()
    assert "task 0" in str(component.exception())
    assert time.monotonic() - begin < 20, "200 times the grace is 40 s"


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL", "FAILED"])
def test_nobody_waits_for_the_result_of_a_job_that_slurm_has_ended(tmp_path: Path, slurm: Slurm, state: str):
    whole = het_job(tmp_path, a=1)
    slurm.states = (state,)
    slurm.watcher.update()
    with pytest.raises(UncompletedJobError, match=f"without a result .state: {state}"):
        whole.result()


def test_the_result_of_a_completed_job_may_come_late(tmp_path: Path, slurm: Slurm):
    whole = het_job(tmp_path, a=1)
    slurm.states = ("COMPLETED",)
    slurm.watcher.update()
    late = threading.Timer(0.5, leave_result, (tmp_path / "a", 7))
    late.start()
    assert whole.result() == {"a": 7}
    late.join()


def test_a_task_that_raised_comes_before_those_that_were_ended_for_it(tmp_path: Path, slurm: Slurm):
    whole = het_job(tmp_path, a=3)
    leave_exit(tmp_path / "a", 1)
    leave_result(tmp_path / "a", "ValueError: rank 2", 2, "error")
    error = whole.exception()
    assert isinstance(error, FailedJobError)
    assert "ValueError: rank 2" in str(error)


def test_the_state_after_a_result_is_asked_for_afresh(tmp_path: Path, slurm: Slurm):
    whole = het_job(tmp_path, a=1, b=1)
    assert (whole.state, slurm.asked) == ("PENDING", [])
    leave_result(tmp_path / "a", 1)
    slurm.states = ("RUNNING", "RUNNING")
    assert (whole.components["a"].state, slurm.asked) == ("RUNNING", [0])
    leave_result(tmp_path / "b", 1)
    slurm.now = 0.5
    slurm.states = ("COMPLETED", "COMPLETED")
    assert whole.state == "COMPLETED"
    assert slurm.asked == [0, 0.5]


@pytest.mark.parametrize(
    ("exits", "results", "state"),
    [
        ({}, "", "PENDING"),
        ({}, "a", "PENDING"),
        ({}, "ab", "COMPLETING"),
        ({"a": 0}, "ab", "COMPLETING"),
        ({"a": 0, "b": 0}, "ab", "COMPLETED"),
        ({"a": 0, "b": 0}, "a", "FAILED"),
        ({"a": 0, "b": 1}, "ab", "FAILED"),
    ],
)
def test_the_files_tell_the_state_while_slurm_does_not_answer(
    tmp_path: Path, slurm: Slurm, exits: dict[str, int], results: str, state: str
):
    whole = het_job(tmp_path, a=1, b=1)
    slurm.is_down = True
    for name in results:
        leave_result(tmp_path / name, 1)
    for name, code in exits.items():
        leave_exit(tmp_path / name, code)
    assert whole.state == state


def test_the_files_tell_how_a_job_ended_that_has_vanished(tmp_path: Path, slurm: Slurm):
    whole = het_job(tmp_path, a=1, b=1)
    slurm.states = ()
    for slurm.now in (30.0, 60.0, 90.0):
        slurm.watcher.update()
    assert whole.state == "VANISHED"
    leave_exit(tmp_path / "a", 0)
    leave_result(tmp_path / "a", 1)
    leave_result(tmp_path / "b", 1)
    assert (whole.components["a"].state, whole.components["b"].state) == ("COMPLETED", "VANISHED")


def test_an_exit_file_that_is_just_being_written_does_not_count(tmp_path: Path, slurm: Slurm):
    component = het_job(tmp_path, a=1).components["a"]
    (tmp_path / "a" / f"{JOB}_exit").touch()
    assert not component.done()


def test_the_end_of_a_job_is_asked_for_soon_and_then_seldom(slurm: Slurm):
    slurm.states = ("COMPLETING",)
    slurm.watcher.expect_end(JOB)
    for second in range(60):
        slurm.now = second
        slurm.watcher.expect_end(JOB)
        slurm.watcher.get_state(JOB)
    assert slurm.asked == [0, 1, 3, 7, 15, 31]
    slurm.states = ("CANCELLED",)
    slurm.watcher.expect_end(f"{JOB}+1")
    for slurm.now in (60.0, 60.5, 61.0, 63.0):
        assert slurm.watcher.is_done(JOB)
    assert slurm.asked[6:] == [60.0]


def test_a_forced_question_about_a_whole_job_is_asked(tmp_path: Path, slurm: Slurm):
    whole = het_job(tmp_path, a=1, b=1)
    slurm.states = ("COMPLETED", "CANCELLED")
    assert not whole.done()
    assert whole.done(force_check=True)


class ReadyScript(ScriptJob):
    def read_result(self) -> str:
        return (self.script_folder / "result").read_text()

    def is_over(self) -> bool:
        return (self.script_folder / "result").exists()


def test_a_component_of_a_script_has_its_own_state_and_the_whole_jobs_result(tmp_path: Path, slurm: Slurm):
    whole = ReadyScript(tmp_path, JOB, components={"cpu": 1, "gpu": 1})
    slurm.states = ("RUNNING", "PENDING")
    slurm.watcher.update()
    gpu = whole.components["gpu"]
    assert (whole.state, gpu.state, whole.components["cpu"].state, gpu.done()) == (
        "PENDING",
        "PENDING",
        "RUNNING",
        False,
    )
    (tmp_path / "result").write_text("well")
    whole.paths.stdout.write_text("said")
    assert (gpu.done(), gpu.result(), gpu.results(), gpu.exception()) == (True, "well", ["well"], None)
    assert (gpu.stdout(), gpu.stderr(), gpu.paths.folder) == ("said", "said", tmp_path)
    slurm.is_down = True
    assert gpu.state == "COMPLETING"


def test_the_folder_of_a_script_is_taken_to_the_letter(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, executor: HetSlurmExecutor
):
    folder = tmp_path / "läufe %j %t" / "%a%A"
    executor.folder = folder
    script = executor.submit_script("#!/bin/bash\n", component_names=["one"], job_class=ReadyScript)
    assert script.script_folder == script.paths.folder == script.components["one"].paths.folder == folder
    assert sorted(path.name for path in folder.iterdir()) == [f"{JOB}_components.json", f"{JOB}_submission.sh"]
    assert script.paths.stdout == folder / f"{JOB}_batch.log"
    assert list(ReadyScript(folder, JOB).components) == ["one"]


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HetSlurmExecutor:
    """Its sbatch gives every job the same id."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(f"#!/bin/sh\necho {JOB}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return HetSlurmExecutor(tmp_path / "jobs")
