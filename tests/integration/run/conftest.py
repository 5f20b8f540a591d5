import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.run.driver import Run


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
