"""Which worker processes a run consists of: the pools of the config, spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.processes import python_module
from rollart_hpc.types import Role

SUBCOMMANDS = {
    Role.ACTOR_TRAIN: "actor-train",
    Role.ACTOR_GEN: "actor-gen",
    Role.ENVIRONMENT: "environment-worker",
    Role.REWARD: "reward-worker",
}
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """One worker process."""

    member_id: str
    role: Role
    hardware: str
    rank: int
    pool: str
    index: int
    """Number within its role in its pool."""
    guest: bool = False
    """It joins a running run, and may leave it again."""

    @property
    def is_replaceable(self) -> bool:
        """Whether the attempt goes on without it until it is started again."""
        return self.role is not Role.ACTOR_TRAIN

    def command(self, attempt_file: Path) -> list[str]:
        """The process's argument vector."""
        return python_module(
            "rollart_hpc.cli.main",
            SUBCOMMANDS[self.role],
            f"--attempt={attempt_file}",
            f"--member-id={self.member_id}",
            f"--hardware={self.hardware}",
            f"--pool={self.pool}",
            f"--rank={self.rank}",
            *(["--guest"] if self.guest else []),
        )


def controller_command(attempt_file: Path) -> list[str]:
    """The controller's argument vector."""
    return python_module("rollart_hpc.cli.main", CONTROLLER, f"--attempt={attempt_file}")


def plan_workers(config: RunConfig) -> list[WorkerPlan]:
    """Every worker of the run, numbered within its role over all pools."""
    plans: list[WorkerPlan] = []
    for role in Role:
        number = 0
        for name, pool in config.pools.items():
            for index in range(getattr(pool, str(role))):
                plans.append(
                    WorkerPlan(
                        member_id=f"{role}-{number}",
                        role=role,
                        hardware=pool.hardware,
                        rank=number,
                        pool=name,
                        index=index,
                    )
                )
                number += 1
    return plans
