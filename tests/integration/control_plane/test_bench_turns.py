"""`rollart-hpc bench turns`, small."""

import json
import subprocess
import sys

import pytest


def bench(*arguments: object) -> dict[str, float]:
    argv = [sys.executable, "-m", "rollart_hpc.cli.main", "bench", "turns", "--json", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("period", [0, 0.5])
def test_the_benchmark_measures_rate_latency_and_memory(period: float):
    found = bench("--envs", 40, "--seconds", 1, "--period", period)
    assert set(found) == {
        "envs",
        "turns",
        "turns_per_s",
        "p50_ms",
        "p99_ms",
        "cpu_us_per_turn",
        "timeouts",
        "rss_mb",
        "kb_per_env",
    }
    assert found["timeouts"] == 0
    assert found["rss_mb"] > 10
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    if period:  # each environment takes one turn in each period, and its latency is not its thinking
        assert 40 <= found["turns"] <= 40 * (1 / period + 1)
        assert found["p50_ms"] < 1e3 * period
    else:
        assert found["turns"] > 40
