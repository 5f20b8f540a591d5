from pathlib import Path

import pytest

from rollart_hpc.control_plane import checkpoint
from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.rollout_scheduler import TaskCursor
from rollart_hpc.errors import CheckpointError


def save(run: Path, step: int) -> checkpoint.Checkpoint:
    unfinished = checkpoint.begin(run, step)
    part = checkpoint.trainer_part(unfinished)
    part.mkdir()
    (part / "weights").write_bytes(b"w" * 10)
    return checkpoint.publish(unfinished, ControllerState(step=step, cursors={"a": TaskCursor(next_index=step)}))


def test_a_published_checkpoint_is_found_with_its_state(tmp_path: Path):
    save(tmp_path, 4)
    found = checkpoint.find_newest(tmp_path)
    assert found is not None
    assert (found.state.step, found.state.cursors["a"].next_index) == (4, 4)
    assert (found.trainer / "weights").read_bytes() == b"w" * 10
    assert (tmp_path / "checkpoints" / "latest").resolve() == found.directory


def test_two_good_ones_are_kept(tmp_path: Path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert [one.state.step for one in checkpoint.find_all(tmp_path)] == [2, 3]


def test_an_unfinished_one_is_not_found_and_does_not_disturb(tmp_path: Path):
    save(tmp_path, 1)
    (checkpoint.begin(tmp_path, 2) / "leftover").write_text("x")
    assert checkpoint.find_newest(tmp_path).state.step == 1  # pyright: ignore[reportOptionalMemberAccess]
    assert save(tmp_path, 2).state.step == 2
    assert not (checkpoint.find_newest(tmp_path).directory / "leftover").exists()  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("damage", ["marker", "part", "size", "controller"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str):
    save(tmp_path, 1)
    directory = save(tmp_path, 2).directory
    match damage:
        case "marker":
            (directory / "COMPLETE.json").unlink()
        case "part":
            (directory / "trainer" / "weights").unlink()
        case "size":
            (directory / "trainer" / "weights").write_bytes(b"w")
        case _:
            (directory / "controller.json").write_text("{")
    assert checkpoint.find_newest(tmp_path).state.step == 1  # pyright: ignore[reportOptionalMemberAccess]


def test_one_whose_bytes_changed_is_passed_over_for_the_older_one(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save(tmp_path, 1)
    (save(tmp_path, 2).directory / "trainer" / "weights").write_bytes(b"w" * 9 + b"x")
    assert checkpoint.find_sound(tmp_path).state.step == 1  # pyright: ignore[reportOptionalMemberAccess]
    assert "trainer/weights" in caplog.text


def test_latest_is_only_a_hint(tmp_path: Path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    link = tmp_path / "checkpoints" / "latest"
    link.unlink()
    link.symlink_to("step-000001")
    assert checkpoint.find_newest(tmp_path).state.step == 2  # pyright: ignore[reportOptionalMemberAccess]


def test_a_missing_step_lists_those_that_exist(tmp_path: Path):
    save(tmp_path, 3)
    with pytest.raises(CheckpointError, match=r"step 9; there are \[3\]"):
        checkpoint.find_step(tmp_path, 9)
