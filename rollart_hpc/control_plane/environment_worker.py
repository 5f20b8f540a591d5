"""The environment worker: EnvManagers, one per ticket, and what they share (paper section 6.1).

Consumes tickets and aborts from the controller; produces trajectories on the stream; each EnvManager waits for its
own environment, generation and reward; woken by the calls `play` and `abort`. Both are idempotent.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
import nats.errors
from nats.js.errors import APIError

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.env_manager import EnvManager, Playground, too_large
from rollart_hpc.control_plane.llm_proxy import LLMProxy
from rollart_hpc.control_plane.reward_gateway import RewardGateway
from rollart_hpc.data_plane.declarations import register
from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSpec
from rollart_hpc.data_plane.worker import Worker, WorkerContext
from rollart_hpc.errors import BusError
from rollart_hpc.types import Role, Ticket, Trajectory

_log = logging.getLogger(__name__)
_PUBLISH_TRIES = 20
_PUBLISH_AGAIN_AFTER_S = 1.0
_MAX_CHILDREN = 64


class EnvironmentCls(Worker):
    """Plays trajectories."""

    role = Role.ENVIRONMENT

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        config, member_id = context.config, context.member.member_id
        self.member = msgspec.structs.replace(self.member, capacity=config.rollout.trajectories_per_worker)
        self._host = EnvironmentHost(
            {name: EnvironmentSpec.of_task(task) for name, task in config.tasks.items()},
            max_children=min(_MAX_CHILDREN, config.rollout.trajectories_per_worker),
        )
        self._proxy = LLMProxy(
            context.bus, member_id, context.view, config.affinity, timeout_s=config.rollout.generate_timeout_s
        )
        self._rewards = RewardGateway(context.bus, member_id, context.view, config)
        self._playground = Playground(
            worker=member_id,
            config=config,
            chat=ChatFormat(config.model.path),
            host=self._host,
            proxy=self._proxy,
            rewards=self._rewards,
        )
        self._playing: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def setup(self) -> None:
        """Starts the environment host: every task's class is imported once."""
        await self._host.start()

    async def run(self) -> None:
        """Serves until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._proxy.run())
            group.create_task(self._rewards.run())

    async def close(self) -> None:
        """Ends every environment."""
        await self._host.close()

    @register()
    async def play(self, tickets: list[Ticket]) -> int:
        """Starts the tickets that are not being played yet; returns how many trajectories run now."""
        for ticket in tickets:
            if ticket.trajectory_id not in self._playing and self._group is not None:
                task = self._group.create_task(self._play(ticket))
                self._playing[ticket.trajectory_id] = task
                task.add_done_callback(lambda _, key=ticket.trajectory_id: self._playing.pop(key, None))
        return len(self._playing)

    @register()
    async def abort(self, trajectory_ids: list[str]) -> int:
        """Ends trajectories that are not wanted any more; unknown ones are ignored."""
        for trajectory_id in trajectory_ids:
            if task := self._playing.get(trajectory_id):
                task.cancel()
        return len(self._playing)

    async def _play(self, ticket: Ticket) -> None:
        await self._publish(await EnvManager(self._playground, ticket).play())

    async def _publish(self, trajectory: Trajectory) -> None:
        """Hands the trajectory to the stream; sent again under the same id until it is acknowledged."""
        subject, body = subjects.trajectories(self._playground.worker), codec.encode(trajectory)
        if len(body) > MAX_PAYLOAD_BYTES:
            body = codec.encode(too_large(trajectory, len(body)))
        for _ in range(_PUBLISH_TRIES):
            try:
                await self.context.bus.js.publish(subject, body, headers={"Nats-Msg-Id": trajectory.trajectory_id})
            except (nats.errors.Error, APIError, TimeoutError) as error:
                _log.warning("trajectory %s not yet on the stream: %r", trajectory.trajectory_id, error)
                await asyncio.sleep(_PUBLISH_AGAIN_AFTER_S)
            else:
                return
        raise BusError(f"the stream did not take trajectory {trajectory.trajectory_id}; this worker ends")
