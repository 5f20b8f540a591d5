"""``rollart-hpc pools``: what a run runs on, and where its work goes."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_hpc.cli.status import JsonOption, RunArgument

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from rollart_hpc.bus.membership import Member
    from rollart_hpc.launcher.pools import PoolsReport
    from rollart_hpc.resource_plane.profile import Profile
    from rollart_hpc.resource_plane.snapshot import PoolState
    from rollart_hpc.types import Role

_LOOK_EVERY_S = 1.0


def pools(
    run: RunArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the pools of RUN, their workers, to which hardware each tag is bound and why, and what was measured.

    Everything comes from the run's files, of its newest attempt. The JSON has the history of the bindings, too.
    """
    from rollart_hpc.launcher.find_run import find_run
    from rollart_hpc.launcher.pools import read_pools
    from rollart_hpc.observe.console import console

    directory = find_run(run)
    if watch:
        _watch(directory, as_json)
    elif as_json:
        _print_json(read_pools(directory))
    else:
        console().print(_render(read_pools(directory)), highlight=False)


def _watch(directory: Path, as_json: bool) -> None:
    from rich.live import Live

    from rollart_hpc.launcher.pools import read_pools
    from rollart_hpc.launcher.status import is_over
    from rollart_hpc.observe.console import console
    from rollart_hpc.slurm.queue.job_states import JobStates

    screen, states = console(), JobStates()
    if as_json or not screen.is_terminal:
        before = None
        while True:
            over, now = is_over(directory, states), read_pools(directory)
            if now != before and as_json:
                _print_json(now)
            elif now != before:
                screen.print(_render(now), highlight=False)
            if over:
                return
            before = now
            time.sleep(_LOOK_EVERY_S)
    with Live(console=screen, auto_refresh=False) as live:
        while True:
            over = is_over(directory, states)
            live.update(_render(read_pools(directory)), refresh=True)
            if over:
                return
            time.sleep(_LOOK_EVERY_S)


def _print_json(report: PoolsReport) -> None:
    import msgspec

    print(msgspec.json.encode(report).decode(), flush=True)


def _render(report: PoolsReport) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    head = Text(f"{report.name}: attempt {report.attempt}, as of {_clock(report.at)}")
    tables = [_pools(report), _members(report), _bindings(report)]
    if report.profile is not None:
        tables.append(_profile(report.profile))
    return Group(head, *(part for table in tables for part in ("", table)))


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)


def _pools(report: PoolsReport) -> Table:
    table = _table("pool", "hardware", "TFLOP/s", "GB", "GB/s", "cost", "partition", "workers")
    for pool in report.pools:
        figures = pool.hardware
        shown = (figures.tflops, figures.memory_gb, figures.memory_gb_s, figures.relative_cost)
        workers = "  ".join(f"{role} {_count(report, pool, role)}" for role in pool.planned)
        table.add_row(
            f"{pool.name} (guest)" if pool.guest else pool.name,
            figures.name,
            *("-" if figure is None else f"{figure:g}" for figure in shown),
            pool.partition or "-",
            workers,
        )
    return table


def _count(report: PoolsReport, pool: PoolState, role: Role) -> str:
    """Workers of a pool as `status` has them: 1/2+1 is one of two planned, and one that joined."""
    guests = sum(one.guest for one in report.members if (one.pool, one.role) == (pool.name, role))
    present, planned = pool.present.get(role, 0), pool.planned[role]
    if pool.guest or not guests:
        return f"{present}/{planned}"
    return f"{present - guests}/{planned}+{guests}"


def _members(report: PoolsReport) -> Table:
    table = _table("worker", "pool", "hardware", "node", "busy", "version", "")
    for member in report.members:
        busy = f"{member.load}/{member.capacity}" if member.capacity else "-"
        version = str(member.version) if member.version >= 0 else "-"
        table.add_row(member.member_id, member.pool, member.hardware, member.node, busy, version, _standing(member))
    return table


def _standing(member: Member) -> str:
    return ", ".join(word for word, holds in (("guest", member.guest), ("leaving", member.leaving)) if holds)


def _bindings(report: PoolsReport) -> Table:
    table = _table("role", "tag", "goes to", "since", "because")
    for binding in report.bindings:
        table.add_row(binding.role, binding.tag, binding.hardware or "any", _clock(binding.at), binding.reason)
    return table


def _profile(profile: Profile) -> Table:
    """Means of the iterations in which a tag was generated on a class."""
    table = _table(
        "tag", "measured on", "iterations", "requests", "prompt tokens", "of them cached", "new tokens", "prefill s",
        "decode s",
    )  # fmt: skip
    for speed in profile.speeds:
        mean = speed.when_there
        counts = (mean.requests, mean.prompt_tokens, mean.cached_tokens, mean.new_tokens)
        seconds = (mean.prefill_s, mean.decode_s)
        table.add_row(
            speed.tag,
            speed.hardware,
            str(speed.num_iterations),
            *(f"{count:.0f}" for count in counts),
            *(f"{value:.2f}" for value in seconds),
        )
    return table


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"
