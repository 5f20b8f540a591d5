from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.site import apply_site
from rollart_hpc.config.slurm import SiteProfile
from rollart_hpc.errors import PreflightError
from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, Severity, errors_of, raise_errors
from rollart_hpc.slurm.doctor.checks.preemption import preemption_notice
from rollart_hpc.slurm.doctor.cluster_facts import (
    ClusterFacts,
    Qos,
    User,
    parse_nodes,
    parse_partitions,
    parse_reservations,
    parse_settings,
)
from rollart_hpc.slurm.doctor.examination import diagnose
from rollart_hpc.slurm.doctor.machine_facts import Limits, MachineFacts, Mount, parse_mounts
from rollart_hpc.slurm.doctor.node_report import (
    MARK,
    EndedEarly,
    NodeReport,
    NotProbed,
    own_version,
    parse_early_end,
    parse_report,
)
from rollart_hpc.slurm.script.allocation import components

RECORDED = Path(__file__).parent / "recorded"
ROLES = ("leader", "controller", "actor_train", "actor_gen", "environment", "reward")
SITE = SiteProfile.model_validate(
    {
        "slurm": {
            "time": "01:00:00",
            "resources": {role: {"cpus": 1, "mem_gb": 0.5} for role in ROLES},
        },
        "hardware": {
            "H800": {"partition": "h800", "gpu_type": "h800"},
            "H20": {"partition": "h20", "gpu_type": "h20"},
            "cpu": {"partition": "cpu"},
        },
    }
)
UNLIMITED = Limits(nofile_soft=None, nofile_hard=None, memlock_kb=None)
NFS = Mount(point=PurePosixPath("/"), file_system="nfs4", source="server:/")
SEEN = NodeReport(
    node="h800-1",
    limits=UNLIMITED,
    free_mb=4096,
    reads_token=True,
    writes=True,
    has_directory=True,
    model_bytes=None,
    version=own_version(),
    python_error=None,
    interfaces=("lo", "eth0"),
)


def recorded_facts() -> ClusterFacts:
    return ClusterFacts(
        settings=parse_settings((RECORDED / "config.txt").read_text()),
        partitions=parse_partitions((RECORDED / "partitions.txt").read_text().replace("=a,b ", "=ALL ")),
        nodes=parse_nodes((RECORDED / "nodes.txt").read_text()),
        reservations=parse_reservations((RECORDED / "reservations.txt").read_text()),
        user=User(name="me", groups=frozenset({"users"}), is_root=False),
        hostlists={"h800-[1-2]": ("h800-1", "h800-2"), "h800-9": ("h800-9",), "cpu-1": ("cpu-1",), "cpu-2": ("cpu-2",)},
    )


def make_case(facts: ClusterFacts | None = None, slurm: dict[str, Any] | None = None, **pools: dict[str, Any]) -> Case:
    """A run on the recorded cluster; options of the pools cpu, h800 and h20, and of the job."""
    workers = {
        "cpu": {"hardware": "cpu", "environment": 1, "reward": 1},
        "h800": {"hardware": "H800", "actor_train": 1, "actor_gen": 7},
        "h20": {"hardware": "H20", "actor_gen": 1},
    }
    config = parse_config(
        {
            "run": {"name": "test", "steps": 10, "directory": "/shared/runs/test", "stop_timeout_s": 5.0},
            "model": {"path": "/shared/model"},
            "rollout": {"groups_per_step": 2},
            "slurm": slurm or {},
            "pools": {name: {**pool, "slurm": pools.get(name, {})} for name, pool in workers.items()},
            "tasks": {"a": {"environment": "m:E", "reward": "m:r", "group_size": 2}},
        }
    )
    config = apply_site(config, SITE)
    return Case(
        config=config,
        components=tuple(components(config)),
        facts=facts or recorded_facts(),
        machine=MachineFacts(limits=UNLIMITED, mounts=(NFS,)),
        python=Path("/shared/venv/bin/python"),
        directory=Path("/shared/work"),
    )


def with_partition(facts: ClusterFacts, name: str, **changes: Any) -> ClusterFacts:
    return replace(facts, partitions={**facts.partitions, name: replace(facts.partitions[name], **changes)})


def with_settings(facts: ClusterFacts, **changes: Any) -> ClusterFacts:
    return replace(facts, settings=replace(facts.settings, **changes))


def with_node(facts: ClusterFacts, name: str, **changes: Any) -> ClusterFacts:
    return replace(facts, nodes={**facts.nodes, name: replace(facts.nodes[name], **changes)})


def only(findings: list[Finding], check: str, component: str | None = None) -> Finding:
    found = [finding for finding in findings if (finding.check, finding.component) == (check, component)]
    assert len(found) == 1, findings
    return found[0]


def assert_fault(case: Case, check: str, component: str | None, *texts: str) -> None:
    """There is exactly one error, and it says all of ``texts``."""
    errors = errors_of(diagnose(case))
    assert [(finding.check, finding.component) for finding in errors] == [(check, component)]
    assert [text for text in texts if text not in str(errors[0])] == [], str(errors[0])


def test_a_run_that_fits_has_no_error_and_no_warning():
    findings = diagnose(make_case())
    assert {finding.severity for finding in findings} == {Severity.NOTE}, findings
    raise_errors(findings)


def test_all_errors_are_raised_at_once_one_a_line():
    case = make_case(cpu={"partition": "cpus"}, h800={"gpu_type": "h900"}, h20={"constraint": "ib"})
    with pytest.raises(PreflightError) as caught:
        raise_errors(diagnose(case))
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["cpu", "h800", "h20"]
    assert caught.value.exit_code == 3


def test_findings_come_by_component_and_the_worst_first():
    facts = with_partition(recorded_facts(), "h20", state="DOWN")
    findings = diagnose(make_case(facts, cpu={"partition": "cpus"}, h20={"constraint": "ib"}))
    assert [finding.component for finding in findings if finding.component] == ["cpu", "h20", "h20"]
    in_h20 = [finding.severity for finding in findings if finding.component == "h20"]
    assert in_h20 == [Severity.ERROR, Severity.WARNING]
    assert findings[-1].component is None


# Partition, account, QOS, reservation


def test_an_unknown_partition_is_named_with_its_neighbour_and_all_others():
    assert_fault(make_case(h800={"partition": "H800x"}), "partition", "h800", "'H800x'", "mean 'h800'", "cpu-urgent")


def test_without_a_partition_the_default_is_taken():
    case = make_case()
    free = replace(case.components[0], options=case.components[0].options.model_copy(update={"partition": None}))
    case = replace(case, components=(free, *case.components[1:]))
    assert errors_of(diagnose(case)) == []
    none = with_partition(recorded_facts(), "cpu", default=False)
    assert_fault(replace(case, facts=none), "partition", "cpu", "no default", "pools.cpu.slurm.partition")


def test_of_several_partitions_one_that_can_is_enough():
    drained = with_node(recorded_facts(), "h800-1", states=frozenset({"IDLE", "DRAIN"}))
    late = with_partition(drained, "h800", state="DOWN")
    assert errors_of(diagnose(make_case(late, h800={"partition": "cpu,h800"}))) == []
    assert_fault(make_case(h800={"partition": "cpu,h20"}), "gpus", "h800", "h800")


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"state": "INACTIVE"}, ("INACTIVE", "takes no jobs")),
        ({"root_only": True}, ("root only",)),
        ({"needs_reservation": True}, ("reservation",)),
        ({"allow_groups": ("phys",)}, ("phys", "users")),
    ],
    ids=str,
)
def test_a_partition_that_does_not_take_the_user_is_an_error(changes: dict[str, Any], texts: tuple[str, ...]):
    assert_fault(make_case(with_partition(recorded_facts(), "h20", **changes)), "partition", "h20", *texts)


def test_a_partition_that_is_down_is_a_warning_and_root_passes_groups():
    facts = with_partition(recorded_facts(), "h20", state="DOWN", allow_groups=("phys",))
    facts = replace(facts, user=replace(facts.user, is_root=True))
    assert only(diagnose(make_case(facts)), "partition", "h20").severity is Severity.WARNING


@pytest.mark.parametrize(
    ("account", "changes", "text"),
    [
        (None, {"allow_accounts": ("lab",)}, "no account is given"),
        ("lap", {"allow_accounts": ("lab", "big")}, "mean 'lab'"),
        ("lab", {"deny_accounts": ("lab",)}, "refuses"),
    ],
    ids=str,
)
def test_the_account_must_be_the_partitions(account: str | None, changes: dict[str, Any], text: str):
    options = {} if account is None else {"account": account}
    case = make_case(with_partition(recorded_facts(), "cpu", **changes), cpu=options)
    assert_fault(case, "account", "cpu", text)


def test_the_users_default_account_counts_where_none_is_given():
    facts = with_partition(recorded_facts(), "cpu", allow_accounts=("lab",))
    facts = replace(facts, user=replace(facts.user, default_account="lab"))
    assert errors_of(diagnose(make_case(facts))) == []


def test_an_account_without_association_is_an_error_only_where_that_is_enforced():
    facts = recorded_facts()
    facts = replace(facts, user=replace(facts.user, accounts=frozenset({"lab"}), default_account="lab"))
    assert errors_of(diagnose(make_case(facts, cpu={"account": "la"}))) == []
    facts = with_settings(facts, enforced=frozenset({"associations"}))
    assert_fault(make_case(facts, cpu={"account": "la"}), "account", "cpu", "me may not use account 'la'", "lab")


def test_the_qos_must_exist_and_be_the_users_and_the_partitions():
    qos = {"high": Qos(name="high", grace_s=0, preempt_mode="OFF", max_wall_s=1800)}
    facts = replace(recorded_facts(), qos=qos)
    assert_fault(make_case(facts, cpu={"qos": "hihg"}), "qos", "cpu", "mean 'high'")
    assert_fault(make_case(facts, cpu={"qos": "high"}), "time", "cpu", "MaxWall 00:30:00")
    mine = replace(facts.user, qos=frozenset({"normal"}))
    strict = with_settings(replace(facts, user=mine), enforced=frozenset({"qos"}))
    short = {"qos": "high", "time": "00:20:00"}
    assert_fault(make_case(strict, cpu=short), "qos", "cpu", "me may not use QOS")
    assert_fault(make_case(with_partition(facts, "cpu", allow_qos=("low",)), cpu=short), "qos", "cpu", "does not take")
    assert errors_of(diagnose(make_case(facts, cpu=short))) == []


def test_a_reservation_must_exist_and_let_the_user_in():
    assert_fault(make_case(cpu={"reservation": "main"}), "reservation", "cpu", "mean 'maint'")
    assert_fault(make_case(cpu={"reservation": "maint"}), "reservation", "cpu", "for users root")
    facts = recorded_facts()
    facts = replace(facts, user=replace(facts.user, name="root"))
    assert errors_of(diagnose(make_case(facts, cpu={"reservation": "maint"}))) == []


def test_a_component_must_fit_into_its_reservations_nodes():
    facts = recorded_facts()
    facts = with_node(replace(facts, user=replace(facts.user, name="root")), "cpu-2", cpus=2)
    case = make_case(facts, cpu={"reservation": "maint"})
    assert_fault(case, "nodes", "cpu", "0 of 2 nodes of partition cpu have 4 CPUs", "reservation maint")


# Time


def test_a_time_above_the_partitions_is_an_error():
    facts = with_partition(recorded_facts(), "h20", max_time_s=1800)
    assert_fault(make_case(facts), "time", "h20", "01:00:00 is above MaxTime 00:30:00")
    assert_fault(make_case(facts, slurm={"time": "UNLIMITED"}), "time", "h20", "UNLIMITED is above MaxTime")
    assert errors_of(diagnose(make_case(facts, slurm={"time": "00:30:00"}))) == []


def test_a_time_within_the_notice_is_an_error():
    assert_fault(make_case(h20={"time": "00:02:00"}), "time", "h20", "slurm.notice_s = 120 s")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "DefaultTime of partition cpu applies, 01:00:00"),
        ({"default_time_s": None, "max_time_s": 86400}, "MaxTime of partition cpu applies, 1-00:00:00"),
        ({"default_time_s": None}, "MaxTime of partition cpu applies, UNLIMITED"),
    ],
    ids=str,
)
def test_without_a_time_it_says_what_applies(changes: dict[str, Any], text: str):
    case = make_case(with_partition(recorded_facts(), "cpu", **changes))
    free = replace(case.components[0], options=case.components[0].options.model_copy(update={"time": None}))
    finding = only(diagnose(replace(case, components=(free,))), "time", "cpu")
    assert (finding.severity, text in finding.found) == (Severity.NOTE, True), finding


def test_different_times_are_a_warning():
    finding = only(diagnose(make_case(h20={"time": "02:00:00"})), "time")
    assert "cpu 01:00:00, h800 01:00:00, h20 02:00:00" in finding.found


# Nodes


def test_more_nodes_than_the_partition_gives_are_an_error():
    assert_fault(make_case(h800={"nodes": 3}), "nodes", "h800", "asks for 3 nodes", "at most 2")
    small = with_partition(recorded_facts(), "h800", max_nodes=1)
    assert_fault(make_case(small, h800={"nodes": 2}), "nodes", "h800", "at most 1")
    large = with_partition(recorded_facts(), "h800", min_nodes=2)
    assert_fault(make_case(large), "nodes", "h800", "demands 2")


def test_more_cpus_memory_or_gpus_than_a_node_has_are_errors():
    assert_fault(make_case(h800={"cpus_per_node": 65}), "cpus", "h800", "65 CPUs", "have 64", "cpus_per_node")
    assert_fault(make_case(h800={"mem_gb": 9.0}), "memory", "h800", "9 GB", "gives 8")
    big = {"resources": {"actor_gen": {"gpus": 2}}}
    assert_fault(make_case(h800=big), "gpus", "h800", "15 GPUs per node", "8 x h800")


def test_the_partitions_and_the_clusters_limits_per_node_count():
    facts = with_partition(recorded_facts(), "h800", max_cpus_per_node=4)
    assert_fault(make_case(facts), "cpus", "h800", "have 4")
    assert_fault(make_case(with_settings(recorded_facts(), max_mem_per_node_mb=3072)), "memory", "h800", "gives 3")


def test_what_the_site_refuses_to_be_asked_is_not_checked():
    skipping = {"skip": ["--mem", "cpus-per-task"], "mem_gb": 900.0, "cpus_per_node": 900}
    assert errors_of(diagnose(make_case(h800=skipping))) == []


def test_an_unknown_gpu_type_lists_what_the_nodes_have():
    assert_fault(make_case(h20={"gpu_type": "H20"}), "gpus", "h20", "'H20'", "8 x h20", "mean 'h20'")
    assert_fault(make_case(h20={"partition": "cpu"}), "gpus", "h20", "no GPUs")
    assert errors_of(diagnose(make_case(h20={"gpu_type": "H20", "gpu_form": "none"}))) == []


def test_an_unknown_feature_is_an_error_and_known_ones_choose_nodes():
    facts = with_node(recorded_facts(), "h800-1", features=frozenset({"ib", "nvme"}))
    assert_fault(make_case(facts, h800={"constraint": "ib&nvmee"}), "constraint", "h800", "'nvmee'", "mean 'nvme'")
    assert errors_of(diagnose(make_case(facts, h800={"constraint": "ib&nvme"}))) == []
    assert_fault(
        make_case(facts, h800={"constraint": "ib", "nodes": 2}), "nodes", "h800", "1 of 2 nodes", "features ib"
    )
    assert errors_of(diagnose(make_case(facts, h800={"constraint": "[ib*2&nvme*1]", "nodes": 2}))) == []


def test_nodes_that_satisfy_each_demand_alone_but_none_all_are_an_error():
    facts = with_node(recorded_facts(), "h800-1", gpus={"h800": 4})
    facts = with_node(facts, "h800-2", cpus=4)
    assert_fault(make_case(facts), "nodes", "h800", "0 of 2 nodes", "8 CPUs, 4 GB, 8 GPUs", "needs 1")


def test_listed_nodes_must_be_the_partitions():
    assert_fault(make_case(h800={"nodelist": "h800-9"}), "nodes", "h800", "'h800-9' does not exist", "h800-1, h800-2")
    assert_fault(make_case(h800={"nodelist": "cpu-1"}), "nodes", "h800", "not in partition h800")
    assert_fault(
        make_case(cpu={"exclude": "cpu-2", "nodes": 1}, h800={"exclude": "h800-[1-2]"}), "nodes", "h800", "0 of"
    )


def test_nodes_out_of_service_are_counted_out():
    drained = {"states": frozenset({"IDLE", "DRAIN"}), "reason": "bad fan"}
    facts = with_node(recorded_facts(), "h800-1", **drained)
    one_left = only(diagnose(make_case(facts)), "nodes", "h800")
    assert (one_left.severity, "h800-1 (bad fan)" in one_left.found) == (Severity.NOTE, True)
    none_left = only(diagnose(make_case(facts, h800={"nodes": 2})), "nodes", "h800")
    assert (none_left.severity, "1 of 2 nodes are up" in none_left.found) == (Severity.WARNING, True)


def test_a_site_that_hides_its_nodes_is_told_so():
    findings = diagnose(make_case(replace(recorded_facts(), nodes={})))
    assert errors_of(findings) == []
    assert "hides" in only(findings, "nodes", "h800").found


# The job as a whole


def test_components_of_one_partition_need_nodes_of_their_own():
    shared = {"partition": "h20", "gpu_type": "h20", "mem_gb": 4.0}
    everywhere = {"cpu": {"partition": "h20"}, "h800": shared, "h20": shared}
    assert_fault(make_case(**everywhere), "nodes", None, "cpu, h800, h20 ask for 3 nodes together and share 2", "own")
    two = {"h800": shared, "h20": shared}
    assert errors_of(diagnose(make_case(**two))) == []
    assert_fault(make_case(h800={**shared, "nodes": 2}, h20=shared), "nodes", None, "h800, h20 ask for 3 nodes")
    urgent = {**shared, "partition": "h20-urgent", "nodes": 2}
    assert_fault(make_case(h800=urgent, h20=shared), "nodes", None, "h800, h20 ask for 3 nodes together and share 2")


def test_components_may_share_a_partition_when_other_nodes_are_left_for_one():
    shared = {"partition": "h20", "gpu_type": "h20"}
    both = {"cpu": {"partition": "h20,cpu"}, "h800": shared, "h20": shared}
    assert errors_of(diagnose(make_case(**both))) == []
    # The order of the pools does not matter: who came first makes room.
    assert errors_of(diagnose(make_case(cpu={"partition": "cpu,h20", "exclude": "cpu-1"}, h800=shared))) == []


def test_node_lists_and_lacking_sizes_narrow_what_components_share():
    facts = recorded_facts()
    one = {"partition": "cpu", "nodelist": "cpu-1"}
    facts = with_node(facts, "h20-1", partitions=frozenset({"cpu"}))
    assert errors_of(diagnose(make_case(facts, cpu=one))) == []
    case = make_case(facts, cpu=one, h20={**one, "gpu_form": "none", "resources": {"actor_gen": {"gpus": 0}}})
    assert_fault(case, "nodes", None, "cpu, h20 ask for 2 nodes together and share 1")


def test_components_that_share_nodes_wait_for_those_out_of_service():
    shared = {"partition": "h20", "gpu_type": "h20"}
    facts = with_node(recorded_facts(), "h20-1", states=frozenset({"DOWN"}))
    facts = with_node(facts, "h20-2", states=frozenset({"IDLE"}))
    findings = diagnose(make_case(facts, h800=shared, h20=shared))
    assert errors_of(findings) == []
    finding = only(findings, "nodes")
    assert (finding.severity, "h800, h20 ask for 2" in finding.found, "1 are up" in finding.found) == (
        Severity.WARNING,
        True,
        True,
    )


def test_components_that_share_a_partition_are_counted_where_nodes_are_hidden():
    facts = replace(recorded_facts(), nodes={})
    shared = {"partition": "h20", "nodes": 1}
    assert errors_of(diagnose(make_case(facts, h800=shared, h20=shared))) == []
    case = make_case(facts, cpu=shared, h800=shared, h20=shared)
    assert_fault(case, "nodes", None, "cpu, h800, h20 ask for 3 nodes together and share 2")


def test_several_components_need_the_backfill_scheduler():
    facts = with_settings(recorded_facts(), scheduler="builtin")
    case = make_case(facts)
    assert_fault(case, "scheduler", None, "sched/builtin", "backfill")
    assert errors_of(diagnose(replace(case, components=case.components[:1]))) == []


def test_the_weight_store_must_fit_into_the_leaders_memory():
    case = make_case()
    assert errors_of(diagnose(replace(case, store_mb=512))) == []
    assert_fault(replace(case, store_mb=513), "memory", "cpu", "513 MB", "has 512 MB", "resources.leader.mem_gb")


@pytest.mark.parametrize(
    ("grace_s", "user_signal", "seconds", "texts"),
    [
        (30, True, 30, ("USR2 at once", "TERM after 30 s")),
        (30, False, 30, ("TERM to the workers at once", "never USR2")),
        (0, True, 5, ("TERM at once", "KILL 5 s later")),
    ],
)
def test_the_notice_of_a_preemption(grace_s: int, user_signal: bool, seconds: int, texts: tuple[str, ...]):
    notice = preemption_notice(with_settings(recorded_facts(), user_signal=user_signal).settings, grace_s)
    assert notice.seconds == seconds
    assert all(text in notice.course for text in texts), notice


def preemption(facts: ClusterFacts, **pools: dict[str, Any]) -> list[Finding]:
    return [finding for finding in diagnose(make_case(facts, **pools)) if finding.check == "preemption"]


def test_who_may_preempt_is_named_with_the_notice():
    [finding] = preemption(recorded_facts())
    assert finding.severity is Severity.NOTE
    assert "cpu by cpu-urgent, h800 by h800-urgent, h20 by h20-urgent): your notice is 10 s" in finding.found


def test_one_component_that_is_not_preempted_protects_all():
    [finding] = preemption(recorded_facts(), cpu={"partition": "cpu-urgent"})
    assert "OFF for cpu in cpu-urgent" in finding.found


def test_a_component_of_a_higher_tier_protects_from_lower_ones():
    facts = with_partition(recorded_facts(), "cpu", priority_tier=10)
    assert preemption(facts) == []


def test_a_notice_shorter_than_the_stop_is_a_warning():
    facts = recorded_facts()
    for name in ("cpu", "h800", "h20"):
        facts = with_partition(facts, name, grace_s=4)
    severities = [finding.severity for finding in preemption(facts)]
    assert severities == [Severity.WARNING, Severity.NOTE]


def test_the_notice_is_compared_with_what_the_last_stop_took():
    case = replace(make_case(recorded_facts()), last_stop_s=9.0)
    [told] = [finding for finding in diagnose(case) if finding.check == "preemption"]
    assert "your notice is 10 s; your last stop took 9 s" in told.found
    warned = [finding for finding in diagnose(replace(case, last_stop_s=11.0)) if finding.check == "preemption"]
    assert "10 s, is shorter than what your last stop took, 11 s" in warned[0].found


def test_to_be_suspended_is_a_warning():
    findings = preemption(with_partition(recorded_facts(), "h20", preempt_mode="GANG,SUSPEND"))
    texts = [finding.found for finding in findings if finding.severity is Severity.WARNING]
    assert ["may be suspended (h20 by h20-urgent)" in text for text in texts] == [True]


@pytest.mark.parametrize(
    ("requeue", "severity", "change"),
    [
        ("auto", Severity.NOTE, "another job"),
        ("chain", Severity.NOTE, "another job"),
        ("requeue", Severity.WARNING, "set it to 'auto'"),
        ("none", Severity.WARNING, "set it to 'auto'"),
    ],
)
def test_where_preempted_jobs_are_cancelled_the_chain_serves_if_it_may(requeue: str, severity: Severity, change: str):
    case = make_case(with_partition(recorded_facts(), "h20", preempt_mode="CANCEL"))
    slurm = case.config.slurm.model_copy(update={"requeue": requeue})
    case = replace(case, config=case.config.model_copy(update={"slurm": slurm}))
    [found] = [finding for finding in diagnose(case) if "does not requeue" in finding.found]
    assert (found.severity, change in found.change) == (severity, True)


def test_requeueing_off_matters_only_where_the_option_is_skipped():
    facts = with_settings(recorded_facts(), requeue_by_default=False)
    assert len(preemption(facts)) == 1
    told = preemption(facts, cpu={"skip": ["requeue"]})
    assert ["JobRequeue=0" in finding.found for finding in told] == [False, True]


def test_preemption_by_qos_uses_the_qos_of_the_component():
    qos = {
        "low": Qos(name="low", grace_s=60, preempt_mode="CANCEL", max_wall_s=None),
        "normal": Qos(name="normal", grace_s=60, preempt_mode="CLUSTER", max_wall_s=None),
    }
    facts = with_settings(replace(recorded_facts(), qos=qos), preempt_type="qos", preempt_mode="CANCEL")
    findings = preemption(facts, cpu={"qos": "low"}, h800={"qos": "normal"})
    [unknown] = [finding for finding in findings if finding.component == "h20"]
    assert "this component's is not known" in unknown.found
    [threat] = [finding for finding in findings if "may be preempted" in finding.found]
    assert "cpu by jobs that may preempt QOS low, h800 by jobs that may preempt QOS normal" in threat.found
    assert "your notice is 60 s" in threat.found


def test_a_cluster_that_does_not_preempt_says_so():
    [finding] = preemption(with_settings(recorded_facts(), preempt_type="none"))
    assert "preempts no jobs" in finding.found


# Limits and files


def limits(soft: int | None, hard: int | None, memlock_kb: int | None = None) -> Limits:
    return Limits(nofile_soft=soft, nofile_hard=hard, memlock_kb=memlock_kb)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (limits(1024, 4096), ("1024 files on this machine", "ask the site")),
        (limits(1024, 524288), ("1024 files", "ulimit -n 65536")),
        (limits(1024, None), ("ulimit -n 65536",)),
        (limits(8191, 8192), ("ulimit -n 8192",)),
        (limits(8192, 8192, 64), ("limited to 64 KB", "RDMA")),
    ],
    ids=str,
)
def test_low_limits_are_warnings(given: Limits, texts: tuple[str, ...]):
    case = make_case()
    finding = only(diagnose(replace(case, machine=replace(case.machine, limits=given))), "limits")
    assert finding.severity is Severity.WARNING
    assert all(text in str(finding) for text in texts), finding


def test_limits_of_the_nodes_count_more_than_this_machines():
    case = make_case()
    low = replace(case, machine=replace(case.machine, limits=limits(1024, 1024)), probes={"h800": SEEN})
    assert [finding for finding in diagnose(low) if finding.check == "limits"] == []
    on_node = replace(case, probes={"h800": replace(SEEN, limits=limits(1024, 1024)), "h20": SEEN})
    assert "on h800-1 (h800);" in str(only(diagnose(on_node), "limits"))


def test_a_local_file_system_is_doubted_until_every_component_saw_it():
    case = make_case()
    local = Mount(point=PurePosixPath("/shared"), file_system="ext4", source="/dev/sda")
    case = replace(case, machine=replace(case.machine, mounts=(NFS, local)))
    finding = only(diagnose(case), "files")
    assert finding.severity is Severity.WARNING
    assert "ext4 at /shared" in finding.found
    assert "model.path (/shared/model)" in finding.found
    two = replace(case, probes={"h800": SEEN, "cpu": SEEN})
    assert only(diagnose(two), "files").severity is Severity.WARNING
    assert [
        finding for finding in diagnose(replace(two, probes={**two.probes, "h20": SEEN})) if finding.check == "files"
    ] == []


@pytest.mark.parametrize(
    ("changes", "check", "text"),
    [
        ({"reads_token": False}, "files", "does not see"),
        ({"writes": False}, "files", "cannot write"),
        ({"has_directory": False}, "files", "no directory /shared/work"),
        ({"version": None, "python_error": "No such file"}, "interpreter", "No such file"),
        ({"version": "0.0.1"}, "interpreter", "0.0.1"),
    ],
    ids=str,
)
def test_what_a_node_does_not_see_is_an_error(changes: dict[str, Any], check: str, text: str):
    assert_fault(replace(make_case(), probes={"h20": replace(SEEN, **changes)}), check, "h20", text)


def test_the_model_must_be_seen_by_the_nodes_as_it_is_here(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    case = make_case()
    config = case.config.model_copy(update={"model": case.config.model.model_copy(update={"path": tmp_path})})
    case = replace(case, config=config)
    assert_fault(replace(case, probes={"h20": SEEN}), "files", "h20", f"does not see the model in {tmp_path}")
    assert errors_of(diagnose(replace(case, probes={"h20": replace(SEEN, model_bytes=2)}))) == []


def test_a_container_hides_the_interpreter_but_not_the_leaders():
    container = {"container": {"runtime": "pyxis", "image": "img"}}
    case = make_case(cpu=container, h20=container)
    broken = replace(SEEN, version=None, python_error="gone")
    findings = diagnose(replace(case, probes={"cpu": broken, "h20": broken}))
    assert [finding.component for finding in errors_of(findings)] == ["cpu"]
    assert "container" in only(findings, "probe", "h20").found


@pytest.mark.parametrize(("busy", "severity"), [(True, Severity.NOTE), (False, Severity.WARNING)])
def test_a_node_that_was_not_tried_is_no_error(busy: bool, severity: Severity):
    findings = diagnose(replace(make_case(), probes={"h20": NotProbed(reason="why", busy=busy)}))
    assert only(findings, "probe", "h20").severity is severity
    assert errors_of(findings) == []


def test_setup_lines_that_end_the_leaders_shell_are_an_error():
    early = EndedEarly(node="cpu-1", exit_code=5, line="exit 5", words="no licence")
    case = replace(make_case(), probes={"cpu": early})
    assert_fault(case, "setup", "cpu", "slurm.setup: 'exit 5' ended the shell on cpu-1 with exit code 5: no licence")
    nowhere = replace(early, line=None, words="")
    assert_fault(replace(case, probes={"cpu": nowhere}), "setup", "cpu", "the shell ended on cpu-1 with exit code 5;")


def test_setup_lines_that_pass_on_the_leaders_node_are_doubted_elsewhere():
    early = EndedEarly(node="h20-1", exit_code=1, line="exit 1", words="")
    case = replace(make_case(), probes={"cpu": SEEN, "h20": early})
    findings = diagnose(case)
    assert errors_of(findings) == []
    assert only(findings, "setup", "h20").severity is Severity.WARNING
    busy = replace(case, probes={"cpu": NotProbed(reason="why", busy=True), "h20": early})
    assert_fault(busy, "setup", "h20", "'exit 1' ended the shell on h20-1")


def test_the_interface_must_be_there_on_the_leaders_node():
    case = make_case(slurm={"interface": "eht0"})
    probes = {"cpu": SEEN, "h20": replace(SEEN, interfaces=("lo",))}
    assert_fault(
        replace(case, probes=probes), "interface", "cpu", "'eht0'", "h800-1", "mean 'eth0'", "it has: eth0, lo"
    )
    unknown = replace(SEEN, interfaces=None)
    assert errors_of(diagnose(replace(case, probes={"cpu": unknown}))) == []
    there = make_case(slurm={"interface": "eth0"})
    assert errors_of(diagnose(replace(there, probes={"cpu": SEEN}))) == []


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:50 / /shared rw - nfs4 server:/export rw
41 40 0:51 / /shared/my\\040scratch rw,noatime shared:7 master:1 - fuse.juicefs JuiceFS:x rw
42 27 0:52 / /tmp rw - tmpfs tmpfs rw
43 27 0:53 / /tmp rw - ext4 /dev/vdb rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "file_system", "shared"),
    [
        ("/home/me", "ext4", False),
        ("/shared", "nfs4", True),
        ("/shared2/x", "ext4", False),
        ("/shared/my scratch/run", "fuse.juicefs", True),
        ("/tmp/x", "ext4", False),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_deepest_mount(path: str, file_system: str, shared: bool):
    machine = MachineFacts(limits=UNLIMITED, mounts=tuple(parse_mounts(MOUNTS)))
    mount = machine.mount_of(Path(path))
    assert mount is not None
    assert (mount.file_system, mount.shared) == (file_system, shared)


def report(**changes: str) -> str:
    values = {
        "node": "n1",
        "token": "abc",
        "writes": "yes",
        "nofile_soft": "1024",
        "memlock": "unlimited",
        "end": "yes",
    }
    return "Welcome to n1=fast\n" + "".join(f"{MARK}{name}={value}\n" for name, value in {**values, **changes}.items())


def test_a_report_is_read_among_other_output():
    found = parse_report(report(free_kb="2097152", model_bytes="12", python_error="a=b"), "abc")
    assert found is not None
    assert (found.node, found.reads_token, found.writes, found.has_directory) == ("n1", True, True, False)
    assert found.limits == limits(1024, None)
    assert (found.free_mb, found.model_bytes, found.version, found.python_error) == (2048, 12, None, "a=b")


@pytest.mark.parametrize(
    ("output", "complete"),
    [("", False), (report().replace(f"{MARK}end=yes\n", ""), False), (report(), True)],
)
def test_a_report_that_broke_off_is_none(output: str, complete: bool):
    assert (parse_report(output, "abc") is not None) is complete


def test_another_token_is_not_ours():
    found = parse_report(report(token="old"), "abc")
    assert found is not None
    assert not found.reads_token


def test_a_report_names_the_interfaces_only_where_the_interpreter_ran():
    found = [parse_report(report(**changes), "abc") for changes in ({"interfaces": "lo ib0"}, {})]
    assert [one and one.interfaces for one in found] == [("lo", "ib0"), None]


BEGUN = f"{MARK}node=n1\n{MARK}setup_line=0\n{MARK}setup_line=2\n"


@pytest.mark.parametrize(
    ("output", "words", "line"),
    [
        (BEGUN, "srun: error: n1: task 0: Exited with exit code 5\nbash: no\n  licence\n", "exit 5"),
        (BEGUN + f"{MARK}setup_line=done\n", "bash: no licence", None),
        (BEGUN + f"{MARK}setup_line=9\n", "bash: no licence", None),
    ],
    ids=["in the setup", "after it", "beyond it"],
)
def test_a_report_that_broke_off_tells_the_setup_line(output: str, words: str, line: str | None):
    found = parse_early_end(output, words, 5, ("module load x", "exit 5"))
    assert found == EndedEarly(node="n1", exit_code=5, line=line, words=found.words if found else "")
    assert found.words.removeprefix("bash: ") == "no licence"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "srun: error: Unable to allocate resources: Requested nodes are busy"),
        (BEGUN, "slurmstepd: error: *** STEP 3.0 ON n1 CANCELLED AT 2027-01-01T00:00:00 DUE TO PREEMPTION ***"),
        (BEGUN, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=3.0"),
        (BEGUN, "srun: error: Node failure on n1"),
    ],
    ids=["no node", "cancelled", "memory", "node"],
)
def test_a_try_that_slurm_ended_is_not_the_setups_fault(output: str, words: str):
    assert parse_early_end(output, words, 1, ("exit 5",)) is None


def test_large_memory_is_written_without_an_exponent():
    assert_fault(make_case(h800={"mem_gb": 1e5}), "memory", "h800", "asks for 100000 GB of memory per node")
