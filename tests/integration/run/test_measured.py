"""What a whole run, in mode sync, has measured of its generation and of its waits."""

from pathlib import Path

from rollart_hpc.observe.metrics import read_metrics, read_summary
from rollart_hpc.resource_plane.profile import read_profile


def test_every_token_is_counted_at_its_hardware_and_its_time_by_the_profiler(unbroken_run: Path):
    summary = read_summary(unbroken_run)
    (task,) = summary["tasks"].values()
    (hardware,) = task["tokens_by_hardware"]
    assert task["tokens_by_hardware"][hardware] == summary["tokens_generated"]
    of_steps = [record["tasks"]["arithmetic"]["tokens_by_hardware"][hardware] for record in read_metrics(unbroken_run)]
    assert sum(of_steps) == summary["tokens_generated"]
    profile = read_profile(unbroken_run)
    assert profile is not None
    (speed,) = profile.speeds
    assert (speed.tag, speed.hardware) == ("arithmetic", hardware)
    assert 1 <= profile.num_iterations <= summary["steps"]
    assert 0 < speed.num_requests <= summary["trajectories"]["dispatched"]
    assert speed.amounts.prefill_s > 0 < speed.amounts.decode_s
    # One iteration's engine time is within the run's.
    assert speed.amounts.seconds < summary["seconds"]["total"]
    assert summary["affinity"] == {
        "mode": "static", "mapping": {"arithmetic": hardware}, "changes": 0, "advice": ""
    }  # fmt: skip


def test_a_synchronous_run_plays_each_batch_together_by_the_version_that_trains_on_it(unbroken_run: Path):
    summary = read_summary(unbroken_run)
    assert (summary["mode"], summary["max_staleness_trained"]) == ("sync", 0)
    assert summary["tasks"]["arithmetic"]["seconds_per_trajectory"]["batch_wait"] > 0
    assert summary["weight_sync_seconds"]["prefetch"] == 0 < summary["weight_sync_seconds"]["suspended"]
