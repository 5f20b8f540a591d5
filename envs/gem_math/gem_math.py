"""Mathematical problems, generated or from a data set, under the rules of GEM's math environments.

Invariants:
  - The answer counts as the policy wrote it in its last ``\\boxed{}``; a text without one answers nothing.
  - The right answer is in ``info["answer"]``, where reward functions find it, and never in an observation.
  - An episode is a pure function of the seed, the task's row and the actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from rollart_hpc.envs.adapters.boxed import boxed_answer
from rollart_hpc.envs.gem_math.answers import same_answer
from rollart_hpc.envs.gem_math.problems import FAMILIES, LEVELS, draw
from rollart_hpc.interfaces import EnvironmentProperties

INSTRUCTIONS = "Reason step by step, and put your final answer within \\boxed{}.\n"
_QUESTION_FIELDS = ("question", "problem", "prompt")
_ANSWER_FIELDS = ("answer", "solution", "target")


class GemMath:
    """One problem an episode: right ends it with 1, wrong with 0.

    The reward goes by equality of numbers and texts (`answers`), which takes microseconds. The reward function
    `math_verify` knows algebra as well: ``2x+2`` is ``2(x+1)``. The last ``info`` says ``success``, ``answered``,
    ``answer`` (the right one; of a data set maybe a list, any of which is right), ``family`` and ``level``.

    Args:
        families: of the generated problems, all if absent; not used for rows of a data set.
        level: of the generated problems, 1 to 5, or ``[lowest, highest]``.
        attempts: answers that a policy has; after a wrong one that is not the last it is told so and answers again.
        format_error_reward: of a text without an answer in a box; GEM's math gives 0, its games -0.1.
        instructions: text before the problem.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True, replayable=True)

    def __init__(
        self,
        *,
        families: Sequence[str] | None = None,
        level: int | Sequence[int] = (1, 3),
        attempts: int = 1,
        format_error_reward: float = 0.0,
        instructions: str = INSTRUCTIONS,
    ) -> None:
        self._families = list(families) if families is not None else list(FAMILIES)
        if not self._families or set(self._families) - set(FAMILIES):
            raise ValueError(f"families is {self._families}; expected some of {sorted(FAMILIES)}")
        bounds = [level, level] if isinstance(level, int) else list(level)
        if len(bounds) != 2 or bounds[0] > bounds[1] or set(bounds) - set(LEVELS):
            raise ValueError(f"level is {level}; expected a number from 1 to 5, or [lowest, highest] of these")
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}; expected 1 or more")
        self._levels = bounds[0], bounds[1]
        self._attempts = attempts
        self._format_error_reward = format_error_reward
        self._instructions = instructions

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Takes the task's row as the problem; draws one from the seed when there is none.

        Args:
            seed: of the generated problem.
            task: a row with ``question`` (or ``problem``, ``prompt``) and ``answer`` (or ``solution``, ``target``):
                text, a number, or a list of these that are all right.
        """
        if task:
            question, self._answers = _row(task)
            origin: dict[str, Any] = {"family": "data set", "level": 0}
        else:
            rng = Random(seed)
            origin = {"family": rng.choice(self._families), "level": rng.randint(*self._levels)}
            problem = draw(rng, origin["family"], origin["level"])
            question, self._answers = problem.question, [problem.answer]
        self._left = self._attempts
        gold = self._answers if len(self._answers) > 1 else self._answers[0]
        return self._instructions + question, {"success": False, "answered": False, "answer": gold} | origin

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compares the answer in the last box."""
        self._left -= 1
        given = boxed_answer(action)
        success = given is not None and any(same_answer(given, answer) for answer in self._answers)
        info = {"success": success, "answered": given is not None, "attempts": self._attempts - self._left}
        reward = float(success) if given is not None else self._format_error_reward
        if success or self._left == 0:
            return "", reward, True, False, info
        fault = "That is not right." if given is not None else "No answer in \\boxed{} was found."
        return f"{fault} Try again.", reward, False, False, info

    def close(self) -> None:
        """Nothing to free."""


def _row(task: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Question and right answers of a data set's row."""
    question = _field(task, _QUESTION_FIELDS)
    answer = _field(task, _ANSWER_FIELDS)
    answers = answer if isinstance(answer, list | tuple) else [answer]
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"the question of a task is {question!r:.80}; expected text")
    if not answers or any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in answers):
        raise ValueError(f"the answer of a task is {answer!r:.80}; expected text, a number, or a list of these")
    finals = [_final(str(one)) for one in answers]
    if not all(finals):
        raise ValueError(f"the answer of a task is {answer!r:.80}, which is empty; an empty box would be right")
    return question, finals


def _final(solution: str) -> str:
    """The answer of a worked solution, as MATH (in a box) and GSM8K (after ``####``) write it; else the text itself."""
    return boxed_answer(solution) or solution.rpartition("####")[2].strip()


def _field(task: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in task:
            return task[name]
    raise ValueError(f"a task has the fields {sorted(task)}; expected one named {' or '.join(names)}")
