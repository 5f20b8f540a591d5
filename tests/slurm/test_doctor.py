import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import apply_site, load_site
from rollart_hpc.errors import ConfigError, SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.doctor.checks.finding import Severity, errors_of
from rollart_hpc.slurm.doctor.cluster_query import read_facts
from rollart_hpc.slurm.doctor.examination import examine
from rollart_hpc.slurm.doctor.node_probe import ProbePlan, probe_components
from rollart_hpc.slurm.doctor.node_report import EndedEarly, NodeReport, NotProbed, own_version
from rollart_hpc.slurm.script.allocation import components
from rollart_hpc.slurm.script.submission_trial import try_submission
from rollart_hpc.slurm.single_machine import Cluster
from tests.slurm.waiting import wait_until

POOLS = {
    "cpu": {"hardware": "cpu", "environment": 1, "reward": 1},
    "h800": {"hardware": "H800", "actor_train": 1, "actor_gen": 1},
    "h20": {"hardware": "H20", "actor_gen": 1},
}


def data(directory: Path, **pools: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": {"name": "test", "steps": 1, "directory": str(directory / "runs" / "test")},
        "model": {"path": str(directory / "model")},
        "rollout": {"groups_per_step": 1},
        "pools": {name: {**pool, "slurm": pools.get(name, {})} for name, pool in POOLS.items()},
        "tasks": {"a": {"environment": "m:E", "reward": "m:r", "group_size": 2}},
    }


def config_on(cluster: Cluster, directory: Path, **pools: dict[str, Any]) -> RunConfig:
    return apply_site(parse_config(data(directory, **pools)), load_site(cluster.site_profile))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    yield tmp_path
    assert list(tmp_path.glob(".rollart-doctor-*")) == []


def queue() -> str:
    return run_slurm("squeue", "--noheader", "--states=all", "--format=%j %T")


def left_in_queue() -> list[str]:
    over = ("COMPLETED", "COMPLETING", "CANCELLED", "FAILED")
    return [line for line in queue().splitlines() if "rollart-doctor" in line and not line.endswith(over)]


def plan_for(config: RunConfig, directory: Path, **changes: Any) -> ProbePlan:
    plan = ProbePlan(
        python=Path(sys.executable),
        directory=directory,
        run_directory=config.run.path(),
        model=config.model.path,
        leader="cpu",
    )
    return replace(plan, **changes)


def test_a_node_of_every_component_sees_files_and_runs_the_interpreter(cluster: Cluster, model: Path):
    case, findings = examine(config_on(cluster, model), directory=model)
    assert errors_of(findings) == []
    for name, probe in case.probes.items():
        assert isinstance(probe, NodeReport), probe
        assert probe.node.startswith(f"{name}-")
        assert (probe.reads_token, probe.writes, probe.has_directory, probe.model_bytes) == (True, True, True, 2)
        assert (probe.version, probe.python_error) == (own_version(), None)
    assert list(case.probes) == ["cpu", "h800", "h20"]
    assert case.facts.qos is not None
    assert "files" not in {finding.check for finding in findings}
    assert left_in_queue() == []


def test_what_slurm_would_refuse_is_found_and_not_tried(cluster: Cluster, model: Path):
    config = config_on(cluster, model, h800={"gpu_type": "H800"}, h20={"partition": "h200"})
    case, findings = examine(config, directory=model)
    assert [(finding.component, finding.check) for finding in errors_of(findings)] == [
        ("h800", "gpus"),
        ("h20", "partition"),
    ]
    assert list(case.probes) == ["cpu"]


def test_a_drained_node_is_counted_out(cluster: Cluster, model: Path):
    config = config_on(cluster, model, h20={"exclude": "h20-1"})
    run_slurm("scontrol", "update", "nodename=h20-2", "state=drain", "reason=bad fan = 3")
    try:
        _, findings = examine(config, directory=model, probe=False)
    finally:
        run_slurm("scontrol", "update", "nodename=h20-2", "state=resume")
    [finding] = [finding for finding in findings if finding.check == "nodes"]
    assert finding.severity is Severity.WARNING
    assert "0 of 1 nodes are up; out of service: h20-2 (bad fan = 3 [" in finding.found


def test_a_broken_interpreter_is_told_with_its_own_words(cluster: Cluster, model: Path):
    config = config_on(cluster, model)
    python = model / "python"
    python.write_text("#!/bin/sh\necho 'library not found' >&2; exit 127\n")
    python.chmod(0o755)
    config = config.model_copy(update={"slurm": config.slurm.model_copy(update={"python": str(python)})})
    _, findings = examine(config, directory=model)
    errors = errors_of(findings)
    assert {(finding.component, finding.check) for finding in errors} == {
        (name, "interpreter") for name in ("cpu", "h800", "h20")
    }
    assert "library not found" in errors[0].found


def test_the_setup_lines_prepare_the_interpreter_as_in_the_batch_script(cluster: Cluster, model: Path):
    config = config_on(cluster, model)
    python = model / "python"
    python.write_text(f'#!/bin/sh\n[ "$LOADED" = yes ] || exit 1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    parts = components(config)[:1]
    facts = read_facts(part.options for part in parts)
    for setup, works in ((("export LOADED=yes", "ulimit -n 256 # 100%"), True), ((), False)):
        probe = probe_components(parts, facts, plan_for(config, model, python=python, setup=setup))["cpu"]
        assert isinstance(probe, NodeReport)
        assert (probe.python_error is None) is works
        assert (probe.limits.nofile_soft == 256) is works


@pytest.mark.parametrize(
    ("setup", "code", "line", "said"),
    [
        (["export A=1", "exit 5"], 5, "exit 5", ""),
        (["if true", "then", "  exec false", "fi"], 1, "  exec false", ""),
        (["set -e", "x=$(echo 'no licence' >&2; exit 3)"], 3, "x=$(echo 'no licence' >&2; exit 3)", "no licence"),
        (["export A='1"], 2, None, "unexpected EOF"),
        (["exec true"], 0, "exec true", ""),
    ],
    ids=["exit", "exec", "set -e", "syntax", "code 0"],
)
def test_setup_lines_that_end_the_shell_are_an_error_that_names_them(
    cluster: Cluster, model: Path, setup: list[str], code: int, line: str | None, said: str
):
    config = config_on(cluster, model)
    config = config.model_copy(update={"slurm": config.slurm.model_copy(update={"setup": setup})})
    case, findings = examine(config, directory=model)
    for probe in case.probes.values():
        assert isinstance(probe, EndedEarly), probe
        assert (probe.exit_code, probe.line, said in probe.words) == (code, line, True), probe
    assert {(finding.component, finding.check) for finding in errors_of(findings)} == {
        (name, "setup") for name in ("cpu", "h800", "h20")
    }


def test_setup_lines_may_reuse_names_of_the_probe(cluster: Cluster, model: Path):
    config = config_on(cluster, model)
    setup = ["python=/none name=x", "set -- a b", "set -eu", "exec 3>&-", "for i in 1 2; do echo $i; done"]
    config = config.model_copy(update={"slurm": config.slurm.model_copy(update={"setup": setup})})
    _, findings = examine(config, directory=model)
    assert errors_of(findings) == []


def test_an_interface_that_the_leaders_node_lacks_is_an_error_with_those_that_it_has(cluster: Cluster, model: Path):
    config = config_on(cluster, model)
    for interface, works in (("no0", False), ("lo", True)):
        section = config.slurm.model_copy(update={"interface": interface})
        _, findings = examine(config.model_copy(update={"slurm": section}), directory=model)
        errors = errors_of(findings)
        assert [(finding.component, finding.check) for finding in errors] == ([] if works else [("cpu", "interface")])
        assert all("lo" in finding.change.partition("it has: ")[2].split(", ") for finding in errors)


def test_what_cannot_be_written_as_a_script_is_found_without_trying_nodes(cluster: Cluster, model: Path):
    config = config_on(cluster, model, cpu={"extra": ["--time=1:30"]})
    with pytest.raises(ConfigError, match=r"pools\.cpu\.slurm\.time"):
        examine(config, directory=model)


def test_slurm_starts_components_of_one_partition_only_on_nodes_of_their_own(cluster: Cluster, model: Path):
    """On two nodes, a job of two components runs and one of three waits for ever; the doctor says so."""
    for name, count in (("two", 2), ("three", 3)):
        block = "#SBATCH --partition=h20 --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=50M --time=5\n"
        text = "#!/bin/sh\n" + "#SBATCH hetjob\n".join([block] * count) + "sleep 60\n"
        run_slurm("sbatch", f"--job-name={name}", "--output=/dev/null", text=text)
        if name == "two":
            wait_until(lambda: states("two", "%T") == ["RUNNING"] * 2, "two components to run")
            run_slurm("scancel", "--name=two")
            wait_until(lambda: not states("two", "%T"), "them to end")
    wait_until(lambda: states("three", "%T %r") == ["PENDING Resources"] * 3, "three components to be refused nodes")
    shared = {"partition": "h20", "gpu_type": "h20"}
    config = config_on(cluster, model, cpu={"partition": "h20"}, h800=shared, h20=shared)
    _, findings = examine(config, directory=model, probe=False)
    assert ["cpu, h800, h20 ask for 3 nodes together and share 2" in str(one) for one in errors_of(findings)] == [True]


def test_a_directory_that_the_nodes_lack_is_an_error(cluster: Cluster, model: Path):
    gone = model / "gone"
    _, findings = examine(config_on(cluster, model), directory=gone)
    assert {(finding.check, str(gone) in finding.found) for finding in errors_of(findings)} == {("files", True)}


@pytest.mark.parametrize("gpu_form", ["gres", "gpus-per-node"])
def test_a_component_with_gpus_is_tried_with_a_gpu_in_the_sites_form(cluster: Cluster, model: Path, gpu_form: str):
    config = config_on(cluster, model, h20={"gpu_form": gpu_form})
    parts = [part for part in components(config) if part.name == "h20"]
    facts = read_facts(part.options for part in parts)
    setup = ('[ "${CUDA_VISIBLE_DEVICES:-none}" = 0 ] && ulimit -n 321',)
    probe = probe_components(parts, facts, plan_for(config, model, setup=setup))["h20"]
    assert isinstance(probe, NodeReport), probe
    assert probe.limits.nofile_soft == 321


def test_busy_nodes_are_a_note_and_leave_nothing_in_the_queue(cluster: Cluster, model: Path):
    config = config_on(cluster, model)
    run_slurm(
        "sbatch", "--partition=h20", "--nodes=2", "--exclusive", "--output=/dev/null", text="#!/bin/sh\nsleep 60\n"
    )
    parts = [part for part in components(config) if part.name == "h20"]
    facts = read_facts(part.options for part in parts)
    wait_until_running("h20")
    probe = probe_components(parts, facts, plan_for(config, model, immediate_s=1))["h20"]
    assert probe == NotProbed(reason="no node was free at once", busy=True)
    assert left_in_queue() == []


def states(job_name: str, form: str) -> list[str]:
    return run_slurm("squeue", "--noheader", f"--name={job_name}", f"--format={form}").splitlines()


def wait_until_running(partition: str) -> None:
    run_slurm("srun", f"--partition={partition}", "--jobid", job_in(partition), "--overlap", "--nodes=1", "true")


def job_in(partition: str) -> str:
    return run_slurm("squeue", "--noheader", f"--partition={partition}", "--format=%A").split()[0]


def test_a_node_that_hangs_is_given_up_at_the_deadline(cluster: Cluster, model: Path):
    config = config_on(cluster, model)
    parts = components(config)[:1]
    facts = read_facts(part.options for part in parts)
    plan = plan_for(config, model, setup=("exec sleep 100",), immediate_s=1, deadline_s=2.0)
    probe = probe_components(parts, facts, plan)["cpu"]
    assert isinstance(probe, NotProbed)
    assert "no answer within 3 s" in probe.reason
    assert left_in_queue() == []


def test_a_refusal_by_srun_is_told_in_its_words(cluster: Cluster, model: Path):
    config = config_on(cluster, model, cpu={"extra": ["--no-such-option=1"]})
    parts = components(config)[:1]
    probe = probe_components(parts, read_facts([]), plan_for(config, model))["cpu"]
    assert isinstance(probe, NotProbed)
    assert not probe.busy
    assert "no-such-option" in probe.reason


def write_config(directory: Path, **pools: dict[str, Any]) -> Path:
    pool_lines = [
        line
        for name, pool in POOLS.items()
        for line in (
            f"[pools.{name}]",
            *(f"{key} = {json.dumps(value)}" for key, value in pool.items()),
            f"[pools.{name}.slurm]",
            *(f"{key} = {json.dumps(value)}" for key, value in pools.get(name, {}).items()),
        )
    ]
    text = f"""
run = {{name = "test", steps = 1, directory = "{directory}/runs/test"}}
model = {{path = "{directory}/model"}}
rollout = {{groups_per_step = 1}}
tasks.a = {{environment = "m:E", reward = "m:r", group_size = 2}}
"""
    path = directory / "run.toml"
    path.write_text(text + "\n".join(pool_lines))
    return path


def doctor(path: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollart_hpc.cli.main", "doctor", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "80", **changes},
    )


def test_the_command_ends_with_3_where_there_are_errors_and_0_where_not(cluster: Cluster, model: Path):
    path = write_config(model)
    good = doctor(path)
    assert (good.returncode, good.stderr) == (0, "")
    assert "tried on h800-" in good.stdout
    assert max(len(line) for line in good.stdout.splitlines()) <= 80
    bad = doctor(path, "--no-probe", "--set", "pools.h20.slurm.partition=h200")
    assert (bad.returncode, bad.stderr) == (3, "")
    assert "error    partition 'h200' does not exist" in bad.stdout
    assert "tried on" not in bad.stdout


def test_the_command_prints_one_json_object(cluster: Cluster, model: Path):
    found = doctor(write_config(model, h20={"nodes": 1}), "--json", "--set", "pools.h20.slurm.gpu_type=H2O")
    assert found.returncode == 3
    shown = json.loads(found.stdout)
    assert [part["name"] for part in shown["components"]] == ["cpu", "h800", "h20"]
    assert shown["probes"]["h800"]["kind"] == "NodeReport"
    errors = [finding for finding in shown["findings"] if finding["severity"] == "error"]
    assert [(finding["component"], finding["check"]) for finding in errors] == [("h20", "gpus")]


def test_without_a_controller_the_command_says_so(cluster: Cluster, model: Path):
    conf = model / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nNodeName=n\nMessageTimeout=1\n"
    )
    found = doctor(write_config(model), SLURM_CONF=str(conf))
    assert found.returncode == 3
    assert found.stderr.startswith("error: ")


def test_an_interrupted_command_leaves_neither_files_nor_jobs(cluster: Cluster, model: Path):
    path = write_config(model)
    command = [sys.executable, "-m", "rollart_hpc.cli.main", "doctor", str(path)]
    setup = 'slurm.setup=["exec sleep 100"]'

    with subprocess.Popen([*command, "--set", setup]) as process:
        wait_for_probes_to_run()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert left_in_queue() == []


def wait_for_probes_to_run() -> None:
    deadline = time.monotonic() + 120
    while "rollart-doctor" not in run_slurm("squeue", "--noheader", "--states=running", "--format=%j"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def script(*options: str) -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "true", ""])


def test_a_trial_returns_what_sbatch_cuts_silently(cluster: Cluster):
    assert try_submission(script("--nodes=1", "--partition=cpu")) == []
    assert try_submission(script("--nodes=9", "--ntasks=1")) == [
        "can't run 1 processes on 9 nodes, setting nnodes to 1"
    ]


def test_a_trial_that_is_refused_has_sbatchs_words(cluster: Cluster):
    with pytest.raises(SlurmError, match="invalid partition specified: nope"):
        try_submission(script("--partition=cpu", "hetjob", "--partition=nope"))
