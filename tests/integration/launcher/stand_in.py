"""Stands in for the controller or a worker: ``python stand_in.py NAME ATTEMPT_FILE [POOL of a guest]``; does no work.

Talks to the bus and writes what it hears to standard output. The controller stops with 75 when anybody was told to
stop; a worker serves until the leader says that it is over, a guest until it is told to stop.
"""

import asyncio
import os
import sys
from pathlib import Path

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership
from rollart_hpc.data_plane import stopping
from rollart_hpc.data_plane.stop_signals import (
    EXIT_STOPPED,
    StopSignals,
    disregard_stop_signals,
    remember_stop_signals,
)
from rollart_hpc.data_plane.stopping import Notice, hear_end, hear_notices, say_again, say_when_told
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.types import Role


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(name: str, attempt_file: Path, pool: str = "") -> int:
    signals = StopSignals()
    bus = await Bus.connect(Attempt.read(attempt_file).bus, name)
    over = await hear_end(bus)
    stop = asyncio.Event()

    def heard(notice: Notice) -> None:
        if not stop.is_set():
            write(f"heard {notice.who}: {notice.reason}")
            stop.set()

    await hear_notices(bus, heard)
    guest = bool(pool)
    saying = asyncio.create_task(asyncio.sleep(0) if guest else say_when_told(bus, name, signals))
    living = asyncio.create_task(say_again(bus, subjects.ALIVE))
    if name != "controller":
        role = Role(name.partition("-")[0])
        member = Member(member_id=name, role=role, hardware="cpu", node="n", pid=os.getpid(), pool=pool, guest=guest)
        membership = Membership(bus, member)
        await membership.join()
        living.cancel()
        living = asyncio.create_task(membership.run())
    write("ready")
    if guest:
        told = asyncio.create_task(signals.told.wait())
        await asyncio.wait({told, asyncio.create_task(over.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await membership.leave()
    else:
        await (stop if name == "controller" else over).wait()
    for task in (saying, living):
        task.cancel()
    await bus.close()
    disregard_stop_signals()
    write("ends in order")
    return EXIT_STOPPED if name == "controller" else 0


if __name__ == "__main__":
    stopping._SAY_AGAIN_S = 0.1
    remember_stop_signals()
    sys.exit(asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])))
