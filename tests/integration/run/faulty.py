"""``rollart-hpc`` with a fault built in, in every process of the run: ``python faulty.py FAULT run CONFIG ...``."""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np


def _start_children_with_the_fault(fault: str) -> None:
    from rollart_hpc.launcher import plan

    plan.python_module = lambda module, *arguments: [sys.executable, __file__, fault, *arguments]


def _change_advantages(change: Any) -> None:
    from rollart_hpc.control_plane import batch

    right = batch.group_advantages

    def wrong(*arguments: Any, **options: Any) -> Any:
        advantages, has_variance = right(*arguments, **options)
        return change(advantages), has_variance

    batch.group_advantages = wrong


def _shuffled() -> Any:
    generator = np.random.default_rng(0)
    return generator.permutation


def _never_deliver_weights() -> None:
    from safetensors.torch import load_file

    from rollart_hpc.data_plane.backends.vllm.thread_engine import VllmThreadEngine

    load = VllmThreadEngine.load

    async def load_the_initial_model(self: VllmThreadEngine, version: int, tensors: Iterable[tuple[str, Any]]) -> None:
        await load(self, version, load_file(str(self._config.model.path / "model.safetensors")).items())

    VllmThreadEngine.load = load_the_initial_model


def _probe_nothing() -> None:
    from rollart_hpc.control_plane.weight_sync import WeightSync

    async def no_probe(*_: Any) -> None:
        return

    WeightSync._probe = no_probe


def main() -> None:
    fault, command = sys.argv[1], sys.argv[2]
    sys.argv = [sys.argv[0], *sys.argv[2:]]
    _start_children_with_the_fault(fault)
    if fault == "sign" and command == "controller":
        _change_advantages(lambda advantages: -advantages)
    if fault == "shuffled" and command == "controller":
        _change_advantages(_shuffled())
    if fault in ("undelivered", "undelivered-unprobed") and command == "actor-gen":
        _never_deliver_weights()
    if fault == "undelivered-unprobed" and command == "controller":
        _probe_nothing()
    from rollart_hpc.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
