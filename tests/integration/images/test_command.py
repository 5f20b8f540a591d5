"""``rollart-hpc images``."""

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollart_hpc.cli.main import app
from rollart_hpc.images import use_image
from rollart_hpc.images.emulated_registry import EmulatedRegistry, make_layer

from .conftest import MakeSettings


def test_images_are_pulled_listed_and_collected(registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path):
    digest = registry.add_image("app", [make_layer({"f": b"1"})])
    registry.add_image("other", [make_layer({"f": b"2"})])
    where = ["--node-directory", str(tmp_path / "node"), "--json"]

    def run(*arguments: str, code: int = 0) -> object:
        done = CliRunner().invoke(app, ["images", *arguments, *where])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    pulled = run("pull", f"{registry.host}/app", f"{registry.host}/other", f"{registry.host}/none", code=1)
    assert {one["reference"]: bool(one["error"]) for one in pulled} == {
        f"{registry.host}/app": False,
        f"{registry.host}/other": False,
        f"{registry.host}/none": True,
    }
    with use_image(f"{registry.host}/app", settings=settings()):
        listed = run("list")
        assert {one["reference"]: one["in_use"] for one in listed["images"]} == {
            f"{registry.host}/app": True,
            f"{registry.host}/other": False,
        }
        assert listed["names"][f"{registry.host}/app:latest"] == digest
        removed = run("gc", "--max-gb", "0")["removed"]
        assert [one["reference"] for one in removed if one["kind"] == "image"] == [f"{registry.host}/other"]
    foreign = tmp_path / "node" / "blobs" / "notes"
    foreign.mkdir()
    assert run("gc", "--max-gb", "0")["left_bytes"] == 0
    assert foreign.exists(), "it is not ours"
    for command in (["images", "list"], ["images", "gc"]):
        shown = CliRunner().invoke(app, [*command, *where[:2]])
        assert (shown.exit_code, str(tmp_path / "node") in shown.output or "left" in shown.output) == (0, True)


def test_the_images_of_a_run_are_those_of_its_environments_and_rows(
    registry: EmulatedRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("declared", "row"):
        registry.add_image(name, [make_layer({"f": name.encode()})])
    (tmp_path / "imaged.py").write_text(
        "from rollart_hpc.interfaces import EnvironmentProperties\n"
        "class Imaged:\n"
        f"    properties = EnvironmentProperties(sandboxed=True, image={registry.host + '/declared'!r})\n"
        "async def score(episode): return 0.0\n"
    )
    (tmp_path / "rows.jsonl").write_text(f'{{"image": "{registry.host}/row"}}\n{{"other": 1}}\n')
    (tmp_path / "run.toml").write_text(
        f"""
        [run]
        name = "imaged"
        steps = 1
        [model]
        path = "model"
        [rollout]
        groups_per_step = 1
        [pools.local]
        hardware = "cpu"
        actor_train = 1
        actor_gen = 1
        environment = 1
        reward = 1
        [tasks.imaged]
        environment = "imaged:Imaged"
        reward = "imaged:score"
        group_size = 2
        dataset = "{tmp_path / "rows.jsonl"}"
        [images]
        node_directory = "{tmp_path / "node"}"
        shared_directory = "{tmp_path / "shared"}"
        """
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["images", "pull", "--config", "run.toml", "--json"])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    assert {one["reference"] for one in json.loads(done.stdout)} == {
        f"{registry.host}/declared",
        f"{registry.host}/row",
    }
    incoming = tmp_path / "shared" / "incoming"
    for name, at in (("dead", 0.0), ("alive", time.time())):
        (incoming / name).write_text("half")
        os.utime(incoming / name, (at, at))
    assert CliRunner().invoke(app, ["images", "gc", "--config", "run.toml"]).exit_code == 0
    assert [path.name for path in incoming.iterdir()] == ["alive"]
