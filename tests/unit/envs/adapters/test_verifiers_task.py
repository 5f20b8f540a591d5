"""The adapter against a stand-in with verifiers' documented parts; the library itself is not installed."""

from typing import Any

import pytest

from rollart_hpc.envs.adapters.verifiers_task import VerifiersTask

STAND_IN = "tests.unit.envs.adapters.verifiers_stand_in"


def environment(name: str, **args: Any) -> VerifiersTask:
    return VerifiersTask(environment=f"{STAND_IN}:{name}", **args)


def test_a_row_is_one_turn_that_the_rubric_scores() -> None:
    sums = environment("load_sums")
    first, info = sums.reset(seed=4, task={})
    assert first == "Be brief.\n\n2+2=?"
    assert info == {"success": False, "turns": 0, "metrics": {}, "answer": "4"}
    _, reward, terminated, truncated, info = sums.step("4")
    assert (reward, terminated, truncated) == (1.5, True, False)
    assert info == {"success": True, "turns": 1, "metrics": {"correct": 1.0, "brevity": 1.0}, "answer": "4"}
    for text, expected in (("It may be 4.", 1.0), ("5", 0.5), ("nonsense \ud800", 0.0), ("", 0.5)):
        assert sums.reset(seed=1, task={})[0] == first
        assert sums.step(text)[1] == expected, text
    sums.close()


def test_a_row_of_the_tasks_own_data_set_comes_first() -> None:
    sums = environment("load_sums", success_reward=1.5)
    assert sums.reset(seed=0, task={"question": "3*3=?", "answer": "9"})[0] == "3*3=?"
    assert sums.step("It is 9, I am sure.")[4]["success"] is False
    with pytest.raises(ValueError, match="expected prompt or question"):
        sums.reset(seed=0, task={"text": "?"})
    sums.close()


def test_turns_go_on_until_the_environment_says_so() -> None:
    guess = environment("load_guess")
    assert guess.reset(seed=0, task={})[0] == "1-9?"
    assert guess.step("5")[:4] == ("It is higher than 5.", 0.0, False, False)
    observation, reward, terminated, _, info = guess.step("7")
    assert (observation, reward, terminated) == ("Yes, 7.", 1.0, True)
    assert info["metrics"] == {"found": 1.0, "num_turns": 2.0}
    guess.reset(seed=0, task={})
    assert guess.step("9")[0] == "It is lower than 9."
    assert len(guess._env.cleaned) == 1
    guess.close()


@pytest.mark.parametrize("args", [{"max_turns": 2}, {"environment_args": {"max_turns": 3}, "max_turns": 2}])
def test_the_smaller_turn_limit_ends_and_scores_the_episode(args: dict[str, Any]) -> None:
    guess = environment("load_guess", **args)
    guess.reset(seed=0, task={})
    assert not guess.step("1")[2]
    observation, reward, terminated, _, info = guess.step("2")
    assert (observation, reward, terminated, info["success"]) == ("", 0.0, True, False)
    guess.close()


def test_older_environments_get_messages_first_and_return_their_state() -> None:
    echo = environment("LegacyEcho")
    assert echo.reset(seed=0, task={})[0] == "Speak."
    assert echo.step("hello")[:3] == ("hello", 0.0, False)
    assert echo.step("stop")[:3] == ("", 3.0, True)
    echo.close()


def test_a_reward_function_that_raises_is_a_fault_and_not_a_reward_of_0() -> None:
    broken = environment("load_broken")
    broken.reset(seed=0, task={})
    with pytest.raises(RuntimeError, match="judge is away"):
        broken.step("x")
    broken.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [("load_grouped", "scores groups.*diversity"), ("load_tools", "mcp_tools"), ("State", "rubric")],
)
def test_what_cannot_be_adapted_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        environment(name)
