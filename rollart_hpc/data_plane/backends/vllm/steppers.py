"""Two ways to drive one vLLM engine step by step in the calling thread.

`EngineCoreStepper` calls the scheduler and the model directly and leaves out vLLM's input and output processors,
which text needs and token ids do not: about a quarter less CPU time for a short request. `LLMEngineStepper` uses the
public API only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rollart_hpc.data_plane.backends.admission import ModelLimits
from rollart_hpc.data_plane.backends.vllm.weight_file import weight_file

if TYPE_CHECKING:
    import torch


class StepOutput(NamedTuple):
    """What one step gave one request."""

    request_id: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """One per token."""
    finish_reason: str | None
    """vLLM's name; None while the request goes on."""
    num_cached_tokens: int | None
    """With the first token only."""
    prompt_logprobs: list[float] | None
    """Of tokens 1.. of the prompt, for a probe."""


class Stepper(Protocol):
    """A synchronous engine; used by one thread."""

    limits: ModelLimits

    def add(self, request_id: str, token_ids: list[int], params: Any) -> None:
        """Queues a request."""
        ...

    def abort(self, request_id: str) -> None:
        """Drops a request; it has no output any more."""
        ...

    def step(self) -> Iterator[StepOutput]:
        """Runs the model once."""
        ...

    def replace_weights(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Loads all weights of the model; KV that was computed before is wrong from then on."""
        ...

    def drop_kv(self) -> None:
        """Drops every KV and prefix block; running requests go back to the queue with the tokens they have."""
        ...

    def close(self) -> None:
        """Frees the model."""
        ...


class _EngineBase:
    def __init__(self, engine: Any, *, weights_by_file: bool) -> None:
        self._engine = engine
        self._weights_by_file = weights_by_file
        model = engine.model_config
        self.limits = ModelLimits(max_context=model.max_model_len, vocab_size=model.get_vocab_size())

    def replace_weights(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """See `Stepper`."""
        if not self._weights_by_file:
            self._engine.collective_rpc("replace_weights", args=(tensors,))
            return
        with weight_file(tensors) as path:
            self._engine.collective_rpc("replace_weights_from", args=(str(path),))

    def drop_kv(self) -> None:
        """See `Stepper`."""
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not drop its KV cache; tokens would be sampled from old weights' KV")

    def close(self) -> None:
        """See `Stepper`."""
        self._engine.engine_core.shutdown()
        self._engine.renderer.shutdown()


class LLMEngineStepper(_EngineBase):
    """Drives LLMEngine."""

    def add(self, request_id: str, token_ids: list[int], params: Any) -> None:
        """See `Stepper`."""
        self._engine.add_request(request_id, {"type": "token", "prompt_token_ids": token_ids}, params)

    def abort(self, request_id: str) -> None:
        """See `Stepper`."""
        self._engine.abort_request([request_id])

    def step(self) -> Iterator[StepOutput]:
        """See `Stepper`."""
        for output in self._engine.step():
            completion = output.outputs[0]
            prompt_logprobs = output.prompt_logprobs
            yield StepOutput(
                output.request_id,
                completion.token_ids,
                completion.logprobs.logprobs if completion.logprobs else (),
                completion.finish_reason,
                output.num_cached_tokens,
                list(prompt_logprobs.logprobs) if prompt_logprobs else None,
            )


class EngineCoreStepper(_EngineBase):
    """Drives the EngineCore inside an LLMEngine."""

    def __init__(self, engine: Any, *, weights_by_file: bool) -> None:
        super().__init__(engine, weights_by_file=weights_by_file)
        from vllm.v1.engine import EngineCoreRequest

        self._core = engine.engine_core.engine_core
        self._make_request: Any = EngineCoreRequest

    def add(self, request_id: str, token_ids: list[int], params: Any) -> None:
        """See `Stepper`."""
        request = self._make_request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))

    def abort(self, request_id: str) -> None:
        """See `Stepper`."""
        self._core.abort_requests([request_id])

    def step(self) -> Iterator[StepOutput]:
        """See `Stepper`."""
        outputs, model_executed = self._core.step()
        self._core.post_step(model_executed)
        if 0 not in outputs:
            return
        for output in outputs[0].outputs:
            # [tokens, 1]: the sampled token's column only.
            sampled, prompt = output.new_logprobs, output.new_prompt_logprobs_tensors
            yield StepOutput(
                output.request_id,
                output.new_token_ids,
                () if sampled is None else sampled.logprobs[:, 0].tolist(),
                None if output.finish_reason is None else str(output.finish_reason),
                None if output.prefill_stats is None else output.prefill_stats.num_cached_tokens,
                None if prompt is None else prompt.logprobs[:, 0].tolist(),
            )
