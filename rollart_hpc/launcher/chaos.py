"""A run with faults on purpose, to its end, and what its files say about it then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.audit import audit
from rollart_hpc.control_plane.checkpoint import find_newest
from rollart_hpc.control_plane.journal import BatchFormed, Finished, HandedIn, Published, read_journal
from rollart_hpc.control_plane.protocol import ProtocolStep
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.attempt_log import AttemptRecord, read_events
from rollart_hpc.launcher.fault_injection import JOB, FaultPlan, Moment, read_fault_plan
from rollart_hpc.launcher.plan import CONTROLLER, plan_workers
from rollart_hpc.types import Role

SERVICES = ("nats-server", "mooncake_master", "mooncake_client")
_SPARE_ROUNDS = 2
Round = Callable[[], str]
"""Begins the run or goes on with it, waits until it is over, and returns its state (`rollart_hpc.launcher.status`)."""


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run with faults."""

    state: str
    """Of the run at the end; it held if this is done and there are no findings."""
    rounds: int
    """How often it was started from outside."""
    attempts: int
    fired: int
    asked: int
    findings: list[str]
    notes: list[str]
    steps: int
    trained: int
    """Trajectories."""
    handed_in: int
    """Running trajectories that were handed in."""
    continued: int
    """Trajectories that went on from turns of an earlier attempt."""
    replayed: int
    """Versions that were made again from the journal."""
    replayed_equal: int
    """Those among them with the same weights, bit for bit."""
    saved_s: list[float]
    """Notice to everything saved, by stop."""
    first_step_s: list[float]
    """Start of an attempt to its first trained step, but for the first attempt."""

    @property
    def is_sound(self) -> bool:
        """Whether the run got through, all faults happened and its books hold."""
        return self.state == "done" and self.fired == self.asked and not self.findings


def parse_moment(text: str) -> Moment:
    """``7``: the train step that makes version 8; ``suspend``; ``suspend:7``: for version 7.

    Raises:
        ConfigError: it is none of these.
    """
    name, _, version = text.partition(":")
    if text.isdigit():
        return Moment(step=ProtocolStep.TRAIN_STEP, version=int(text))
    if name not in list(ProtocolStep) or (version and not version.isdigit()) or text.endswith(":"):
        raise ConfigError(
            f"--at {text}: expected a step such as 7, a step of the protocol ({', '.join(ProtocolStep)}), or both: "
            "suspend:7"
        )
    return Moment(step=ProtocolStep(name), version=int(version) if version else None)


def plan_faults(
    config: RunConfig, *, kill: str, at: Sequence[str], signal_name: str, times: int, in_job: bool
) -> FaultPlan:
    """Checks what is asked for.

    Raises:
        ConfigError: there is no such process, moment or signal in this run.
    """
    members = [plan.member_id for plan in plan_workers(config)]
    known = [JOB, CONTROLLER, *SERVICES, *Role, *members]
    if kill not in known:
        raise ConfigError(f"--kill {kill}: this run has no such process; it has {', '.join(known)}")
    name = signal_name.upper().removeprefix("SIG")
    allowed = ["KILL", "USR2"] if in_job else ["KILL", "TERM", "USR2", "INT", "STOP"]
    if name not in allowed:
        raise ConfigError(f"--signal {signal_name}: expected one of {', '.join(allowed)}")
    moments = [parse_moment(text) for text in at]
    for number, moment in enumerate(moments):
        if moment.version is not None and not _comes(moment.step, moment.version, config):
            raise ConfigError(
                f"--at {moment}: never comes in this run; it has {config.run.steps} steps (run.steps), of which the "
                f"last begins at version {config.run.steps - 1}, and a checkpoint every {config.run.checkpoint_every} "
                "(run.checkpoint_every)"
            )
        if moment in moments[:number]:
            raise ConfigError(f"--at {moment} is there twice; say --times 2")
    return FaultPlan(kill=kill, moments=moments, signal=f"SIG{name}", times=times)


def _comes(step: ProtocolStep, version: int, config: RunConfig) -> bool:
    if step in (ProtocolStep.TRAIN_STEP, ProtocolStep.GET_BATCH):
        return version < config.run.steps
    if step in (ProtocolStep.CHECKPOINT, ProtocolStep.COMMIT):
        is_due = version > 0 and version % config.run.checkpoint_every == 0
        return version <= config.run.steps and (is_due or version == config.run.steps)
    return version <= config.run.steps


def run_with_faults(directory: Path, play: Round, plan: FaultPlan) -> ChaosReport:
    """Starts the run again and again until it is done, has failed, or makes no progress."""
    state, rounds = "", 0
    while state not in ("done", "failed") and rounds <= plan.asked + _SPARE_ROUNDS:
        state = play()
        rounds += 1
    return _report(directory, state, rounds)


def _report(directory: Path, state: str, rounds: int) -> ChaosReport:
    books, plan, attempts = audit(directory), read_fault_plan(directory), read_events(directory)
    records = list(read_journal(directory))
    finished = [record.trajectory for record in records if isinstance(record, Finished)]
    published: dict[int, list[str]] = {}
    for record in records:
        if isinstance(record, Published):
            published.setdefault(record.version, []).append(record.digest)
    again = [digest == digests[0] for digests in published.values() for digest in digests[1:]]
    return ChaosReport(
        state=state,
        rounds=rounds,
        attempts=max((record.attempt for record in attempts), default=0),
        fired=len(plan.fired) if plan is not None else 0,
        asked=plan.asked if plan is not None else 0,
        findings=list(books.findings),
        notes=list(books.notes),
        steps=max((record.step + 1 for record in records if isinstance(record, BatchFormed)), default=0),
        trained=books.total.outcomes.get("trained", 0),
        handed_in=sum(1 for record in records if isinstance(record, HandedIn)),
        continued=sum(1 for trajectory in finished if trajectory.num_continued_turns),
        replayed=len(again),
        replayed_equal=sum(again),
        saved_s=_seconds(attempts, "saved"),
        first_step_s=_seconds([record for record in attempts if record.attempt > 1], "first_step"),
    )


def _seconds(attempts: list[AttemptRecord], event: str) -> list[float]:
    values = (
        record.saved_s if event == "saved" else record.first_step_s for record in attempts if record.event == event
    )
    return [value for value in values if value is not None]


def trained_ids(directory: Path) -> list[str]:
    """Every trajectory of every batch, in the order of training."""
    batches = {record.step: record for record in read_journal(directory) if isinstance(record, BatchFormed)}
    return [trajectory_id for step in sorted(batches) for trajectory_id in batches[step].trajectory_ids]


def compare_runs(first: Path, second: Path) -> list[str]:
    """What differs between two finished runs that should be the same; empty when nothing does."""
    differences: list[str] = []
    ids = [trained_ids(directory) for directory in (first, second)]
    if sorted(ids[0]) != sorted(ids[1]):
        only = [sorted(set(ids[0]) - set(ids[1]))[:3], sorted(set(ids[1]) - set(ids[0]))[:3]]
        differences.append(f"trained trajectories differ: only in {first}: {only[0]}; only in {second}: {only[1]}")
    digests = [
        {record.version: record.digest for record in read_journal(directory) if isinstance(record, Published)}
        for directory in (first, second)
    ]
    common = digests[0].keys() & digests[1].keys()
    different = [version for version in sorted(common) if digests[0][version] != digests[1][version]]
    if different:
        differences.append(
            f"weights differ from version {different[0]} on ({len(different)} of {len(common)} versions)"
        )
    newest = [found.state.step if (found := find_newest(directory)) else 0 for directory in (first, second)]
    if newest[0] != newest[1]:
        differences.append(f"{first} ended at step {newest[0]}, {second} at step {newest[1]}")
    return differences
