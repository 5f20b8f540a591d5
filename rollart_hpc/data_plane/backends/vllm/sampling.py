"""From our requests to vLLM's sampling parameters, and back from its finish reasons."""

from __future__ import annotations

from typing import Any

from rollart_hpc.types import FinishReason, GenerateRequest

_CACHE_SIZE = 1024

FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
"""By vLLM's name; any other name is an error of the engine's for that request."""


class SamplingCache:
    """Sampling parameters are checked and built once for all requests that sample alike."""

    def __init__(self, *, final_only: bool) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._make = SamplingParams
        self._output_kind = RequestOutputKind.FINAL_ONLY if final_only else RequestOutputKind.DELTA
        self._cache: dict[tuple[Any, ...], Any] = {}

    def of(self, request: GenerateRequest, max_tokens: int) -> Any:
        """SamplingParams of a request; to be read only, since requests share them."""
        key = (max_tokens, request.temperature, request.top_p, request.stop_token_ids, request.seed)
        params = self._cache.get(key)
        if params is None:
            params = self._make(
                max_tokens=max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                stop_token_ids=list(request.stop_token_ids),
                seed=request.seed,
                # Only the request's own stop tokens end it.
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=self._output_kind,
            )
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            self._cache[key] = params
        return params

    def of_probe(self) -> Any:
        """SamplingParams that return the prompt's raw logprobs; the one sampled token is thrown away."""
        return self._make(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._output_kind,
        )
