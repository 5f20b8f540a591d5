from dataclasses import replace
from pathlib import Path

import pytest

from rollart_hpc.launcher.plan import plan_workers
from rollart_hpc.types import Role
from tests.builders import run_config


def plans_of(**pools: dict[str, object]):
    config = run_config()
    made = config.pools["all"].model_copy
    return plan_workers(config.model_copy(update={"pools": {name: made(update=pool) for name, pool in pools.items()}}))


def test_every_worker_of_every_pool_is_planned_once_with_its_hardware():
    plans = plans_of(
        a={"hardware": "H800", "actor_train": 2, "actor_gen": 1, "environment": 0, "reward": 0},
        b={"hardware": "H20", "actor_train": 0, "actor_gen": 2, "environment": 3, "reward": 1},
    )
    found = {plan.member_id: plan.hardware for plan in plans}
    assert found == {
        "actor_train-0": "H800",
        "actor_train-1": "H800",
        "actor_gen-0": "H800",
        "actor_gen-1": "H20",
        "actor_gen-2": "H20",
        "environment-0": "H20",
        "environment-1": "H20",
        "environment-2": "H20",
        "reward-0": "H20",
    }
    assert len(plans) == len(found)


def test_trainer_ranks_are_numbered_over_all_pools():
    pool = {"actor_gen": 0, "environment": 0, "reward": 0}
    plans = plans_of(a={**pool, "actor_train": 1}, b={**pool, "actor_train": 2})
    assert [(plan.role, plan.rank) for plan in plans] == [(Role.ACTOR_TRAIN, rank) for rank in range(3)]


def test_an_attempt_ends_with_a_trainer_rank_and_with_no_other_worker():
    replaceable = {plan.role: plan.is_replaceable for plan in plan_workers(run_config())}
    assert replaceable == {Role.ACTOR_TRAIN: False, Role.ACTOR_GEN: True, Role.ENVIRONMENT: True, Role.REWARD: True}


@pytest.mark.parametrize("guest", [False, True])
def test_the_command_of_a_worker_is_one_that_the_program_knows(guest: bool):
    import typer

    from rollart_hpc.cli.main import app

    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for planned in plan_workers(run_config()):
        plan = replace(planned, guest=guest)
        command = plan.command(Path("/with space/attempt.json"))
        arguments = command[command.index("rollart_hpc.cli.main") + 1 :]
        context = known[arguments[0]].make_context(arguments[0], arguments[1:])
        assert context.params == {
            "attempt": Path("/with space/attempt.json"),
            "member_id": plan.member_id,
            "hardware": plan.hardware,
            "pool": plan.pool,
            "rank": plan.rank,
            "guest": guest,
        }
