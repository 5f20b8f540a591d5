"""Emulated environments: the host of an environment worker, with other insides.

An episode is drawn when it begins: its turns, the lengths of its observations, what each call takes and where it fails.
The draws depend on the scenario's seed, the task, the group's seed and which of the group's episodes it is, so that
every configuration of a scenario plays the same ones.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSession, EnvironmentSpec
from rollart_hpc.data_plane.environment_instance import Transition
from rollart_hpc.errors import EnvironmentFault
from rollart_hpc.interfaces import EnvironmentProperties
from rollart_hpc.simulate.busy import Busy
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.distributions import Distribution, draw
from rollart_hpc.simulate.scenario import EmulatedTask, EmulationSection

SUCCESS = "success"
"""Key of an episode's last info."""
_NAME_DIGITS = 6


class EmulatedHost(EnvironmentHost):
    """Environments that are times and lengths; nothing of a user's is imported."""

    def __init__(self, config: RunConfig, figures: EmulationSection, clock: Clock) -> None:
        specs = {name: EnvironmentSpec.of_task(task) for name, task in config.tasks.items()}
        super().__init__(specs, max_children=1)
        self.busy = Busy(clock)
        self._seed = config.run.seed
        self._figures = figures
        self._opened: Counter[tuple[str, int]] = Counter()

    async def start(self) -> None:
        """See `EnvironmentHost.start`."""

    def properties(self, task: str) -> EnvironmentProperties:
        """See `EnvironmentHost.properties`."""
        return EnvironmentProperties(light=True, replayable=False)

    @contextlib.asynccontextmanager
    async def open(self, task: str) -> AsyncGenerator[EnvironmentSession]:
        """See `EnvironmentHost.open`."""
        yield _EmulatedSession(self, task, self._figures.tasks[task], self._specs[task])

    def rng_of(self, task: str, seed: int) -> random.Random:
        """The draws of the next episode of a group."""
        self._opened[task, seed] += 1
        return random.Random(f"{self._seed}/{task}/{seed}/{self._opened[task, seed]}")

    def text(self, start: str, length: Distribution, rng: random.Random) -> str:
        """An observation of so many tokens, which begins with ``start``: one character is one id."""
        num_ids = round(draw(length, rng) / self._figures.tokens_per_id)
        return start + "7" * max(1, num_ids - len(start))

    def simulated_s(self, real_s: float) -> float:
        """The simulated seconds of a real time."""
        return real_s * self._figures.time_scale


class _EmulatedSession:
    def __init__(self, host: EmulatedHost, task: str, figures: EmulatedTask, spec: EnvironmentSpec) -> None:
        self._host, self._task, self._figures, self._spec = host, task, figures, spec
        self._rng = random.Random()
        self._turns, self._hangs_at, self._num_steps = 1, 0, 0

    async def reset(self, seed: int) -> Transition:
        rng = self._rng = self._host.rng_of(self._task, seed)
        figures = self._figures
        self._turns, self._num_steps = max(1, round(draw(figures.turns, rng))), 0
        self._hangs_at = rng.randint(1, self._turns) if rng.random() < figures.hangs_in_step else 0
        reset_s = math.inf if rng.random() < figures.hangs_in_reset else draw(figures.reset_s, rng)
        await self._take(reset_s, self._spec.reset_timeout_s, "reset_timeout")
        if rng.random() < figures.reset_failures:
            raise EnvironmentFault("raised", "an emulated failure of reset")
        group = f"{seed % 10**_NAME_DIGITS:0{_NAME_DIGITS}d}"
        text = self._host.text(group, figures.prompt_tokens, random.Random(f"{self._task}/{seed}"))
        return Transition(text, 0.0, False, False, {})

    async def step(self, action: str) -> Transition:
        rng, figures = self._rng, self._figures
        self._num_steps += 1
        hangs = self._num_steps == self._hangs_at
        seconds = math.inf if hangs else draw(figures.step_s, rng)
        await self._take(seconds, self._spec.step_timeout_s, "step_timeout")
        if rng.random() < figures.step_failures:
            raise EnvironmentFault("raised", "an emulated failure of step")
        is_over = self._num_steps >= self._turns
        info = {SUCCESS: rng.random() < figures.success} if is_over else {}
        episode = f"{rng.randrange(10**_NAME_DIGITS):0{_NAME_DIGITS}d}"
        return Transition(self._host.text(episode, figures.observation_tokens, rng), 0.0, is_over, False, info)

    async def _take(self, seconds: float, timeout_s: float, cause: str) -> None:
        """Works for simulated ``seconds``, at most for the real ``timeout_s``."""
        limit_s = self._host.simulated_s(timeout_s)
        await self._host.busy.work(min(seconds, limit_s))
        if seconds > limit_s:
            raise EnvironmentFault(cause, f"an emulated call took longer than {limit_s:g} simulated seconds")
