"""Slurm's commands as real processes: small programs of the same names, first on PATH."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.errors import NoSlurmError, SlurmError
from rollart_hpc.slurm.commands import ask_slurm, clean_environment, leaking_variables, require, run_slurm

Install = Callable[[str, str], None]
INSIDE_A_JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURMD_NODENAME": "a1",
    "SBATCH_PARTITION": "p",
    "SRUN_DEBUG": "3",
    "SALLOC_ACCOUNT": "x",
    "SQUEUE_FORMAT": "%i",
    "SACCT_FORMAT": "jobid",
    "SINFO_FORMAT": "%n",
    "SCANCEL_STATE": "RUNNING",
    "PMI_RANK": "0",
    "PMIX_RANK": "0",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "ROCR_VISIBLE_DEVICES": "0",
    "GPU_DEVICE_ORDINAL": "0",
    "ZE_AFFINITY_MASK": "0",
}
THE_USER_S = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_CLUSTERS": "big", "HOME": "/h", "MY_SLURM_JOB_ID": "1"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program of bash before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)

    return write


def test_what_a_program_prints_and_what_it_warns_of_are_told_apart(install: Install):
    install("sbatch", "printf '%s\\n' \"$@\"; echo '  sbatch: Warning: cut  ' >&2")
    answer = ask_slurm("sbatch", "--test-only", "two words", "")
    assert answer.text == "--test-only\ntwo words\n\n"
    assert answer.warnings == "sbatch: Warning: cut"
    assert run_slurm("sbatch", "x") == "x\n"


@pytest.fixture
def open_input() -> Iterator[None]:
    """A standard input of this process that never ends."""
    reader, writer = os.pipe()
    before = os.dup(0)
    os.dup2(reader, 0)
    yield
    os.dup2(before, 0)
    for descriptor in (reader, writer, before):
        os.close(descriptor)


@pytest.mark.usefixtures("open_input")
def test_text_goes_to_standard_input_and_without_it_there_is_none(install: Install):
    install("sbatch", "cat")
    assert run_slurm("sbatch", text="#!/bin/bash\n# größe\n") == "#!/bin/bash\n# größe\n"
    assert run_slurm("sbatch", deadline_s=10) == ""


def test_output_that_is_no_utf_8_is_no_reason_to_fail(install: Install):
    install("squeue", r"printf 'a\xff|b\n'")
    assert run_slurm("squeue") == "a\ufffd|b\n"


def test_a_program_that_does_not_end_is_ended_at_the_deadline(install: Install, tmp_path: Path):
    install("squeue", f"echo $$ >{tmp_path}/pid; exec sleep 60")
    begin = time.monotonic()
    with pytest.raises(NoSlurmError, match=r"squeue did not end within 0\.5 s"):
        run_slurm("squeue", deadline_s=0.5)
    assert time.monotonic() - begin < 10
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_what_a_program_said_before_the_deadline_is_told(install: Install):
    install("squeue", "echo 'squeue: error: cannot stat file /none' >&2; printf 'a\\xff|b'; exec sleep 60")
    with pytest.raises(NoSlurmError) as caught:
        run_slurm("squeue", deadline_s=0.5)
    assert "within 0.5 s: squeue: error: cannot stat file /none\na\ufffd|b; Slurm's controller" in str(caught.value)
    install("squeue", "exec sleep 60")
    with pytest.raises(NoSlurmError, match=r"within 0\.5 s: it said nothing; Slurm"):
        run_slurm("squeue", deadline_s=0.5)


def test_the_notice_of_a_preemption_does_not_end_the_commands_of_its_leader(install: Install):
    install("scontrol", "kill -TERM $$; kill -USR2 $$; echo 'JobId=7'")
    assert run_slurm("scontrol", "show") == "JobId=7\n"
    assert not {signal.SIGTERM, signal.SIGUSR2} & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_error_has_slurm_s_words_whole(install: Install):
    install("sbatch", "echo out; echo 'sbatch: error: first' >&2; echo 'sbatch: error: second' >&2; exit 3")
    with pytest.raises(SlurmError) as caught:
        run_slurm("sbatch")
    assert str(caught.value) == ("sbatch ended with exit code 3: sbatch: error: first\nsbatch: error: second\nout")
    assert type(caught.value) is SlurmError
    assert caught.value.exit_code == 3


def test_an_error_without_words_says_so(install: Install):
    install("scancel", "exit 1")
    with pytest.raises(SlurmError, match="scancel ended with exit code 1: it said nothing"):
        run_slurm("scancel")


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Connection refused",
        "squeue: fatal: Could not establish a configuration source: Unable to establish configuration source",
    ],
    ids=["no controller", "refused", "no configuration"],
)
def test_a_controller_that_does_not_answer_is_told_from_a_refusal(install: Install, words: str):
    install("squeue", f"echo '{words}' >&2; exit 1")
    with pytest.raises(NoSlurmError) as caught:
        run_slurm("squeue")
    assert words in str(caught.value)


def test_a_machine_without_slurm_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (require, run_slurm):
        with pytest.raises(NoSlurmError, match=r"squeue is not on PATH: .* or make a Slurm of this machine"):
            ask("squeue")


def test_the_program_is_looked_for_where_the_given_environment_says(install: Install, tmp_path: Path):
    install("squeue", "echo $WHO")
    path = os.environ["PATH"]
    assert run_slurm("squeue", environment={"PATH": path, "WHO": "me"}) == "me\n"
    with pytest.raises(NoSlurmError, match="squeue is not on PATH"):
        run_slurm("squeue", environment={"PATH": str(tmp_path)})


def test_a_program_that_is_only_on_the_given_path_is_found(monkeypatch: pytest.MonkeyPatch, install: Install):
    install("squeue", "echo found")
    environment = {"PATH": os.environ["PATH"]}
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_slurm("squeue", environment=environment) == "found\n"


def test_nothing_of_the_surrounding_job_reaches_a_command_but_where_slurm_is(
    install: Install, monkeypatch: pytest.MonkeyPatch
):
    install("srun", "env")
    for name, value in (INSIDE_A_JOB | THE_USER_S).items():
        monkeypatch.setenv(name, value)
    seen = dict(line.partition("=")[::2] for line in run_slurm("srun").splitlines())
    assert seen.keys() & INSIDE_A_JOB.keys() == set()
    assert {name: seen.get(name) for name in THE_USER_S} == THE_USER_S
    assert set(leaking_variables()) >= INSIDE_A_JOB.keys()
    assert clean_environment({**INSIDE_A_JOB, **THE_USER_S}) == THE_USER_S
