"""What users implement: an environment and a reward function.

Both are named in the run's config as ``module:attribute`` and resolved by `rollart_hpc.config.resolve`.
They import nothing but the public names of this package.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from rollart_hpc.types import Episode, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProperties:
    """What the host may assume of an environment class."""

    light: bool = False
    """Pure Python, bounded in microseconds, thread-safe: runs inside the environment worker itself."""
    shares_process: bool = False
    """Instances may live side by side in one child process, which calls them one at a time and gives each its own
    global random states (`random`, numpy). Without it every instance needs a process of its own."""
    thread_safe: bool = False
    """Instances in one child process may be called at the same time, from several threads: for environments that wait,
    for a sandbox or a server."""
    sandboxed: bool = False
    """Opens sandboxes (`rollart_hpc.sandbox`): the run is refused on nodes where none isolates."""
    image: str = ""
    """Reference of the image that every episode needs; the field ``image`` of a task names its own."""
    replayable: bool = False
    """The same seed and actions give the same observations: a running trajectory can be rebuilt."""


@runtime_checkable
class Environment(Protocol):
    """One episode at a time; the instance is used again after `reset`.

    The constructor takes the keyword arguments of the task's ``environment_args``.
    Raising anything means an infrastructure failure: the trajectory is recorded as failed and dispatched
    again elsewhere. What the policy does wrong (an illegal action, nonsense) is an observation and a
    reward, never an exception.
    """

    properties: ClassVar[EnvironmentProperties]

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts an episode. Returns the first observation and an info mapping of plain values.

        Args:
            seed: equal for all members of a group.
            task: the fields of one row of the task's data set, plain values; empty for a task without one.
        """
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Applies the policy's text. Returns observation, reward, terminated, truncated, info."""
        ...

    def close(self) -> None:
        """Frees what the instance holds; called once."""
        ...


class RewardFunction(Protocol):
    """A pure async function in a file of its own: ``async def score(episode) -> float | Score``.

    It must give a finite number. Whatever it raises, and NaN, None or text, is a `RewardFault`: the
    trajectory is recorded as failed and never trained with a reward of 0.
    """

    def __call__(self, episode: Episode) -> Awaitable[float | Score]:
        """Scores one finished episode."""
        ...
