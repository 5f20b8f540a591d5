"""Services of a run that die by SIGKILL are started again in place: no trajectory is lost, no attempt fails."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from rollart_hpc.launcher.attempt_log import read_attempts
from rollart_hpc.observe.assessment import assess_summary
from tests.integration.run.driver import ARITHMETIC, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
STEPS = 18
LOSSES = {
    3: "nats-server",
    5: "mooncake_master",
    7: "mooncake_client",
    9: "nats-server",
    11: "mooncake_client",
    13: "mooncake_master",
}
"""By step."""


def kill_service(run: Run, name: str) -> None:
    assert run.process is not None
    (service,) = (child for child in psutil.Process(run.process.pid).children() if child.name() == name)
    os.kill(service.pid, signal.SIGKILL)


def test_a_run_goes_on_to_its_end_though_its_services_die(run: Run, arithmetic_model: Path):
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **{"run.steps": STEPS}))
    for step, name in LOSSES.items():
        run.wait_for_step(step)
        kill_service(run, name)
    code, output = run.wait()
    assert code == 0, output
    assert assess_summary(run.summary, {}) == []
    assert run.summary["trajectories"]["trained"] == STEPS * 16 * 8
    assert run.summary["confirmed_version"] == STEPS
    assert [record.event for record in read_attempts(run.directory)] == ["started", "done"]
    for name in LOSSES.values():
        assert output.count(f"{name} ended with killed by SIGKILL; starting it again") == 2
        assert read_attempts(run.directory)[-1].restarts[name] == 2
    code, output = run.execute("ledger", run.directory, "--check")
    assert code == 0, output
