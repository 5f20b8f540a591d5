"""What is said where no runtime isolates; the runtimes here are ones that do not."""

from pathlib import Path

import pytest

from rollart_hpc.config.node import SandboxSection
from rollart_hpc.errors import NoSandboxError, SandboxError
from rollart_hpc.sandbox import available_runtime, open_sandbox, probe
from rollart_hpc.sandbox.per_process import PerProcess
from rollart_hpc.sandbox.unisolated import UnisolatedEnclosure

TRIED: list[str] = []


def missing(root: Path | None, settings: SandboxSection) -> UnisolatedEnclosure:
    TRIED.append("missing")
    raise SandboxError("not installed on this node")


@pytest.fixture(autouse=True)
def poor_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    TRIED.clear()
    switch = tmp_path / "max_user_namespaces"
    switch.write_text("0\n")
    monkeypatch.setattr(probe, "RUNTIMES", {"bubblewrap": missing, "apptainer": UnisolatedEnclosure})
    monkeypatch.setattr(probe, "_probes", PerProcess(probe._Probes))
    monkeypatch.setattr(probe, "_SWITCHES", {str(switch): ("0", "user namespaces are off")})


def test_the_refusal_says_why_each_runtime_does_not_isolate_and_what_to_change():
    with pytest.raises(NoSandboxError) as refused:
        open_sandbox()
    text = str(refused.value)
    assert "bubblewrap: not installed on this node" in text
    assert "apptainer: does not isolate: " in text
    assert "a file of the host is there" in text
    assert "a network is there" in text or "processes of the host are there" in text
    assert "the kernel: user namespaces are off" in text
    assert "sandbox.unisolated = true" in text
    assert not refused.value.retryable


def test_a_runtime_is_tried_once():
    for _ in range(3):
        with pytest.raises(NoSandboxError):
            available_runtime(SandboxSection(runtime="bubblewrap"))
    assert TRIED == ["missing"]


def test_unisolated_commands_run_where_the_user_accepts_that():
    accepted = SandboxSection(unisolated=True)
    assert available_runtime(accepted) is None
    with open_sandbox(settings=accepted) as sandbox:
        assert sandbox.run("echo here", timeout_s=20).output == "here\n"
