"""What an environment host must know of a task, and the faults of an environment by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollart_hpc.bus import codec
from rollart_hpc.config.schema import TaskSection
from rollart_hpc.errors import ConfigError

CONFIGURATION = "configuration"
"""Cause of what no other try can change: an unknown game, a wrong field of a task, a node without sandboxes."""
UNAVAILABLE = "unavailable"
"""Cause of what another try may change: a sandbox, an image, a file, a server that was not to be had."""
DIED = "died"
"""Cause: the process of the environment ended."""
RAISED = "raised"
BAD_TYPE = "bad_type"
RESET_TIMEOUT = "reset_timeout"
STEP_TIMEOUT = "step_timeout"
DIFFERS = "differs"
"""Cause: an environment that declares itself replayable did not say the same again when it was rebuilt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """One task's environment.

    Raises:
        ConfigError: the arguments cannot be given to a child.
    """

    entry_point: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dataset: Path | None = None
    """JSONL file whose rows are the tasks of its episodes."""
    reset_timeout_s: float
    """Of a reset, with the start of a process, the import and the constructor where they are needed."""
    step_timeout_s: float

    def __post_init__(self) -> None:
        try:
            codec.encode(dict(self.args))
        except (OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the arguments of {self.entry_point} cannot be given to another process: {error}; expected plain "
                "values, whole numbers of at most 64 bits"
            ) from error

    @classmethod
    def of_task(cls, task: TaskSection) -> EnvironmentSpec:
        """The spec that a task's section of the config describes."""
        return cls(
            entry_point=task.environment,
            args=task.environment_args,
            dataset=task.dataset,
            reset_timeout_s=task.reset_timeout_s,
            step_timeout_s=task.step_timeout_s,
        )

    @property
    def key(self) -> bytes:
        """Equal for tasks that can share environments."""
        return codec.encode((self.entry_point, dict(self.args)))
