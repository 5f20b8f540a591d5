"""vLLM in a thread of this process: the engine of the CPU.

The event loop's side of `CommandLoop`: hands commands over, delivers answers, waits with deadlines.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.outstanding import Outstanding
from rollart_hpc.data_plane.backends.vllm import compat
from rollart_hpc.data_plane.backends.vllm.command_loop import CommandLoop
from rollart_hpc.data_plane.backends.vllm.weight_file import checkpoint_shapes, require_complete
from rollart_hpc.data_plane.engine import Answer, Deliver, OnFailure
from rollart_hpc.errors import EngineError, WaitTimeout
from rollart_hpc.types import GenerateRequest, TagUsage

if TYPE_CHECKING:
    import torch

_START_DEADLINE_S = 600.0
_COMMAND_DEADLINE_S = 120.0
_CLOSE_DEADLINE_S = 15.0

T = TypeVar("T")


class VllmThreadEngine:
    """Implements `Engine`. One per process: vLLM's clean-up of one breaks another that still runs."""

    def __init__(self, config: RunConfig, *, seed: int, public_api: bool = False) -> None:
        self._config = config
        self._outstanding = Outstanding()
        self._commands = CommandLoop(
            lambda: compat.open_stepper(config, seed=seed, public_api=public_api), self._emit_from_thread
        )
        self._thread = threading.Thread(target=self._serve, name="vllm-engine", daemon=True)
        self._started: Future[None] = Future()
        self._shapes: dict[str, tuple[int, ...]] = {}

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self._commands.version

    @property
    def num_running(self) -> int:
        """See `Engine`."""
        return len(self._outstanding)

    def usage(self) -> Mapping[str, TagUsage]:
        """See `Engine`."""
        return self._commands.usage()

    async def start(self, deliver: Deliver, on_failure: OnFailure) -> None:
        """See `Engine`."""
        self._loop = asyncio.get_running_loop()
        self._shapes = checkpoint_shapes(self._config.model.path)
        self._thread.start()
        try:
            await self._wait(self._started, "the model to be loaded", _START_DEADLINE_S)
        except WaitTimeout:
            raise
        except Exception as error:
            raise EngineError(
                f"vLLM cannot serve {self._config.model.path}: {type(error).__name__}: {error}"
            ) from error
        self._outstanding.open(deliver, on_failure)

    def add(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        """See `Engine`."""
        if fresh := self._outstanding.accept(inbox, requests):
            self._commands.add(inbox, fresh)

    def abort(self, inbox: str, request_ids: Iterable[int]) -> None:
        """See `Engine`."""
        self._commands.abort((inbox, request_id) for request_id in request_ids)

    async def suspend(self) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        await self._wait(self._commands.call(self._commands.suspend), "the running step to end")

    async def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        whole = list(tensors)
        require_complete(whole, self._shapes)
        replaced = self._commands.call(lambda: self._commands.replace_weights(version, whole))
        await self._wait(replaced, f"the weights of version {version} to be loaded")

    async def resume(self) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        await self._wait(self._commands.call(self._commands.resume), "the engine to resume")

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        """See `Engine`."""
        self._outstanding.require_open()
        if not 2 <= len(token_ids) < self._config.model.max_context:
            raise EngineError(
                f"a probe has {len(token_ids)} tokens; expected 2 to {self._config.model.max_context - 1}"
            )
        return await self._wait(self._commands.probe(list(token_ids)), "a probe")

    async def close(self) -> None:
        """See `Engine`."""
        self._outstanding.end("the engine was closed")
        if not self._thread.is_alive():
            return
        self._commands.call(self._commands.close)
        await asyncio.to_thread(self._thread.join, _CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise WaitTimeout("the end of its last step", "the vLLM thread", _CLOSE_DEADLINE_S)

    def _serve(self) -> None:
        try:
            self._commands.run(self._started)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._outstanding.fail, error)

    def _emit_from_thread(self, answers: list[Answer]) -> None:
        self._loop.call_soon_threadsafe(self._outstanding.settle, answers)

    async def _wait(self, future: Future[T], what: str, deadline_s: float = _COMMAND_DEADLINE_S) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise WaitTimeout(what, "the vLLM thread", deadline_s) from None
