from pathlib import Path

import pytest

from rollart_hpc.slurm.doctor.cluster_facts import (
    parse_associations,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_reservations,
    parse_settings,
)
from rollart_hpc.slurm.doctor.scontrol_output import gpus_by_type, read_fields

RECORDED = Path(__file__).parent / "recorded"


def test_settings_are_read_from_a_real_config():
    settings = parse_settings((RECORDED / "config.txt").read_text())
    assert (settings.version, settings.scheduler, settings.backfill_interval_s) == ("22.05.8", "backfill", 1)
    assert (settings.preempt_type, settings.preempt_mode, settings.kill_wait_s) == ("partition_prio", "REQUEUE", 5)
    assert settings.user_signal
    assert settings.requeue_by_default
    assert not settings.accounting
    assert settings.enforced == frozenset()
    assert settings.max_mem_per_node_mb is None


def test_settings_of_another_version_need_no_field():
    settings = parse_settings("Configuration data\nSLURM_VERSION = 25.11.0\nNewThing = x=y\n")
    assert (settings.version, settings.scheduler, settings.preempt_type) == ("25.11.0", "unknown", "none")
    assert (settings.backfill_interval_s, settings.user_signal, settings.accounting) == (30, False, False)


def test_settings_of_a_site_with_accounting():
    text = """
SchedulerType           = sched/builtin
SchedulerParameters     = (null)
SlurmctldParameters     = enable_configless,preempt_send_user_signal
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStorageEnforce = associations,limits,qos,safe
JobRequeue              = 0
KillWait                = 30 sec
MaxMemPerNode           = 512000
PreemptType             = preempt/qos
"""
    settings = parse_settings(text)
    assert (settings.scheduler, settings.preempt_type, settings.kill_wait_s) == ("builtin", "qos", 30)
    assert settings.accounting
    assert settings.user_signal
    assert not settings.requeue_by_default
    assert settings.enforced >= {"associations", "qos"}
    assert settings.max_mem_per_node_mb == 512000


def test_partitions_are_read_from_a_real_cluster():
    partitions = parse_partitions((RECORDED / "partitions.txt").read_text())
    assert list(partitions) == ["h800", "h20", "cpu", "h800-urgent", "h20-urgent", "cpu-urgent"]
    cpu, h20, urgent = partitions["cpu"], partitions["h20"], partitions["h800-urgent"]
    assert (cpu.default, cpu.state, cpu.total_nodes) == (True, "UP", 2)
    assert (cpu.default_time_s, cpu.max_time_s) == (3600, None)
    assert (cpu.min_nodes, cpu.max_nodes, cpu.max_cpus_per_node, cpu.max_mem_per_node_mb) == (1, None, None, None)
    assert (cpu.allow_accounts, cpu.allow_groups, cpu.allow_qos) == (None, None, None)
    assert h20.allow_accounts == ("a", "b")
    assert (h20.grace_s, h20.preempt_mode, h20.priority_tier) == (10, "REQUEUE", 1)
    assert (urgent.preempt_mode, urgent.priority_tier) == ("OFF", 10)


def test_a_partition_with_limits_and_without_a_default_time():
    line = (
        "PartitionName=gpu AllowGroups=phys,chem DenyAccounts=guest AllowAccounts=ALL DenyQos=low Default=NO "
        "DefaultTime=NONE MaxTime=3-00:00:00 MaxNodes=8 MinNodes=2 MaxCPUsPerNode=32 MaxMemPerNode=256000 "
        "RootOnly=YES ReqResv=YES State=INACTIVE PreemptMode=GANG,SUSPEND TotalNodes=16 Unheard=(of)"
    )
    partition = parse_partitions(line)["gpu"]
    assert (partition.default_time_s, partition.max_time_s) == (None, 3 * 86400)
    assert (partition.min_nodes, partition.max_nodes, partition.total_nodes) == (2, 8, 16)
    assert (partition.max_cpus_per_node, partition.max_mem_per_node_mb) == (32, 256000)
    assert (partition.allow_groups, partition.deny_accounts, partition.deny_qos) == (
        ("phys", "chem"),
        ("guest",),
        ("low",),
    )
    assert partition.root_only
    assert partition.needs_reservation


def test_nodes_are_read_from_a_real_cluster():
    nodes = parse_nodes((RECORDED / "nodes.txt").read_text())
    assert list(nodes) == ["cpu-1", "cpu-2", "h20-1", "h20-2", "h800-1", "h800-2"]
    node = nodes["h800-1"]
    assert (node.cpus, node.memory_mb, dict(node.gpus)) == (64, 8192, {"h800": 8})
    assert node.partitions == {"h800", "h800-urgent"}
    assert (node.usable, node.features, node.reason) == (True, frozenset(), None)
    drained = nodes["h20-2"]
    assert not drained.usable
    assert drained.reason is not None
    assert drained.reason.startswith("bad fan = 3 ")
    assert nodes["cpu-1"].num_gpus == 0


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("MIXED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("ALLOCATED+PLANNED", True),
        ("DOWN*", False),
        ("DOWN*+DRAIN", False),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+DRAIN", False),
        ("SOMETHING_NEW", True),
    ],
)
def test_a_node_is_usable_by_its_state(state: str, usable: bool):
    assert parse_nodes(f"NodeName=n CPUTot=1 RealMemory=1 State={state}")["n"].usable is usable


def test_what_is_reserved_for_the_system_is_not_the_jobs():
    node = parse_nodes("NodeName=n CPUEfctv=62 CPUTot=64 RealMemory=1000 MemSpecLimit=100 State=IDLE")["n"]
    assert (node.cpus, node.memory_mb) == (62, 900)


def test_free_text_in_a_record_replaces_no_field_before_it():
    line = "NodeName=n1 Gres=(null) RealMemory=10 State=IDLE OS=Linux 6.1 #1 SMP Comment=was State=DOWN Reason=a b=c d"
    assert read_fields(line)["State"] == "IDLE"
    assert read_fields(line)["OS"] == "Linux 6.1 #1 SMP"
    assert read_fields("A=1 B=two words C=") == {"A": "1", "B": "two words", "C": ""}


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        (None, {}),
        ("gpu:8", {"": 8}),
        ("gpu:h800:8(S:0-1)", {"h800": 8}),
        ("gpu:a100:4(S:0,1),shard:16,gpu:t4:2", {"a100": 4, "t4": 2}),
        ("gpu:a100_1g.5gb:7,bandwidth:lustre:no_consume:4G", {"a100_1g.5gb": 7}),
        ("craynetwork:4", {}),
        ("gpu:no_consume:4", {"": 4}),
        ("gpu", {"": 1}),
    ],
    ids=str,
)
def test_gpus_are_counted_by_type(gres: str | None, gpus: dict[str, int]):
    assert gpus_by_type(gres) == gpus


def test_reservations_are_read_from_a_real_cluster():
    reservations = parse_reservations((RECORDED / "reservations.txt").read_text())
    maint, other = reservations["maint"], reservations["other"]
    assert (maint.state, maint.nodes, maint.num_nodes, maint.users) == ("ACTIVE", "cpu-2", 1, ("root",))
    assert (maint.accounts, maint.partition, maint.duration_s) == (None, None, 3600)
    assert (other.state, other.users) == ("INACTIVE", ("nobody",))
    assert parse_reservations("No reservations in the system\n") == {}


def test_qos_and_associations_are_read_from_a_real_data_base():
    qos = parse_qos("normal|00:00:00|cluster|\nhigh|00:00:30|requeue|1-00:00:00\n")
    assert (qos["normal"].grace_s, qos["normal"].preempt_mode, qos["normal"].max_wall_s) == (0, "CLUSTER", None)
    assert (qos["high"].grace_s, qos["high"].preempt_mode, qos["high"].max_wall_s) == (30, "REQUEUE", 86400)
    assert parse_associations("lab|high,normal\nroot|normal\n") == ({"lab", "root"}, {"high", "normal"})
    assert parse_associations("") == (frozenset(), frozenset())
