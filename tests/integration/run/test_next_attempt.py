"""What follows when an attempt fails, and when any process of a run is told to stop."""

import os
import signal
import time
from pathlib import Path

import pytest

from rollart_hpc.control_plane.checkpoint import find_newest
from rollart_hpc.launcher.attempt_log import read_attempts, read_events
from rollart_hpc.observe.assessment import assess_summary
from tests.integration.run.driver import ARITHMETIC, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LEADER = "leader"


def test_the_death_of_controller_or_trainer_is_followed_by_another_attempt_at_once(run: Run, arithmetic_model: Path):
    settings = {"run.steps": 12, "run.checkpoint_every": 3, "rollout.mode": "one_off"}
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **settings))
    for step, victim in ((5, "controller"), (8, "actor_train-0")):
        run.wait_for_step(step)
        run.kill(victim)
    code, output = run.wait()
    assert code == 0, output
    for attempt, victim in enumerate(("controller", "actor_train-0"), start=1):
        assert f"attempt {attempt} failed, another attempt follows: {victim} ended with killed by SIGKILL" in output, (
            output
        )
    events = [(record.attempt, record.event) for record in read_attempts(run.directory)]
    assert events == [(1, "started"), (1, "failed"), (2, "started"), (2, "failed"), (3, "started"), (3, "done")]
    assert run.summary["trajectories"]["trained"] == 12 * 16 * 8
    assert run.summary["max_staleness_trained"] == 1
    assert assess_summary(run.summary, {}) == []
    code, output = run.execute("ledger", run.directory, "--check")
    assert code == 0, output


def test_a_signal_at_any_process_saves_the_run_which_can_be_resumed(run: Run, arithmetic_model: Path):
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **{"run.steps": 500}))
    step = 3
    for who, number in (
        ("environment-0", signal.SIGTERM),
        ("actor_gen-0", signal.SIGUSR2),
        ("controller", signal.SIGTERM),
        (LEADER, signal.SIGINT),
    ):
        run.wait_for_step(step)
        assert run.process is not None
        begin = time.monotonic()
        os.kill(run.process.pid if who == LEADER else run.pid_of(who), number)
        code, output = run.wait()
        assert code == 75, output
        assert time.monotonic() - begin < 30
        assert run.processes() == []
        noticed, saved = [one for one in read_events(run.directory) if one.event in ("noticed", "saved")][-2:]
        assert noticed.cause == f"{who}: {number.name}"
        assert saved.saved_s is not None
        newest = find_newest(run.directory)
        assert newest is not None
        assert newest.state.step == run.summary["steps"] >= step
        step = newest.state.step + 1
        run.start("resume", run.directory, f"--set=run.steps={step if who == LEADER else 500}")
    code, output = run.wait()
    assert code == 0, output
    assert run.summary["steps"] == step
    assert assess_summary(run.summary, {}) == []
