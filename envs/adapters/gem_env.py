"""Any environment of GEM (``pip install gem-llm``) by its id, with the rewards and format rules that GEM gives it.

Invariants:
  - What the policy sees is GEM's observation with ``info["prefix"]`` before it and ``info["suffix"]`` after it; the
    board of a game is in the suffix.
  - GEM draws from the global generators of `random` and numpy and seeds both at a reset. An episode is a pure function
    of seed and actions as long as nobody else draws from them between two calls: the host gives each instance its own.
  - GEM is imported when the first instance is made, never with this module: it takes 0.8 s and 100 MB.
"""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from rollart_hpc.envs.adapters.plain_info import plain_info
from rollart_hpc.interfaces import EnvironmentProperties

_SEED_BOUND = 2**32
"""numpy's generator takes no larger seeds."""
_SUCCESS_RETURN = 1 - 1e-6
"""GEM's environments give 1 in all for success, at the end or in parts."""
_EXECUTING_RIDDLES = frozenset(
    f"rg:{name}"
    for name in (
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    )
)
"""Their scorers hand the policy's answer to Python's `eval`, themselves or by sympy."""
_HASHING_RIDDLES = frozenset({"rg:isomorphic_strings", "rg:ransom_note"})
"""They draw from sets of texts, whose order is another one in each process unless PYTHONHASHSEED is fixed."""


class GemEnv:
    """One environment of GEM.

    The last ``info`` says ``success`` (a return of 1), ``return``, ``turns`` and ``format_error`` (the text held no
    action in GEM's format, which ends an episode of a game).

    Args:
        env_id: GEM's id, as in ``game:Sokoban-v0-easy`` or ``rg:leg_counting``.
        env_args: arguments of GEM's constructor that replace those of the id.
        instructions: text before the first observation.
        executes_answers: allows the ids that run what the policy writes as Python, with this process's rights.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(shares_process=True, replayable=True)

    def __init__(
        self,
        *,
        env_id: str,
        env_args: Mapping[str, Any] | None = None,
        instructions: str = "",
        executes_answers: bool = False,
    ) -> None:
        if not executes_answers and (env_id in _EXECUTING_RIDDLES or env_id.startswith("code:")):
            raise ValueError(
                f"{env_id} runs what the policy writes as code, with your rights and without a sandbox; "
                "executes_answers = true allows it"
            )
        if env_id in _HASHING_RIDDLES and sys.flags.hash_randomization:
            raise ValueError(
                f"{env_id} draws its problems by Python's hashes, so the same seed is another problem in each process; "
                "start the run with PYTHONHASHSEED=0 in its environment"
            )
        self._env_id = env_id
        self._is_riddle = env_id.startswith("rg:")
        self._env_args = dict(env_args or {})
        self._instructions = instructions
        self._gem = _import_gem()
        self._check_id()
        self._env = self._make()

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts GEM's episode of this seed; a task's fields are not used."""
        if self._is_riddle:
            # These replace their problems after some hundred resets, so a used one would differ from a fresh one.
            self._env = self._make()
        observation, info = self._env.reset(seed=seed % _SEED_BOUND)
        self._return, self._turns = 0.0, 0
        return self._instructions + self._shown(observation, info), self._info(info, is_format_error=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Hands the text to GEM, which looks for the action in it."""
        try:
            observation, given, terminated, truncated, info = self._env.step(action)
        except Exception:
            if not self._is_riddle:
                raise
            # Some scorers of reasoning_gym raise for an answer that they cannot read, which is the policy's.
            observation, given, terminated, truncated, info = "", 0.0, True, False, {}
        reward = float(given)
        self._turns += 1
        self._return += reward
        is_format_error = reward == self._format_error_reward()
        shown = self._shown(observation, info)
        return shown, reward, bool(terminated), bool(truncated), self._info(info, is_format_error=is_format_error)

    def close(self) -> None:
        """Nothing to free."""

    def _check_id(self) -> None:
        known = self._gem.envs.registration.ENV_REGISTRY
        if self._env_id not in known:
            near = difflib.get_close_matches(self._env_id, known, n=3, cutoff=0.4)
            raise ValueError(
                f"env_id is {self._env_id!r}; expected one of GEM's {len(known)} ids, "
                f"as in {', '.join(near) or 'game:Sokoban-v0-easy'}"
            )

    def _make(self) -> Any:
        try:
            return self._gem.make(self._env_id, **self._env_args)
        except (ImportError, LookupError, OSError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip(" *")]
            raise ValueError(
                f"{self._env_id} cannot be made here, {type(error).__name__}: {' '.join(lines)[:200]}; it needs a "
                "package or a data set that is missing on this machine (docs/adapters.md lists what each needs)"
            ) from error

    def _format_error_reward(self) -> float:
        return self._gem.utils.constants.LanguageGameReward.format_error_reward

    def _shown(self, observation: str, info: Mapping[str, Any]) -> str:
        if observation == self._gem.utils.constants.TERMINAL_STATE:
            return ""
        if observation and not observation.endswith("\n") and info.get("suffix"):
            observation += "\n"
        return f"{info.get('prefix', '')}{observation}{info.get('suffix', '')}"

    def _info(self, info: Mapping[str, Any], *, is_format_error: bool) -> dict[str, Any]:
        own = {key: value for key, value in plain_info(info).items() if key not in ("prefix", "suffix")}
        return own | {
            "success": self._return >= _SUCCESS_RETURN,
            "return": self._return,
            "turns": self._turns,
            "format_error": is_format_error,
        }


def _import_gem() -> Any:
    """Imports GEM with all its registrations; it turns on logging for the whole process, which is undone."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        import gem  # noqa: PLC0415
        import gem.envs.registration  # noqa: PLC0415
        import gem.utils.constants  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("GEM's environments need the package gem-llm: pip install gem-llm") from error
    finally:
        root.setLevel(level)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
    return gem
