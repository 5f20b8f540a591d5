"""The interface of a generation engine: the inference worker's command-driven event loop (paper section 6.1).

An engine takes ADD and ABORT at any time and handles them between two of its steps. A weight update is
`suspend`, `load`, `resume`; requests in flight keep their tokens, and their KV is computed again under the new
weights.

Invariants:
- Every request that was added is answered exactly once: with its result, or with an error.
- No token is sampled from KV that another version's weights computed, in flight or in the prefix cache.
- The spans of a result say exactly which version sampled which tokens.
- A bad request costs its own answer, never the engine. An engine that fails answers all and says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.types import GenerateRequest, GenerateResult, TagUsage

if TYPE_CHECKING:
    import torch

Answer = tuple[str, GenerateResult]
"""A result and the inbox that its request came from."""
Deliver = Callable[[Sequence[Answer]], None]
"""Takes the answers of one engine step; called on the event loop, must not block."""
OnFailure = Callable[[BaseException], None]
"""Told once, on the event loop, that the engine is lost: its process has to end."""


class Engine(Protocol):
    """One inference engine; all methods are called on one event loop.

    A request is known by its inbox and its request id. Adding a request that is outstanding changes nothing; one
    that was answered already is generated again.
    """

    @property
    def version(self) -> int:
        """The weights that are loaded; those of ``model.path`` are version 0."""
        ...

    @property
    def num_running(self) -> int:
        """Requests added and not answered."""
        ...

    def usage(self) -> Mapping[str, TagUsage]:
        """What was used so far, by tag."""
        ...

    async def start(self, deliver: Deliver, on_failure: OnFailure) -> None:
        """Loads the model; the engine takes requests from then on.

        Raises:
            EngineError: the model cannot be served.
        """
        ...

    def add(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        """ADD: hands requests over; while suspended they wait."""
        ...

    def abort(self, inbox: str, request_ids: Iterable[int]) -> None:
        """ABORT: each is answered at once with what it has; unknown ones are ignored."""
        ...

    async def suspend(self) -> None:
        """After it returns no step runs; ADD waits, ABORT works."""
        ...

    async def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Swaps the weights and drops every KV and prefix block; only while suspended.

        Args:
            version: what the tokens from now on are stamped with.
            tensors: the whole model, by the checkpoint's names, in host memory.

        Raises:
            EngineError: the engine is not suspended.
            WeightsError: tensors are missing or of a wrong shape; the old weights are still loaded.
        """
        ...

    async def resume(self) -> None:
        """Goes on; requests in flight prefill their prompt and what they had generated."""
        ...

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs, without temperature, of tokens 1.. of a sequence under the loaded weights.

        Raises:
            EngineError: the engine is suspended, or the sequence does not fit.
        """
        ...

    async def close(self) -> None:
        """Ends the engine within a bounded time; what is outstanding is answered with an error."""
        ...


def create_engine(config: RunConfig, *, seed: int) -> Engine:
    """The engine that the configuration and the machine call for; not started yet.

    Args:
        config: the run's configuration.
        seed: of the sampler; no two workers of a run may share it, or their samples repeat each other's.
    """
    if config.generation.engine == "echo":
        from rollart_hpc.data_plane.backends.echo import EchoEngine

        return EchoEngine(config)
    from rollart_hpc.data_plane.backends.vllm import compat

    if compat.has_gpu():
        from rollart_hpc.data_plane.backends.vllm.async_engine import VllmAsyncEngine

        return VllmAsyncEngine(config, seed=seed)
    from rollart_hpc.data_plane.backends.vllm.thread_engine import VllmThreadEngine

    return VllmThreadEngine(config, seed=seed)
