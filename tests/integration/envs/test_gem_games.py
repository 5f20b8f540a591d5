"""GEM's games as they are installed: played by policies that know, err and babble, alone and side by side.

Side by side each has its own global random states, by the same object that gives them in an environment child.
"""

import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.data_plane.environment_instance import EnvironmentInstance
from rollart_hpc.data_plane.random_states import RandomStates
from rollart_hpc.envs.adapters.gem_env import GemEnv
from rollart_hpc.envs.gem_game import GemGame
from rollart_hpc.envs.gem_game.gem_game import GAMES

# Hard and random rooms of Sokoban take up to 20 s to make, by the seed; they are the same code.
QUICK = [
    (game, difficulty)
    for game, difficulties in GAMES.items()
    for difficulty in difficulties
    if game != "Sokoban" or difficulty == "easy"
]
WORDS = ["up", "down", "left", "right", "A C", "A B", "3", "25", "1 2", "1 2 3 4", "reveal 1 1", "flag 0 0", "1 1 1"]


class Hosted:
    """An instance that is called as the host calls it."""

    def __init__(self, states: RandomStates, **args: Any) -> None:
        self._states = states
        states.install(id(self))
        self._env = GemGame(**args)

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        self._states.install(id(self))
        return self._env.reset(seed=seed, task={})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._states.install(id(self))
        return self._env.step(action)


def moves(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"\\boxed{{{rng.choice(WORDS)}}}" for _ in range(12)]


def episode(env: Hosted, seed: int) -> Iterator[Any]:
    yield env.reset(seed)
    for action in moves(seed):
        played = env.step(action)
        yield played
        if played[2] or played[3]:
            return


def test_an_episode_is_a_function_of_its_seed_alone_and_among_others() -> None:
    alone = {kind: list(episode(Hosted(RandomStates(), game=kind[0], difficulty=kind[1]), 3)) for kind in QUICK}
    states = RandomStates()
    used = {kind: Hosted(states, game=kind[0], difficulty=kind[1]) for kind in QUICK}
    for env in used.values():
        list(episode(env, 5))
    running = [episode(env, 3) for env in used.values()]
    turns = list(itertools.zip_longest(*running))
    for kind, played in zip(used, zip(*turns, strict=True), strict=True):
        assert [turn for turn in played if turn is not None] == alone[kind], kind


def test_seeds_that_numpy_does_not_take_are_taken() -> None:
    env = GemGame(game="GuessTheNumber", difficulty="random")
    assert env.reset(seed=2**40 + 1, task={}) == env.reset(seed=2**40 + 1, task={})


def test_without_states_of_its_own_an_episode_would_depend_on_its_neighbours() -> None:
    first, second = GemGame(game="Game2048"), GemGame(game="Game2048")
    alone = [first.reset(seed=1, task={}), *(first.step(f"\\boxed{{{way}}}") for way in ("left", "down", "right"))]
    disturbed: list[Any] = [first.reset(seed=1, task={})]
    for way in ("left", "down", "right"):
        second.reset(seed=2, task={})
        disturbed.append(first.step(f"\\boxed{{{way}}}"))
    assert disturbed != alone


@pytest.mark.parametrize(("game", "difficulty"), QUICK)
def test_a_text_without_an_action_ends_the_game_with_gems_penalty(game: str, difficulty: str) -> None:
    env = GemGame(game=game, difficulty=difficulty, instructions="Play!\n")
    for nonsense in ("", "I think", "\\boxed{}", "\\boxed{north}", "\ud800", "\\boxed{" + "9" * 5000 + "}", "3"):
        first, info = env.reset(seed=0, task={})
        assert first.startswith("Play!\n")
        assert (info["success"], info["turns"], info["format_error"]) == (False, 0, False)
        observation, reward, terminated, _, info = env.step(nonsense)
        if "999" not in nonsense:
            assert (reward, terminated, info["format_error"], info["success"]) == (-0.1, True, True, False)
            assert not observation.startswith("Play!")


def hanoi(_: str) -> Iterator[str]:
    def way(disks: int, source: str, spare: str, target: str) -> Iterator[str]:
        if disks:
            yield from way(disks - 1, source, target, spare)
            yield f"{source} {target}"
            yield from way(disks - 1, spare, source, target)

    return way(3, "A", "B", "C")


def guess(first: str) -> Iterator[str]:
    low, high = map(int, re.findall(r"between (\d+) and (\d+)", first)[0])
    while True:
        middle = (low + high) // 2
        observation = yield str(middle)
        if "is higher" in observation:
            low = middle + 1
        else:
            high = middle - 1


def sudoku(first: str) -> Iterator[str]:
    rows = re.findall(r"^R\d (.*)$", first, re.MULTILINE)
    board = [[int(cell) if cell.isdigit() else 0 for cell in re.findall(r"\d|\.", row)] for row in rows]
    size = len(board)
    box = int(size**0.5)

    def free(row: int, column: int) -> set[int]:
        corner = row // box * box, column // box * box
        block = {board[corner[0] + n // box][corner[1] + n % box] for n in range(size)}
        return set(range(1, size + 1)) - set(board[row]) - {line[column] for line in board} - block

    def solve(cells: list[tuple[int, int]]) -> bool:
        if not cells:
            return True
        row, column = cells[0]
        for number in free(row, column):
            board[row][column] = number
            if solve(cells[1:]):
                return True
        board[row][column] = 0
        return False

    holes = [(row, column) for row in range(size) for column in range(size) if not board[row][column]]
    assert solve(holes)
    for row, column in holes:
        yield f"{row + 1} {column + 1} {board[row][column]}"


@pytest.mark.parametrize(("game", "player"), [("TowerofHanoi", hanoi), ("GuessTheNumber", guess), ("Sudoku", sudoku)])
def test_a_policy_that_knows_the_game_wins_with_a_return_of_1(
    game: str, player: Callable[[str], Iterator[str]]
) -> None:
    for seed in range(10):
        env = GemGame(game=game)
        first, _ = env.reset(seed=seed, task={})
        moves = player(first)
        action = next(moves)
        while True:
            observation, _, terminated, truncated, info = env.step(f"I play \\boxed{{{action}}}")
            if terminated:
                break
            action = moves.send(observation) if game == "GuessTheNumber" else next(moves)
        assert (info["success"], truncated, info["return"]) == (True, False, pytest.approx(1.0)), observation
        assert "Congratulations" in observation


def test_the_board_is_part_of_every_observation() -> None:
    env = GemGame(game="Sokoban")
    for shown in (env.reset(seed=0, task={})[0], env.step("\\boxed{up}")[0]):
        assert len(re.findall(r"^[ #P_OX√]+$", shown, re.MULTILINE)) >= 6, shown


def test_arguments_replace_those_of_the_difficulty() -> None:
    env = GemGame(game="GuessTheNumber", game_args={"max_turns": 1})
    assert "within 1 turns" in env.reset(seed=0, task={})[0]
    _, reward, terminated, truncated, info = env.step("\\boxed{10}")
    assert (terminated, truncated) == (True, True) or info["success"]
    assert 0 <= reward <= 1


@settings(max_examples=30)
@given(st.text(), st.sampled_from(QUICK))
def test_no_text_raises(text: str, kind: tuple[str, str]) -> None:
    env = GemGame(game=kind[0], difficulty=kind[1])
    for action in (text, f"\\boxed{{{text}}}"):
        env.reset(seed=0, task={})
        env.step(action)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"game": "Chess"}, "got game 'Chess' with difficulty 'easy'; expected one of: FifteenPuzzle \\(easy"),
        ({"game": "Sokoban", "difficulty": "extreme-hard"}, "expected one of"),
        ({"game": "Crosswords"}, "needs the package pandas.*these can be played: FifteenPuzzle"),
        ({"game": "Wordle"}, "needs nltk's corpus words.*NLTK_DATA"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused_with_those_that_can(
    args: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("nltk.data.path", [])
    with pytest.raises(ValueError, match=message):
        GemGame(**args)


def test_any_id_of_gem_can_be_used_and_others_are_refused() -> None:
    # Of so small a set the problems are replaced at every other reset, unless that is prevented.
    riddle = GemEnv(env_id="rg:leg_counting", env_args={"size": 2})
    first, _ = riddle.reset(seed=5, task={})
    for seed in (6, 7, 8):
        riddle.reset(seed=seed, task={})
    assert riddle.reset(seed=5, task={})[0] == first
    answer = riddle._env.data["answer"]
    observation, reward, terminated, _, info = riddle.step(f"\\boxed{{{answer}}}")
    assert (observation, reward, terminated, info["success"]) == ("", 1.0, True, True)
    riddle.reset(seed=5, task={})
    assert riddle.step("no idea")[1] == 0.0
    factors = GemEnv(env_id="rg:prime_factorization")
    factors.reset(seed=0, task={})
    assert factors.step("\\boxed{abc}")[:4] == ("", 0.0, True, False)
    with pytest.raises(ValueError, match=r"env_id is 'game:Sokoban'; expected one of GEM's .* game:Sokoban-v0"):
        GemEnv(env_id="game:Sokoban")
    with pytest.raises(ValueError, match="math:GSM8K cannot be made here"):
        GemEnv(env_id="math:GSM8K")


def test_environments_that_execute_what_the_policy_writes_are_refused_unless_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for env_id in ("rg:spiral_matrix", "rg:puzzle24", "code:Taco8k"):
        with pytest.raises(ValueError, match="runs what the policy writes as code"):
            GemEnv(env_id=env_id)
    monkeypatch.setenv("EXECUTED", "no")
    matrix = GemEnv(env_id="rg:spiral_matrix", executes_answers=True)
    matrix.reset(seed=0, task={})
    matrix.step("\\boxed{[__import__('os').environ.__setitem__('EXECUTED', 'yes')]}")
    assert os.environ["EXECUTED"] == "yes"


def test_riddles_that_are_drawn_by_hashes_need_these_to_be_fixed() -> None:
    code = (
        "from rollart_hpc.envs.adapters.gem_env import GemEnv\n"
        "print(GemEnv(env_id='rg:ransom_note').reset(seed=3, task={})[0])"
    )

    def first(seed: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        program = [sys.executable, "-c", code]
        return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)

    refused, fixed, again = first("random"), first("0"), first("0")
    assert "start the run with PYTHONHASHSEED=0" in refused.stderr
    assert fixed.returncode == 0
    assert fixed.stdout == again.stdout


def test_the_host_takes_everything_that_a_game_returns() -> None:
    instance = EnvironmentInstance("rollart_hpc.envs.gem_game:GemGame", {"game": "Minesweeper"})
    assert instance.properties.shares_process
    assert instance.properties.replayable
    assert "reveal" in instance.reset(0, {}).observation
    assert instance.step("\\boxed{reveal 2 2}").reward > 0
