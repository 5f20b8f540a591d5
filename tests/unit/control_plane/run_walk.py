"""A run of the real scheduler and the real journal, with kills, stops, failures and resumes as a seed says."""

import json
import random
from pathlib import Path

import numpy as np

from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.journal import AttemptStarted, Journal, Published, read_journal
from rollart_hpc.control_plane.recovery import Recovery, recover
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.types import Ticket
from tests.builders import IDENTITY, run_config, trajectory, turn_log

CONFIG = run_config(
    alpha=1,
    groups_per_step=3,
    max_refills=1,
    tasks={"a": {"redundancy": 1}, "b": {"drop_truncated": True}},
)


class RunWalk:
    """Call `attempt` as often as wanted; the files in ``run`` are then those of a run that was killed."""

    def __init__(self, run: Path, seed: int) -> None:
        self.run = run
        self._random = random.Random(seed)
        self._number = self._version = 0
        self._metrics: list[int] = []
        run.mkdir(exist_ok=True)
        (run / "config.json").write_text(json.dumps({"run": {"steps": 100}, "rollout": {}}))

    def recovery(self, step: int) -> Recovery:
        state = ControllerState(step=step, cursors={}, model=IDENTITY)
        return recover(read_journal(self.run), state, CONFIG)

    def attempts(self, number: int) -> int:
        """As many attempts more, each from one of the last checkpoints; returns the step of the last one's."""
        checkpoint = 0
        for _ in range(number):
            checkpoint = self._random.randint(max(0, self._version - 3), self._version)
            self._version = self.attempt(checkpoint=checkpoint)
        return checkpoint

    def attempt(self, *, checkpoint: int = 0, num_events: int = 80) -> int:
        """Goes on from a checkpoint until it is killed or, sometimes, hands in; returns the trainer's version."""
        self._number += 1
        recovery = self.recovery(checkpoint)
        self._journal = Journal(self.run)
        self._journal.append([AttemptStarted(self._number, checkpoint)], durable=True)
        self._scheduler = scheduler = RolloutScheduler(CONFIG, recovery)
        self._tickets: dict[str, tuple[str, Ticket]] = {}
        self._metrics = self._metrics[:checkpoint]
        self._is_training = False
        """For ever: it is killed meanwhile."""
        self._publish()
        for batch in recovery.batches:
            self._train(batch)
        for worker in ("w0", "w1"):
            scheduler.worker_joined(worker, 6)
        scheduler.admit()
        self._write()
        for _ in range(num_events):
            events = [self._finish, self._form, self._lose_worker, self._leave, self._rotate]
            self._random.choices(events, [20, 6, 0.3, 0.3, 0.5])[0]()
            self._write()
        if self._random.random() < 0.6:
            self._hand_in()
        self._journal.close()
        return scheduler.trainer_version

    def _write(self) -> None:
        orders = self._scheduler.take_orders()
        self._journal.append(orders.records)
        for worker, tickets in orders.tickets.items():
            self._tickets |= {ticket.trajectory_id: (worker, ticket) for ticket in tickets}
        for ids in orders.aborts.values():
            for trajectory_id in ids:
                self._tickets.pop(trajectory_id, None)

    def _finish(self) -> None:
        if not self._tickets:
            return
        _, ticket = self._tickets.pop(self._random.choice(sorted(self._tickets)))
        kind = self._random.choices(["good", "failed", "truncated"], [30, 2, 1])[0]
        failure = "environment died" if kind == "failed" else ""
        changes: dict[str, object] = {"truncated": kind == "truncated", "failure": failure}
        if failure:
            changes |= {"token_ids": np.empty(0, np.int32)}
        if ticket.log is not None:
            changes |= {"num_continued_turns": 1} if self._random.random() < 0.5 else {"restarted": "not replayable"}
        self._scheduler.finished(trajectory(ticket, version=ticket.admitted_version, **changes))

    def _form(self) -> None:
        batch = None if self._is_training else self._scheduler.form_batch()
        if batch is not None:
            self._write()
            if self._random.random() < 0.9:
                self._train(batch)
            else:
                self._is_training = True

    def _train(self, batch: list[Group]) -> None:
        self._scheduler.trained(batch)
        self._write()
        self._publish()
        self._metrics.append(self._scheduler.trainer_version)
        lines = [json.dumps({"step": step}) + "\n" for step in self._metrics]
        (self.run / "metrics.jsonl").write_text("".join(lines))

    def _publish(self) -> None:
        version = self._scheduler.trainer_version
        self._journal.append([Published(version, f"digest of {version}")])
        self._scheduler.generation_confirmed(version)

    def _lose_worker(self) -> None:
        self._scheduler.worker_lost("w1")
        self._tickets = {one: held for one, held in self._tickets.items() if held[0] != "w1"}
        self._scheduler.worker_joined("w1", 6)

    def _leave(self) -> None:
        """A worker leaves in order; its logs come, all but some, before its end is seen."""
        self._scheduler.worker_leaving("w1")
        for _, (worker, ticket) in sorted(self._tickets.items()):
            if worker == "w1" and self._random.random() < 0.8:
                log = ticket.log or turn_log(ticket, version=ticket.admitted_version)
                self._scheduler.handed_in(log, "w1")
        self._scheduler.worker_left("w1")
        self._tickets = {one: held for one, held in self._tickets.items() if held[0] != "w1"}
        self._write()
        self._scheduler.worker_joined("w1", 6)

    def _rotate(self) -> None:
        self._journal.rotate()

    def _hand_in(self) -> None:
        self._scheduler.close()
        for worker, ticket in self._tickets.values():
            log = ticket.log or turn_log(ticket, version=ticket.admitted_version)
            self._scheduler.handed_in(log, worker)
        self._write()
