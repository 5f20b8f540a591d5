"""Declarations of affinity that a run cannot follow, with what to change."""

from rollart_hpc.config.schema import HardwareSection, RunConfig
from rollart_hpc.distributed import ActorGenCls, hw_mapping
from rollart_hpc.launcher.affinity_faults import affinity_faults
from tests.builders import run_config

GENERATORS = "tests.unit.launcher.test_affinity_faults:"


class Hetero(ActorGenCls):
    @hw_mapping(hw_affinity={"lake": "H800", "elsewhere": "H100", "default": "H200"})
    async def generate(self, input_ids: list[int], tag_name: str = "default") -> list[int]:
        return input_ids


def config(*, of: str = "H800", auto: bool = False, **changes: object) -> RunConfig:
    """Two tasks; generation on ``of`` and on H20, the trainer on a class of its own."""
    made = run_config(tasks={"lake": {}, "sums": {}})
    pool = made.pools["all"]
    pools = {
        "first": pool.model_copy(update={"hardware": of}),
        "second": pool.model_copy(update={"hardware": "H20"}),
        "third": pool.model_copy(update={"hardware": "other", "actor_gen": 0}),
    }
    profiler = made.profiler.model_copy(update={"affinity": "auto" if auto else "advise"})
    return made.model_copy(update={"pools": pools, "profiler": profiler, **changes})


def workers(name: str) -> dict[str, object]:
    return {"workers": run_config().workers.model_copy(update={"actor_gen": GENERATORS + name})}


def faults(**changes: object) -> list[str]:
    return list(affinity_faults(config(**changes)))  # pyright: ignore[reportArgumentType]


def test_declarations_that_can_be_followed_have_no_fault():
    assert faults() == []
    assert faults(affinity={"lake": "H800", "default": "H20"}) == []
    assert faults(affinity={"lake": "H800", "sums": "H20"}) == []


def test_a_class_that_no_pool_of_generation_workers_has_is_refused():
    (fault,) = faults(affinity={"default": "other"})
    assert fault == (
        "affinity.default = 'other': no pool with generation workers has this hardware; expected one of ['H20', 'H800']"
    )


def test_a_worker_class_s_mapping_is_refused_where_nothing_stronger_is_declared():
    (fault,) = faults(**workers("Hetero"))
    assert fault == (
        "hw_affinity.default of Hetero.generate = 'H200': no pool with generation workers has this hardware; "
        "expected one of ['H20', 'H800']; [affinity] of the config wins over it"
    )
    assert faults(affinity={"default": "H20"}, **workers("Hetero")) == []


def test_a_tag_without_a_class_is_refused_with_what_to_add():
    (fault,) = faults(affinity={"lake": "H800"})
    assert fault == (
        "affinity: has neither 'default' nor an entry for ['sums']; add one for each, or default = 'H20' for all tags "
        "that are not listed"
    )


def test_a_worker_class_s_default_serves_the_tags_that_the_config_leaves_out():
    assert faults(affinity={"lake": "H20"}, of="H200", **workers("Hetero")) == []


def test_a_tag_that_no_task_has_is_refused():
    (fault,) = faults(affinity={"lak": "H800", "default": "H20"})
    assert fault == "affinity.lak: no task has this tag; tags are ['lake', 'sums'] and 'default'"


def test_figures_that_the_profiler_needs_are_asked_for_in_auto_mode_alone():
    assert faults(of="own") == []
    (fault,) = faults(of="own", auto=True)
    assert fault == (
        "profiler.affinity = 'auto': the figures of own are not known; set hardware.own.tflops and "
        "hardware.own.memory_gb_s, or let the profiler 'advise'"
    )
    assert faults(of="own", auto=True, hardware={"own": HardwareSection(tflops=9.0, memory_gb_s=9.0)}) == []
