"""Saves what was played when the controller or a trainer rank has died and the environment workers still live.

Consumes what lies on the stream, and what the environment workers hand in; produces records in the journal, which
belongs to whoever has outlived its writer; waits for the workers and the stream, each with a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.bus.pull import PullConsumer
from rollart_hpc.control_plane.journal import Finished, HandedIn, Journal, Record, read_journal
from rollart_hpc.control_plane.recovery import unreturned
from rollart_hpc.control_plane.rollout_service import hand_in, num_waiting, open_stream
from rollart_hpc.errors import RollartError, WaitTimeout
from rollart_hpc.types import Role, Trajectory, TurnLog

_log = logging.getLogger(__name__)
_STREAM_S = 5.0
_VIEW_S = 1.0


async def salvage(bus: Bus, run_directory: Path) -> int:
    """Journals what came back and what is being played; to be called once the controller has ended.

    Returns:
        Trajectories that were saved. Faults are logged: what is not saved is played again.
    """
    view = MemberView(bus)
    watching = asyncio.create_task(view.run())
    try:
        await _hand_in(bus, view)
        async with asyncio.timeout(_STREAM_S):
            return await _drain(bus, run_directory)
    except (RollartError, NatsError, APIError, TimeoutError, OSError) as error:
        _log.warning("what came back is not saved and is played again: %r", error)
        return 0
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _hand_in(bus: Bus, view: MemberView) -> None:
    try:
        await view.wait_for(Role.ENVIRONMENT, 1, _VIEW_S)
    except WaitTimeout:
        return
    await hand_in(bus, view, [member.member_id for member in view.of_role(Role.ENVIRONMENT)])


async def _drain(bus: Bus, run_directory: Path) -> int:
    try:
        # What the controller had taken and not acknowledged comes again only for a new consumer.
        await bus.js.delete_consumer(subjects.TRAJECTORY_STREAM, subjects.TRAJECTORY_CONSUMER)
    except NotFoundError:
        return 0
    await open_stream(bus)
    wanted = await asyncio.to_thread(lambda: unreturned(read_journal(run_directory)))
    journal = Journal(run_directory)
    saved = 0
    try:
        consumer = PullConsumer(bus, subjects.TRAJECTORY_STREAM, subjects.TRAJECTORY_CONSUMER)
        await consumer.start()
        while await num_waiting(bus):
            messages = await consumer.read()
            records: list[Record] = []
            for message in messages:
                if message.subject.startswith(subjects.turn_logs("")):
                    log = codec.decode(message.data, TurnLog)
                    records += [HandedIn(log)] if log.trajectory_id in wanted else []
                else:
                    trajectory = codec.decode(message.data, Trajectory)
                    records += [Finished(trajectory)] if trajectory.trajectory_id in wanted else []
                    wanted.discard(trajectory.trajectory_id)
            if records:
                journal.append(records, durable=True)
            saved += len(records)
            for message in messages:
                await message.ack_sync()  # counted before it is asked how many wait
    finally:
        journal.close()
    return saved
