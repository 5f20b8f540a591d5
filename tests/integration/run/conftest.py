import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.warm_start.tiny_model import make_tiny_model
from tests.integration.run.driver import Run


@pytest.fixture(scope="session")
def arithmetic_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model after a warm start on bad sums."""
    directory = tmp_path_factory.mktemp("models") / "arithmetic"
    make_tiny_model(directory, seed=0, tasks=("arithmetic",), eval_episodes=1)
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "run")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    deadline = time.monotonic() + 20
    while (left := made.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == [], "the run left processes behind"
