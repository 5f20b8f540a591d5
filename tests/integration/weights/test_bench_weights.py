import json

from rollart_hpc.cli.bench_weights import bench_weights


def test_the_benchmark_prints_one_json_object_with_every_speed(capfd):
    bench_weights(size_mb=20, bucket_mb=4, versions=1, as_json=True)
    report = json.loads(capfd.readouterr().out)
    measured = ("publish", "pull", "mooncake_put", "mooncake_get", "shm_write", "shm_read", "memcpy")
    assert all(report[f"{name}_gb_s"] > 0 for name in measured)
    assert report["publish_share"] > 0
    assert report["pull_share"] > 0
