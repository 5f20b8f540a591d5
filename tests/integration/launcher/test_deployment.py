"""Workers without a run: they start, serve, and have ended with the block. The processes are real."""

import asyncio
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

import rollart_hpc.distributed as rdist
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError, NotReachableError, RollartError, WaitTimeout, WorkerDeclarationError
from rollart_hpc.launcher.deployment import entry_point_of
from tests.builders import run_config
from tests.integration.launcher import deployed

AT_ONCE_S = 10
"""Less than a dead worker's membership takes to expire."""


def config() -> RunConfig:
    return run_config(tasks={"a": {"reward": "rollart_hpc.reward_functions.arithmetic:score"}})


async def test_workers_are_where_they_were_placed_and_have_ended_with_the_block():
    devices = rdist.ResourceManager({"H20": [4, 7]})
    with pytest.raises(ValueError, match="the user's own"):
        async with rdist.deploy(config()) as deployment:
            cluster = await deployment.cluster(deployed.Judge, devices, count=2)
            places = await cluster.where()
            assert [place[:2] for place in places] == [["H20", "4"], ["H20", "7"]]
            assert devices.free == {"H20": ()}
            with pytest.raises(WorkerDeclarationError, match="Judge: this deployment has reward workers already"):
                await deployment.cluster(deployed.Judge, devices)
            directory = deployment.directory
            assert (directory / "logs" / "reward-0.log").stat().st_size > 0
            raise ValueError("the user's own")
    assert not any(psutil.pid_exists(pid) for _, _, pid in places)
    assert devices.free == {"H20": (4, 7)}
    assert not directory.exists()


async def test_calls_of_a_worker_that_died_fail_at_once_and_the_others_serve(tmp_path: Path):
    async with rdist.deploy(config(), directory=tmp_path) as deployment:
        cluster = await deployment.cluster(deployed.Judge, rdist.ResourceManager({"cpu": [0, 1]}), count=2)
        with pytest.raises(NotReachableError, match=r"reward-0\.die: the worker ended before it answered"):
            await asyncio.wait_for(cluster.call_one("reward-0", deployed.Judge.die), AT_ONCE_S)
        ((_, device, _),) = await cluster.where()
        assert device == "1"
    assert (tmp_path / "attempts" / "1" / "logs" / "reward-0.log").exists()


async def test_a_worker_that_fails_at_its_start_says_why():
    async with rdist.deploy(config()) as deployment:
        with pytest.raises(RollartError, match=r"actor_train-0 ended with exit code 1: ValueError: no such planet"):
            await deployment.cluster(deployed.Broken, rdist.ResourceManager({"H800": [0]}))


async def test_a_start_has_a_deadline():
    async with rdist.deploy(config()) as deployment:
        with pytest.raises(WaitTimeout, match=r"waited 0\.1 s for actor_train workers to join from actor_train-0"):
            await deployment.cluster(deployed.Slow, rdist.ResourceManager({"H800": [0]}), deadline_s=0.1)


async def test_what_cannot_be_placed_or_started_is_refused_before_anything_starts():
    class Local(deployed.Judge):
        pass

    class Player(rdist.EnvironmentCls):
        pass

    one = rdist.ResourceManager({"H800": [0]})
    refused: list[tuple[type[Any], rdist.ResourceManager, int | None, str]] = [
        (Local, one, None, "Local is local to a function; define it at the top of its module"),
        (Player, one, None, "Player: environment workers play what a run's controller hands out"),
        (deployed.Broken, one, 2, "count = 2: the ranks of [training] are 1; leave it out"),
        (deployed.Judge, one, 2, "there is room for 1; free devices: H800 1 of 1"),
    ]
    async with rdist.deploy(config()) as deployment:
        for worker_class, devices, count, said in refused:
            with pytest.raises(WorkerDeclarationError, match=re.escape(said)):
                await deployment.cluster(worker_class, devices, count=count)
        assert one.free == {"H800": (0,)}
        assert not list((deployment.directory / "logs").glob("*-0.log"))


async def test_a_config_that_is_wrong_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        async with rdist.deploy(tmp_path / "nowhere.toml"):
            pass


def test_a_class_that_no_other_process_can_import_is_refused(monkeypatch: pytest.MonkeyPatch):
    assert entry_point_of(deployed.Judge) == "tests.integration.launcher.deployed:Judge"
    before = deployed.Judge
    monkeypatch.setattr(deployed, "Judge", deployed.Broken)
    with pytest.raises(WorkerDeclarationError, match="names another class by now; import the module anew"):
        entry_point_of(before)
    monkeypatch.setattr(before, "__module__", "__main__")
    with pytest.raises(WorkerDeclarationError, match="Judge is a class of the script itself"):
        entry_point_of(before)
