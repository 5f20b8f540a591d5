"""Where each process of a run becomes a step; srun and scontrol are programs of the test."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import apply_site
from rollart_hpc.errors import ConfigError, PreflightError
from rollart_hpc.launcher.plan import plan_workers
from rollart_hpc.launcher.steps import StepStarter, node_number
from rollart_hpc.processes import ManagedProcess
from rollart_hpc.slurm.allocated import AllocatedJob

POOLS = {
    "h800": {"hardware": "H800", "actor_train": 4, "slurm": {"nodes": 2}},
    "h20": {"hardware": "H20", "actor_gen": 3, "slurm": {"nodes": 2, "gpu_type": "h20"}},
    "cpu": {"hardware": "cpu", "environment": 2, "reward": 1},
}
NODES = (("c1",), ("a1", "a2"), ("b1", "b2"))
"""The leader's component is the first, whatever its place among the pools."""
SRUN = """#!/bin/bash
printf '%s\\n' "$@" >"$SEEN/argv"
env >"$SEEN/env"
trap 'echo notified; exit 0' USR2
trap 'echo killed; exit 143' TERM
echo started
while true; do sleep 0.05; done
"""


def config_of(pools: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    pools = POOLS if pools is None else pools
    data = {
        "run": {"name": "r", "steps": 1, "directory": "/shared/run"},
        "model": {"path": "/shared/model"},
        "rollout": {"groups_per_step": 1},
        "training": {"data_parallel": sum(pool.get("actor_train", 0) for pool in pools.values())},
        "tasks": {"a": {"environment": "m:E", "reward": "m:r"}},
        "pools": pools,
        "slurm": {"interface": "lo"},
    }
    return apply_site(parse_config(data | sections), None)


def job(nodes: tuple[tuple[str, ...], ...] = NODES, *, is_heterogeneous: bool = True) -> AllocatedJob:
    return AllocatedJob(job_id="12", node="c1", nodes=nodes, is_heterogeneous=is_heterogeneous, restarts=0)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "seen"
    folder.mkdir()
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(SRUN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(folder))
    return folder


async def start(starter: StepStarter, name: str, log: Path) -> ManagedProcess:
    """A step's srun, once it can be told to stop; ``controller`` has no plan."""
    plan = {plan.member_id: plan for plan in plan_workers(starter._config)}.get(name)
    process = await starter.start(name, ["python", "-m", "x"], log, plan)
    async with asyncio.timeout(20):
        while "started" not in process.tail():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return process


async def words_of(starter: StepStarter, seen: Path, name: str) -> list[str]:
    """What srun is given for a process."""
    process = await start(starter, name, seen / "log")
    assert await process.stop() == 0
    return (seen / "argv").read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "group", "node", "share"),
    [
        ("controller", 0, "c1", ("4", "16384M", None)),
        ("actor_train-0", 1, "a1", ("8", "65536M", "gpu:1")),
        ("actor_train-1", 1, "a1", ("8", "65536M", "gpu:1")),
        ("actor_train-2", 1, "a2", ("8", "65536M", "gpu:1")),
        ("actor_train-3", 1, "a2", ("8", "65536M", "gpu:1")),
        ("actor_gen-0", 2, "b1", ("8", "65536M", "gpu:h20:1")),
        ("actor_gen-1", 2, "b1", ("8", "65536M", "gpu:h20:1")),
        ("actor_gen-2", 2, "b2", ("8", "65536M", "gpu:h20:1")),
        ("environment-1", 0, "c1", ("8", "16384M", None)),
        ("reward-0", 0, "c1", ("4", "8192M", None)),
    ],
)
async def test_every_process_goes_to_its_component_and_node_with_its_share(
    seen: Path, name: str, group: int, node: str, share: tuple[str, str, str | None]
):
    words = await words_of(StepStarter(config_of(), job()), seen, name)
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    assert (flags["jobid"], flags["het-group"], flags["nodelist"], flags["job-name"]) == ("12", str(group), node, name)
    assert (flags["cpus-per-task"], flags["mem"], flags.get("gres")) == share
    assert words[-3:] == ["python", "-m", "x"]


async def test_a_job_of_one_component_has_no_group(seen: Path):
    pools = {"all": {"hardware": "cpu", "actor_train": 1, "actor_gen": 1, "environment": 1, "reward": 1}}
    starter = StepStarter(config_of(pools), job((("c1",),), is_heterogeneous=False))
    assert not any(word.startswith("--het-group") for word in await words_of(starter, seen, "reward-0"))


async def test_a_step_is_told_to_stop_by_usr2_and_killed_by_term(seen: Path):
    starter = StepStarter(config_of(), job())
    process = await start(starter, "controller", seen / "1.log")
    process.request_stop()
    assert await process.wait() == 0
    assert process.tail().splitlines()[-1] == "notified"
    process = await start(starter, "controller", seen / "2.log")
    process.kill()
    assert await process.wait() == 128 + signal.SIGTERM
    assert process.tail().splitlines()[-1] == "killed"


async def test_nothing_of_the_leader_s_own_job_reaches_srun(seen: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("SLURM_HET_SIZE", "SLURM_MEM_PER_NODE", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("FROM_SETUP", "yes")
    await words_of(StepStarter(config_of(), job()), seen, "controller")
    variables = dict(line.partition("=")[::2] for line in (seen / "env").read_text().splitlines())
    assert {name for name in variables if name.startswith(("SLURM", "CUDA"))} == {"SLURM_CONF"}
    assert (variables["FROM_SETUP"], variables["OMP_NUM_THREADS"]) == ("yes", "1")


async def test_a_container_gets_the_run_the_model_and_the_submission_directory(
    seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    container = {"runtime": "pyxis", "image": "i", "mounts": ["/data:/data"]}
    slurm = {"interface": "lo", "container": container}
    words = await words_of(StepStarter(config_of(slurm=slurm), job()), seen, "actor_gen-0")
    mounts = f"/data:/data,/shared/run:/shared/run,/shared/model:/shared/model,{tmp_path}:{tmp_path}"
    assert f"--container-mounts={mounts}" in words


async def test_a_run_s_directory_that_cannot_be_mounted_is_refused(seen: Path, tmp_path: Path):
    run = {"name": "r", "steps": 1, "directory": "/shared/a,b"}
    slurm = {"interface": "lo", "container": {"runtime": "pyxis", "image": "i"}}
    starter = StepStarter(config_of(run=run, slurm=slurm), job())
    with pytest.raises(ConfigError, match="/shared/a,b: a path that is mounted"):
        await starter.start("controller", ["python"], tmp_path / "log", None)


@pytest.mark.parametrize(
    "nodes",
    [NODES[:2], (*NODES, ("d1",)), (("a1", "a2"), ("c1",), ("b1", "b2")), (("c1",), ("a1",), ("b1", "b2"))],
    ids=["a component less", "one more", "another order", "a node less"],
)
def test_a_job_that_is_not_the_run_s_is_refused(nodes: tuple[tuple[str, ...], ...]):
    with pytest.raises(PreflightError, match=r"job 12 has \[.*\] nodes by component, this run asks for \[1, 2, 2\]"):
        StepStarter(config_of(), job(nodes))


def test_services_listen_on_the_interface_of_the_leader_s_node():
    assert StepStarter(config_of(), job()).host == "127.0.0.1"


def test_workers_fill_the_nodes_of_their_pool_evenly_and_none_stays_empty():
    pools = {
        "gpu": {"hardware": "H20", "actor_train": 7, "actor_gen": 5, "slurm": {"nodes": 3}},
        "cpu": {"hardware": "cpu", "environment": 3, "reward": 2, "slurm": {"nodes": 2}},
    }
    config = config_of(pools)
    places = [(plan.pool, plan.role, node_number(config, plan)) for plan in plan_workers(config)]
    for pool, nodes in (("gpu", 3), ("cpu", 2)):
        for role in {role for name, role, _ in places if name == pool}:
            counts = Counter(node for name, of, node in places if (name, of) == (pool, role))
            assert set(counts) == set(range(nodes))
            assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(
    ("name", "node", "devices"),
    [
        ("actor_train-0", "a1", "0"),
        ("actor_train-1", "a1", "1"),
        ("actor_train-2", "a2", "0"),
        ("actor_gen-0", "a1", "2,3"),
        ("actor_gen-1", "a2", "1,2"),
        ("actor_gen-2", "b1", None),
        ("environment-0", "a1", None),
    ],
)
async def test_on_whole_nodes_no_two_processes_of_a_node_share_a_device(
    seen: Path, name: str, node: str, devices: str | None
):
    pools = {
        "whole": {
            "hardware": "H800",
            "actor_train": 3,
            "actor_gen": 2,
            "environment": 2,
            "reward": 2,
            "slurm": {"nodes": 2, "gpu_form": "none"},
        },
        "counted": {"hardware": "H20", "actor_gen": 1},
    }
    config = config_of(pools, generation={"tensor_parallel": 2}, slurm={"interface": "lo", "leader": "whole"})
    words = await words_of(StepStarter(config, job((("a1", "a2"), ("b1",)))), seen, name)
    assert f"--nodelist={node}" in words
    assert [word for word in words if word.startswith("CUDA_VISIBLE_DEVICES=")] == [
        f"CUDA_VISIBLE_DEVICES={shown}" for shown in [devices] if shown
    ]
