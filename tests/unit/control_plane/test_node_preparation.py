"""What a worker sees to on its node: sandboxes that isolate, and images in advance."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollart_hpc.config.node import NodeSettings
from rollart_hpc.control_plane.node_preparation import prefetch_images, require_isolation
from rollart_hpc.errors import NoSandboxError
from rollart_hpc.interfaces import EnvironmentProperties
from tests.builders import run_config

SANDBOXED = EnvironmentProperties(sandboxed=True, image="first:1")


async def test_a_node_without_sandboxes_is_refused_only_where_one_is_opened(monkeypatch: pytest.MonkeyPatch):
    def none(settings: object) -> None:
        raise NoSandboxError("bubblewrap: no user namespaces")

    monkeypatch.setattr("rollart_hpc.sandbox.available_runtime", none)
    await require_isolation({"lake": EnvironmentProperties()}, NodeSettings())
    with pytest.raises(NoSandboxError, match="tasks code open sandboxes: bubblewrap: no user namespaces"):
        await require_isolation({"lake": EnvironmentProperties(), "code": SANDBOXED}, NodeSettings())


async def test_the_images_of_classes_and_rows_are_pulled_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    images = ["row:2", "row:1", "row:2", "", None]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"image": image}) + "\n" for image in images))
    pulled: list[Sequence[str]] = []
    monkeypatch.setattr("rollart_hpc.images.prefetch.prefetch", lambda references, settings: pulled.append(references))
    config = run_config(tasks={"a": {"dataset": str(tmp_path / "rows.jsonl")}, "b": {}})
    await prefetch_images(config, {"a": SANDBOXED, "b": EnvironmentProperties()})
    assert pulled == [["first:1", "row:2", "row:1"]]
    await prefetch_images(config, {"a": EnvironmentProperties(), "b": EnvironmentProperties()})
    assert len(pulled) == 1


async def test_a_worker_lives_on_without_its_images(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def fail(references: object, settings: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr("rollart_hpc.images.prefetch.prefetch", fail)
    await prefetch_images(run_config(), {"a": SANDBOXED})
    assert "no disk" in caplog.text
