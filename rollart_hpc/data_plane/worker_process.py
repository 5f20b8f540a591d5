"""The life of a worker's process: connect, set up, join, serve, and end in order.

A stop signal does not end it: it says so on the bus (`stopping`) and serves on. It ends when the leader says that the
attempt is over, when its worker ends, when a newer process takes its name, when the process that started it dies,
when the bus has been away for long, or when a stop that it was told of never comes to its end.

A guest, which joined a running run, leaves it when it is told to stop: it says so, takes nothing new, ends or gives to
others what it has, and ends. The run goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollart_hpc import garbage
from rollart_hpc.bus.calls import CallServer
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership, MemberView
from rollart_hpc.bus.resending import AWAY_DEADLINE_S
from rollart_hpc.data_plane.stop_signals import StopSignals
from rollart_hpc.data_plane.stopping import hear_end, say_when_told, unless_stopped
from rollart_hpc.data_plane.worker import Attempt, Worker, WorkerContext
from rollart_hpc.data_plane.worker_classes import worker_class
from rollart_hpc.errors import NotReachableError
from rollart_hpc.observe.failures import record_failure
from rollart_hpc.observe.logs import log_to_stderr
from rollart_hpc.slurm.node import node_name
from rollart_hpc.temporary import own_temporary_directory
from rollart_hpc.types import Role

_log = logging.getLogger(__name__)
_CLOSE_DEADLINE_S = 5.0
_STOP_MARGIN_S = 60.0
"""Beyond `run.stop_timeout_s`: the leader kills what is left long before."""
LEAVE_DEADLINE_S = 20.0
"""What a guest has for ending its work; with its close it is gone before Slurm's usual KillWait, 30 s, is over."""
_SEEN_S = 0.3
"""What others have for seeing that it leaves: what they send until then is still done."""


async def serve(
    make: Callable[[WorkerContext], Worker], attempt: Attempt, member: Member, signals: StopSignals
) -> None:
    """Runs the worker that ``make`` makes, to its end.

    Raises:
        FencedError: a newer process has taken the member's name.
        NotReachableError: the bus was away for too long.
        RollartError: the worker failed.
    """
    bus = await Bus.connect(attempt.bus, member.member_id)
    view = MemberView(bus)
    context = WorkerContext(attempt=attempt, config=attempt.run_config(), bus=bus, view=view, member=member)
    worker = make(context)
    over = await hear_end(bus)
    try:
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(view.run()),
                group.create_task(_end_when_lost(bus)),
                group.create_task(_end_when_overdue(context, signals, over)),
            ]
            if not member.guest:
                helpers.append(group.create_task(say_when_told(bus, member.member_id, signals)))
            try:
                await unless_stopped(_set_up_and_serve(worker, signals), over)
            finally:
                for helper in helpers:
                    helper.cancel()
    finally:
        try:
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                await worker.close()
        except TimeoutError:
            _log.warning("%s did not close within %g s", member.member_id, _CLOSE_DEADLINE_S)
        await bus.close()


async def _end_when_lost(bus: Bus) -> None:
    await bus.nc.wait_lost()
    raise NotReachableError(f"the bus was away for {AWAY_DEADLINE_S:g} s; its leader is gone, and this process ends")


async def _end_when_overdue(context: WorkerContext, signals: StopSignals, over: asyncio.Event) -> None:
    await signals.told.wait()
    deadline_s = context.config.run.stop_timeout_s + _STOP_MARGIN_S
    await asyncio.sleep(deadline_s)
    _log.warning("the stop that was asked for %g s ago has not come to its end; this process ends", deadline_s)
    over.set()


async def _set_up_and_serve(worker: Worker, signals: StopSignals) -> None:
    if worker.member.guest:
        await unless_stopped(worker.setup(), signals.told)
        if signals.told.is_set():
            return
    else:
        await worker.setup()
    garbage.settle()
    await _serve_joined(worker, signals)


async def _serve_joined(worker: Worker, signals: StopSignals) -> None:
    bus = worker.context.bus
    membership = Membership(bus, worker.member)

    async def handle(method: str, arguments: bytes) -> bytes:
        result = await worker.handle_call(method, arguments)
        if worker.member != membership.member:
            await membership.update(worker.member)
        return result

    try:
        async with asyncio.TaskGroup() as group:
            services = [
                group.create_task(CallServer(bus, worker.member.member_id, handle).run()),
                group.create_task(worker.run()),
            ]
            await membership.join(exclusively=worker.member.guest)
            _log.info("%s joined, pid %d", worker.member.member_id, worker.member.pid)
            services.append(group.create_task(membership.run(worker.present)))
            if worker.member.guest:
                services.append(group.create_task(_leave_when_told(worker, membership, signals)))
            try:
                await asyncio.wait(services, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for service in services:
                    service.cancel()
    finally:
        await membership.leave()


async def _leave_when_told(worker: Worker, membership: Membership, signals: StopSignals) -> None:
    await signals.told.wait()
    _log.info("%s leaves the run: %s came", worker.member.member_id, signals.first[0] if signals.first else "a signal")
    worker.member = msgspec.structs.replace(worker.member, leaving=True)
    await membership.update(worker.present())
    await asyncio.sleep(_SEEN_S)
    try:
        async with asyncio.timeout(LEAVE_DEADLINE_S):
            await worker.hand_over()
    except TimeoutError:
        name = worker.member.member_id
        _log.warning("%s did not end its work within %g s; others do it again", name, LEAVE_DEADLINE_S)


def run_worker(
    role: Role,
    attempt_file: Path,
    *,
    member_id: str,
    hardware: str,
    pool: str = "",
    rank: int = 0,
    guest: bool = False,
) -> None:
    """The main function of a worker's process; the worker's class is the config's."""
    import uvloop

    log_to_stderr(member_id)
    attempt = Attempt.read(attempt_file)
    member = Member(
        member_id=member_id,
        role=role,
        hardware=hardware,
        node=node_name(),
        pid=os.getpid(),
        pool=pool,
        rank=rank,
        guest=guest,
    )

    async def main() -> None:
        exit_code = 1
        try:
            with own_temporary_directory(member_id):
                await serve(worker_class(attempt.run_config(), role), attempt, member, StopSignals())
            exit_code = 0
        except Exception as error:
            _log.exception("%s failed", member_id)
            record_failure(attempt.failures, member_id, error)
        # Threads of the inference engine and the weight store may outlive their orderly end, and those of waits that
        # were given up; nothing of ours does. The event loop's own end would wait for them.
        logging.shutdown()
        os._exit(exit_code)

    uvloop.run(main())
