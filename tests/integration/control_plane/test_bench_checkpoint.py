import json

import pytest
from typer.testing import CliRunner

from rollart_hpc.cli.main import app


@pytest.mark.slow
def test_the_benchmark_measures_both_ways_of_saving(tmp_path):
    arguments = ["--width=64", "--rounds=1", f"--directory={tmp_path}", "--json"]
    result = CliRunner().invoke(app, ["bench", "checkpoint", *arguments], catch_exceptions=False)
    measured = json.loads(result.output)
    assert all(value > 0 for value in measured.values())
    assert measured["async_share"] == pytest.approx(measured["async_stall_s"] / measured["blocking_stall_s"], rel=0.2)
    assert list(tmp_path.iterdir()) == []
