"""What the command says of a run's pools, workers and bindings, from files alone."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from rollart_hpc.bus.membership import Member
from rollart_hpc.cli import pools
from rollart_hpc.cli.main import app
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.json_lines import append_record
from rollart_hpc.launcher.pools import PoolsReport, read_pools
from rollart_hpc.launcher.run_directory import create, next_attempt, owned
from rollart_hpc.resource_plane.hardware import hardware_class
from rollart_hpc.resource_plane.profile import Amounts, Profile, Speed, write_profile
from rollart_hpc.resource_plane.records import Binding
from rollart_hpc.resource_plane.snapshot import PoolState, ResourceSnapshot, write_snapshot
from rollart_hpc.types import Role
from tests.builders import run_config


def binding(hardware: str, reason: str, at: float) -> Binding:
    return Binding(
        role=Role.ACTOR_GEN, tag="lake", preferred="H800", source="x", hardware=hardware, reason=reason, at=at
    )


COURSE = [binding("H800", "affinity.lake asks for H800", 5.0), binding("", "no actor_gen worker is alive", 6.0)]
POOLS = [
    PoolState(
        name="h800",
        hardware=hardware_class("H800"),
        partition="gpu",
        guest=False,
        planned={Role.ACTOR_TRAIN: 1, Role.ACTOR_GEN: 2},
        present={Role.ACTOR_GEN: 1},
    ),
    PoolState(name="more", hardware=hardware_class("own"), partition="", guest=True, planned={}, present={}),
]
MEMBERS = [
    Member(
        member_id="actor_gen-0",
        role=Role.ACTOR_GEN,
        hardware="H800",
        node="c1",
        pid=1,
        pool="h800",
        load=3,
        capacity=256,
        version=7,
        guest=True,
        leaving=True,
    ),
    Member(member_id="reward-0", role=Role.REWARD, hardware="cpu", node="c2", pid=1, pool="cpu"),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = run_config()
    section = config.run.model_copy(update={"directory": tmp_path / "run"})
    return create(config.model_copy(update={"run": section}))


@pytest.fixture
def begun(run: Path) -> Path:
    """A run whose second attempt has written what it runs on."""
    for number in (1, 2):
        attempt = run / "attempts" / str(next_attempt(run))
        snapshot = ResourceSnapshot(attempt=number, at=9.0, pools=POOLS, members=MEMBERS, bindings=COURSE[-1:])
        write_snapshot(attempt, snapshot)
    for one in COURSE:
        append_record(attempt / "bindings.jsonl", one)
    return run


def shown(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["pools", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_pools_with_figures_workers_and_bindings_are_shown(begun: Path):
    found = rows(shown(begun))
    assert found[0].startswith("test: attempt 2, as of")
    assert "h800 H800 989 80 3350 3 gpu actor_train 0/1 actor_gen 0/2+1" in found
    assert "more (guest) own - - - - -" in found
    assert "actor_gen-0 h800 H800 c1 3/256 7 guest, leaving" in found
    assert "reward-0 cpu cpu c2 - -" in found
    assert any(
        line.startswith("actor_gen lake any") and line.endswith("no actor_gen worker is alive") for line in found
    )


def test_what_the_profiler_measured_is_shown(begun: Path):
    assert "measured on" not in shown(begun)
    mean = Amounts(requests=4, prompt_tokens=90, cached_tokens=60, new_tokens=32, prefill_s=0.25, decode_s=1.5)
    speed = Speed(tag="lake", hardware="H800", amounts=Amounts(), when_there=mean, num_iterations=3, num_requests=12)
    profile = Profile(num_iterations=5, speeds=[speed])
    write_profile(begun, profile)
    assert "lake H800 3 4 90 60 32 0.25 1.50" in rows(shown(begun))
    assert msgspec.json.decode(shown(begun, "--json"), type=PoolsReport).profile == profile


def test_the_json_has_the_history_of_the_newest_attempt(begun: Path):
    report = msgspec.json.decode(shown(begun, "--json"), type=PoolsReport)
    assert (report.attempt, report.at, report.pools, report.members) == (2, 9.0, POOLS, MEMBERS)
    assert (report.bindings, report.history) == (COURSE[-1:], COURSE)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=str)
def test_a_watcher_sees_changes_once_until_the_run_ends(
    begun: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
):
    looks = []

    def look(_: float) -> None:
        looks.append(1)
        attempt = (begun / "attempts" / "latest").resolve()
        if len(looks) == 2:
            write_snapshot(attempt, ResourceSnapshot(attempt=2, at=10.0, pools=[], members=[], bindings=[]))
        if len(looks) == 4:
            lock.__exit__(None, None, None)

    monkeypatch.setattr(pools.time, "sleep", look)
    lock = owned(begun)
    lock.__enter__()
    found = rows(shown(begun, "--watch", *options))
    assert len(looks) == 4
    assert len([line for line in found if line.startswith(("test: attempt", '{"name"'))]) == 2


def test_a_run_that_has_not_begun_is_refused_with_whom_to_ask(run: Path):
    with pytest.raises(ConfigError, match=r"no attempt of this run has begun.*rollart-hpc status"):
        read_pools(run)
    next_attempt(run)
    with pytest.raises(ConfigError, match=r"attempts/1/resources.json: is not there.*rollart-hpc logs"):
        read_pools(run)


def test_what_is_no_snapshot_is_refused(begun: Path):
    path = begun / "attempts" / "latest" / "resources.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"resources\.json: not the resources of an attempt"):
        read_pools(begun)
