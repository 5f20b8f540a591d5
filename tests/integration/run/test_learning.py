"""The same assessment passes a right run and fails broken ones: sign, shuffled advantages, undelivered weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_hpc.observe.assessment import assess_summary
from rollart_hpc.observe.metrics import read_metrics
from rollart_hpc.types import Outcome
from tests.integration.run.driver import ARITHMETIC, HERE, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LEAST = {"arithmetic": 0.85}


def test_a_right_run_learns_keeps_its_books_and_can_be_resumed_and_exported(
    run: Run, arithmetic_model: Path, tmp_path: Path
):
    code, output = run.train(ARITHMETIC, arithmetic_model)
    assert code == 0, output
    summary = run.summary
    assert assess_summary(summary, LEAST) == []
    assert summary["tasks"]["arithmetic"]["success_first"] < 0.75
    assert (summary["steps"], summary["weight_version"], summary["confirmed_version"]) == (30, 30, 30)
    assert summary["max_staleness_trained"] <= summary["alpha"] == 1
    assert summary["logprob_gap"]["mean"] <= 1e-4
    assert summary["logprob_gap"]["tokens"] > 0
    assert summary["tokens_generated"] >= summary["tokens_trained"] > 0
    assert set(summary["trajectories"]) == {"dispatched", "pending", *map(str, Outcome)}
    assert summary["trajectories"]["trained"] == 30 * 16 * 8
    assert [record["step"] for record in read_metrics(run.directory)] == list(range(1, 31))
    assert list((run.directory / "tensorboard").glob("events*"))

    code, output = run.execute("ledger", run.directory, "--json")
    assert code == 0
    assert {key: value for key, value in json.loads(output)["all"].items() if key != "causes"} == summary[
        "trajectories"
    ]

    own = {"actor_train": "Train", "actor_gen": "Gen", "environment": "Play", "reward": "Reward"}
    workers = [f"--set=workers.{role}=own_workers:{name}" for role, name in own.items()]
    code, output = run.execute("resume", run.directory, "--set=run.steps=33", "--set=affinity={}", *workers)
    assert code == 0, output
    logs = run.directory / "attempts" / "2" / "logs"
    assert (logs / "actor_train-0.log").read_text().count("own_workers: train step") == 3
    assert (logs / "reward-0.log").read_text().count("scores an episode of 1 turns") >= 3 * 16 * 8
    assert "own_workers: plays" in (logs / "environment-0.log").read_text()
    bindings = (run.directory / "attempts" / "2" / "bindings.jsonl").read_text()
    assert '"source":"hw_affinity.default of Gen.generate","hardware":"H20"' in bindings
    assert run.summary["steps"] == 33
    assert run.summary["tasks"]["arithmetic"]["success_last"] > 0.85
    assert [record["step"] for record in read_metrics(run.directory)] == list(range(1, 34))

    exported = tmp_path / "exported"
    code, output = run.execute("export", run.directory, "--step", 33, "--to", exported)
    assert code == 0, output
    script = (
        "import sys, torch; from transformers import AutoModelForCausalLM, AutoTokenizer as T\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = T.from_pretrained(sys.argv[1])\n"
        "x = t.apply_chat_template([{'role': 'user', 'content': '7+5=?'}], add_generation_prompt=True, "
        "return_tensors='pt', return_dict=True)\n"
        "print(t.decode(m.generate(**x, max_new_tokens=24, do_sample=False)[0]))"
    )
    shown = subprocess.run([sys.executable, "-c", script, exported], capture_output=True, text=True, check=True)
    assert "<answer>12</answer>" in shown.stdout


@pytest.mark.parametrize("fault", ["sign", "shuffled", "undelivered-unprobed"])
def test_a_broken_run_does_not_pass(run: Run, arithmetic_model: Path, fault: str):
    run.program = [sys.executable, str(HERE / "faulty.py"), fault]
    code, output = run.train(ARITHMETIC, arithmetic_model)
    assert code == 0, output
    reasons = assess_summary(run.summary, LEAST)
    assert reasons[0].startswith("task arithmetic: success of the last steps is")
    if fault == "undelivered-unprobed":
        assert reasons[1].startswith("sampler and trainer differ by")


def test_weights_that_never_arrive_are_noticed_by_the_probe(run: Run, arithmetic_model: Path):
    run.program = [sys.executable, str(HERE / "faulty.py"), "undelivered"]
    settings = {"rollout.stall_timeout_s": 6.0, "run.steps": 6, "run.max_failures": 1}
    code, output = run.train(ARITHMETIC, arithmetic_model, **settings)
    assert code == 1
    log = (run.directory / "attempts" / "1" / "logs" / "controller.log").read_text()
    assert "actor_gen-0 does not serve version" in log
    assert "resume" in output
