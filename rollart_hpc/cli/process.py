"""The subcommands that are processes of a run; the leader starts them, people seldom do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PANEL = "Processes of a run (started by the leader)"
AttemptOption = Annotated[Path, typer.Option("--attempt", help="attempt.json of the attempt to belong to.")]
MemberOption = Annotated[str, typer.Option("--member-id", help="Name among the members.")]
HardwareOption = Annotated[str, typer.Option("--hardware", help="Hardware class of the worker's pool.")]
RankOption = Annotated[int, typer.Option("--rank", help="Number within the role; a trainer's rank.")]


def controller(attempt: AttemptOption) -> None:
    """The control plane: scheduler, buffer, weight sync, training loop, ledger."""
    from rollart_hpc.control_plane.controller_process import run_controller

    run_controller(attempt)


def actor_train(
    attempt: AttemptOption, member_id: MemberOption, hardware: HardwareOption, rank: RankOption = 0
) -> None:
    """One rank of the Megatron trainer."""
    from rollart_hpc.data_plane.actor_train import ActorTrainCls
    from rollart_hpc.data_plane.worker_process import run_worker

    run_worker(ActorTrainCls, attempt, member_id=member_id, hardware=hardware, rank=rank)


def actor_gen(attempt: AttemptOption, member_id: MemberOption, hardware: HardwareOption, rank: RankOption = 0) -> None:
    """One generation worker: a vLLM engine behind its command loop."""
    from rollart_hpc.data_plane.actor_gen import ActorGenCls
    from rollart_hpc.data_plane.worker_process import run_worker

    run_worker(ActorGenCls, attempt, member_id=member_id, hardware=hardware, rank=rank)


def environment_worker(
    attempt: AttemptOption, member_id: MemberOption, hardware: HardwareOption, rank: RankOption = 0
) -> None:
    """Many EnvManagers, each playing one trajectory."""
    from rollart_hpc.control_plane.environment_worker import EnvironmentCls
    from rollart_hpc.data_plane.worker_process import run_worker

    run_worker(EnvironmentCls, attempt, member_id=member_id, hardware=hardware, rank=rank)


def reward_worker(
    attempt: AttemptOption, member_id: MemberOption, hardware: HardwareOption, rank: RankOption = 0
) -> None:
    """The local reward pool."""
    from rollart_hpc.data_plane.reward_worker import RewardCls
    from rollart_hpc.data_plane.worker_process import run_worker

    run_worker(RewardCls, attempt, member_id=member_id, hardware=hardware, rank=rank)


def register(app: typer.Typer) -> None:
    """Adds the process subcommands to the program."""
    for name, command in (
        ("controller", controller),
        ("actor-train", actor_train),
        ("actor-gen", actor_gen),
        ("environment-worker", environment_worker),
        ("reward-worker", reward_worker),
    ):
        app.command(name, rich_help_panel=_PANEL)(command)
