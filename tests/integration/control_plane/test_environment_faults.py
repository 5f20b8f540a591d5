"""What cannot help is not tried again."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize(
    ("args", "failure", "is_retryable"),
    [
        ({"colour": 1}, "environment configuration", False),
        ({"fault": "raise", "where": "reset"}, "environment raised", True),
    ],
    ids=["wrong argument", "raises"],
)
async def test_a_fault_of_the_configuration_ends_the_trajectorys_place(
    set_up: Callable[..., Any], args: dict[str, Any], failure: str, is_retryable: bool
):
    async with set_up("Light", **args) as table:
        trajectory = await table.play()
    assert (trajectory.failure, trajectory.retryable) == (failure, is_retryable)
