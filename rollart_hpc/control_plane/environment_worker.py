"""The environment worker: EnvManagers, one per ticket, and what they share (paper section 6.1).

Consumes tickets and aborts from the controller; produces trajectories on the stream; each EnvManager waits for its
own environment, generation and reward, and in batched modes for the others; woken by the calls `play`, `abort` and
`hand_in`. All are idempotent. It hands in when the run stops, and when it leaves a running one.

Invariant: what a ticket came to is published once, as the finished trajectory or as the log of its turns.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

import msgspec
import nats.errors
from nats.js.errors import APIError

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.env_manager import EnvManager, Playground
from rollart_hpc.control_plane.llm_proxy import LLMProxy
from rollart_hpc.control_plane.lockstep import Lockstep
from rollart_hpc.control_plane.node_preparation import prefetch_images, require_isolation
from rollart_hpc.control_plane.reward_gateway import RewardGateway
from rollart_hpc.control_plane.transcript import Transcript
from rollart_hpc.data_plane.declarations import register
from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSpec
from rollart_hpc.data_plane.worker import Worker, WorkerContext
from rollart_hpc.data_plane.worker_classes import routing_policy
from rollart_hpc.errors import BusError
from rollart_hpc.interfaces import EnvironmentProperties
from rollart_hpc.resource_plane.affinity import preferred_hardware
from rollart_hpc.resource_plane.live_bindings import LiveBindings
from rollart_hpc.types import Role, Ticket, Trajectory, TurnLog

_log = logging.getLogger(__name__)
_PUBLISH_TRIES = 20
_PUBLISH_AGAIN_AFTER_S = 1.0
_LOOK_AGAIN_S = 0.1
_MAX_CHILDREN = 64
_INTERRUPT_DEADLINE_S = 5.0
"""What interrupted EnvManagers have to end, and finished trajectories to be on the stream, before their worker hands
in without them."""


@dataclass(slots=True)
class _Playing:
    manager: EnvManager
    task: asyncio.Task[None] = field(init=False)
    has_finished: bool = False
    """Its trajectory is being published; it is not interrupted any more."""


class EnvironmentCls(Worker):
    """Plays trajectories."""

    role = Role.ENVIRONMENT

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        config, member_id = context.config, context.member.member_id
        self.member = msgspec.structs.replace(self.member, capacity=config.rollout.trajectories_per_worker)
        self._host = self.create_host()
        self._declared: dict[str, EnvironmentProperties] = {}
        """What the classes of its tasks declare."""
        self._bindings = LiveBindings(context.bus, partial(preferred_hardware, config.affinity))
        self._proxy = LLMProxy(
            context.bus,
            member_id,
            context.view,
            self._bindings.hardware_for,
            timeout_s=config.rollout.generate_timeout_s,
            policy=routing_policy(config),
        )
        self._rewards = RewardGateway(context.bus, member_id, context.view, config)
        self._playground = Playground(
            worker=member_id,
            config=config,
            chat=ChatFormat(config.model.path),
            host=self._host,
            proxy=self._proxy,
            rewards=self._rewards,
            lockstep=Lockstep(config.rollout.schedule),
        )
        self._playing: dict[str, _Playing] = {}
        self._group: asyncio.TaskGroup | None = None
        self._takes_tickets = True
        self._handing_in: asyncio.Task[list[str]] | None = None

    def create_host(self) -> EnvironmentHost:
        """Where the environments of its tasks are played; not started yet."""
        config = self.context.config
        return EnvironmentHost(
            {name: EnvironmentSpec.of_task(task) for name, task in config.tasks.items()},
            max_children=min(_MAX_CHILDREN, config.rollout.trajectories_per_worker),
        )

    async def setup(self) -> None:
        """Starts the environment host: every task's class is imported once.

        Raises:
            NoSandboxError: an environment opens sandboxes, and none isolates on this node.
        """
        settings = self.context.config.node_settings()
        settings.publish()
        await self._host.start()
        self._declared = {task: self._host.properties(task) for task in self.context.config.tasks}
        await require_isolation(self._declared, settings)

    async def run(self) -> None:
        """Serves until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._bindings.run())
            group.create_task(self._proxy.run())
            group.create_task(self._rewards.run())
            group.create_task(prefetch_images(self.context.config, self._declared))

    async def close(self) -> None:
        """Ends every environment."""
        await self._host.close()

    @property
    def num_busy(self) -> int:
        """Trajectories that are being played."""
        return len(self._playing)

    @register()
    async def play(self, tickets: list[Ticket]) -> int:
        """Starts the tickets that are not being played yet; returns how many trajectories run now."""
        if self._group is not None and self._takes_tickets:
            for ticket in tickets:
                if ticket.trajectory_id not in self._playing:
                    self._start(self._group, ticket)
        return len(self._playing)

    @register()
    async def abort(self, trajectory_ids: list[str]) -> int:
        """Ends trajectories that are not wanted any more; unknown ones are ignored."""
        for trajectory_id in trajectory_ids:
            if playing := self._playing.pop(trajectory_id, None):
                playing.task.cancel()
        return len(self._playing)

    @register()
    async def hand_in(self) -> list[str]:
        """Ends all that is played, whatever it waits for, and publishes the log of its turns; takes no more tickets.

        Every environment is closed or killed; what is finished by now is published as such.

        Returns:
            Ids of the trajectories whose turn logs are on the stream: those with an action at least.
        """
        self._takes_tickets = False
        if self._group is None:
            return []
        if self._handing_in is None:
            self._handing_in = self._group.create_task(self._hand_in())
        return await asyncio.shield(self._handing_in)

    async def hand_over(self) -> None:
        """Hands in, and waits until the controller has all that this worker put on the stream."""
        await self.hand_in()
        while await self._is_on_the_stream():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _is_on_the_stream(self) -> bool:
        """Whether anything of this worker waits to be journaled, as far as is known."""
        mine = subjects.published_by(self.member.member_id)
        try:
            info = await self.context.bus.js.stream_info(subjects.TRAJECTORY_STREAM, subjects_filter=mine)
        except (nats.errors.Error, APIError, TimeoutError) as error:
            _log.warning("the stream does not say what it holds, asking again: %r", error)
            return True
        return bool(info.state.subjects)

    def _start(self, group: asyncio.TaskGroup, ticket: Ticket) -> None:
        key, playing = ticket.trajectory_id, _Playing(EnvManager(self._playground, ticket))
        playing.task = group.create_task(self._play(playing))
        self._playing[key] = playing

        def forget(_: asyncio.Task[None]) -> None:
            if self._playing.get(key) is playing:
                del self._playing[key]

        playing.task.add_done_callback(forget)

    async def _play(self, playing: _Playing) -> None:
        trajectory = await playing.manager.play()
        playing.has_finished = True
        subject, body = subjects.trajectories(self._playground.worker), codec.encode(trajectory)
        if len(body) > MAX_PAYLOAD_BYTES:
            body = codec.encode(_too_large(trajectory, len(body)))
        await self._publish(subject, trajectory.trajectory_id, body)

    async def _hand_in(self) -> list[str]:
        playing = list(self._playing.values())
        interrupted = [one for one in playing if not one.has_finished]
        for one in interrupted:
            one.task.cancel()
        if playing:
            await asyncio.wait([one.task for one in playing], timeout=_INTERRUPT_DEADLINE_S)
        # One that does not end may still finish: its log is left out, and it is pending like one without turns.
        logs = [log for one in interrupted if one.task.cancelled() and (log := one.manager.log()) is not None]
        handed_in, _ = await asyncio.gather(
            asyncio.gather(*(self._publish_log(log) for log in logs)),
            self._host.close(),
        )
        return [log.trajectory_id for log, is_in in zip(logs, handed_in, strict=True) if is_in]

    async def _publish_log(self, log: TurnLog) -> bool:
        """Whether the stream has it; where not, the trajectory starts again."""
        subject, body = subjects.turn_logs(self._playground.worker), codec.encode(log)
        if len(body) > MAX_PAYLOAD_BYTES:
            _log.warning(
                "trajectory %s cannot be handed in and will start again: its log has %d bytes, at most %d travel",
                log.trajectory_id,
                len(body),
                MAX_PAYLOAD_BYTES,
            )
            return False
        try:
            # Another worker may hand in the same trajectory soon after, further on.
            await self._publish(subject, f"log-{log.trajectory_id}-{self.member.incarnation}", body)
        except BusError as error:
            _log.warning("trajectory %s is not handed in and will start again: %s", log.trajectory_id, error)
            return False
        return True

    async def _publish(self, subject: str, message_id: str, body: bytes) -> None:
        """Hands a message to the stream; sent again under the same id until it is acknowledged."""
        for _ in range(_PUBLISH_TRIES):
            try:
                await self.context.bus.js.publish(subject, body, headers={"Nats-Msg-Id": message_id})
            except (nats.errors.Error, APIError, TimeoutError) as error:
                _log.warning("trajectory %s not yet on the stream: %r", message_id, error)
                await asyncio.sleep(_PUBLISH_AGAIN_AFTER_S)
            else:
                return
        raise BusError(f"the stream did not take trajectory {message_id} in {_PUBLISH_TRIES} tries")


def _too_large(trajectory: Trajectory, size_bytes: int) -> Trajectory:
    """The same trajectory as one that failed because the bus cannot carry it; playing it again would not help."""
    nothing = Transcript().arrays()
    return msgspec.structs.replace(
        trajectory,
        token_ids=nothing[0],
        loss_mask=nothing[1],
        logprobs=nothing[2],
        spans=(),
        failure="too large for the bus",
        failure_detail=f"{size_bytes} bytes, at most {MAX_PAYLOAD_BYTES} travel",
        retryable=False,
    )
