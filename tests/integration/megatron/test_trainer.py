"""The trainer under every layout against Hugging Face's own Qwen3 in float32."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollart_hpc.bus import codec
from rollart_hpc.types import TrainBatch

VOCABULARY = 47
TEMPERATURE = 0.7
LENGTHS = [9, 30, 2, 17, 25, 11, 17]
# The first sequence is one data parallel rank's whole share: an empty one leaves that rank without a token.
STEP_LENGTHS = [*(np.roll(LENGTHS, step) for step in range(5)), [0, 12, 8]]
# Model and tokens of a micro-batch: all sequences in one, or four with the first sequence by itself.
GRADIENT_RUNS = [("tied", 4096), ("tied", 36), ("untied", 36)]
PROBE = [3, 1, 4, 1, 5, 9, 2, 6]
DEADLINE_S = 90


@pytest.fixture(scope="module")
def oracles(tmp_path_factory):
    return {name: Oracle(name == "tied", tmp_path_factory.mktemp(name)) for name in ("tied", "untied")}


class Oracle:
    def __init__(self, tied: bool, directory: Path) -> None:
        torch.manual_seed(3)
        config = Qwen3Config(
            architectures=["Qwen3ForCausalLM"],
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=tied,
            initializer_range=0.1,
            attn_implementation="eager",
        )
        self.directory = directory
        self.model = Qwen3ForCausalLM(config).float()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "norm" in name:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        self.weights = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        save_file(self.weights, directory / "model.safetensors")
        config.save_pretrained(directory)
        self.batch = make_batch(0, LENGTHS, self.logprobs)
        self.loss, self.gradients, self.clip_fraction = self._train()

    def logprobs(self, tokens: torch.Tensor, temperature: float = TEMPERATURE) -> torch.Tensor:
        """Of tokens 1.. of one sequence."""
        logits = self.model(tokens[None].long()).logits[0, :-1] / temperature
        return logits.log_softmax(-1).gather(1, tokens[1:, None].long())[:, 0]

    def _train(self):
        total, clipped = torch.zeros(()), 0
        for at in slices(self.batch.lengths):
            part = {
                name: torch.tensor(getattr(self.batch, name)[at])[1:]
                for name in ("advantages", "loss_weights", "sampler_logprobs")
            }
            logprobs = self.logprobs(torch.tensor(self.batch.token_ids[at]))
            ratio = (logprobs - part["sampler_logprobs"]).exp()
            bound = ratio.clamp(0.8, 1.28)
            loss = -torch.minimum(ratio * part["advantages"], bound * part["advantages"])
            stopped = (bound * part["advantages"] < ratio * part["advantages"]) & (part["loss_weights"] != 0)
            clipped += int(stopped.sum())
            total = total + (part["loss_weights"] * loss).sum()
        total.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}
        return total.item(), gradients, clipped / np.count_nonzero(self.batch.loss_weights)


def slices(lengths):
    ends = np.cumsum(lengths)
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def make_batch(step, lengths, logprobs) -> TrainBatch:
    """Random sequences; tokens after the first third are trained, every fifth was sampled by this version."""
    generator = np.random.default_rng(step)
    total = sum(lengths)
    tokens = generator.integers(0, VOCABULARY, total).astype(np.int32)
    tokens[1::7] = VOCABULARY - 1
    sampler, weights = np.zeros(total, np.float32), np.zeros(total, np.float32)
    for at in slices(lengths):
        if at.start == at.stop:
            continue
        with torch.no_grad():
            sampler[at][1:] = logprobs(torch.tensor(tokens[at])).numpy()
        weights[at][len(tokens[at]) // 3 + 1 :] = 1 / total
    same_version = ((np.arange(total) % 5 == 0) & (weights > 0)).astype(np.uint8)
    sampler += np.where(same_version, 0.001, generator.normal(0, 0.3, total)).astype(np.float32)
    return TrainBatch(
        step=step,
        token_ids=tokens,
        lengths=np.int32(lengths),
        advantages=generator.normal(size=total).astype(np.float32),
        loss_weights=weights,
        sampler_logprobs=sampler,
        same_version=same_version,
    )


def shares(batch: TrainBatch, num_ranks: int) -> list[TrainBatch]:
    """Two data parallel ranks get very different shares: one sequence, and all the others."""
    if num_ranks == 1:
        return [batch]
    cut, count = int(batch.lengths[0]), 1
    first = [slice(0, cut), slice(cut, None)]
    return [
        TrainBatch(
            step=batch.step,
            lengths=lengths,
            **{
                name: getattr(batch, name)[at]
                for name in ("token_ids", "advantages", "loss_weights", "sampler_logprobs", "same_version")
            },
        )
        for at, lengths in zip(first, (batch.lengths[:count], batch.lengths[count:]), strict=True)
    ]


@dataclass
class Launch:
    folder: Path
    reports: list[dict]

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Of all stages; every tensor is exported by one stage only."""
        merged = {}
        for path in sorted(self.folder.glob(f"{name}.*")):
            stage = load_file(path)
            assert not merged.keys() & stage.keys()
            merged |= stage
        return merged


def launch(
    folder: Path, oracles: dict[str, Oracle], scenarios: list[str], *, tensor=1, pipeline=1, data=1, **extra
) -> Launch:
    world_size = tensor * pipeline * data
    workers = {"hardware": "cpu", "actor_train": world_size, "actor_gen": 1, "environment": 1, "reward": 1}
    config = {
        "run": {"name": "test", "steps": 6, "seed": 1},
        "model": {"max_context": 256},
        "training": {
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "data_parallel": data,
            "learning_rate": 0.01,
            "warmup_steps": 4,
            "weight_decay": 0.1,
            "clip_grad_norm": 0.3,
        },
        "generation": {"temperature": TEMPERATURE},
        "rollout": {"groups_per_step": 1},
        "pools": {"local": workers},
        "tasks": {"task": {"environment": "a:b", "reward": "a:b", "max_new_tokens": 32}},
    }
    spec = {
        "config": config,
        "scenarios": scenarios,
        "ports": free_ports(16),
        "models": {name: str(oracle.directory) for name, oracle in oracles.items()},
        "gradient_runs": GRADIENT_RUNS,
        "probe": PROBE,
        **extra,
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    batches = {name: oracle.batch for name, oracle in oracles.items()}
    for step, lengths in enumerate(STEP_LENGTHS):
        batches[f"step{step}"] = make_batch(step, lengths, oracles["tied"].logprobs)
    for name, batch in batches.items():
        for rank, share in enumerate(shares(batch, data)):
            (folder / f"{name}.{rank}").write_bytes(codec.encode(share))
    run_ranks(folder, world_size)
    return Launch(folder, [json.loads((folder / f"report.{rank}").read_text()) for rank in range(world_size)])


def run_ranks(folder: Path, world_size: int) -> None:
    script = Path(__file__).with_name("trainer_rank.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    logs = [folder / f"log.{rank}" for rank in range(world_size)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, "-W", "ignore", str(script), str(folder), str(rank)]
            with log.open("w") as output:
                ranks.append(
                    subprocess.Popen(
                        command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                    )
                )
        for process, log in zip(ranks, logs, strict=True):
            assert process.wait(DEADLINE_S) == 0, log.read_text()[-4000:]
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_ports(count: int) -> list[int]:
    """Below the ranges from which the system, every rank and other tests draw theirs: they are needed much later."""
    ports, candidates = [], random.sample(range(5_000, 9_900), 200)
    while len(ports) < count:
        port = candidates.pop()
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


LAYOUTS = {"tensor": {"tensor": 2}, "pipeline": {"pipeline": 2}, "data": {"data": 2}}


@pytest.fixture(scope="module")
def launches(oracles, tmp_path_factory):
    scenarios = ["gradients", "weights", "resume"]
    done = {
        name: launch(tmp_path_factory.mktemp(name), oracles, scenarios, **layout) for name, layout in LAYOUTS.items()
    }
    folder = tmp_path_factory.mktemp("single")
    empty, wrong = folder / "empty", folder / "wrong"
    empty.mkdir()
    wrong.mkdir()
    save_file({**oracles["tied"].weights, "model.norm.weight": torch.ones(32)}, wrong / "model.safetensors")
    done["single"] = launch(
        folder,
        oracles,
        [*scenarios, "resume_other_layouts", "changed_before_written", "refusals"],
        other_checkpoints={name: str(each.folder / "checkpoint") for name, each in done.items()},
        bad_models={"empty": str(empty), "wrong": str(wrong)},
    )
    done["data again"] = launch(
        tmp_path_factory.mktemp("again"),
        oracles,
        ["resume_other_layouts"],
        other_checkpoints={name: str(done[name].folder / "checkpoint") for name in ("single", "tensor")},
        **LAYOUTS["data"],
    )
    return done


@pytest.fixture(params=["single", *LAYOUTS])
def launched(request, launches):
    return launches[request.param]


runs = pytest.mark.parametrize(("model", "micro_batch_tokens"), GRADIENT_RUNS)


@runs
def test_gradients_are_those_of_hugging_face_in_every_layout_and_micro_batch_split(
    launched, oracles, model, micro_batch_tokens
):
    gradients = launched.tensors(f"gradients-{model}-{micro_batch_tokens}")
    assert gradients.keys() == oracles[model].gradients.keys()
    for name, expected in oracles[model].gradients.items():
        assert (gradients[name] - expected).norm() <= 1e-5 * expected.norm(), name


@runs
def test_statistics_are_those_of_hugging_face_on_every_rank(launched, oracles, model, micro_batch_tokens):
    oracle = oracles[model]
    norm = torch.stack([gradient.norm() for gradient in oracle.gradients.values()]).norm().item()
    for report in launched.reports:
        statistics = report[f"statistics-{model}-{micro_batch_tokens}"]
        assert statistics == launched.reports[0][f"statistics-{model}-{micro_batch_tokens}"]
        assert statistics["loss"] == pytest.approx(oracle.loss, rel=1e-4)
        assert statistics["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert statistics["clip_fraction"] == pytest.approx(oracle.clip_fraction)
        assert statistics["num_tokens"] == np.count_nonzero(oracle.batch.loss_weights)
        assert statistics["gap_count"] == oracle.batch.same_version.sum()
        assert statistics["gap_max"] == pytest.approx(0.001, abs=1e-5)
        assert statistics["gap_sum"] == pytest.approx(0.001 * statistics["gap_count"], rel=1e-2)


@pytest.mark.parametrize("model", ["tied", "untied"])
def test_exported_weights_are_bit_for_bit_the_loaded_ones(launched, oracles, model):
    exported = launched.tensors(f"weights-{model}")
    assert exported.keys() == oracles[model].weights.keys()
    for name, tensor in exported.items():
        assert torch.equal(tensor, oracles[model].weights[name]), name
    assert all(report[f"same_order-{model}"] for report in launched.reports)


@pytest.mark.parametrize("model", ["tied", "untied"])
def test_probe_logprobs_are_those_of_hugging_face_without_temperature(launched, oracles, model):
    with torch.no_grad():
        expected = oracles[model].logprobs(torch.tensor(PROBE), temperature=1.0).numpy()
    for report in launched.reports:
        np.testing.assert_allclose(report[f"probe-{model}"], expected, atol=2e-5)


def test_resuming_in_the_same_layout_goes_on_bit_for_bit_though_training_went_on_before_it_was_written(launched):
    for report in launched.reports:
        assert report["save"] == ["", ""]
        assert report["random_resumed"] == report["random"]
        assert report["resumed"] == report["unbroken"] == launched.reports[0]["unbroken"]
        assert report["digest_resumed"] == report["digest_unbroken"] != report["digest_saved"]
        assert report["digest_saved"] == launched.reports[0]["digest_saved"]
        assert "not empty" in report["refused_save"]


def test_a_save_holds_what_was_when_it_began(launches):
    report = launches["single"].reports[0]
    assert report["digest_loaded"] == report["digest_before"] != report["digest_changed"]


def test_a_failed_save_is_an_answer_on_every_rank(launched):
    assert any("No such file" in report["failed_write"] for report in launched.reports)
    for report in launched.reports:
        assert report["failed_commit"].startswith("rank 0: [Errno 2] No such file")


@pytest.mark.parametrize(
    ("layout", "now"),
    [*((layout, "single") for layout in LAYOUTS), ("single", "data again"), ("tensor", "data again")],
)
def test_a_checkpoint_goes_on_in_another_layout(launches, layout, now):
    saved, resumed = launches[layout].reports[0], launches[now].reports[0]
    assert resumed[f"digest-{layout}"] == saved["digest_saved"]
    assert_same_course(resumed[f"resumed-{layout}"], saved["unbroken"])


def test_training_goes_the_same_way_in_every_layout(launched, launches):
    assert_same_course(launched.reports[0]["unbroken"], launches["single"].reports[0]["unbroken"])


def assert_same_course(ours: list[dict], theirs: list[dict]) -> None:
    """Layouts add in another order, and Adam makes the most of small differences."""
    for our_step, their_step in zip(ours, theirs, strict=True):
        assert our_step["loss"] == pytest.approx(their_step["loss"], rel=2e-3, abs=1e-4)
        assert our_step["grad_norm"] == pytest.approx(their_step["grad_norm"], rel=2e-3)


def test_the_learning_rate_warms_up_linearly_and_stays(launches):
    report = launches["single"].reports[0]
    rates = [statistics["learning_rate"] for statistics in report["first_steps"] + report["unbroken"]]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_what_cannot_be_loaded_is_refused_with_a_reason(launches):
    report = launches["single"].reports[0]
    assert report["empty"].startswith("ConfigError")
    assert "neither model.safetensors nor" in report["empty"]
    assert "model.norm.weight has shape (32,), expected (64,)" in report["wrong"]
    assert report["no_checkpoint"].startswith("CheckpointError")
    assert "metadata.json" in report["no_checkpoint"]


def test_a_rank_whose_peers_never_come_gives_up_in_time(launches):
    assert launches["single"].reports[0]["alone"].startswith("WaitTimeout: waited 1 s for the rendezvous")
