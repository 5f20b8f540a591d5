"""The repository as a shell: the policy reads, edits and runs, then submits what it has changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from rollart_hpc.envs.swe.actions import SUBMIT, NoCommandError, command_of, observation_of, submits
from rollart_hpc.envs.swe.instance import TINY, Instance, tiny_rows
from rollart_hpc.envs.swe.submission import Submission, take_submission
from rollart_hpc.envs.swe.work_tree import open_work_tree
from rollart_hpc.errors import SandboxError
from rollart_hpc.interfaces import EnvironmentProperties
from rollart_hpc.sandbox import Sandbox

INSTRUCTIONS = f"""Solve the issue below by changing files of the repository in {{directory}}. Do not change its tests.

Each answer holds one shell command in a block:

```bash
ls
```

It runs by bash in a new shell in {{directory}}: files stay, variables do not. When you are done, answer:

```bash
echo {SUBMIT}
```

"""
_COMMIT = re.compile(r"^[0-9a-f]{40,64}$(?=\s*\Z)", re.MULTILINE)


class SWE:
    """One issue of one repository; graded by `rollart_hpc.reward_functions.swe_tests`.

    Args:
        command_timeout_s: of one command; keep it below the task's ``step_timeout_s``, so that the policy sees the end
            of a command that hangs, instead of the host that of the environment.
        max_observation_chars: of a command's output; from a longer one the middle is left out.
        max_commands: after so many answers the episode ends with what has been changed until then. Set it to the
            task's ``max_turns``: an episode that the host ends is without a patch.
        max_patch_kb: a larger patch counts as none.
        instructions: text before the issue, ``{directory}`` in it is the repository's.
        snapshots: directory that relative paths of snapshots in rows are relative to; that of the tasks that ship by
            default.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(thread_safe=True, sandboxed=True)

    def __init__(
        self,
        *,
        command_timeout_s: float = 25.0,
        max_observation_chars: int = 10_000,
        max_commands: int | None = None,
        max_patch_kb: int = 1024,
        instructions: str = INSTRUCTIONS,
        snapshots: str = "",
    ) -> None:
        if min(command_timeout_s, max_observation_chars, max_patch_kb) <= 0 or max_commands == 0:
            raise ValueError("command_timeout_s, max_observation_chars, max_commands and max_patch_kb are above 0")
        self._command_timeout_s = command_timeout_s
        self._max_observation_chars = max_observation_chars
        self._max_commands = max_commands
        self._max_patch_bytes = max_patch_kb * 1024
        self._instructions = instructions
        self._snapshots = Path(snapshots) if snapshots else TINY
        self._held = ExitStack()
        self._sandbox: Sandbox | None = None

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Opens a sandbox with the repository of the row, or of the tiny task that the seed names."""
        self.close()
        row = dict(task) or tiny_rows()[seed % len(tiny_rows())]
        instance = Instance.from_row(row, snapshots=self._snapshots)
        with ExitStack() as held:
            self._sandbox = held.enter_context(open_work_tree(instance))
            self._base = _head(instance, self._sandbox)
            self._held = held.pop_all()
        self._num_answers = self._invalid_turns = 0
        text = self._instructions.replace("{directory}", instance.directory) + instance.problem_statement
        # The row goes on to the reward function, past the policy.
        return text, {"instance": row, "submitted": False, "patch": "", "commands": 0, "invalid_turns": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs the command that the text holds. The reward is 0: it is the reward function that grades."""
        sandbox = self._sandbox
        if sandbox is None:
            raise RuntimeError("step was called without a reset, or after the end of the episode")
        self._num_answers += 1
        submitted = False
        try:
            command = command_of(action)
        except NoCommandError as error:
            self._invalid_turns += 1
            observation = f"{error} Answer with one command in a ```bash block."
        else:
            result = sandbox.run(command, timeout_s=self._command_timeout_s)
            submitted = submits(result)
            observation = "" if submitted else observation_of(result, self._max_observation_chars)
        truncated = not submitted and self._num_answers == self._max_commands
        info: dict[str, Any] = {
            "submitted": submitted,
            "commands": self._num_answers - self._invalid_turns,
            "invalid_turns": self._invalid_turns,
        }
        if submitted or truncated:
            info |= self._submission(sandbox).info()
            self.close()
        return observation, 0.0, submitted, truncated, info

    def close(self) -> None:
        """Closes the sandbox."""
        self._sandbox = None
        self._held.close()

    def _submission(self, sandbox: Sandbox) -> Submission:
        return take_submission(sandbox, self._base, max_bytes=self._max_patch_bytes)


def _head(instance: Instance, sandbox: Sandbox) -> str:
    """The commit that the policy starts from: images may hold one on top of the base commit."""
    if instance.snapshot and instance.base_commit:
        return instance.base_commit
    result = sandbox.run("git rev-parse HEAD", timeout_s=60.0)
    if result.ending != "exit":
        raise SandboxError(f"{instance.instance_id}: git rev-parse ended by {result.ending}: {result.output[-500:]}")
    # What an image's .bashrc prints comes before.
    commit = _COMMIT.search(result.output)
    if result.exit_code or commit is None:
        raise ValueError(f"{instance.instance_id}: no git repository in {instance.directory}: {result.output[-500:]}")
    return commit[0]
