import socket
from pathlib import Path

import pytest

from rollart_hpc import ports


def test_a_server_gets_a_port_that_no_outgoing_connection_takes():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(10000 <= ports.free_port() < lowest for _ in range(20))


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports, "server_ports", lambda: range(number, number + 1))
        monkeypatch.setattr(ports, "_TRIES", 1)
        assert ports.free_port() != number


@pytest.mark.parametrize(
    ("text", "end"),
    [("32768\t60999\n", 32768), ("20000 60999", 20000), ("1024 65535", 32768), ("", 32768)],
    ids=["usual", "lower", "nearly all", "unreadable"],
)
def test_the_range_ends_where_outgoing_connections_begin(
    text: str, end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "range"
    path.write_text(text)
    monkeypatch.setattr(ports, "_EPHEMERAL_RANGE", path)
    assert ports.server_ports() == range(10000, end)
