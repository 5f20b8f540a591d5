"""Short names of environments and reward functions."""

import sys
from pathlib import Path

import pytest

from rollart_hpc.config.registered import ENVIRONMENTS, REWARDS, registered
from rollart_hpc.errors import ConfigError
from tests.builders import run_config


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "ponds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ponds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{ENVIRONMENTS}]\nround_pond = ponds.round:Pond\n[{REWARDS}]\nround_pond = ponds.rewards:score\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_a_registered_name_stands_for_its_class_and_is_recorded_as_that():
    task = run_config(tasks={"a": {"environment": "round_pond", "reward": "round_pond"}}).tasks["a"]
    assert (task.environment, task.reward) == ("ponds.round:Pond", "ponds.rewards:score")
    assert registered(ENVIRONMENTS)["round_pond"] == "ponds.round:Pond"


@pytest.mark.parametrize("key", ["environment", "reward"])
def test_an_unknown_name_says_which_there_are(key: str):
    with pytest.raises(ConfigError) as caught:
        run_config(tasks={"a": {key: "round_pound"}})
    for words in (f"tasks.a.{key} = 'round_pound'", "did you mean 'round_pond'", "module:attribute"):
        assert words in str(caught.value)
