"""Node-local directories: they end with their process, whatever ends it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rollart_hpc.temporary import OwnDirectory, own_temporary_directory, sweep


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def process_with_directory() -> tuple[subprocess.Popen[str], Path]:
    code = (
        "import time; from rollart_hpc.temporary import OwnDirectory; "
        "own = OwnDirectory('test'); print(own.path, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_s_directory_goes_with_the_next_one_that_is_made_and_a_living_one_s_stays():
    killed, left = process_with_directory()
    living, kept = process_with_directory()
    try:
        killed.kill()
        killed.wait()
        (left / "store").mkdir()
        mine = OwnDirectory("mine")
        assert not left.exists()
        assert kept.exists()
        assert sweep() == []
        mine.remove()
        mine.remove()
        assert not mine.path.exists()
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
    assert sweep() == [kept]


def test_what_is_not_ours_is_left_alone(elsewhere: Path):
    (elsewhere / "rollart-cluster-x").mkdir()
    (elsewhere / "other" / ".lock").mkdir(parents=True)
    assert sweep() == []
    assert sorted(path.name for path in elsewhere.iterdir()) == ["other", "rollart-cluster-x"]


def test_temporary_files_of_a_process_and_its_children_are_in_its_own_directory(elsewhere: Path):
    ask = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
    with own_temporary_directory("worker") as directory:
        assert Path(tempfile.mkdtemp()).parent == directory
        assert Path(subprocess.check_output(ask, text=True).strip()).parent == directory
    assert not directory.exists()
    assert os.environ["TMPDIR"] == str(elsewhere)
    assert Path(tempfile.mkdtemp()).parent == elsewhere
