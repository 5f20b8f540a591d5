import re
import socket
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from rollart_hpc.config.slurm import SiteProfile, StepRole
from rollart_hpc.errors import ConfigError, PreflightError
from rollart_hpc.slurm.single_machine.config_files import render, write_config_files
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.options import ClusterOptions
from rollart_hpc.slurm.single_machine.ports import free_ports
from rollart_hpc.slurm.single_machine.record import ClusterRecord, current_user, read_record


def settings(options: ClusterOptions, layout: Layout) -> dict[str, str]:
    """slurm.conf's plain settings."""
    record = ClusterRecord(user="someone", options=options, ports=free_ports())
    lines = [line for line in render("slurm.conf", layout, record).splitlines() if line and line[0] != "#"]
    plain = [line for line in lines if not line.startswith(("NodeName", "PartitionName"))]
    assert all("=" in line and " " not in line for line in plain)
    return dict(line.split("=", 1) for line in plain)


def preempted_partitions(options: ClusterOptions, layout: Layout) -> set[tuple[str, str]]:
    record = ClusterRecord(user="someone", options=options, ports=free_ports())
    found = re.findall(
        r"^PartitionName=\S+ .*PreemptMode=(\S+) GraceTime=(\d+)$", render("slurm.conf", layout, record), re.M
    )
    assert len(found) == 3
    return set(found)


@pytest.mark.parametrize(
    ("options", "mode", "grace", "told"),
    [
        (ClusterOptions(), "REQUEUE", "10", True),
        (ClusterOptions(user_signal=False, grace_s=0), "REQUEUE", "0", False),
        (ClusterOptions(preempt="cancel", grace_s=30), "CANCEL", "30", True),
    ],
    ids=["signal and grace", "no signal, no grace", "cancel"],
)
def test_the_variants_of_preemption(options: ClusterOptions, mode: str, grace: str, told: bool, tmp_path: Path):
    layout = Layout(tmp_path)
    conf = settings(options, layout)
    assert conf["PreemptMode"] == mode
    assert (conf.get("SlurmctldParameters") == "preempt_send_user_signal") == told
    assert preempted_partitions(options, layout) == {(mode, grace)}


def test_a_job_may_take_longer_to_complete_than_to_be_killed(tmp_path: Path):
    conf = settings(ClusterOptions(kill_wait_s=30), Layout(tmp_path))
    assert conf["KillWait"] == "30"
    assert int(conf["CompleteWait"]) > 30


def test_without_accounting_no_database_is_configured(tmp_path: Path):
    assert settings(ClusterOptions(accounting=False), Layout(tmp_path))["AccountingStorageType"].endswith("/none")
    conf = settings(ClusterOptions(), Layout(tmp_path))
    assert conf["AccountingStoragePass"] == f"{tmp_path}/munge/munge.sock"
    assert conf["AccountingStorageTRES"] == "gres/gpu,gres/gpu:h800,gres/gpu:h20"


def test_the_site_profile_is_valid_and_names_the_partitions_there_are(tmp_path: Path):
    layout = Layout(tmp_path)
    layout.create()
    record = ClusterRecord(user=current_user(), options=ClusterOptions(), ports=free_ports())
    write_config_files(layout, record)
    site = SiteProfile.model_validate(tomllib.loads(layout.site_profile.read_text()))
    assert site.slurm.time == "01:00:00"
    assert set(site.slurm.resources) == set(get_args(StepRole))
    assert {name: (own.partition, own.gpu_type) for name, own in site.hardware.items()} == {
        "H800": ("h800", "h800"),
        "H20": ("h20", "h20"),
        "cpu": ("cpu", None),
    }
    conf = layout.slurm_conf.read_text()
    assert all(f"PartitionName={own.partition} " in conf for own in site.hardware.values())
    assert layout.slurm_conf.with_name("slurmdbd.conf").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "options",
    [ClusterOptions(grace_s=-1), ClusterOptions(grace_s=65534), ClusterOptions(kill_wait_s=0)],
    ids=["negative grace", "too long", "no time to end"],
)
def test_times_that_slurm_cannot_keep_are_refused(options: ClusterOptions):
    with pytest.raises(ConfigError, match="give "):
        options.check()


def test_ports_are_below_the_clients_range_and_skip_what_is_taken(monkeypatch: pytest.MonkeyPatch):
    start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports()
    every = [ports.slurmctld, ports.slurmdbd, *ports.nodes.values()]
    assert every == list(range(every[0], every[0] + len(every)))
    assert start <= 11000 or every[-1] < start
    candidates = [ports.slurmctld, ports.slurmctld + 100]
    with socket.create_server(("", every[-1])):
        monkeypatch.setattr("random.choice", lambda _: candidates.pop(0))
        assert free_ports().slurmctld == ports.slurmctld + 100


def test_a_record_is_read_back_and_a_wrong_one_is_explained(tmp_path: Path):
    layout = Layout(tmp_path)
    assert read_record(layout) is None
    record = ClusterRecord(user=current_user(), options=ClusterOptions(grace_s=3), ports=free_ports())
    record.save(layout)
    assert read_record(layout) == record
    layout.record.write_text('{"user": 1}')
    with pytest.raises(PreflightError, match="not the record of a cluster"):
        read_record(layout)


def test_another_users_cluster_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ClusterRecord(user="somebody-else", options=ClusterOptions(), ports=free_ports()).save(Layout(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setattr("pwd.getpwuid", lambda _uid: type("Entry", (), {"pw_name": "me"}))
    with pytest.raises(PreflightError, match="the cluster of somebody-else, and this is me"):
        read_record(Layout(tmp_path))
