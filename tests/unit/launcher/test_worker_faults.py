"""What is wrong with a user's own classes is said before a run starts, with the key and what to change."""

from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.declarations import register_serverless
from rollart_hpc.data_plane.reward_worker import RewardCls
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.worker_faults import worker_faults
from tests.builders import run_config

HERE = "tests.unit.launcher.test_worker_faults"


class Judge(RewardCls):
    @register_serverless("proxy", "fc://judge")
    def compute_rewards(self, traj: list[Any]) -> float:
        return 0.0


class Routing:
    def choose(self, route: Any, workers: Any, loads: Any) -> None: ...


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no table of prices")


class Fewer:
    def choose(self, route: Any) -> None: ...


class Async:
    async def choose(self, route: Any, workers: Any, loads: Any) -> None: ...


def config(**sections: Any) -> RunConfig:
    data = run_config().model_dump(mode="json", exclude_none=True)
    return parse_config({**data, **{name: {**data.get(name, {}), **values} for name, values in sections.items()}})


def test_right_classes_have_no_faults():
    assert not list(worker_faults(config()))
    right = config(
        workers={"reward": f"{HERE}:Judge"},
        serverless={"fc://judge": "http://host/judge"},
        generation={"routing": f"{HERE}:Routing"},
    )
    assert not list(worker_faults(right))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"workers": {"reward": "no_such_module:R"}},
            "workers.reward = 'no_such_module:R': no_such_module:R: no module named 'no_such_module'",
        ),
        ({"workers": {"reward": f"{HERE}:Juge"}}, "did you mean 'Judge'?"),
        (
            {"workers": {"actor_gen": f"{HERE}:Judge"}},
            f"workers.actor_gen = '{HERE}:Judge': expected a subclass of rollart_hpc.distributed.ActorGenCls, got",
        ),
        (
            {"workers": {"reward": f"{HERE}:Judge"}, "serverless": {"fc://other": "http://host"}},
            f"workers.reward = '{HERE}:Judge': fc://judge is called by its HTTP trigger's URL; give that in the "
            'config: [serverless] "fc://judge" = "https://..."',
        ),
        ({"generation": {"routing": f"{HERE}:HERE"}}, f"generation.routing = '{HERE}:HERE'"),
        ({"generation": {"routing": f"{HERE}:Broken"}}, "RuntimeError: no table of prices"),
        ({"generation": {"routing": f"{HERE}:Fewer"}}, "it is called as choose(route, workers, loads)"),
        ({"generation": {"routing": f"{HERE}:Async"}}, "has no plain method choose(route, workers, loads)"),
    ],
    ids=["no module", "no class", "another role's", "no trigger", "no policy", "broken", "too few", "async"],
)
def test_each_fault_names_its_key(sections: dict[str, Any], said: str):
    (fault,) = worker_faults(config(**sections))
    assert said in fault


@pytest.mark.parametrize("pair", [("score", "http://host"), ("fc://score", "host/score"), ("fc://score", "fc://other")])
def test_a_trigger_that_is_none_is_refused(pair: tuple[str, str]):
    with pytest.raises(ConfigError, match="expected a declared URL and its HTTP trigger"):
        config(serverless=dict([pair]))
