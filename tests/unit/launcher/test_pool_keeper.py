"""Which workers a run can go on without."""

from typing import Any

import pytest

from rollart_hpc.bus.membership import Member
from rollart_hpc.launcher.plan import WorkerPlan, plan_workers
from rollart_hpc.launcher.pool_keeper import PoolKeeper
from rollart_hpc.types import Role
from tests.builders import run_config

NO_BUS: Any = None


@pytest.fixture
def plans() -> dict[str, WorkerPlan]:
    return {plan.member_id: plan for plan in plan_workers(run_config())}


@pytest.fixture
def keeper(plans: dict[str, WorkerPlan]) -> PoolKeeper:
    return PoolKeeper(run_config(), list(plans.values()), NO_BUS)


def guest(role: Role = Role.ACTOR_GEN, **changes: Any) -> Member:
    return Member(member_id=f"{role}-g", role=role, hardware="H20", node="n", pid=1, guest=True, **changes)


@pytest.mark.parametrize("name", ["actor_train-0", "actor_gen-0", "environment-0", "reward-0"])
def test_the_last_worker_of_a_role_is_not_spared(keeper: PoolKeeper, plans: dict[str, WorkerPlan], name: str):
    assert not keeper.can_spare(plans[name])


def test_a_guest_replaces_the_last_worker_while_it_is_there(keeper: PoolKeeper, plans: dict[str, WorkerPlan]):
    keeper.member_changed(None, guest())
    assert keeper.can_spare(plans["actor_gen-0"])
    assert not keeper.can_spare(plans["environment-0"])
    keeper.member_changed(guest(), guest(leaving=True))
    assert not keeper.can_spare(plans["actor_gen-0"])
    keeper.member_changed(None, guest())
    keeper.member_changed(guest(), None)
    assert not keeper.can_spare(plans["actor_gen-0"])


def test_a_trainer_rank_is_never_spared():
    config = run_config()
    pools = {"all": config.pools["all"].model_copy(update={"actor_train": 2})}
    plans = plan_workers(config.model_copy(update={"pools": pools}))
    assert not any(PoolKeeper(config, plans, NO_BUS).can_spare(plan) for plan in plans)


def test_a_member_of_the_run_itself_is_no_guest(keeper: PoolKeeper, plans: dict[str, WorkerPlan]):
    keeper.member_changed(None, Member(member_id="actor_gen-0", role=Role.ACTOR_GEN, hardware="cpu", node="n", pid=1))
    assert not keeper.can_spare(plans["actor_gen-0"])
