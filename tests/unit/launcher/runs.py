"""Runs with a history, and a Slurm that says what it is told to, for tests of what is made of both."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import NoSlurmError
from rollart_hpc.launcher.attempt_log import AttemptRecord
from rollart_hpc.launcher.json_lines import append_record
from rollart_hpc.launcher.run_directory import next_attempt, record_job
from rollart_hpc.slurm.queue.job_state import JobStatus
from rollart_hpc.slurm.queue.job_states import JobStates
from rollart_hpc.slurm.queue.squeue import parse_queue
from tests.builders import run_config


class Slurm:
    """squeue and sacct as told; the clock stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.ended: dict[str, str] | None = {}
        self.is_down = False
        self.asked = 0
        self.helped: dict[str, str] = {}
        """By job, what a watcher does about it at every question."""

    def queue(self, job_id: str, state: str, *, start: str = "N/A", nodes: str = "", reason: str = "None") -> None:
        self.lines.append(f"{job_id}|{job_id.partition('+')[0]}|{state}|{start}|p|{nodes}|{reason}")

    def states(self, **options: Any) -> JobStates:
        return JobStates(
            clock=lambda: self.now,
            queue=self._read_queue,
            accounting=self._read_accounting,
            look_after=lambda job: self.helped.get(job.job_id, ""),
            **options,
        )

    def _read_queue(self) -> dict[str, JobStatus]:
        self.asked += 1
        if self.is_down:
            raise NoSlurmError("squeue: Unable to contact slurm controller")
        return parse_queue("\n".join(self.lines))

    def _read_accounting(self, job_ids: Iterable[str]) -> dict[str, JobStatus] | None:
        if self.ended is None:
            return None
        lines = [f"{job}|{job}|{self.ended[job]}|N/A|p||None" for job in job_ids if job in self.ended]
        return parse_queue("\n".join(lines))


def config_in(directory: Path) -> RunConfig:
    config = run_config()
    pool = config.pools["all"].model_copy
    none = {"actor_train": 0, "actor_gen": 0, "environment": 0, "reward": 0}
    pools = {
        "gpu": pool(update={**none, "hardware": "H20", "actor_train": 1, "actor_gen": 2}),
        "cpu": pool(update={**none, "hardware": "cpu", "environment": 1, "reward": 1}),
    }
    return config.model_copy(
        update={"pools": pools, "run": config.run.model_copy(update={"directory": directory, "steps": 30})}
    )


class History:
    """What happens to a run, one thing after the other."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._number = 0
        self.now = 1000.0

    def add(self, text: str, *, cause: str = "") -> None:
        """``submit 5``; ``chain 5 6``: job 5 submits job 6; or how far a new attempt has come: ``done``, ``failed 5``.

        What follows a stop is ``next 5`` for nothing, ``next 5 x`` for something; ``failed 5 x``: another attempt.
        """
        self.now += 10
        event, job, more = (*text.split(), "", "")[:3]
        if event in ("submit", "chain"):
            record_job(self._run, more or job, at=self.now, after=job if more else "")
            return
        if event != "next":
            self._number = next_attempt(self._run)
        for name in ["next"] if event == "next" else dict.fromkeys(["started", event]):
            is_last = name == event
            record = AttemptRecord(
                attempt=self._number,
                event=name,
                at=self.now,
                job=job,
                cause=cause if is_last else "",
                next=more if is_last else "",
            )
            append_record(self._run / "attempts.jsonl", record)
