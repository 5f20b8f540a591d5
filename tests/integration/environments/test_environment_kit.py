"""``rollart-hpc env``: an environment that breaks a promise is told so, one that keeps them all is not."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rollart_hpc.cli.main import app
from rollart_hpc.data_plane.environment_host import try_environment
from rollart_hpc.data_plane.environment_kit import checks
from rollart_hpc.data_plane.environment_kit.probe import Script, Subject
from rollart_hpc.data_plane.environment_kit.report import Figures, Verdict
from rollart_hpc.data_plane.environment_spec import EnvironmentSpec
from rollart_hpc.errors import ConfigError

USER_CODE = """
import itertools, os, random, subprocess, time
from rollart_hpc.interfaces import EnvironmentProperties

class Pond:
    properties = EnvironmentProperties(shares_process=True, replayable=True)

    def reset(self, *, seed, task):
        self.rng, self.turn = random.Random(seed), 0
        return self.say(), {"available_actions": ["swim", "dive"]}

    def step(self, action):
        self.turn += 1
        return self.say(), 0.5, self.turn == 3, False, {"last": action, "available_actions": ["swim", "dive"]}

    def say(self):
        return str(self.rng.random())

    def close(self):
        pass

class AnotherStart(Pond):
    def say(self):
        return f"process {os.getpid()}"

class Clock(Pond):
    def step(self, action):
        return str(time.perf_counter_ns()), 0.0, False, False, {}

class HonestClock(Clock):
    properties = EnvironmentProperties()

class Picky(Pond):
    def step(self, action):
        if action not in ("swim", "dive"):
            raise KeyError(action)
        return super().step(action)

class Sticky(Pond):
    def reset(self, *, seed, task):
        observation, info = super().reset(seed=seed, task=task)
        self.episodes = getattr(self, "episodes", 0) + (not self.__dict__.get("first", True))
        self.first = False
        return observation + "again" * bool(self.was_left()), info

    def was_left(self):
        return False

    def step(self, action):
        self.was_left = lambda: True
        answer = super().step(action)
        if answer[2]:
            del self.was_left
        return answer

class Gossip(Pond):
    last = None

    def reset(self, *, seed, task):
        Gossip.last = seed
        return super().reset(seed=seed, task=task)

    def say(self):
        return f"{super().say()} {Gossip.last}"

class Unsafe(Gossip):
    properties = EnvironmentProperties(thread_safe=True, replayable=True)

class Heavy(Pond):
    properties = EnvironmentProperties(light=True, replayable=True)

    def step(self, action):
        time.sleep(0.05)
        return super().step(action)

class Broken(Pond):
    def step(self, action):
        raise RuntimeError("out of luck")

class Leaving(Pond):
    def reset(self, *, seed, task):
        if not hasattr(self, "helper"):
            self.helper = subprocess.Popen(["sleep", "5"], start_new_session=True)
        return super().reset(seed=seed, task=task)
"""
Check = Callable[[Subject, list[Script]], Awaitable[Verdict]]


@pytest.fixture(autouse=True)
def _user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_ponds.py").write_text(USER_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(checks, "_END_DEADLINE_S", 0.5)


async def started(subject: Subject, scripts: list[Script]) -> Verdict:
    return (await checks._replays(subject, scripts))[0]


async def replayed(subject: Subject, scripts: list[Script]) -> Verdict:
    return (await checks._replays(subject, scripts))[1]


async def light(subject: Subject, scripts: list[Script]) -> Verdict:
    return checks._light(subject)


async def siblings(subject: Subject, scripts: list[Script]) -> Verdict:
    return await checks._siblings(subject, scripts, repeats=True)


async def threads(subject: Subject, scripts: list[Script]) -> Verdict:
    return await checks._threads(subject, scripts, repeats=True)


@pytest.mark.parametrize(
    ("name", "check", "ruling", "text"),
    [
        ("AnotherStart", started, "broken", "seed 2: observation is 'process"),
        ("Clock", replayed, "broken", "turn 1: observation is"),
        ("HonestClock", replayed, "note", "not declared, and not so"),
        ("Picky", checks._nonsense, "broken", "empty, blank, long"),
        ("Sticky", checks._used_again, "broken", "after an episode that was left"),
        ("Gossip", siblings, "broken", "turn 1: observation is"),
        ("Unsafe", threads, "broken", "observation is"),
        ("Heavy", light, "broken", "at most 20 are light"),
        ("Leaving", checks._kill, "broken", "are left"),
    ],
)
async def test_a_broken_promise_is_found(name: str, check: Check, ruling: str, text: str):
    spec = EnvironmentSpec(entry_point=f"my_ponds:{name}", reset_timeout_s=20, step_timeout_s=20)
    properties = (await try_environment(spec)).properties
    subject = Subject(spec=spec, properties=properties, rows=None, max_turns=3)
    verdict = await check(subject, await checks._random_episodes(subject, 3, Figures()))
    assert verdict.ruling == ruling
    assert text in verdict.text
    assert verdict.advice or ruling != "broken"


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, stdin="": CliRunner().invoke(app, ["env", *arguments], input=stdin)


def test_the_command_holds_a_class_to_all_that_it_declares(env: Callable[..., Result]):
    done = env("check", "my_ponds:Pond", "--json", "--seeds", "4")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    rulings = {verdict["promise"]: verdict["ruling"] for verdict in report["verdicts"]}
    assert set(rulings) == {
        "plays random episodes",
        "same seed, same start",
        "replay",
        "nonsense",
        "used again",
        "siblings in one process",
        "kill",
    }
    assert set(rulings.values()) == {"kept"}
    assert 0 < report["figures"]["step_ms"]["p50"] <= report["figures"]["step_ms"]["p99"]
    assert report["figures"]["child_mb"] > 5


def test_a_broken_promise_is_exit_code_1_and_says_what_to_change(env: Callable[..., Result]):
    done = env("check", "my_ponds:Broken")
    assert done.exit_code == 1
    for words in ("broken", "RuntimeError: out of luck", "must work before all else"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "my_ponds:Pont"], "did you mean 'Pond'"),
        (["check", "my_ponds:Pond", "--args", '{"depth": 3}'], "give what it needs by --args"),
        (["play", "my_ponds:Pond", "--args", "[]"], "expected a JSON object"),
        (["play", "my_ponds:Pond", "--policy", "clever"], "human, random or a file"),
        (["play", "no_such_name"], "module:attribute"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_a_config_error(env: Callable[..., Result], arguments: list[str], said: str):
    done = env(*arguments)
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)


def test_an_episode_is_played_by_hand_from_a_file_and_at_random(env: Callable[..., Result], tmp_path: Path):
    by_hand = env("play", "my_ponds:Pond", "--seed", "3", stdin="swim\ndive\nswim\n")
    assert by_hand.stdout.count("reward 0.5]") == 3
    assert "[terminated after 3 turns, reward 1.5 in all" in by_hand.stdout
    (tmp_path / "moves").write_text("swim\ndive\n")
    from_file = env("play", "my_ponds:Pond", "--seed", "3", "--policy", "moves")
    assert "[end of input after 2 turns, reward 1 in all]" in from_file.stdout
    assert from_file.stdout.splitlines()[0] == by_hand.stdout.splitlines()[0]
    at_random = env("play", "my_ponds:Pond", "--seed", "3", "--policy", "random")
    assert at_random.stdout.count("> swim") + at_random.stdout.count("> dive") == 3
