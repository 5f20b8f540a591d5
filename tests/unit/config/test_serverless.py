"""The section [serverless] and the rewards that refer to it."""

from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.serverless import ServerlessSection
from rollart_hpc.errors import ConfigError
from tests.builders import run_config


def config(serverless: dict[str, Any], **task: Any) -> RunConfig:
    data = run_config(tasks={"a": {key: value for key, value in task.items() if key != "reward_url"}}).model_dump(
        mode="json", exclude_none=True
    )
    data["tasks"]["a"] |= task
    return parse_config({**data, "serverless": serverless})


def test_a_text_is_a_url_and_a_table_says_more():
    made = config(
        {
            "fc://score": "https://host/score",
            "fc://judge": {"url": "https://host/judge", "secret_env": "S", "hedge_after_s": 0.5},
            "https://host/own": {"bearer_env": "T"},
        },
        reward_url="fc://judge",
        reward_payload="tokens",
    )
    assert made.endpoint_of("fc://score") == ServerlessSection(url="https://host/score")
    assert made.endpoint_of("fc://judge").hedge_after_s == 0.5
    assert made.endpoint_of("https://host/own").url == "https://host/own"
    assert made.endpoint_of("https://else").url == "https://else"
    assert RunConfig.model_validate(made.model_dump(mode="json"), strict=False) == made


@pytest.mark.parametrize(
    ("serverless", "task", "said"),
    [
        ({}, {"reward_url": "fc://score"}, 'in the config: [serverless] "fc://score" = "https://..."'),
        ({}, {"reward_url": "host/score"}, "expected http://, https:// or a URL of [serverless]"),
        ({"fc://score": {"bearer_env": "T"}}, {}, "expected a declared URL and its HTTP trigger"),
        ({"fc://score": 3}, {}, "expected a declared URL and its HTTP trigger"),
        ({"fc://score": {"url": "http://h", "hedge_s": 1}}, {}, "did you mean 'hedge_after_s'?"),
        ({"fc://score": {"url": "http://h", "secret_env": "a-b"}}, {}, "secret_env"),
        ({"fc://score": "http://"}, {}, "expected a host"),
        ({"fc://score": "http://a b/"}, {}, "expected a host"),
        ({"fc://score": "http://h:0/"}, {}, "a port above 0"),
        ({"fc://score": "http://h:port/"}, {}, "http://host[:port]/path"),
        ({"fc://score": "http://[::1/"}, {}, "http://host[:port]/path"),
        ({}, {"reward_payload": "ids"}, "'text', 'tokens' or 'reference'"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_add(serverless: dict[str, Any], task: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        config(serverless, **task)
    assert said in str(caught.value)
