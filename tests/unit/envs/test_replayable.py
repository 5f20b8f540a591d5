"""What ships as replayable is: a used instance plays seed and actions as a fresh one does."""

from typing import Any

import pytest

from rollart_hpc.data_plane.environment_instance import EnvironmentInstance, Transition

LAKE = "rollart_hpc.envs.frozen_lake:FrozenLake"
SUMS = "rollart_hpc.envs.arithmetic:Arithmetic"
ACTIONS = ["right", "down", "nonsense", "right", "left", "down", "up", "right", "down", "<answer>7</answer>"]


def play(environment: EnvironmentInstance, seed: int) -> list[Transition]:
    played = [environment.reset(seed, {})]
    for action in ACTIONS:
        if not played[-1].terminated:
            played.append(environment.step(action))
    return played


@pytest.mark.parametrize(
    ("entry_point", "args"),
    [
        (LAKE, {}),
        (LAKE, {"map_name": "8x8", "is_slippery": True}),
        (LAKE, {"random": True, "size": 6, "is_slippery": True}),
        (SUMS, {"digits": 3}),
    ],
    ids=["lake", "slippery lake", "random lakes", "sums"],
)
def test_a_used_instance_plays_what_a_fresh_one_plays(entry_point: str, args: dict[str, Any]):
    used = EnvironmentInstance(entry_point, args)
    assert used.properties.replayable
    episodes = {seed: play(used, seed) for seed in range(20)}
    assert all(play(EnvironmentInstance(entry_point, args), seed) == episodes[seed] for seed in range(20))
    assert len({str(played) for played in episodes.values()}) > 1 or not args
