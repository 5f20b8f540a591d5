"""Ends workers that hang: they lost their membership, others took over their work, and they do not end by themselves.

By incarnation: a member's process id is no use where srun stands for the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberListener, MemberView
from rollart_hpc.processes import ManagedProcess

_GRACE_S = 15.0
"""What a worker has for ending by itself after it lost its membership."""


async def end_expelled(
    bus: Bus, workers: Mapping[str, ManagedProcess], *, note: Callable[[str], None], listener: MemberListener
) -> None:
    """Watches the members until cancelled.

    Args:
        bus: of the attempt.
        workers: the process that stands for each member now.
        note: is told of a worker that is killed.
        listener: is told of every change of the members.
    """
    view = MemberView(bus)
    processes: dict[str, ManagedProcess] = {}

    async def end(member: Member) -> None:
        process = processes.pop(member.incarnation)
        await asyncio.sleep(_GRACE_S)
        if process.exit_code is None and view.get(member.member_id) is None:
            note(f"{member.member_id} is no member any more and does not end; it is killed")
            process.kill()

    async with asyncio.TaskGroup() as group:

        def changed(before: Member | None, after: Member | None) -> None:
            if after is not None and after.member_id in workers:
                processes.setdefault(after.incarnation, workers[after.member_id])
            if before is not None and after is None and before.incarnation in processes:
                group.create_task(end(before))

        view.listen(changed)
        view.listen(listener)
        await view.run()
