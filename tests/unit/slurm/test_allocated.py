"""What a batch script's environment says about its job; scontrol is a program of the test."""

import os
import socket
from pathlib import Path

import psutil
import pytest

from rollart_hpc.errors import PreflightError, SlurmError
from rollart_hpc.slurm.allocated import AllocatedJob, node_address, read_allocated_job

SCONTROL = """#!/bin/bash
case "$*" in
"show hostnames a[1-2],b-ib") printf 'a1\\na2\\nb-ib\\n' ;;
"show hostnames c7") echo c7 ;;
"show node a1 --oneliner") echo "NodeName=a1 Arch=x86_64 NodeAddr=127.0.0.9 NodeHostName=h Port=1" ;;
"show node localhost --oneliner") echo "NodeName=localhost" ;;
"show node far --oneliner") echo "NodeName=far NodeAddr=far.invalid" ;;
*) echo "scontrol: $*: unknown here" >&2; exit 1 ;;
esac
"""
BATCH = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "a1"}
HET = {
    **BATCH,
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "a[1-2],b-ib",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "a[1-2],b-ib",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "c7",
}
PLAIN = {**BATCH, "SLURM_JOB_NODELIST": "a[1-2],b-ib"}


@pytest.fixture(autouse=True)
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "scontrol"
    program.write_text(SCONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def test_a_heterogeneous_job_has_its_nodes_by_component():
    assert read_allocated_job(HET) == AllocatedJob(
        job_id="12", node="a1", nodes=(("a1", "a2", "b-ib"), ("c7",)), is_heterogeneous=True, restarts=0
    )


def test_a_job_of_one_component_is_no_heterogeneous_one():
    assert read_allocated_job(PLAIN) == AllocatedJob(
        job_id="12", node="a1", nodes=(("a1", "a2", "b-ib"),), is_heterogeneous=False, restarts=0
    )


def test_restarts_are_counted_by_slurm():
    assert read_allocated_job({**PLAIN, "SLURM_RESTART_COUNT": "3"}).restarts == 3


def test_the_process_s_own_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch):
    for name, value in HET.items():
        monkeypatch.setenv(name, value)
    assert read_allocated_job() == read_allocated_job(HET)


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        *((HET, name) for name in HET if name not in ("SLURM_HET_SIZE", "SLURM_JOB_NODELIST")),
        *((PLAIN, name) for name in PLAIN),
    ],
    ids=lambda value: value if isinstance(value, str) else "het" if "SLURM_HET_SIZE" in value else "plain",
)
def test_what_is_no_batch_script_is_told_how_to_start_a_run(variables: dict[str, str], missing: str):
    with pytest.raises(PreflightError, match="submit with `rollart-hpc submit`") as caught:
        read_allocated_job({name: value for name, value in variables.items() if name != missing})
    assert caught.value.exit_code == 3
    assert missing in str(caught.value)


def test_nodes_that_slurm_does_not_know_are_its_own_error():
    with pytest.raises(SlurmError, match=r"scontrol: show hostnames z\[9: unknown here"):
        read_allocated_job({**PLAIN, "SLURM_JOB_NODELIST": "z[9"})


def test_a_node_s_address_is_what_slurm_has_for_it():
    assert node_address("a1", None) == "127.0.0.9"
    assert node_address("localhost", None) == "127.0.0.1"


def test_a_node_whose_address_does_not_resolve_asks_for_the_interface():
    with pytest.raises(PreflightError, match=r"'far\.invalid' of node far does not resolve .*; set slurm\.interface"):
        node_address("far", None)


def test_an_interface_s_address_is_taken_without_asking_slurm(scontrol: Path):
    scontrol.unlink()
    assert node_address("a1", "lo") == "127.0.0.1"


def test_an_interface_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(PreflightError, match=r"slurm\.interface = 'ib9': this node has only .*\blo\b"):
        node_address("a1", "ib9")


def test_an_interface_without_an_ipv4_address_is_refused(monkeypatch: pytest.MonkeyPatch):
    addresses = {"ib0": [address for address in psutil.net_if_addrs()["lo"] if address.family != socket.AF_INET]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    with pytest.raises(PreflightError, match=r"slurm\.interface = 'ib0' has no IPv4 address on this node"):
        node_address("a1", "ib0")
