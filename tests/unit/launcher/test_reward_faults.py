"""Arguments and secrets of rewards are checked before a run starts."""

from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.launcher.reward_faults import reward_faults
from tests.builders import run_config

HERE = "tests.unit.launcher.test_reward_faults"


async def judge(episode: object, *, url: str, scale: float = 1.0) -> float:
    return scale


def faults(serverless: dict[str, Any] | None = None, **arguments: Any) -> list[str]:
    config = run_config(tasks={"a": {"reward": f"{HERE}:judge", "reward_args": arguments}})
    data = config.model_dump(mode="json", exclude_none=True)
    return list(reward_faults(parse_config({**data, "serverless": serverless or {}})))


def test_right_arguments_and_secrets_have_no_faults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCORE_SECRET", "s")
    assert faults({"fc://s": {"url": "http://h", "secret_env": "SCORE_SECRET"}}, url="u", scale=2.0) == []


def test_each_fault_names_its_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EMPTY", "")
    endpoint = {"url": "http://h", "secret_env": "NOT_SET_AT_ALL", "bearer_env": "EMPTY"}
    first, second, third = faults({"fc://s": endpoint}, scale=2.0)
    assert first.startswith("tasks.a.reward_args = {'scale': 2.0}: missing a required")
    assert "judge takes (episode: object, *, url: str, scale: float = 1.0)" in first
    assert "bearer_env = 'EMPTY': the environment variable EMPTY is empty; export it" in second
    assert "serverless.\"fc://s\": secret_env = 'NOT_SET_AT_ALL': the environment variable" in third


def test_a_url_that_cannot_be_called_is_told():
    config = run_config(
        tasks={"a": {"reward": f"{HERE}:judge", "reward_args": {"url": "u"}, "reward_url": "http://:9"}}
    )
    (fault,) = reward_faults(config)
    assert fault.startswith("tasks.a.reward_url = 'http://:9': expected a host")
