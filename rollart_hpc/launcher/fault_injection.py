"""Faults on purpose: the leader signals a process of its own at a given moment of the run (`rollart-hpc chaos`).

Consumes announcements of the controller, which waits for the answer, so that the moment is exact; produces signals.
What is to be done stands in RUN/chaos.json, and what was done is written there before it is done: a fault happens as
often as it was asked for, whatever it ends.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from nats.aio.msg import Msg

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.control_plane.protocol import Announcement, ProtocolStep
from rollart_hpc.errors import ConfigError
from rollart_hpc.processes import ManagedProcess

_log = logging.getLogger(__name__)
_FILE = "chaos.json"
JOB = "job"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the protocol."""

    step: ProtocolStep
    version: int | None = None
    """That it is done for; None: for the first version after 0 that comes, and then for one newer than the last."""

    def __str__(self) -> str:
        return str(self.step) if self.version is None else f"{self.step}:{self.version}"


class FiredFault(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that was sent."""

    attempt: int
    moment: Moment
    version: int
    at: float
    """Seconds since the epoch."""
    targets: list[str]


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen to whom, when, and how often; and what has happened."""

    kill: str
    """A role, a member, controller, nats-server, mooncake_master, mooncake_client, or ``job``: all, the leader too."""
    moments: list[Moment]
    signal: str
    times: int
    """At each moment."""
    fired: list[FiredFault] = []

    @property
    def asked(self) -> int:
        """How many faults there are to be."""
        return self.times * len(self.moments)

    def due(self, announced: Announcement) -> Moment | None:
        """The moment that has come and at which it is to happen, if there is one."""
        return next((moment for moment in self.moments if self._is_due(moment, announced)), None)

    def _is_due(self, moment: Moment, announced: Announcement) -> bool:
        before = [fault for fault in self.fired if fault.moment == moment]
        if announced.step is not moment.step or len(before) >= self.times:
            return False
        if moment.version is not None:
            return announced.version == moment.version
        return announced.version > (before[-1].version if before else 0)


def read_fault_plan(run_directory: Path) -> FaultPlan | None:
    """The run's plan; None in a run without.

    Raises:
        ConfigError: it is damaged.
    """
    path = run_directory / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=FaultPlan) if path.exists() else None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: not a plan of faults: {error}; remove it, or make it anew with `chaos`") from error


def write_fault_plan(run_directory: Path, plan: FaultPlan) -> None:
    """Durable before it returns."""
    temporary = run_directory / f".{_FILE}"
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(plan))
        os.fsync(file.fileno())
    temporary.replace(run_directory / _FILE)


class FaultInjector:
    """Acts on the plan of a run during one attempt."""

    def __init__(
        self,
        run_directory: Path,
        plan: FaultPlan,
        attempt: int,
        processes: Callable[[], Mapping[str, ManagedProcess]],
        note: Callable[[str], None],
    ) -> None:
        """``processes`` tells what runs now, by name; ``note`` is told what is done."""
        self._directory, self._plan, self._attempt = run_directory, plan, attempt
        self._processes, self._note = processes, note

    async def listen(self, bus: Bus) -> None:
        """Answers announcements from now on."""
        await bus.subscribe(subjects.PROTOCOL, self._receive)

    async def _receive(self, message: Msg) -> None:
        announced = codec.decode(message.data, Announcement)
        if moment := self._plan.due(announced):
            self._fire(moment, announced)
        await message.respond(b"")

    def _fire(self, moment: Moment, announced: Announcement) -> None:
        running = {name: process for name, process in self._processes().items() if process.exit_code is None}
        targets = sorted(name for name in running if self._plan.kill == JOB or _belongs(name, self._plan.kill))
        if not targets:
            _log.warning(
                "chaos: nothing of %s runs at %s of version %d", self._plan.kill, announced.step, announced.version
            )
            return
        fired = FiredFault(
            attempt=self._attempt,
            moment=moment,
            version=announced.version,
            at=time.time(),
            targets=[*targets, "leader"] if self._plan.kill == JOB else targets,
        )
        self._plan = msgspec.structs.replace(self._plan, fired=[*self._plan.fired, fired])
        write_fault_plan(self._directory, self._plan)
        self._note(
            f"chaos: {self._plan.signal} to {', '.join(fired.targets)} at {announced.step} of version "
            f"{announced.version} ({len(self._plan.fired)} of {self._plan.asked})"
        )
        number = signal.Signals[self._plan.signal]
        for name in targets:
            running[name].send(number)
        if self._plan.kill == JOB:
            os.kill(os.getpid(), number)


def _belongs(name: str, target: str) -> bool:
    """Whether a process is the one that is meant, or has the role that is meant."""
    return name == target or name.rpartition("-")[0] == target
