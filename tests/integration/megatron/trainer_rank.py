"""One trainer rank of a test's launch: plays the named scenarios and leaves what it saw in a folder."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from safetensors.torch import save_file

from rollart_hpc.bus import codec
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.megatron.trainer import MegatronTrainer
from rollart_hpc.errors import RollartError
from rollart_hpc.types import TrainBatch, TrainStats


class Rank:
    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.spec = json.loads((folder / "spec.json").read_text())
        self.ports = iter(self.spec["ports"])
        self.models = {name: Path(path) for name, path in self.spec["models"].items()}
        self.report = {}

    def trainer(self, model="tied", *, world_size=None, deadline_s=30.0, **training) -> MegatronTrainer:
        raw = self.spec["config"]
        raw = {
            **raw,
            "model": {**raw["model"], "path": self.models[model]},
            "training": {**raw["training"], **training},
        }
        config = RunConfig.model_validate(raw)
        return MegatronTrainer(
            config,
            rank=self.rank,
            world_size=world_size or config.training.world_size,
            master_address="127.0.0.1",
            master_port=next(self.ports),
            deadline_s=deadline_s,
        )

    def batch(self, trainer: MegatronTrainer, name: str) -> TrainBatch:
        return codec.decode((self.folder / f"{name}.{trainer.data_rank}").read_bytes(), TrainBatch)

    def export(self, trainer: MegatronTrainer, name: str, source=None) -> list[str]:
        tensors = list(trainer._weights.export(source) if source else trainer.export_weights())
        if trainer.is_publisher:
            save_file({key: value.contiguous() for key, value in tensors}, self.folder / f"{name}.{self.rank}")
        return [key for key, _ in tensors]

    def gradients(self) -> None:
        for model, micro_batch_tokens in self.spec["gradient_runs"]:
            trainer = self.trainer(model, micro_batch_tokens=micro_batch_tokens)
            trainer.load_hf(self.models[model])
            sums = trainer.accumulate_gradients(self.batch(trainer, model))
            complete_gradient_shards(trainer)
            run = f"{model}-{micro_batch_tokens}"
            self.export(trainer, f"gradients-{run}", lambda parameter: parameter.main_grad)
            _, norm, _ = trainer._model.optimizer.step()
            statistics = sums.statistics(step=0, grad_norm=norm, learning_rate=0.0, seconds={})
            self.report[f"statistics-{run}"] = plain(statistics)
            trainer.close()

    def weights(self) -> None:
        for model, path in self.models.items():
            trainer = self.trainer(model)
            trainer.load_hf(path)
            orders = [self.export(trainer, f"weights-{model}"), self.export(trainer, f"weights-{model}")]
            self.report[f"same_order-{model}"] = orders[0] == orders[1]
            self.report[f"probe-{model}"] = trainer.probe_logprobs(self.spec["probe"]).tolist()
            trainer.close()

    def resume(self) -> None:
        directory = self.folder / "checkpoint"
        trainer = self.trainer()
        trainer.load_hf(self.models["tied"])
        self.report["first_steps"] = self.steps(trainer, 0, 3)
        self.report["digest_saved"] = trainer.weight_digest()
        drawn()
        pending = trainer.begin_save(directory)
        self.report["random"] = drawn()
        self.report["unbroken"] = self.steps(trainer, 3, 5)
        with ThreadPoolExecutor() as thread:
            writing = thread.submit(pending.write)
            self.report["unbroken"] += self.steps(trainer, 5, 6)
        self.report["save"] = [writing.result(), pending.commit()]
        self.report["digest_unbroken"] = trainer.weight_digest()
        self.report["refused_save"] = error_of(trainer.save, directory)
        lost = trainer.begin_save(self.folder / "lost")
        dist.barrier()
        if self.rank == 0:
            shutil.rmtree(self.folder / "lost")
        dist.barrier()
        self.report["failed_write"], self.report["failed_commit"] = lost.write(), lost.commit()
        trainer.close()
        trainer = self.trainer()
        trainer.load(directory)
        self.report["random_resumed"] = drawn()
        self.report["resumed"] = self.steps(trainer, 3, 6)
        self.report["digest_resumed"] = trainer.weight_digest()
        trainer.close()

    def resume_other_layouts(self) -> None:
        for layout, directory in self.spec["other_checkpoints"].items():
            trainer = self.trainer()
            trainer.load(Path(directory))
            self.report[f"digest-{layout}"] = trainer.weight_digest()
            self.report[f"resumed-{layout}"] = self.steps(trainer, 3, 6)
            trainer.close()

    def changed_before_written(self) -> None:
        trainer = self.trainer()
        trainer.load_hf(self.models["tied"])
        for parameter in trainer._model.gpt.parameters():
            # Memory of its own, as no weight has in Megatron's buffers: its copy is ours to make.
            parameter.data = parameter.data.clone()
        self.report["digest_before"] = trainer.weight_digest()
        pending = trainer.begin_save(self.folder / "changed")
        for parameter in trainer._model.gpt.parameters():
            parameter.data.add_(1)
        self.report["digest_changed"] = trainer.weight_digest()
        assert [pending.write(), pending.commit()] == ["", ""]
        trainer.load(self.folder / "changed")
        self.report["digest_loaded"] = trainer.weight_digest()
        trainer.close()

    def refusals(self) -> None:
        self.report["alone"] = error_of(self.trainer, world_size=2, deadline_s=1.0)
        trainer = self.trainer()
        for name, directory in self.spec["bad_models"].items():
            self.report[name] = error_of(trainer.load_hf, Path(directory))
        self.report["no_checkpoint"] = error_of(trainer.load, self.folder)
        trainer.close()

    def steps(self, trainer: MegatronTrainer, start: int, end: int) -> list[dict]:
        statistics = []
        for step in range(start, end):
            result = plain(trainer.train_step(self.batch(trainer, f"step{step}")))
            del result["seconds"]
            statistics.append(result)
        return statistics


def drawn() -> list[float]:
    """The next numbers of torch's generator and of Megatron's, which differs between tensor parallel ranks."""
    ours = torch.rand(3).tolist()
    with tensor_parallel.get_cuda_rng_tracker().fork():
        return [*ours, *torch.rand(3).tolist()]


def complete_gradient_shards(trainer: MegatronTrainer) -> None:
    """Each data parallel rank holds the sum for its part of the buffers only; gathers the others' parts."""
    group = trainer._ranks.data_group
    for buffer in trainer._model.wrapped.buffers:
        for bucket in buffer.buckets:
            shards = bucket.grad_data.chunk(group.size())
            gathered = [torch.empty_like(shard) for shard in shards]
            dist.all_gather(gathered, shards[group.rank()].clone(), group=group)
            for shard, full in zip(shards, gathered, strict=True):
                shard.copy_(full)


def plain(statistics: TrainStats) -> dict:
    return json.loads(msgspec.json.encode(statistics))


def error_of(function, *args, **kwargs) -> str:
    try:
        function(*args, **kwargs)
    except RollartError as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    player = Rank(Path(sys.argv[1]), int(sys.argv[2]))
    for scenario in player.spec["scenarios"]:
        getattr(player, scenario)()
    (player.folder / f"report.{player.rank}").write_text(json.dumps(player.report))
