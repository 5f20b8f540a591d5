import subprocess
import sys
from pathlib import Path

import pytest


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rollart_hpc.cli.main", "cluster", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=variables, check=False)


def test_what_follows_the_dashes_is_never_taken_for_the_directory(tmp_path: Path):
    told = command("shell", "--", "sinfo", HOME=str(tmp_path))
    assert told.returncode == 3
    assert f"{tmp_path}/.rollart-hpc/cluster: no cluster is up" in told.stderr


def test_without_a_cluster_status_says_down_and_down_has_nothing_to_do(tmp_path: Path):
    told = command("status", str(tmp_path))
    assert (told.returncode, told.stdout) == (3, f"{tmp_path}: down\n")
    told = command("down", str(tmp_path / "never"))
    assert (told.returncode, told.stdout) == (0, f"{tmp_path}/never: nothing runs\n")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--grace", "-1"], 2, "grace is -1 s; give 0 to 65533"),
        (["--preempt", "suspend"], 2, "suspend"),
        ([f"/tmp/{'long' * 30}"], 3, "choose a directory of at most"),
        (["/tmp/with space"], 3, "slurm.conf cannot hold"),
    ],
    ids=["grace", "preempt", "long path", "space"],
)
def test_what_cannot_work_is_refused_before_anything_is_made(
    arguments: list[str], code: int, words: str, tmp_path: Path
):
    told = command("up", *arguments, HOME=str(tmp_path))
    assert told.returncode == code
    assert words in told.stderr
    assert not list(tmp_path.iterdir())
    assert not any(Path(argument).exists() for argument in arguments if argument.startswith("/"))
