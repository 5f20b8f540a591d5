"""Options and fixtures of the whole test suite."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.unbroken import run_unbroken

# Busy cores make examples late, which says nothing about the code.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew instead of comparing.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import FileScheduling

    config.option.loadscopereorder = False
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.scheduling import rank

        items.sort(key=lambda item: rank(item.nodeid))


@pytest.fixture(autouse=True)
def settings_of_one_test() -> Generator[None]:
    """What a test makes the settings of its process, by variables, is not the next one's."""
    before = _own_variables()
    yield
    for name in _own_variables().keys() | before.keys():
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("ROLLART_")}


@pytest.fixture(scope="session")
def arithmetic_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model after a warm start on bad sums; made by the first process that asks, for all of them."""
    from rollart_hpc.warm_start.tiny_model import make_tiny_model

    with _shared(tmp_path_factory, "arithmetic_model") as directory:
        if not directory.exists():
            make_tiny_model(directory, seed=0, tasks=("arithmetic",))
    return directory


@pytest.fixture(scope="session")
def unbroken_run(arithmetic_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the run of `tests.unbroken`, done; made by the first process that asks, for all of them."""
    with _shared(tmp_path_factory, "unbroken_run") as directory:
        if not directory.exists():
            run_unbroken(directory, arithmetic_model)
    return directory


@contextmanager
def _shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Generator[Path]:
    """A path that all processes of `pytest -n` share, for one of them at a time."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield shared / name
