"""Checkpoints on disk, cut off and damaged in every way."""

import os
import sys
from pathlib import Path

import pytest

from rollart_hpc.control_plane import checkpoint
from rollart_hpc.control_plane.checkpoint import Checkpoint, ControllerState
from rollart_hpc.control_plane.task_cursor import TaskCursor
from rollart_hpc.errors import CheckpointError
from tests.builders import IDENTITY

WEIGHTS = b"w" * 10


def written(run: Path, step: int) -> Path:
    """What the trainers have written, unpublished."""
    unfinished = checkpoint.begin(run, step)
    part = checkpoint.trainer_part(unfinished)
    part.mkdir()
    (part / "weights").write_bytes(WEIGHTS)
    (part / ".metadata").write_bytes(b"m")
    return unfinished


def save(run: Path, step: int, *, kept_for_good: bool = False) -> Checkpoint:
    unfinished = written(run, step)
    sealed = checkpoint.seal(unfinished)
    state = ControllerState(step=step, cursors={"a": TaskCursor(next_index=step)}, model=IDENTITY)
    published = checkpoint.publish(unfinished, state, sealed=sealed, kept_for_good=kept_for_good)
    checkpoint.prune(run, step)
    return published


def step_of(found: Checkpoint | None) -> int | None:
    return found.state.step if found is not None else None


def steps(run: Path) -> list[int]:
    return [one.state.step for one in checkpoint.find_all(run)]


def test_a_published_checkpoint_is_found_with_its_state(tmp_path: Path):
    save(tmp_path, 4)
    found = checkpoint.find_sound(tmp_path)
    assert found is not None
    assert found.state == ControllerState(step=4, cursors={"a": TaskCursor(next_index=4)}, model=IDENTITY)
    assert (found.trainer / "weights").read_bytes() == WEIGHTS
    assert (tmp_path / "checkpoints" / "latest").resolve() == found.directory
    assert set(found.marker.parts) == {"controller.json", "trainer/weights", "trainer/.metadata"}


def test_a_step_that_is_saved_again_replaces_the_one_before(tmp_path: Path):
    (save(tmp_path, 4).trainer / "weights").write_bytes(b"damaged")
    save(tmp_path, 4)
    assert step_of(checkpoint.find_sound(tmp_path)) == 4
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-000004"]


def test_the_two_newest_are_kept_and_those_for_good(tmp_path: Path):
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step, kept_for_good=step == 2)
    assert steps(tmp_path) == [2, 4, 5]
    assert checkpoint.oldest_kept_step(tmp_path) == 4


def test_one_that_was_found_damaged_is_no_newer_one(tmp_path: Path):
    save(tmp_path, 1)
    (save(tmp_path, 9).trainer / "weights").write_bytes(b"x" * len(WEIGHTS))
    save(tmp_path, 2)
    assert steps(tmp_path) == [1, 2, 9]
    assert checkpoint.oldest_kept_step(tmp_path, 2) == 1


def test_without_a_checkpoint_there_is_none_to_keep(tmp_path: Path):
    assert checkpoint.oldest_kept_step(tmp_path) is None
    assert checkpoint.find_sound(tmp_path) is None
    assert checkpoint.sweep(tmp_path) == []


def test_an_unfinished_one_is_passed_over_and_then_swept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save(tmp_path, 1)
    unfinished = written(tmp_path, 2)
    assert step_of(checkpoint.find_sound(tmp_path)) == 1
    assert f"{unfinished} is passed over: it is a leftover of an unfinished save" in caplog.text
    assert checkpoint.sweep(tmp_path) == [unfinished.name]
    assert f"{unfinished}: removed" in caplog.text
    assert not unfinished.exists()
    assert step_of(checkpoint.find_sound(tmp_path)) == 1


def test_a_late_writer_of_an_earlier_attempt_does_not_reach_into_the_next_save(tmp_path: Path):
    assert checkpoint.begin(tmp_path, 2) != checkpoint.begin(tmp_path, 2)


def test_a_leftover_link_and_a_half_removed_one_are_swept(tmp_path: Path):
    save(tmp_path, 1)
    root = tmp_path / "checkpoints"
    (root / ".latest").symlink_to("step-000009")
    (root / ".removed-step-000000").mkdir()
    assert checkpoint.sweep(tmp_path) == [".latest", ".removed-step-000000"]
    assert sorted(path.name for path in root.iterdir()) == ["latest", "step-000001"]


def test_one_that_was_being_replaced_is_put_back(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    directory = save(tmp_path, 3).directory
    directory.rename(directory.with_name(".replaced-step-000003"))
    assert checkpoint.sweep(tmp_path) == []
    assert step_of(checkpoint.find_sound(tmp_path)) == 3
    assert "put back" in caplog.text


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(lambda at: (at / "COMPLETE.json").unlink(), "it has no COMPLETE.json", id="no marker"),
        pytest.param(
            lambda at: (at / "COMPLETE.json").write_text('{"parts'), "not as it was written", id="torn marker"
        ),
        pytest.param(lambda at: (at / "trainer/weights").unlink(), "trainer/weights is missing", id="no part"),
        pytest.param(lambda at: (at / "trainer/.metadata").unlink(), "trainer/.metadata is missing", id="no metadata"),
        pytest.param(lambda at: (at / "trainer/weights").write_bytes(b"w"), "has 1 bytes instead of 10", id="size"),
        pytest.param(lambda at: (at / "controller.json").unlink(), "it has no controller.json", id="no state"),
        pytest.param(lambda at: (at / "controller.json").write_text("{"), "not as it was written", id="torn state"),
        pytest.param(lambda at: at.rename(at.with_name("step-000003")), "it holds step 2", id="wrong name"),
    ],
)
def test_a_damaged_one_is_passed_over_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage, reason):
    save(tmp_path, 1)
    damage(save(tmp_path, 2).directory)
    assert step_of(checkpoint.find_newest(tmp_path)) == 1
    [line] = [line for line in caplog.text.splitlines() if "step-00000" in line and "latest" not in line]
    assert "is passed over: " in line
    assert reason in line


def test_one_whose_bytes_changed_is_passed_over_for_the_older_one(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save(tmp_path, 1)
    (save(tmp_path, 2).trainer / "weights").write_bytes(WEIGHTS[1:] + b"x")
    assert step_of(checkpoint.find_newest(tmp_path)) == 2
    found = checkpoint.find_sound(tmp_path)
    assert step_of(found) == 1
    assert "step-000002 is passed over: trainer/weights has other bytes than were written" in caplog.text


@pytest.mark.parametrize("target", ["step-000001", "step-000009", "../elsewhere"], ids=["older", "dangling", "outside"])
def test_a_wrong_latest_is_only_a_hint(tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str):
    save(tmp_path, 1)
    save(tmp_path, 2)
    link = tmp_path / "checkpoints" / "latest"
    link.unlink()
    link.symlink_to(target)
    assert step_of(checkpoint.find_sound(tmp_path)) == 2
    assert f"{link} points to {target} and is passed over" in caplog.text
    save(tmp_path, 3)
    assert link.resolve().name == "step-000003"


def test_a_latest_that_cannot_be_moved_does_not_cost_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "checkpoints" / "latest").mkdir(parents=True)
    assert step_of(save(tmp_path, 1)) == 1
    assert "could not be moved" in caplog.text


def test_a_missing_step_lists_those_that_exist(tmp_path: Path):
    save(tmp_path, 3)
    with pytest.raises(CheckpointError, match=r"step 9; there are \[3\]"):
        checkpoint.find_step(tmp_path, 9)


def test_a_sound_one_has_no_damaged_parts(tmp_path: Path):
    found = save(tmp_path, 3)
    assert checkpoint.damaged_parts(found) == []
    (found.trainer / "weights").write_bytes(WEIGHTS[1:] + b"x")
    assert checkpoint.damaged_parts(found) == ["trainer/weights has other bytes than were written"]


@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step again"])
def test_a_kill_between_any_two_touches_of_the_disk_leaves_a_sound_checkpoint(tmp_path: Path, again: bool):
    """A child is killed before its first, second, ... change to the file system, until it gets through."""
    touches = 0
    while True:
        run = tmp_path / str(touches)
        save(run, 1)
        save(run, 2)
        killed = killed_before_touch(touches, lambda run=run: save(run, 2 if again else 3))
        before = {2} if again else {2, 3}
        checkpoint.sweep(run)
        assert step_of(checkpoint.find_sound(run)) in before, f"killed before touch {touches}"
        assert step_of(save(run, 4)) == 4
        complete = [f"step-{step:06d}" for step in steps(run)]
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["latest", *complete]
        if not killed:
            break
        touches += 1
    assert touches > 15


def killed_before_touch(number: int, work) -> bool:
    """Runs ``work`` in a child that kills itself before its touch of that number; False when it had fewer."""
    child = os.fork()
    if not child:
        left = number

        def count(event: str, arguments: tuple) -> None:
            nonlocal left
            changes = event in {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink"} or (
                event == "open" and isinstance(arguments[0], str | Path) and bool(arguments[2] & os.O_WRONLY)
            )
            if changes:
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(count)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, 9}
    return code == 9
