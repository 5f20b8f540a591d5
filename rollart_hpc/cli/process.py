"""The subcommands that are processes of a run; the leader starts them, people seldom do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rollart_hpc import garbage
from rollart_hpc.data_plane.stop_signals import EXIT_STOPPED, remember_stop_signals

_PANEL = "Processes of a run (started by the leader)"
AttemptOption = Annotated[Path, typer.Option("--attempt", help="attempt.json of the attempt to belong to.")]
MemberOption = Annotated[str, typer.Option("--member-id", help="Name among the members.")]
HardwareOption = Annotated[str, typer.Option("--hardware", help="Hardware class of the worker's pool.")]
PoolOption = Annotated[str, typer.Option("--pool", help="Name of the worker's pool.")]
RankOption = Annotated[int, typer.Option("--rank", help="Number within the role; a trainer's rank.")]
GuestOption = Annotated[bool, typer.Option("--guest", help="It joins a running run and leaves when told to stop.")]


def lead() -> None:
    """Lead a run as a Slurm job's batch script; the config comes on standard input (see `rollart-hpc render`)."""
    remember_stop_signals()
    import sys

    from rollart_hpc.launcher.batch import lead_job, read_embedded_config

    if lead_job(read_embedded_config(sys.stdin.read())):
        raise typer.Exit(EXIT_STOPPED)


def controller(attempt: AttemptOption) -> None:
    """The control plane: scheduler, buffer, weight sync, training loop, ledger."""
    remember_stop_signals()
    garbage.hold()
    from rollart_hpc.control_plane.controller_process import run_controller

    run_controller(attempt)


def _worker(role: str, text: str) -> Callable[..., None]:
    """The command of one role's worker process."""

    def command(
        attempt: AttemptOption,
        member_id: MemberOption,
        hardware: HardwareOption,
        pool: PoolOption = "",
        rank: RankOption = 0,
        guest: GuestOption = False,
    ) -> None:
        remember_stop_signals()
        garbage.hold()
        from rollart_hpc.data_plane.worker_process import run_worker
        from rollart_hpc.types import Role

        run_worker(Role(role), attempt, member_id=member_id, hardware=hardware, pool=pool, rank=rank, guest=guest)

    command.__doc__ = text
    return command


def register(app: typer.Typer) -> None:
    """Adds the process subcommands to the program."""
    for name, command in (
        ("lead", lead),
        ("controller", controller),
        ("actor-train", _worker("actor_train", "One rank of the Megatron trainer.")),
        ("actor-gen", _worker("actor_gen", "One generation worker: a vLLM engine behind its command loop.")),
        ("environment-worker", _worker("environment", "Many EnvManagers, each playing one trajectory.")),
        ("reward-worker", _worker("reward", "The local reward pool.")),
    ):
        app.command(name, rich_help_panel=_PANEL)(command)
