"""Modes in the scheduler: whole batches one after the other, what is never too old, and nothing that waits for ever."""

import random
from collections import Counter
from typing import Any

import pytest

from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.journal import GivenUp, GroupOpened, Record
from rollart_hpc.control_plane.recovery import Recovery, recover
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.types import Outcome, Ticket
from tests.builders import IDENTITY, run_config, trajectory, turn_log

STEPS = 7
TASKS: dict[str, dict[str, Any]] = {"a": {"redundancy": 1}, "b": {"weight": 2.0, "group_size": 3}}


class Walk:
    """A run in any order of events; new weights are loaded as WeightSync does, when the scheduler lets it."""

    def __init__(self, seed: int, **rollout: Any) -> None:
        self._chance = random.Random(seed)
        config = run_config(groups_per_step=3, max_refills=1, tasks=TASKS, **rollout)
        self.config = config.model_copy(update={"run": config.run.model_copy(update={"steps": STEPS})})
        self.mix = self.config.task_mix()
        self.journal: list[Record] = []
        self.tasks: dict[str, str] = {}
        """Of groups that were opened and not given up."""
        self.versions: list[set[int]] = []
        """With which the trajectories of each batch started."""
        self._begin(Recovery(step=0))

    def _begin(self, recovery: Recovery) -> None:
        self.scheduler = RolloutScheduler(self.config, recovery)
        self._untrained: list[Group] | None = None
        self._playing: dict[str, tuple[str, Ticket]] = {}
        for batch in recovery.batches:
            self.scheduler.trained(batch)
        for worker in ("w0", "w1"):
            self.scheduler.worker_joined(worker, self._chance.randint(3, 12))
        self._load()
        self.scheduler.admit()
        self._settle()

    def _settle(self) -> None:
        orders = self.scheduler.take_orders()
        self.journal += orders.records
        for record in orders.records:
            if isinstance(record, GroupOpened):
                self.tasks[record.group_id] = record.task
            if isinstance(record, GivenUp):
                del self.tasks[record.group_id]
        for worker, tickets in orders.tickets.items():
            self._playing |= {ticket.trajectory_id: (worker, ticket) for ticket in tickets}
        for trajectory_ids in orders.aborts.values():
            for trajectory_id in trajectory_ids:
                self._playing.pop(trajectory_id, None)

    def _finish(self, *, fails: bool = False) -> None:
        if not self._playing:
            return
        _, ticket = self._playing.pop(self._chance.choice(sorted(self._playing)))
        version = self.scheduler.generation_version if ticket.log is None else ticket.log.start_version
        assert version is not None
        failure = "environment died" if fails else ""
        self.scheduler.finished(trajectory(ticket, version=version, failure=failure))
        self._settle()

    def _lose(self) -> None:
        self.scheduler.worker_lost("w1")
        self._playing = {one: held for one, held in self._playing.items() if held[0] != "w1"}
        self._settle()
        self.scheduler.worker_joined("w1", 6)
        self._settle()

    def _load(self) -> None:
        version = self.scheduler.trainer_version
        if version > self.scheduler.generation_version and self.scheduler.may_load(version):
            self.scheduler.hold(version)
            self.scheduler.generation_confirmed(version)
            self._settle()
            self.scheduler.release()
        self._settle()

    def _form(self) -> None:
        if self._untrained is None and self.scheduler.trainer_version < STEPS:
            self._untrained = self.scheduler.form_batch()
            self._settle()

    def _train(self) -> None:
        if self._untrained is not None:
            members = [member for group in self._untrained for member in group.finished]
            self.versions.append({member.start_version for member in members})
            self.scheduler.trained(self._untrained)
            self._untrained = None
            self._settle()

    def resume(self) -> None:
        """Stops in order and goes on in another attempt, from a checkpoint of the newest step."""
        self.scheduler.close()
        for worker, ticket in self._playing.values():
            log = ticket.log or turn_log(ticket, version=self.scheduler.generation_version)
            if self._chance.random() < 0.7:
                self.scheduler.handed_in(log, worker)
        self._settle()
        state = ControllerState(step=self.scheduler.trainer_version, cursors={}, model=IDENTITY)
        self._begin(recover(list(self.journal), state, self.config))

    def step(self) -> None:
        events = [self._finish, lambda: self._finish(fails=True), self._lose, self._load, self._form, self._train]
        self._chance.choices(events, [12, 1, 0.2, 2, 2, 2])[0]()

    def complete(self) -> Counter[str]:
        """Groups of each task that are trained or wait to be."""
        running = {task: self.scheduler.num_open(task) for task in TASKS}
        return Counter({task: count - running[task] for task, count in Counter(self.tasks.values()).items()})


def is_done(walk: Walk) -> bool:
    return walk.scheduler.trainer_version == STEPS


MODES: dict[str, dict[str, Any]] = {
    "none": {"overlap": "none"},
    "step": {"overlap": "step"},
    "train": {"stale": "train"},
    "abort": {"alpha": 1},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_the_last_step_is_reached(mode: str, seed: int):
    walk, chance = Walk(seed, **MODES[mode]), random.Random(seed)
    for _ in range(4000):
        if is_done(walk):
            return
        if chance.random() < 0.01:
            walk.resume()
        walk.step()
    pytest.fail(walk.scheduler.waiting_for())


@pytest.mark.parametrize("seed", range(25))
def test_a_batch_is_played_whole_before_the_next_begins_and_by_one_version(seed: int):
    walk = Walk(seed, overlap="step")
    while not is_done(walk):
        walk.step()
        complete = walk.complete()
        whole = max(
            n for n in range(STEPS + 1) if all(complete[task] >= count for task, count in walk.mix.until(n).items())
        )
        opened = Counter(walk.tasks.values())
        assert all(opened[task] <= count for task, count in walk.mix.until(whole + 1).items())
    for number, versions in enumerate(walk.versions):
        (version,) = versions
        assert number - version in (0, 1)


@pytest.mark.parametrize("seed", range(25))
def test_where_age_does_not_matter_nothing_is_stale_and_the_oldest_are_trained_first(seed: int):
    walk = Walk(seed, stale="train")
    while not is_done(walk):
        walk.step()
    assert not any(isinstance(record, GivenUp) and record.outcome is Outcome.STALE for record in walk.journal)


def test_where_age_does_not_matter_what_was_overtaken_is_trained_beyond_the_bound():
    config = run_config(alpha=0, stale="train")
    scheduler = RolloutScheduler(config, Recovery(step=0))
    scheduler.admit()
    scheduler.worker_joined("w", 64)
    scheduler.generation_confirmed(0)
    slow, *others = scheduler.take_orders().tickets["w"]
    scheduler.trainer_version = 2
    scheduler.generation_confirmed(2)
    for ticket in (*others, slow):
        scheduler.finished(trajectory(ticket))
    batch = scheduler.form_batch()
    assert batch is not None
    assert {member.start_version for group in batch for member in group.finished} == {0}


def test_weights_wait_for_the_batch_that_is_played_and_the_next_batch_for_them():
    scheduler = RolloutScheduler(run_config(overlap="step"), Recovery(step=0))
    assert scheduler.may_load(0), "nothing is played before it is admitted"
    scheduler.admit()
    scheduler.worker_joined("w", 64)
    scheduler.generation_confirmed(0)
    first = scheduler.take_orders().tickets["w"]
    assert not scheduler.may_load(1)
    assert scheduler.may_load(0), "a worker that was started again takes what the others have"
    for ticket in first:
        scheduler.finished(trajectory(ticket))
    batch = scheduler.form_batch()
    assert batch is not None
    scheduler.trained(batch)
    second = scheduler.take_orders().tickets["w"]
    assert not scheduler.may_load(1)
    for ticket in second:
        scheduler.finished(trajectory(ticket))
    assert scheduler.take_orders().tickets == {}, "the third batch wants the version that the first made"
    assert scheduler.may_load(1)
    scheduler.hold(1)
    scheduler.generation_confirmed(1)
    assert scheduler.take_orders().tickets == {}
    scheduler.release()
    assert {ticket.admitted_version for ticket in scheduler.take_orders().tickets["w"]} == {1}
