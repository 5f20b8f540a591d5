"""How a process that is a step of a job is ended, on a real Slurm."""

import sys
from pathlib import Path

import psutil

from rollart_hpc.launcher.steps import StepStarter
from rollart_hpc.slurm.allocated import AllocatedJob
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.queue.squeue import read_queue
from rollart_hpc.slurm.single_machine import Cluster
from tests.builders import run_config
from tests.slurm.waiting import wait_until

DEAF = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
with open(sys.argv[1], "w") as file:
    print(os.getpid(), file=file)
time.sleep(600)
"""


async def test_a_step_that_heeds_nothing_is_freed_after_the_grace(cluster: Cluster, tmp_path: Path):
    options = ("--partition=cpu", "--nodelist=cpu-1", "--cpus-per-task=4", "--mem=16G", "--output=/dev/null")
    job_id = run_slurm("sbatch", "--parsable", *options, "--wrap=sleep 600").strip()
    wait_until(lambda: (job := read_queue().get(job_id)) is not None and job.state == "RUNNING", "the job to run")
    job = AllocatedJob(job_id=job_id, node="cpu-1", nodes=(("cpu-1",),), is_heterogeneous=False, restarts=0)
    starter, pid_file = StepStarter(run_config(), job), tmp_path / "pid"
    step = await starter.start("deaf", [sys.executable, "-c", DEAF, str(pid_file)], tmp_path / "log", None)
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the step to run")
    pid = int(pid_file.read_text())
    await step.stop(grace_s=0.5)
    assert step.exit_code is not None
    wait_until(lambda: not psutil.pid_exists(pid), "the step's process to end")
    ids = ("squeue", "--steps", "--noheader", "--format=%i", f"--jobs={job_id}")
    wait_until(lambda: f"{job_id}.0" not in run_slurm(*ids), "the step to end")
    assert read_queue()[job_id].state == "RUNNING"
