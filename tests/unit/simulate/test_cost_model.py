"""The roofline model, and what it says of the paper's two kinds of load."""

import math

import pytest

from rollart_hpc.errors import ConfigError
from rollart_hpc.resource_plane.figures import known_figures
from rollart_hpc.resource_plane.hardware import HardwareClass, hardware_class
from rollart_hpc.simulate.cost_model import EngineCost, TrainerCost, transfer_s
from tests.unit.simulate.fake_clock import engine_cost

MODEL = known_figures().model("Qwen3-8B")


def test_prefill_decode_and_training_follow_from_the_figures():
    cost = engine_cost("H800", devices=2)
    assert cost.prefill_s(1000) == pytest.approx(2 * 8.2e9 * 1000 / (2 * 989e12 * 0.5))
    kv_bytes = 2 * 36 * 8 * 128 * 2
    assert cost.decode_step_s(4, 8000) == pytest.approx((16.4e9 + kv_bytes * 8000) / (2 * 3350e9 * 0.8))
    assert cost.decode_step_s(4000, 4000) == pytest.approx(cost.prefill_s(4000))
    assert cost.kv_tokens == int((160e9 - 16.4e9) / kv_bytes)
    trainer = TrainerCost(
        model=MODEL, hardware=hardware_class("H800"), devices=32, compute_efficiency=0.4, overhead_s=3.0
    )
    assert trainer.step_s(1e6) == pytest.approx(3.0 + 6 * 8.2e9 * 1e6 / (32 * 989e12 * 0.4))
    assert transfer_s(16.4e9, 50) == pytest.approx(0.328)


@pytest.mark.parametrize(
    ("num_requests", "context"),
    [
        pytest.param(4, 1000, id="bound by bandwidth"),
        pytest.param(24, 1000, id="bound by compute, then by bandwidth"),
        pytest.param(8000, 8000, id="bound by compute"),
    ],
)
def test_steps_in_a_row_are_the_sum_of_the_steps_and_can_be_told_from_the_time(num_requests: int, context: int):
    cost = engine_cost("H20")
    steps = [cost.decode_step_s(num_requests, context + num_requests * step) for step in range(300)]
    assert cost.decode_s(num_requests, context, 300) == pytest.approx(sum(steps), rel=2e-3)
    for num_steps in (0.0, 0.5, 30.0, 300.0):
        seconds = cost.decode_s(num_requests, context, num_steps)
        assert cost.decoded_steps(num_requests, context, seconds) == pytest.approx(num_steps, abs=1e-9)


def rollout_s(hardware: str, devices: int, *, trajectories: int, turns: int, observation: int, response: int) -> float:
    """Of a batch on engines of one device each, all in step; prefixes are cached."""
    cost, of_one_engine = engine_cost(hardware), trajectories / devices
    seconds, context = 0.0, 0
    for _ in range(turns):
        context += observation
        seconds += cost.prefill_s(of_one_engine * observation)
        seconds += cost.decode_s(math.ceil(of_one_engine), of_one_engine * context, response)
        context += response
    return seconds


@pytest.mark.parametrize("trajectories", [16, 32, 64])
def test_each_kind_of_load_is_as_much_faster_on_its_hardware_as_the_paper_measured(trajectories: int):
    many_short = {"trajectories": trajectories, "turns": 20, "observation": 1000, "response": 10}
    few_long = {"trajectories": trajectories, "turns": 3, "observation": 300, "response": 4000}
    measured = known_figures().paper.affinity
    prefill_heavy = rollout_s("H800", 2, **many_short) / rollout_s("H20", 6, **many_short)
    decode_heavy = rollout_s("H20", 6, **few_long) / rollout_s("H800", 2, **few_long)
    assert prefill_heavy == pytest.approx(measured.frozen_lake_h800_to_h20, abs=0.05)
    assert measured.gem_math_h20_to_h800_low - 0.05 < decode_heavy < measured.gem_math_h20_to_h800_high


def test_hardware_without_the_figures_or_the_memory_is_refused():
    def make(hardware: HardwareClass, model: str = "Qwen3-8B") -> EngineCost:
        figures = known_figures().model(model)
        return EngineCost(model=figures, hardware=hardware, devices=1, compute_efficiency=0.5, bandwidth_efficiency=0.5)

    with pytest.raises(ConfigError, match=r"hardware class own has no memory_gb; give it in \[hardware.own\]"):
        make(HardwareClass(name="own", tflops=1.0, memory_gb_s=1.0))
    with pytest.raises(ConfigError, match=r"hardware class own has no tflops"):
        make(HardwareClass(name="own", memory_gb=80.0, memory_gb_s=1.0))
    with pytest.raises(ConfigError, match=r"weights take 66 GB and 1 small have 40 GB.*more devices"):
        make(HardwareClass(name="small", tflops=1.0, memory_gb=40.0, memory_gb_s=1.0), "Qwen3-32B")
