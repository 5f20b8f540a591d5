"""The checks of an environment: what all must do, what this one declares, and what it costs.

Everything happens in children, as in a run. A class that does not even play one random episode is not checked further.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable

import psutil

from rollart_hpc.data_plane.environment_host import try_environment
from rollart_hpc.data_plane.environment_kit.footprint import measure_footprint, measured_ms
from rollart_hpc.data_plane.environment_kit.policies import NONSENSE
from rollart_hpc.data_plane.environment_kit.probe import Script, Subject, family, first_difference
from rollart_hpc.data_plane.environment_kit.report import Figures, Report, Verdict
from rollart_hpc.data_plane.environment_spec import CONFIGURATION, EnvironmentSpec
from rollart_hpc.data_plane.task_rows import TaskRows
from rollart_hpc.errors import ConfigError, EnvironmentFault

LIGHT_MS = 20.0
"""A light environment holds up all trajectories of its worker for as long as one call takes."""
_SIBLINGS = 4
_THREADS = 8
_BUDGET_S = 5.0
"""For the random episodes, which all else is compared with."""
_END_DEADLINE_S = 5.0


async def check_environment(spec: EnvironmentSpec, *, num_seeds: int = 16, max_turns: int = 8) -> Report:
    """Holds a class to its promises.

    Args:
        spec: the class.
        num_seeds: random episodes that are played, fewer when they take long.
        max_turns: of each.

    Raises:
        ConfigError: it cannot be imported, is no environment, or its arguments or data set are wrong.
        EnvironmentFault: its import hangs or kills its process.
    """
    tried = await try_environment(spec)
    rows = TaskRows(spec.dataset) if spec.dataset is not None else None
    subject = Subject(spec=spec, properties=tried.properties, rows=rows, max_turns=max_turns)
    figures = Figures()
    verdicts: list[Verdict] = []
    try:
        scripts = await _random_episodes(subject, num_seeds, figures)
    except EnvironmentFault as fault:
        if fault.cause == CONFIGURATION:
            raise ConfigError(f"{spec.entry_point}: {fault}; give what it needs by --args or --dataset") from fault
        verdicts.append(
            Verdict("plays random episodes", "broken", str(fault), "reset and step must work before all else")
        )
        return Report(spec.entry_point, subject.properties, verdicts, figures)
    turns = sum(len(script.actions) for script in scripts)
    text = f"{len(scripts)} with {turns} turns; texts, numbers, flags and info are plain values"
    verdicts.append(Verdict("plays random episodes", "kept", text))
    verdicts += [verdict async for verdict in _verdicts(subject, scripts)]
    await measure_footprint(subject, figures, scripts)
    return Report(spec.entry_point, subject.properties, verdicts, figures)


async def _random_episodes(subject: Subject, num_seeds: int, figures: Figures) -> list[Script]:
    """Episodes in one child and one instance, which is used again for each."""
    begin = time.monotonic()
    async with subject.child() as probe:
        await probe.reset(0)
        figures.start_s = round(time.monotonic() - begin, 3)
        scripts: list[Script] = []
        begin = time.monotonic()
        while len(scripts) < num_seeds and (len(scripts) < 2 or time.monotonic() - begin < _BUDGET_S):
            scripts.append(await probe.play(len(scripts)))
    return scripts


async def _verdicts(subject: Subject, scripts: list[Script]) -> AsyncGenerator[Verdict]:
    declared = subject.properties
    starts, replays = await _replays(subject, scripts)
    yield starts
    yield replays
    repeats = starts.ruling == replays.ruling == "kept"
    for check in (_nonsense, _used_again):
        yield await _judged(check(subject, scripts), check.__name__.strip("_").replace("_", " "))
    if declared.shares_process and not declared.thread_safe:
        yield await _judged(_siblings(subject, scripts, repeats), "siblings in one process")
    if declared.thread_safe:
        yield await _judged(_threads(subject, scripts, repeats), "thread safety")
    if declared.light:
        yield _light(subject)
    yield await _judged(_kill(subject, scripts), "kill")


async def _judged(check: Awaitable[Verdict], promise: str) -> Verdict:
    """A fault in a check is the environment's: what it did before, it must do again."""
    try:
        return await check
    except EnvironmentFault as fault:
        return Verdict(promise, "broken", str(fault), "an episode that was played before must be playable again")


async def _replays(subject: Subject, scripts: list[Script]) -> tuple[Verdict, Verdict]:
    """Each script in another process, by a fresh instance: the same start for all, the same episode where declared."""
    starts, replays, advice = "same seed, same start", "replay", ""
    differing_start, difference = "", ""
    async with subject.child() as probe:
        for number, script in enumerate(reversed(scripts)):
            try:
                first = await probe.reset(script.seed, number)
                found = first_difference(first, script.said[0])
                differing_start = differing_start or (f"seed {script.seed}: {found}" if found else "")
                difference = difference or await probe.replay(script, number)
            except EnvironmentFault as fault:
                difference = difference or f"seed {script.seed}: {fault}"
                break
    compared = f"{len(scripts)} seeds, by a used instance and by fresh ones in another process"
    if differing_start:
        advice = "members of a group must begin alike: draw from a generator that reset seeds, nothing else"
        first_verdict = Verdict(starts, "broken", differing_start, advice)
    else:
        first_verdict = Verdict(starts, "kept", compared)
    if not difference:
        hint = "" if subject.properties.replayable else "; it may declare replayable=True if that is always so"
        return first_verdict, Verdict(replays, "kept", f"observations, rewards, ends and info are equal{hint}")
    if subject.properties.replayable:
        advice = "let it depend on the seed and the actions alone, or do not declare replayable"
        return first_verdict, Verdict(replays, "broken", difference, advice)
    return first_verdict, Verdict(replays, "note", f"not declared, and not so: {difference}")


async def _nonsense(subject: Subject, scripts: list[Script]) -> Verdict:
    failed: dict[str, EnvironmentFault] = {}
    pending = list(NONSENSE)[::-1]
    while pending:
        async with subject.child() as probe:
            while pending:
                name = pending.pop()
                await probe.reset(scripts[0].seed)
                try:
                    await probe.step(NONSENSE[name])
                except EnvironmentFault as fault:
                    failed[name] = fault
                    if not probe.process.is_sound:
                        break
    if failed:
        name, fault = next(iter(failed.items()))
        advice = "what the policy writes is never an exception: answer by an observation and a reward"
        return Verdict("nonsense", "broken", f"{', '.join(failed)}; {name} ended in {fault}", advice)
    return Verdict("nonsense", "kept", f"{len(NONSENSE)} kinds of it are answered by observations")


async def _used_again(subject: Subject, scripts: list[Script]) -> Verdict:
    """Left in mid-episode and reset; closed, and another made in the same process."""
    script = scripts[0]
    async with subject.child() as probe:
        await probe.reset(scripts[-1].seed)
        if script.actions:
            await probe.step(script.actions[0])
        left = first_difference(await probe.reset(script.seed), script.said[0])
        await probe.close()
        closed = first_difference(await probe.reset(script.seed), script.said[0])
    if left or closed:
        text = f"after {'an episode that was left' if left else 'close'}: {left or closed}"
        return Verdict(
            "used again", "broken", text, "reset must forget everything; close must free what is its own only"
        )
    return Verdict("used again", "kept", "after an episode that was left in the middle, and after close")


async def _siblings(subject: Subject, scripts: list[Script], repeats: bool) -> Verdict:
    """Turns of several instances in one process, by turns."""
    promise = "siblings in one process"
    if not repeats:
        return Verdict(promise, "skipped", "episodes do not repeat, so that a disturbance could not be told")
    chosen = scripts[:_SIBLINGS]
    async with subject.child() as probe:
        starts = [await probe.reset(script.seed, number) for number, script in enumerate(chosen)]
        for number, script in enumerate(chosen):
            if difference := first_difference(starts[number], script.said[0]):
                return _disturbed(promise, f"seed {script.seed}, first observation: {difference}")
        for turn in range(max(len(script.actions) for script in chosen)):
            for number, script in enumerate(chosen):
                if turn < len(script.actions):
                    said = await probe.step(script.actions[turn], number)
                    if difference := first_difference(said, script.said[turn + 1]):
                        return _disturbed(promise, f"seed {script.seed}, turn {turn + 1}: {difference}")
    return Verdict(
        promise, "kept", f"{len(chosen)} episodes, turn by turn in one process, are those of instances alone"
    )


def _disturbed(promise: str, text: str) -> Verdict:
    advice = "keep state in the instance, not in the class or module, or declare neither shares_process nor thread_safe"
    return Verdict(promise, "broken", text, advice)


async def _threads(subject: Subject, scripts: list[Script], repeats: bool) -> Verdict:
    chosen = [scripts[number % len(scripts)] for number in range(_THREADS)]
    async with subject.child() as probe:
        differences = await asyncio.gather(*(probe.replay(script, number) for number, script in enumerate(chosen)))
    found = next((difference for difference in differences if difference), "")
    if found and repeats:
        return _disturbed("thread safety", found)
    return Verdict("thread safety", "kept", f"{_THREADS} episodes at the same time in one process")


def _light(subject: Subject) -> Verdict:
    resets, steps = measured_ms(subject.timings.resets.values()), measured_ms(subject.timings.steps.values())
    slowest, what = max((max(resets, default=0.0), "a reset"), (max(steps, default=0.0), "a step"))
    text = f"the slowest call, {what}, takes {slowest:.3g} ms"
    if slowest <= LIGHT_MS:
        return Verdict("light", "kept", text)
    return Verdict("light", "broken", f"{text}, at most {LIGHT_MS:g} are light", "do not declare light")


async def _kill(subject: Subject, scripts: list[Script]) -> Verdict:
    """Nothing is left of a child that is killed in mid-step, and nothing keeps the next one from its start."""
    script = scripts[0]
    async with subject.child() as probe:
        await probe.reset(script.seed)
        stepping = asyncio.ensure_future(probe.step(script.actions[0] if script.actions else ""))
        await asyncio.sleep(0)
        relatives = family(probe.process.child.pid)
        probe.process.kill()
        await asyncio.wait([stepping])
        stepping.exception()
        _, left = await asyncio.to_thread(psutil.wait_procs, relatives, timeout=_END_DEADLINE_S)
    if left:
        text = f"processes {[one.pid for one in left]} are left"
        return Verdict("kill", "broken", text, "let what it starts die with it: prctl(PR_SET_PDEATHSIG), or a sandbox")
    async with subject.child() as probe:
        await probe.reset(script.seed)
    return Verdict("kill", "kept", f"in mid-step, {len(relatives)} processes: none is left, and another begins anew")
