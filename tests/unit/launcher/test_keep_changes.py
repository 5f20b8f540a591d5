"""What a run went on with once, it goes on with until it is changed again."""

from pathlib import Path

import pytest

from rollart_hpc.launcher.attempt_log import AttemptLog, read_attempts
from rollart_hpc.launcher.lead import NothingToDoError, check_unfinished
from rollart_hpc.launcher.run_directory import create, keep_changes, read_config, read_overridden
from tests.builders import run_config
from tests.unit.control_plane.test_checkpoint import save


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = run_config(tasks={"a": {}, "b": {}})
    return create(config.model_copy(update={"run": config.run.model_copy(update={"directory": tmp_path / "run"})}))


def test_the_next_start_has_what_the_last_one_changed(run: Path):
    overrides = ["run.steps=7", "training.learning_rate=1e-3", "pools.all.actor_gen=3", "affinity.default=H20"]
    config, changes = read_overridden(run, overrides)
    keep_changes(run, changes)
    assert read_config(run) == config
    assert read_overridden(run, []) == (config, {})
    _, back = read_overridden(run, ["run.steps=100"])
    assert back == {"run.steps": [7, 100]}


def test_nothing_changed_leaves_the_config_as_it_is(run: Path):
    before = (run / "config.json").read_bytes()
    keep_changes(run, {})
    assert (run / "config.json").read_bytes() == before


def test_a_run_that_was_done_and_could_not_say_so_is_done(run: Path):
    config = read_config(run)
    log = AttemptLog(run, 1)
    log.write("started")
    check_unfinished(config)
    save(run, config.run.steps)
    with pytest.raises(NothingToDoError, match="all 100 steps are trained"):
        check_unfinished(config, job="7")
    assert [(one.event, one.job) for one in read_attempts(run)] == [("started", ""), ("done", "7")]
    with pytest.raises(NothingToDoError):
        check_unfinished(config)
    assert len(read_attempts(run)) == 2


def test_a_done_run_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(run: Path):
    config = read_config(run)
    save(run, config.run.steps)
    damaged = next(path for path in (run / "checkpoints").glob("step-*/trainer/*") if path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[0] ^= 0xFF
    damaged.write_bytes(content)
    check_unfinished(config)
