"""A leader without a run: it is told to stop as the real one is, saves nothing, and asks the real continuation.

Run as a batch script: `python -m tests.slurm.stand_in_leader RUN SAVES_S`. A step in the last component says when it
was told. The second attempt is done at once.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from rollart_hpc.errors import RollartError
from rollart_hpc.launcher import run_directory
from rollart_hpc.launcher.attempt_log import AttemptLog, read_attempts
from rollart_hpc.launcher.batch import follow_former
from rollart_hpc.launcher.slurm_continuation import SlurmContinuation
from rollart_hpc.slurm.allocated import AllocatedJob, read_allocated_job
from rollart_hpc.slurm.commands import clean_environment

TOLD: list[int] = []


def step(told: Path) -> None:
    """Says that it was told to end, as a worker does, and goes on."""
    while not TOLD:
        time.sleep(0.05)
    told.touch()
    time.sleep(600)


def start_step(run: Path, job: AllocatedJob) -> subprocess.Popen[bytes]:
    group = [f"--het-group={len(job.nodes) - 1}"] if job.is_heterogeneous else []
    command = [sys.executable, "-m", "tests.slurm.stand_in_leader", "step", str(told_file(run, job))]
    argv = ["srun", "--exact", f"--jobid={job.job_id}", *group, "--ntasks=1", "--mem=1G", *command]
    return subprocess.Popen(argv, env=clean_environment())


def told_file(run: Path, job: AllocatedJob) -> Path:
    return run / f"told-{job.job_id}-{job.restarts}"


def lead(run: Path, saves_s: float) -> int:
    job = read_allocated_job()
    follow_former(run, job)
    run_directory.forget_end(run)
    run_directory.record_job(run, job.job_id)
    log = AttemptLog(run, run_directory.next_attempt(run), job=job.job_id)
    if any(record.event == "started" for record in read_attempts(run)):
        log.write("started")
        log.write("done")
        return 0
    continuation = SlurmContinuation(run_directory.read_config(run), job)
    worker = start_step(run, job)
    log.write("started")
    while not (TOLD or told_file(run, job).exists() or continuation.stop_at() < time.time()):
        time.sleep(0.2)
    continuation.noticed()
    heard, until = len(TOLD), time.monotonic() + saves_s
    while time.monotonic() < until:
        time.sleep(0.05)
        if len(TOLD) > heard:
            heard = len(TOLD)
            continuation.noticed()
    worker.kill()
    log.write("stopped")
    follows = continuation.go_on()
    log.write("next", next=follows)
    assert continuation.go_on() == follows
    return 75


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, _: TOLD.append(number))
    if sys.argv[1] == "step":
        step(Path(sys.argv[2]))
    try:
        return lead(Path(sys.argv[1]), float(sys.argv[2]))
    except RollartError as error:
        sys.stdout.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
