"""Components, places and shares; properties over all shapes of pools."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import apply_site
from rollart_hpc.errors import ConfigError
from rollart_hpc.slurm.script.allocation import (
    WORKER_ROLES,
    Component,
    Share,
    components,
    leader_pool,
    node_of,
    oddities,
    share_of,
)

GPU_AND_CPU = {
    "gpu": {"hardware": "H20", "actor_train": 4, "actor_gen": 2},
    "cpu": {"hardware": "cpu", "environment": 2, "reward": 1},
}


def config_of(pools: dict[str, Any], slurm: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    ranks = sum(pool.get("actor_train", 0) for pool in pools.values())
    data = {
        "run": {"name": "r", "steps": 1},
        "model": {"path": "/m"},
        "rollout": {"groups_per_step": 1},
        "training": {"data_parallel": ranks},
        "tasks": {"a": {"environment": "m:E", "reward": "m:r"}},
        "pools": pools,
        "slurm": slurm or {},
        **sections,
    }
    return apply_site(parse_config(data), None)


def only(pool: str, config: RunConfig) -> Component:
    return {component.name: component for component in components(config)}[pool]


def refusal(pools: dict[str, Any], slurm: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        components(config_of(pools, slurm))
    return str(caught.value)


def test_the_defaults_of_a_real_node_add_up():
    cpu, gpu = components(config_of(GPU_AND_CPU))
    assert (cpu.name, cpu.nodes, cpu.cpus, cpu.mem_mb, cpu.gpus) == ("cpu", 1, 28, (32 + 16 + 32 + 8) * 1024, 0)
    assert (gpu.name, gpu.nodes, gpu.cpus, gpu.mem_mb, gpu.gpus) == ("gpu", 1, 48, 6 * 64 * 1024, 6)


def test_the_leader_runs_in_the_first_pool_without_gpu_workers():
    assert leader_pool(config_of(GPU_AND_CPU)) == "cpu"
    assert [part.name for part in components(config_of(GPU_AND_CPU))] == ["cpu", "gpu"]


def test_the_leader_runs_in_the_first_pool_when_all_have_gpu_workers():
    pools = {
        "empty": {"hardware": "cpu"},
        "a": {"hardware": "H20", "actor_train": 1, "environment": 1},
        "b": {"hardware": "H20", "actor_gen": 1, "reward": 1},
    }
    assert [part.name for part in components(config_of(pools))] == ["a", "b"]


def test_a_pool_without_workers_is_a_component_only_for_the_leader():
    pools = {**GPU_AND_CPU, "head": {"hardware": "cpu"}}
    assert "head" not in [part.name for part in components(config_of(pools))]
    head, *_ = components(config_of(pools, {"leader": "head"}))
    assert (head.name, head.nodes, head.cpus, head.mem_mb) == ("head", 1, 8, 48 * 1024)


def test_a_generation_worker_takes_a_gpu_for_each_tensor_parallel_rank():
    config = config_of(GPU_AND_CPU, generation={"tensor_parallel": 4})
    assert share_of(config, "gpu", "actor_gen") == Share(cpus=8, mem_mb=64 * 1024, gpus=4)
    assert only("gpu", config).gpus == 4 + 2 * 4


def test_resources_of_a_pool_replace_the_defaults_field_by_field():
    pools = {**GPU_AND_CPU, "gpu": {**GPU_AND_CPU["gpu"], "slurm": {"resources": {"actor_gen": {"mem_gb": 0.3}}}}}
    config = config_of(pools, {"resources": {"actor_gen": {"cpus": 2}}})
    assert share_of(config, "gpu", "actor_gen") == Share(cpus=2, mem_mb=308, gpus=1)


def test_a_site_without_gpus_asks_for_none():
    config = config_of(GPU_AND_CPU, {"resources": {"actor_gen": {"gpus": 0}, "actor_train": {"gpus": 0}}})
    assert [part.gpus for part in components(config)] == [0, 0]


def test_a_node_may_ask_for_more_than_its_processes_get_but_not_for_less():
    more = {**GPU_AND_CPU, "cpu": {**GPU_AND_CPU["cpu"], "slurm": {"cpus_per_node": 64, "mem_gb": 100}}}
    assert (only("cpu", config_of(more)).cpus, only("cpu", config_of(more)).mem_mb) == (64, 100 * 1024)
    less = {**GPU_AND_CPU, "cpu": {**GPU_AND_CPU["cpu"], "slurm": {"cpus_per_node": 27, "mem_gb": 87.9}}}
    cpus, memory = refusal(less).splitlines()
    assert cpus.startswith("pools.cpu.slurm.cpus_per_node = 27: the processes of one node get 28; raise it")
    assert memory.startswith("pools.cpu.slurm.mem_gb = 87.9: the processes of one node get 88; raise it")


@pytest.mark.parametrize(
    ("pool", "nodes", "said"),
    [
        ("gpu", 5, "pools.gpu.slurm.nodes = 5: actor_train = 4, actor_gen = 2 leave a node without any worker"),
        ("cpu", 3, "pools.cpu.slurm.nodes = 3: environment = 2, reward = 1 leave a node without any worker"),
    ],
)
def test_a_node_without_workers_is_refused(pool: str, nodes: int, said: str):
    assert said in refusal({**GPU_AND_CPU, pool: {**GPU_AND_CPU[pool], "slurm": {"nodes": nodes}}})


def test_licences_of_the_job_go_to_the_leaders_component_alone():
    cpu, gpu = components(config_of(GPU_AND_CPU, {"licenses": "sim:1"}))
    assert (cpu.options.licenses, gpu.options.licenses) == ("sim:1", None)


def test_tensor_parallel_groups_that_span_nodes_are_odd():
    def said(nodes: int, size: int) -> list[str]:
        pools = {**GPU_AND_CPU, "gpu": {**GPU_AND_CPU["gpu"], "slurm": {"nodes": nodes}}}
        return oddities(config_of(pools, training={"tensor_parallel": size, "data_parallel": 4 // size}))

    assert said(2, 2) == []
    assert said(4, 1) == []
    assert "2 of 2 groups span nodes" in said(4, 2)[0]
    assert "1 of 1 groups span nodes" in said(2, 4)[0]


def test_tensor_parallel_groups_that_span_pools_are_odd():
    pools = {
        "a": {"hardware": "H20", "actor_train": 1, "actor_gen": 1},
        "b": {"hardware": "H20", "actor_train": 3, "environment": 1, "reward": 1},
    }
    assert "1 of 2 groups" in oddities(config_of(pools, training={"tensor_parallel": 2, "data_parallel": 2}))[0]


@given(count=st.integers(1, 200), nodes=st.integers(1, 40))
def test_workers_are_spread_in_contiguous_even_blocks(count: int, nodes: int):
    places = [node_of(index, count, nodes) for index in range(count)]
    assert places == sorted(places)
    assert set(places) <= set(range(nodes))
    if count >= nodes:
        sizes = [places.count(node) for node in range(nodes)]
        assert max(sizes) - min(sizes) <= 1
    else:
        assert len(set(places)) == count


resources = st.fixed_dictionaries(
    {},
    optional={"cpus": st.integers(1, 32), "mem_gb": st.floats(0.01, 500), "gpus": st.integers(0, 8)},
)
pools = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.fixed_dictionaries(
        {
            "hardware": st.just("H20"),
            **{role: st.integers(0, 12) for role in WORKER_ROLES},
            "slurm": st.fixed_dictionaries(
                {"nodes": st.integers(1, 6)},
                optional={
                    "resources": st.dictionaries(st.sampled_from([*WORKER_ROLES, "leader", "controller"]), resources)
                },
            ),
        }
    ),
    min_size=1,
)


def sums_by_node(config: RunConfig, part: Component, *, leads: bool) -> list[Share]:
    """What the processes of each node get together, one by one."""
    sums = [Share(cpus=0, mem_mb=0, gpus=0) for _ in range(part.nodes)]
    if leads:
        sums[0] = share_of(config, part.name, "leader") + share_of(config, part.name, "controller")
    for role in WORKER_ROLES:
        count = getattr(config.pools[part.name], role)
        for index in range(count):
            node = node_of(index, count, part.nodes)
            sums[node] = sums[node] + share_of(config, part.name, role)
    return sums


@given(pools=pools)
def test_every_node_of_every_component_has_room_for_its_processes_and_work(pools: dict[str, Any]):
    assume(all(any(pool[role] for pool in pools.values()) for role in WORKER_ROLES))
    staffed = {name: pool for name, pool in pools.items() if any(pool[role] for role in WORKER_ROLES)}
    assume(all(pool["slurm"]["nodes"] <= max(pool[role] for role in WORKER_ROLES) for pool in staffed.values()))
    config = config_of(pools)
    parts = components(config)
    assert {part.name for part in parts} == set(staffed)
    for part in parts:
        sums = sums_by_node(config, part, leads=part is parts[0])
        assert all(one.cpus for one in sums), "a node without a process"
        assert part.cpus == max(one.cpus for one in sums)
        assert part.mem_mb == max(one.mem_mb for one in sums)
        assert part.gpus == max(one.gpus for one in sums)
