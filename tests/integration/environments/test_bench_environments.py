"""`rollart-hpc bench environments`, small."""

import json

from typer.testing import CliRunner

from rollart_hpc.cli import bench_environments
from rollart_hpc.cli.main import app


def test_all_kinds_play_at_once_beside_one_that_hangs_and_nothing_is_left(monkeypatch):
    monkeypatch.setattr(bench_environments, "_HANG_DEADLINE_S", 1.0)
    arguments = "--count 40 --seconds 3 --warm-up 0.5 --think 0.02 --hung 1 --json"
    done = CliRunner().invoke(app, ["bench", "environments", *arguments.split()])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["kinds"] == {"Light": 16, "Shared": 16, "Waiting": 7, "Alone": 1}
    assert found["trajectories"] > 0
    assert found["while_hung"]["trajectories"] > 0
    assert (found["faults"], found["while_hung"]["faults"]) == ({}, {})
    assert (found["left_processes"], found["left_files"]) == (0, 0)
    assert found["processes"]["most"] >= 4
