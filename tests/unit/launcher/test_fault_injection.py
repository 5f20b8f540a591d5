"""Which faults are asked for, when they are due, and what is asked wrongly."""

from pathlib import Path

import msgspec
import pytest

from rollart_hpc.control_plane.protocol import Announcement, ProtocolStep
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.chaos import parse_moment, plan_faults
from rollart_hpc.launcher.fault_injection import FaultPlan, FiredFault, Moment, read_fault_plan, write_fault_plan
from tests.builders import run_config


def plan_of(
    *at: str, times: int = 1, kill: str = "controller", signal: str = "kill", in_job: bool = False
) -> FaultPlan:
    return plan_faults(run_config(), kill=kill, at=at, signal_name=signal, times=times, in_job=in_job)


def after(plan: FaultPlan, *announced: tuple[str, int]) -> list[tuple[str, int]]:
    """The announcements at which something happened."""
    happened: list[tuple[str, int]] = []
    for step, version in announced:
        moment = plan.due(Announcement(ProtocolStep(step), version))
        if moment is not None:
            fired = FiredFault(attempt=1, moment=moment, version=version, at=0.0, targets=["controller"])
            plan = msgspec.structs.replace(plan, fired=[*plan.fired, fired])
            happened.append((step, version))
    return happened


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("7", Moment(step=ProtocolStep.TRAIN_STEP, version=7)),
        ("suspend", Moment(step=ProtocolStep.SUSPEND)),
        ("get_batch:3", Moment(step=ProtocolStep.GET_BATCH, version=3)),
    ],
)
def test_a_moment_is_a_step_of_training_or_of_the_protocol(text: str, moment: Moment):
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["", "sleep", "suspend:", "suspend:x", ":3", "-1", "1.5"])
def test_what_is_no_moment_is_refused_with_those_that_are(text: str):
    with pytest.raises(ConfigError, match=r"expected a step such as 7.*get_batch, suspend"):
        parse_moment(text)


def test_a_fault_of_a_version_happens_as_often_as_asked_whenever_the_version_comes_again():
    plan = plan_of("train_step:3", times=2)
    steps = [("train_step", version) for version in (2, 3, 2, 3, 2, 3, 4)]
    assert after(plan, *steps) == [("train_step", 3)] * 2


def test_a_fault_without_a_version_happens_with_progress_between_and_not_at_the_start():
    plan = plan_of("suspend", times=2)
    steps = [("suspend", version) for version in (0, 1, 0, 1, 2, 3)]
    assert after(plan, *steps) == [("suspend", 1), ("suspend", 2)]


def test_each_moment_has_its_own_faults():
    plan = plan_of("suspend:1", "update:1", "7")
    assert plan.asked == 3
    steps = [("suspend", 1), ("update", 1), ("suspend", 1), ("train_step", 7)]
    assert after(plan, *steps) == [("suspend", 1), ("update", 1), ("train_step", 7)]


def test_a_plan_is_kept_with_what_has_happened(tmp_path: Path):
    assert read_fault_plan(tmp_path) is None
    plan = plan_of("suspend:1", kill="job")
    write_fault_plan(tmp_path, plan)
    assert read_fault_plan(tmp_path) == plan


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kill": "trainer"}, "--kill trainer: this run has no such process; it has job, controller"),
        ({"kill": "actor_gen-1"}, "--kill actor_gen-1"),
        ({"signal": "HUP"}, "--signal HUP: expected one of KILL, TERM, USR2"),
        ({"signal": "TERM", "in_job": True}, "--signal TERM: expected one of KILL, USR2$"),
    ],
)
def test_what_the_run_has_not_is_refused(arguments: dict[str, object], text: str):
    with pytest.raises(ConfigError, match=text):
        plan_of("1", **arguments)  # pyright: ignore[reportArgumentType]


def test_a_step_beyond_the_run_is_refused():
    for moment in ("100", "get_batch:100", "suspend:101", "checkpoint:7", "commit:0"):
        with pytest.raises(ConfigError, match="never comes in this run; it has 100 steps"):
            plan_of(moment)
    plan_of("99", "suspend:100", "checkpoint:20", "commit:100")


def test_a_moment_that_is_there_twice_is_refused():
    with pytest.raises(ConfigError, match="--at suspend:1 is there twice; say --times 2"):
        plan_of("suspend:1", "suspend:1")


@pytest.mark.parametrize("kill", ["job", "controller", "nats-server", "mooncake_master", "actor_train", "reward-0"])
def test_every_process_can_be_named(kill: str):
    assert plan_of("1", kill=kill).signal == "SIGKILL"
