"""What a user's method of a generation worker generates with: the worker's own engine.

Its requests run in the same batches as those of the run, under an inbox of their own whose answers stay here. While
the engine is suspended for a weight update they wait.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.model_files import end_tokens, read_tokenizer
from rollart_hpc.data_plane.plain_methods import get
from rollart_hpc.errors import EngineError
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult

if TYPE_CHECKING:
    from rollart_hpc.data_plane.engine import Engine

OWN_INBOX = ""
"""The inbox of no requester on the bus."""


class GenerationModel:
    """`process` for plain methods, `generate` for async ones."""

    def __init__(self, config: RunConfig, engine: Callable[[], Engine]) -> None:
        self._config, self._engine = config, engine
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[GenerateResult]] = {}
        self._end_tokens: tuple[int, ...] | None = None

    def process(
        self,
        input_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        tag: str = "default",
    ) -> list[int]:
        """The tokens that follow ``input_ids``, its end token included; blocks, for plain methods alone.

        Arguments and errors are those of `generate`.
        """
        result = get(self.generate(input_ids, max_tokens=max_tokens, temperature=temperature, tag=tag))
        return np.frombuffer(result.token_ids, "<i4").tolist()

    async def generate(
        self,
        input_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop_token_ids: Sequence[int] | None = None,
        seed: int | None = None,
        tag: str = "default",
    ) -> GenerateResult:
        """Generates one response; aborted in the engine when it is cancelled.

        Args:
            input_ids: the prompt.
            max_tokens: the largest ``max_new_tokens`` of the run's tasks when left out.
            temperature: the run's when left out; 0 is greedy.
            top_p: the run's when left out.
            stop_token_ids: the model's end tokens when left out.
            seed: makes the response repeatable.
            tag: under which the profiler counts it.

        Raises:
            EngineError: the engine refused the request or lost it, or the prompt fills the context.
        """
        if stop_token_ids is None:
            stop_token_ids = await self._model_end_tokens()
        sampling = self._config.generation
        request = GenerateRequest(
            next(self._ids),
            _token_bytes(input_ids),
            max(task.max_new_tokens for task in self._config.tasks.values()) if max_tokens is None else max_tokens,
            temperature=sampling.temperature if temperature is None else temperature,
            top_p=sampling.top_p if top_p is None else top_p,
            stop_token_ids=tuple(stop_token_ids),
            tag=tag,
            seed=seed,
        )
        answer: asyncio.Future[GenerateResult] = asyncio.get_running_loop().create_future()
        self._pending[request.request_id] = answer
        self._engine().add(OWN_INBOX, [request])
        try:
            result = await answer
        except asyncio.CancelledError:
            self._engine().abort(OWN_INBOX, [request.request_id])
            raise
        finally:
            del self._pending[request.request_id]
        if result.error:
            raise EngineError(result.error)
        if result.finish_reason is FinishReason.CONTEXT:
            raise EngineError(
                f"the prompt has {len(request.token_ids) // 4} tokens and model.max_context is "
                f"{self._config.model.max_context}: there is no room for an answer"
            )
        return result

    def deliver(self, result: GenerateResult) -> None:
        """Takes an answer of `OWN_INBOX`; nothing when nobody waits for it any more."""
        answer = self._pending.get(result.request_id)
        if answer is not None and not answer.done():
            answer.set_result(result)

    async def _model_end_tokens(self) -> tuple[int, ...]:
        if self._end_tokens is None:
            directory = self._config.model.path
            self._end_tokens = await asyncio.to_thread(lambda: end_tokens(directory, read_tokenizer(directory)))
        return self._end_tokens


def _token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as they travel.

    Raises:
        EngineError: they are no list of numbers that a token can have; the engine sees to the model's vocabulary.
    """
    try:
        array = np.asarray(token_ids)
    except ValueError:  # lists of several lengths
        array = np.zeros((0, 0))
    if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= 2**31)):
        raise EngineError(f"the prompt is {token_ids!r:.80}; expected a list of token ids")
    return array.astype("<i4").tobytes()
