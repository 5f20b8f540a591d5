from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.envs.frozen_lake import FrozenLake
from rollart_hpc.envs.frozen_lake.demonstrations import bad_play

SHORTEST = ["down", "down", "right", "right", "down", "right"]


def play(lake: FrozenLake, actions: list[str], seed: int = 0) -> list[object]:
    return [lake.reset(seed=seed, task={}), *(lake.step(action) for action in actions)]


def test_the_grid_shows_the_player_and_no_start() -> None:
    lake = FrozenLake()
    assert lake.reset(seed=0, task={})[0] == "PFFF\nFHFH\nFFFH\nHFFG"
    assert lake.step("<answer>down</answer>")[0] == "FFFF\nPHFH\nFFFH\nHFFG"


def test_the_shortest_way_ends_at_the_goal() -> None:
    *_, last = play(FrozenLake(), SHORTEST)
    assert last == (
        "FFFF\nFHFH\nFFFH\nHFFP",
        1.0,
        True,
        False,
        {"success": True, "progress": 1.0, "invalid_turns": 0, "turns": 6},
    )


def test_a_hole_ends_the_episode_and_progress_stays_that_of_the_best_cell() -> None:
    *_, last = play(FrozenLake(), ["right", "down"])
    assert last == (
        "FFFF\nFPFH\nFFFH\nHFFG",
        0.0,
        True,
        False,
        {"success": False, "progress": pytest.approx(1 / 6), "invalid_turns": 0, "turns": 2},
    )


@pytest.mark.parametrize("text", ["", "left or right", "LEFT", "upright", "\ud800", "north" * 10_000])
def test_a_text_without_exactly_one_action_costs_a_turn_and_moves_nothing(text: str) -> None:
    first, after = play(FrozenLake(), [text])
    assert after[:4] == (first[0], 0.0, False, False)
    assert after[4] == {"success": False, "progress": 0.0, "invalid_turns": 1, "turns": 1}


@given(st.lists(st.one_of(st.text(max_size=30), st.sampled_from(SHORTEST)), max_size=12), st.integers(0, 2**31 - 1))
def test_seed_and_actions_replay_the_same_episode(actions: list[str], seed: int) -> None:
    slippery = FrozenLake(random=True, is_slippery=True)
    assert play(slippery, actions, seed) == play(slippery, actions, seed)
    assert play(FrozenLake(random=True, is_slippery=True), actions, seed) == play(slippery, actions, seed)


def test_random_maps_differ_by_seed_and_can_be_solved() -> None:
    lake = FrozenLake(random=True, size=5)
    maps = set[str]()
    for seed in range(20):
        maps.add(lake.reset(seed=seed, task={})[0])
        info = {}
        for _ in range(25):
            _, _, ended, _, info = lake.step(lake.shortening_actions()[0])
            if ended:
                break
        assert info["success"]
    assert len(maps) == 20


def test_instructions_stand_before_the_first_grid_only() -> None:
    lake = FrozenLake(instructions="Walk.\n")
    assert lake.reset(seed=0, task={})[0] == "Walk.\nPFFF\nFHFH\nFFFH\nHFFG"
    assert lake.step("left")[0] == "PFFF\nFHFH\nFFFH\nHFFG"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"map_name": "5x5"}, "expected one of"),
        ({"desc": ["SF", "FF"]}, "a G"),
        ({"desc": ["SF", "FFG"]}, "one length"),
        ({"desc": ["SX", "FG"]}, "made of F and H"),
        ({"desc": ["SH", "HG"]}, "no way"),
        ({"random": True, "size": 1}, "2 or more"),
    ],
)
def test_a_wrong_map_is_refused(args: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrozenLake(**args)


def test_bad_play_is_bad_but_legible_and_sometimes_reaches_the_goal() -> None:
    rng = Random(0)
    episodes = [bad_play(rng) for _ in range(500)]
    assert all(len(episode) <= 10 for episode in episodes)
    at_goal = 0
    for episode in episodes:
        *_, last = play(FrozenLake(), [action for _, action in episode])
        assert last[4]["invalid_turns"] == 0
        at_goal += last[4]["success"]
    assert 0.005 < at_goal / 500 < 0.1
