"""The figures of hardware classes, and what follows from them."""

import pytest

from rollart_hpc.config.schema import HardwareSection, PoolSection
from rollart_hpc.resource_plane.hardware import (
    by_bandwidth,
    by_compute,
    hardware_class,
    hardware_classes,
    known_hardware,
    missing_figures,
)
from tests.builders import run_config


def test_the_figures_of_the_paper_s_classes_are_known():
    h800, h20 = hardware_class("H800"), hardware_class("H20")
    assert (h800.tflops, h800.memory_gb, h800.memory_gb_s, h800.relative_cost) == (989, 80, 3350, 3)
    assert (h20.tflops, h20.memory_gb, h20.memory_gb_s, h20.relative_cost) == (148, 96, 4000, 1)


def test_a_figure_of_the_config_replaces_the_known_one_alone():
    given = hardware_class("H20", HardwareSection(tflops=296.0))
    assert (given.tflops, given.memory_gb_s) == (296, 4000)


def test_a_class_is_known_whatever_the_case_of_its_name_and_keeps_it():
    h800 = hardware_class("h800")
    assert (h800.name, h800.tflops, h800.is_gpu) == ("h800", 989, True)
    assert not hardware_class("CPU").is_gpu


def test_the_classes_of_a_run_are_those_of_its_pools():
    config = run_config()
    pool = config.pools["all"]
    pools: dict[str, PoolSection] = {
        name: pool.model_copy(update={"hardware": hardware})
        for name, hardware in (("a", "H20"), ("b", "own"), ("c", "H20"))
    }
    config = config.model_copy(update={"pools": pools, "hardware": {"own": HardwareSection(tflops=5.0)}})
    classes = hardware_classes(config)
    assert list(classes) == ["H20", "own"]
    assert classes["own"].tflops == 5
    assert missing_figures(classes["own"]) == ["memory_gb_s"]


@pytest.mark.parametrize("name", known_hardware())
def test_the_speed_of_every_known_class_can_be_predicted(name: str):
    assert missing_figures(hardware_class(name)) == []


def test_training_suits_the_most_compute_and_generation_the_most_bandwidth_for_its_compute():
    classes = [hardware_class(name) for name in ("own", "H20", "H800", "A100")]
    assert [one.name for one in by_compute(classes)] == ["H800", "A100", "H20", "own"]
    assert [one.name for one in by_bandwidth(classes)] == ["H20", "A100", "H800", "own"]
