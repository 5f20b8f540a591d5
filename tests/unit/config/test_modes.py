from typing import Any

import pytest

from rollart_hpc.config.modes import MODES, Mode
from rollart_hpc.errors import ConfigError
from tests.builders import run_config


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_alone_is_its_settings_and_survives_the_record_of_the_attempt(mode: Mode):
    config = run_config(mode=mode)
    assert config.rollout.schedule == MODES[mode]
    assert type(config).model_validate(config.model_dump(mode="json"), strict=False) == config


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "sync", "alpha": 1}, 'mode = "sync" means alpha = 0, got 1; leave alpha out, or leave mode out'),
        ({"mode": "one_off", "alpha": 2}, 'mode = "one_off" means alpha = 1, got 2'),
        ({"mode": "areal", "stale": "abort"}, "mode = \"areal\" means stale = 'train', got 'abort'"),
        ({"overlap": "none", "alpha": 1}, 'overlap = "none" means alpha = 0, got 1; leave alpha out'),
        ({"mode": "verl"}, "rollout.mode = 'verl': input should be 'sync', 'sync_plus'"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as refused:
        run_config(**settings)
    assert said in str(refused.value)


def test_settings_of_rollart_compose():
    config = run_config(interaction="batched", overlap="step")
    assert config.rollout.schedule.interaction == "batched"
    assert config.rollout.schedule.alpha == 1
    assert run_config(mode="areal", alpha=4).rollout.schedule.alpha == 4


@pytest.mark.parametrize(
    ("task", "members"),
    [({"redundancy": 2}, 2), ({"redundancy": 0.3}, 3), ({"redundancy": 1.0}, 8), ({"redundancy": "auto"}, 0)],
)
def test_redundancy_counts_members_or_is_a_share(task: dict[str, Any], members: int):
    config = run_config(tasks={"a": {**task, "group_size": 8}}, trajectories_per_worker=64)
    assert config.tasks["a"].redundant_members() == members


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"redundancy": -1}, "tasks.a.redundancy = -1"),
        ({"redundancy": -0.5}, "tasks.a.redundancy = -0.5"),
        ({"redundancy": "many"}, "tasks.a.redundancy = 'many'"),
        (
            {"redundancy": 7},
            "up to 9 members (group_size = 2, redundancy = 7), the environment workers have room for 8",
        ),
        ({"turn_timeout_s": 601.0}, "shorter than one turn of tasks.a (601 s, turn_timeout_s); raise it"),
        ({"step_timeout_s": 500.0}, "shorter than one turn of tasks.a (620 s, generate_timeout_s + step_timeout_s)"),
    ],
)
def test_groups_that_cannot_be_played_are_refused(task: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as refused:
        run_config(tasks={"a": task})
    assert said in str(refused.value)
