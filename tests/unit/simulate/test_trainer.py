"""What the emulated trainer takes, reports and keeps."""

from pathlib import Path

import numpy as np
import pytest

from rollart_hpc.errors import CheckpointError
from rollart_hpc.resource_plane.hardware import hardware_class
from rollart_hpc.simulate import policy
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.cost_model import TrainerCost
from rollart_hpc.simulate.trainer import EmulatedTrainer
from rollart_hpc.types import TrainBatch
from tests.unit.simulate.fake_clock import Emulated, FakeClock, engine_cost

COST = TrainerCost(
    model=engine_cost().model, hardware=hardware_class("H800"), devices=32, compute_efficiency=0.4, overhead_s=1.0
)


def trainer_of(clock: FakeClock | Clock, **changes: float) -> EmulatedTrainer:
    return EmulatedTrainer(**{"clock": clock, "cost": COST, "tokens_per_id": 64, "host_gb_s": 64.0, **changes})


def batch_of(step: int, *, version: int) -> TrainBatch:
    token_ids = np.arange(100, dtype=np.int32)
    return TrainBatch(
        step=step,
        token_ids=token_ids,
        lengths=np.array([60, 40], np.int32),
        advantages=np.ones(100, np.float32),
        loss_weights=np.repeat(np.array([0, 0.1], np.float32), 50),
        sampler_logprobs=policy.logprobs(token_ids, version),
        same_version=np.repeat(np.array([0, 1], np.uint8), 50),
    )


def test_a_step_holds_its_thread_for_the_tokens_of_its_ids_and_counts_what_it_trains():
    clock = FakeClock()
    trainer = trainer_of(clock)
    stats = trainer.train_step(batch_of(0, version=0))
    assert clock.blocked == [pytest.approx(COST.step_s(6400))]
    assert trainer.busy_s == pytest.approx(COST.step_s(6400))
    assert (stats.step, stats.num_tokens, stats.gap_count, stats.gap_max, stats.loss) == (0, 50, 50, 0.0, 0.0)


def test_tokens_that_another_version_sampled_than_is_said_show_in_the_gap():
    stats = trainer_of(FakeClock()).train_step(batch_of(0, version=1))
    assert stats.gap_sum / stats.gap_count > 0.01


async def test_engine_and_trainer_agree_on_the_probe_of_a_version_and_of_no_other():
    emulated = await Emulated().start()
    trainer = trainer_of(emulated.clock)
    probe = [5, 3, 900, 7]
    before = await emulated.engine.probe(probe)
    assert before == trainer.probe_logprobs(probe).tolist()
    trainer.train_step(batch_of(0, version=0))
    assert np.abs(before - trainer.probe_logprobs(probe)).min() > 1e-3
    await emulated.install(1)
    assert await emulated.engine.probe(probe) == trainer.probe_logprobs(probe).tolist()


def test_weights_differ_by_version_and_take_the_time_of_the_whole_model_to_the_host():
    clock = FakeClock()
    trainer = trainer_of(clock)
    ((name, before),) = trainer.export_weights()
    assert clock.blocked == [pytest.approx(16.4 / 64)]
    trainer.train_step(batch_of(0, version=0))
    ((again, after),) = trainer.export_weights()
    assert name == again
    assert before.tolist() != after.tolist()


def test_a_checkpoint_gives_the_version_back_once_it_is_committed(tmp_path: Path):
    trainer = trainer_of(FakeClock())
    for step in range(3):
        trainer.train_step(batch_of(step, version=step))
    save = trainer.begin_save(tmp_path / "step-3")
    trainer.train_step(batch_of(3, version=3))
    assert save.write() == ""
    fresh = trainer_of(FakeClock())
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        fresh.load(tmp_path / "step-3")
    assert save.commit() == ""
    fresh.load(tmp_path / "step-3")
    assert fresh.train_step(batch_of(3, version=3)).gap_max == 0
    with pytest.raises(CheckpointError, match="not empty"):
        trainer.begin_save(tmp_path / "step-3")
    fresh.load_hf(tmp_path)
    assert fresh.train_step(batch_of(0, version=0)).gap_max == 0


def test_what_the_disk_does_not_take_is_told_and_not_raised(tmp_path: Path):
    save = trainer_of(FakeClock()).begin_save(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "No such file" in save.write()
    assert "No such file" in save.commit()
