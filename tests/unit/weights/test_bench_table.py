from rollart_hpc.cli import bench_weights


def test_the_table_shows_both_directions_beside_their_limits(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    names = ("publish", "pull", "mooncake_put", "mooncake_get", "shm_write", "shm_read", "memcpy")
    speeds = {f"{name}_gb_s": index + 0.25 for index, name in enumerate(names)}
    bench_weights._print_table({**speeds, "publish_share": 0.81, "pull_share": 0.92}, 1024, 256)
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["publish", "0.25", "2.25", "0.81", "0.70", "4.25", "6.25"] in rows
    assert ["pull", "1.25", "3.25", "0.92", "0.70", "5.25", "6.25"] in rows
