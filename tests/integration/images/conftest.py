from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.config.node import ImagesSection
from rollart_hpc.images import registry as registry_client
from rollart_hpc.images.emulated_registry import EmulatedRegistry

MakeSettings = Callable[..., ImagesSection]


@pytest.fixture
def registry() -> Iterator[EmulatedRegistry]:
    with EmulatedRegistry() as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path) -> MakeSettings:
    """The settings of a node: ``settings("second", shared=True)``."""

    def make(node: str = "node", *, shared: bool = False, **changes: object) -> ImagesSection:
        levels = {"shared_directory": tmp_path / "shared"} if shared else {}
        return ImagesSection.model_validate(
            {"node_directory": tmp_path / node, "pull_timeout_s": 20.0, **levels, **changes}
        )

    return make


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "_FIRST_PAUSE_S", 0.01)
