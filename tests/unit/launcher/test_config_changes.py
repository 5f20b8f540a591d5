"""What may differ when a run goes on, what is told of it, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher import config_changes
from rollart_hpc.launcher.config_changes import describe, take_changes
from tests.builders import run_config


def changed(**sections: dict[str, Any]) -> RunConfig:
    data = run_config().model_dump(mode="json")
    for name, values in sections.items():
        data[name] = data[name] | values
    return parse_config({**data, "model": {**data["model"]}})


def task(**values: Any) -> dict[str, Any]:
    return run_config().tasks["a"].model_dump(mode="json") | values


def take(new: RunConfig, old: RunConfig | None = None) -> dict[str, list[Any]]:
    return take_changes(old or run_config(), new, advice="do something else")


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (changed(run={"name": "other"}), "run.name = 'other', was 'test': it names the run"),
        (changed(run={"seed": 7}), "run.seed = 7, was 0: it decides which seeds"),
        (changed(model={"dtype": "bfloat16"}), "model.dtype = 'bfloat16', was 'float32': the versions"),
        (changed(model={"max_context": 4096}), "model.max_context = 4096, was 2048: the trajectories"),
        (changed(generation={"temperature": 0.5}), "generation.temperature = 0.5, was 1.0: the tokens"),
        (changed(generation={"top_p": 0.5}), "generation.top_p = 0.5, was 1.0: the tokens"),
        (changed(tasks={"a": task(environment="m:F")}), "tasks.a.environment = 'm:F', was 'm:E': the task's"),
        (changed(tasks={"a": task(group_size=4)}), "tasks.a.group_size = 4, was 2: the groups"),
        (run_config(tasks={"b": {}}), "tasks.a = absent, was there: trajectories of this task wait"),
    ],
)
def test_what_would_make_another_run_is_refused_with_both_values_and_the_reason(new: RunConfig, told: str):
    with pytest.raises(ConfigError) as caught:
        take(new)
    first, *lines = str(caught.value).splitlines()
    assert "holds another run" in first
    assert any(line.strip().startswith(told) for line in lines), lines
    assert lines[-1] == "do something else"


@pytest.mark.parametrize(
    ("new", "changes"),
    [
        (changed(), {}),
        (changed(run={"steps": 200}), {"run.steps": [100, 200]}),
        (changed(training={"learning_rate": 1e-5}), {"training.learning_rate": [1e-6, 1e-5]}),
        (changed(rollout={"alpha": 0}), {"rollout.alpha": [None, 0]}),
        (changed(tasks={"a": task(weight=2.0)}), {"tasks.a.weight": [1.0, 2.0]}),
        (changed(tasks={"a": task(environment_args={"size": 8})}), {"tasks.a.environment_args.size": [None, 8]}),
        (changed(slurm={"account": "x"}, run={"directory": "/elsewhere"}), {}),
    ],
    ids=["nothing", "steps", "learning rate", "alpha", "weight", "arguments", "job and place"],
)
def test_what_may_change_is_told(new: RunConfig, changes: dict[str, list[Any]]):
    found = take(new)
    found.pop("tasks.a.environment_args", None)
    assert found == changes


def test_a_new_task_and_another_pool_are_one_change_each():
    data = run_config().model_dump(mode="json")
    data["tasks"]["b"], data["pools"]["more"] = task(), data["pools"].pop("all")
    changes = take(parse_config(data))
    assert list(changes) == ["pools.all", "pools.more", "tasks.b"]
    assert [describe(key, values) for key, values in changes.items()] == [
        "pools.all = absent, was there",
        "pools.more = there, was absent",
        "tasks.b = there, was absent",
    ]


def test_a_model_that_was_moved_is_taken_and_another_is_refused(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("one")
    old = changed(model={"path": str(tmp_path / "one")})
    with pytest.raises(ConfigError, match="the run trains that model, and it is still there"):
        take(changed(model={"path": str(tmp_path / "two")}), old)
    assert list(take(changed(model={"path": str(tmp_path / "link")}), old)) == ["model.path"]
    (tmp_path / "one").rename(tmp_path / "three")
    assert list(take(changed(model={"path": str(tmp_path / "three")}), old)) == ["model.path"]


def test_every_key_of_a_config_is_in_one_of_the_lists():
    keys = config_changes._flatten(run_config().model_dump(mode="json"))
    lists = (config_changes.REFUSED, config_changes.NOT_THE_RUNS, config_changes.TAKEN)
    assert [key for key in keys if not any(config_changes._matches(key, one) for one in lists)] == []
    unused = [
        pattern for one in lists for pattern in one if not any(config_changes._matches(k, {pattern: ""}) for k in keys)
    ]
    assert unused == []
