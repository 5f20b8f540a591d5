"""What an environment raises, by whether another try may help."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from rollart_hpc.data_plane.environment_instance import EnvironmentInstance
from rollart_hpc.errors import ConfigError, EnvironmentFault, ImageError, NoSandboxError, SandboxError
from rollart_hpc.interfaces import EnvironmentProperties


class Raising:
    properties = EnvironmentProperties()
    errors: ClassVar[dict[str, Callable[[], BaseException]]] = {
        "value": lambda: ValueError("no game 'chess'"),
        "key": lambda: KeyError("question"),
        "unicode": lambda: UnicodeDecodeError("utf-8", b"", 0, 1, "bad"),
        "runtime": lambda: RuntimeError("luck"),
        "exit": lambda: SystemExit(3),
        "disk": lambda: OSError(28, "no space left"),
        "timeout": lambda: TimeoutError("server"),
        "sandbox": lambda: SandboxError("lost"),
        "no sandbox": lambda: NoSandboxError("none isolates"),
        "pull": lambda: ImageError("registry is down", retryable=True),
        "no image": lambda: ImageError("unknown", retryable=False),
        "config": lambda: ConfigError("wrong"),
    }

    def __init__(self, *, init: str = "", reset: str = "", step: str = "") -> None:
        self._reset, self._step = reset, step
        self._commit(init)

    def _commit(self, name: str) -> None:
        if name:
            raise self.errors[name]()

    def reset(self, *, seed: int, task: Any) -> tuple[str, dict[str, Any]]:
        self._commit(self._reset)
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._commit(self._step)
        return "", 0.0, False, False, {}

    def close(self) -> None:
        pass


def cause(where: str, name: str) -> str:
    instance = EnvironmentInstance(f"{__name__}:Raising", {where: name})
    with pytest.raises(EnvironmentFault) as caught:
        instance.reset(0, {})
        instance.step("")
    return caught.value.cause


@pytest.fixture(autouse=True)
def _resolvable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollart_hpc.data_plane.environment_instance.resolve", lambda _: Raising)


@pytest.mark.parametrize(
    ("name", "at_the_start", "in_a_step"),
    [
        ("value", "configuration", "raised"),
        ("key", "configuration", "raised"),
        ("unicode", "raised", "raised"),
        ("runtime", "raised", "raised"),
        ("exit", "raised", "raised"),
        ("disk", "unavailable", "unavailable"),
        ("timeout", "unavailable", "unavailable"),
        ("sandbox", "unavailable", "unavailable"),
        ("no sandbox", "configuration", "configuration"),
        ("pull", "unavailable", "unavailable"),
        ("no image", "configuration", "configuration"),
        ("config", "configuration", "configuration"),
    ],
)
def test_each_error_has_its_cause(name: str, at_the_start: str, in_a_step: str):
    assert [cause(where, name) for where in ("init", "reset", "step")] == [at_the_start, at_the_start, in_a_step]


def test_a_constructor_without_such_an_argument_is_a_fault_of_the_configuration():
    with pytest.raises(EnvironmentFault, match=r"configuration: .*unexpected keyword"):
        EnvironmentInstance("m:E", {"colour": 1}).reset(0, {})
