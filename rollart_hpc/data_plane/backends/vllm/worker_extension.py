"""What is mixed into vLLM's worker class: runs where the model lives, called by name through ``collective_rpc``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class WeightReplacer:
    """Replaces all weights of the model in place.

    Parts that vLLM fuses (q, k, v; gate, up) must come in one call: a part alone is silently loaded wrongly.
    """

    model_runner: Any

    def replace_weights(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Takes the tensors themselves, where the worker runs in the caller's process."""
        # Unlike `load_weights` this packs the weights for the CPU's kernels again.
        self.model_runner.reload_weights(weights_iterator=iter(tensors))
        model = self.model_runner.get_model()
        if model.config.tie_word_embeddings:
            # The head has no tensor of its own, so the reload leaves out its packed copy of the embeddings.
            model.lm_head.quant_method.process_weights_after_loading(model.lm_head)

    def replace_weights_from(self, path: str) -> None:
        """Takes the path of a safetensors file, where the worker is another process of the same machine."""
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            self.replace_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
