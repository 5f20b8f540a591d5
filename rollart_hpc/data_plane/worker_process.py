"""The life of a worker's process: connect, set up, join, serve, and end in order.

TERM, INT and USR2 mean: end now, in order. The handler sets a flag and nothing else, so that it may come any number
of times. The process also ends when its worker ends, when a newer process takes its name, and when the process that
started it dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable
from pathlib import Path

from rollart_hpc.bus.calls import CallServer
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership, MemberView
from rollart_hpc.data_plane.worker import Attempt, Worker, WorkerContext
from rollart_hpc.observe.failures import record_failure
from rollart_hpc.observe.logs import log_to_stderr
from rollart_hpc.slurm.node import node_name

_log = logging.getLogger(__name__)
_CLOSE_DEADLINE_S = 5.0


def stop_signals() -> asyncio.Event:
    """An event that TERM, INT and USR2 set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        loop.add_signal_handler(number, stop.set)
    return stop


async def run_until(stop: asyncio.Event, main: Awaitable[None]) -> None:
    """Runs ``main`` until it ends or ``stop`` is set; then it is cancelled and waited for."""
    running, stopping = asyncio.ensure_future(main), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()
    finally:
        stopping.cancel()


async def serve(worker_class: type[Worker], attempt: Attempt, member: Member) -> None:
    """Runs one worker to its end.

    Raises:
        FencedError: a newer process has taken the member's name.
        RollartError: the worker failed.
    """
    bus = await Bus.connect(attempt.bus, member.member_id)
    view = MemberView(bus)
    context = WorkerContext(attempt=attempt, config=attempt.run_config(), bus=bus, view=view, member=member)
    worker = worker_class(context)
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(view.run())
            try:
                await worker.setup()
                await _serve_joined(worker)
            finally:
                watching.cancel()
    finally:
        try:
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                await worker.close()
        except TimeoutError:
            _log.warning("%s did not close within %g s", member.member_id, _CLOSE_DEADLINE_S)
        await bus.close()


async def _serve_joined(worker: Worker) -> None:
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
            await membership.join()
            _log.info("%s joined, pid %d", worker.member.member_id, worker.member.pid)
            services.append(group.create_task(membership.run()))
            try:
                await asyncio.wait(services, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for service in services:
                    service.cancel()
    finally:
        await membership.leave()


def run_worker(worker_class: type[Worker], attempt_file: Path, *, member_id: str, hardware: str, rank: int = 0) -> None:
    """The main function of a worker's process."""
    import uvloop

    log_to_stderr(member_id)
    attempt = Attempt.read(attempt_file)
    member = Member(
        member_id=member_id,
        role=worker_class.role,
        hardware=hardware,
        node=node_name(),
        pid=os.getpid(),
        rank=rank,
    )

    async def main() -> None:
        await run_until(stop_signals(), serve(worker_class, attempt, member))

    exit_code = 1
    try:
        uvloop.run(main())
        exit_code = 0
    except Exception as error:
        _log.exception("%s failed", member_id)
        record_failure(attempt.failures, member_id, error)
    # Threads of the inference engine and the weight store may outlive their orderly end; nothing of ours does.
    logging.shutdown()
    os._exit(exit_code)
