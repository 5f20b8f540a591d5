"""vLLM's AsyncLLM: the engine of the GPU. Model and scheduler run in processes of their own.

Invariants: one task per request, all in one TaskGroup; results that arrive in the same tick of the event loop are
delivered together.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.admission import AdmittedRequest, ModelLimits, admit, refusal
from rollart_hpc.data_plane.backends.outstanding import Key, Outstanding
from rollart_hpc.data_plane.backends.vllm import compat
from rollart_hpc.data_plane.backends.vllm.final_output import result_of, usage_of
from rollart_hpc.data_plane.backends.vllm.running import UsageCounter
from rollart_hpc.data_plane.backends.vllm.sampling import SamplingCache
from rollart_hpc.data_plane.backends.vllm.shared_time import SharedTime
from rollart_hpc.data_plane.backends.vllm.weight_file import checkpoint_shapes, require_complete, weight_file
from rollart_hpc.data_plane.engine import Answer, Deliver, OnFailure
from rollart_hpc.data_plane.stop_signals import STOP_SIGNALS
from rollart_hpc.errors import EngineError, WaitTimeout
from rollart_hpc.processes import deaf_children
from rollart_hpc.types import GenerateRequest, GenerateResult, TagUsage

if TYPE_CHECKING:
    import torch

_START_DEADLINE_S = 900.0
_COMMAND_DEADLINE_S = 300.0
_SHUTDOWN_S = 3.0
"""The engine process holds nothing worth saving; it is killed after this time."""
_CLOSE_DEADLINE_S = 30.0


class VllmAsyncEngine:
    """Implements `Engine`."""

    def __init__(self, config: RunConfig, *, seed: int) -> None:
        self._config, self._seed = config, seed
        self._outstanding = Outstanding()
        self._usage = UsageCounter()
        self._time = SharedTime(1 if config.generation.deterministic else config.generation.max_concurrent)
        self._version = 0
        self._suspended = False
        self._closing = False
        self._ids = itertools.count()
        self._id_of: dict[Key, str] = {}
        self._registered: set[str] = set()
        self._aborting: set[str] = set()
        self._answers: list[Answer] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._llm: Any = None
        self._tasks: list[asyncio.Future[Any]] = []

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self._version

    @property
    def num_running(self) -> int:
        """See `Engine`."""
        return len(self._outstanding)

    def usage(self) -> Mapping[str, TagUsage]:
        """See `Engine`."""
        return self._usage.by_tag()

    async def start(self, deliver: Deliver, on_failure: OnFailure) -> None:
        """See `Engine`."""
        self._loop = asyncio.get_running_loop()
        self._shapes = checkpoint_shapes(self._config.model.path)
        try:
            async with _deadline(_START_DEADLINE_S, "the model to be loaded"):
                # Blocks until the engine's process has loaded the model.
                await asyncio.to_thread(self._open)
                model = self._llm.model_config
                self._limits = ModelLimits(max_context=model.max_model_len, vocab_size=model.get_vocab_size())
                self._sampling = SamplingCache(final_only=True)
                self._request_errors = compat.request_errors()
                await self._llm.update_weight_version("0")
                await self._score([0, 0])
        except WaitTimeout:
            raise
        except Exception as error:
            raise EngineError(
                f"vLLM cannot serve {self._config.model.path}: {type(error).__name__}: {error}"
            ) from error
        self._outstanding.open(deliver, on_failure)
        grouped: asyncio.Future[asyncio.TaskGroup] = self._loop.create_future()
        # AsyncLLM's own task ends only when its engine process is lost.
        self._tasks = [self._loop.create_task(_hold_group(grouped)), self._llm.output_handler]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        self._group = await grouped

    def add(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        """See `Engine`."""
        for request in self._outstanding.accept(inbox, requests):
            admitted = admit(request, self._limits)
            if isinstance(admitted, AdmittedRequest):
                vllm_id = str(next(self._ids))
                self._id_of[inbox, request.request_id] = vllm_id
                self._spawn(self._generate(vllm_id, inbox, request, admitted))
            else:
                self._answer(inbox, admitted)

    def abort(self, inbox: str, request_ids: Iterable[int]) -> None:
        """See `Engine`."""
        found = [self._id_of.get((inbox, request_id)) for request_id in request_ids]
        vllm_ids = {vllm_id for vllm_id in found if vllm_id is not None}
        # AsyncLLM ignores ids that it does not know yet; `_generate` aborts those when it has registered them.
        self._aborting |= vllm_ids - self._registered
        if known := sorted(vllm_ids & self._registered):
            self._spawn(self._guarded(self._llm.abort(known)))

    async def suspend(self) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        async with _deadline(_COMMAND_DEADLINE_S, "the running step to end"):
            await self._llm.pause_generation(mode="keep", clear_cache=False)
        self._suspended = True
        self._time.suspend()

    async def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        if not self._suspended:
            raise EngineError("load needs a suspended engine; call suspend first")
        whole = list(tensors)
        require_complete(whole, self._shapes)
        try:
            async with _deadline(_COMMAND_DEADLINE_S, f"the weights of version {version} to be loaded"):
                await self._replace_weights(version, whole)
        except Exception as error:
            # Half-loaded weights have no version; nothing may be sampled from them.
            self._outstanding.fail(error)
            raise

    async def resume(self) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        async with _deadline(_COMMAND_DEADLINE_S, "the engine to resume"):
            await self._llm.resume_generation()
        self._suspended = False
        self._time.resume()

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        """See `Engine`."""
        self._outstanding.require_open()
        if self._suspended:
            raise EngineError("a suspended engine cannot be probed; call resume first")
        if not 2 <= len(token_ids) < self._limits.max_context:
            raise EngineError(f"a probe has {len(token_ids)} tokens; expected 2 to {self._limits.max_context - 1}")
        async with _deadline(_COMMAND_DEADLINE_S, "a probe"):
            return await self._score(list(token_ids))

    async def close(self) -> None:
        """See `Engine`."""
        self._outstanding.end("the engine was closed")
        if self._llm is None or self._closing:
            return
        self._closing = True
        async with _deadline(_CLOSE_DEADLINE_S, "the engine's processes to end"):
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await asyncio.to_thread(self._llm.shutdown, timeout=_SHUTDOWN_S)
            self._llm = None

    def _open(self) -> None:
        # Stored and not returned: the executor's thread would keep it alive beyond `close`.
        # Whoever starts multiprocessing's tracker unblocks signals as it does so: not within the block.
        resource_tracker.ensure_running()
        with deaf_children(STOP_SIGNALS):  # vLLM's processes would end of them
            self._llm = compat.open_async_llm(self._config, seed=self._seed)

    async def _replace_weights(self, version: int, tensors: list[tuple[str, torch.Tensor]]) -> None:
        # Tensors do not pass through collective_rpc to another process; a file in shared memory does.
        file = weight_file(tensors)
        path = await asyncio.to_thread(file.__enter__)
        try:
            await self._llm.collective_rpc("replace_weights_from", args=(str(path),))
        finally:
            await asyncio.to_thread(file.__exit__, None, None, None)
        if not await self._llm.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not drop its KV cache; tokens would be sampled from old weights' KV")
        await self._llm.update_weight_version(str(version))
        self._version = version

    async def _generate(self, vllm_id: str, inbox: str, request: GenerateRequest, admitted: AdmittedRequest) -> None:
        self._time.begin(vllm_id)
        try:
            params = self._sampling.of(request, admitted.max_tokens)
            output = await self._run(vllm_id, admitted.token_ids, params)
            self._usage.add(request.tag, usage_of(output, len(admitted.token_ids), self._time))
        except self._request_errors as error:
            self._answer(inbox, refusal(request, f"{type(error).__name__}: {error}"))
            return
        except Exception as error:
            self._outstanding.fail(error)
            return
        finally:
            self._time.end(vllm_id)
        self._answer(inbox, result_of(request, output))

    async def _run(self, vllm_id: str, token_ids: list[int], params: Any) -> Any:
        prompt = {"type": "token", "prompt_token_ids": token_ids}
        collector = await self._llm.add_request(vllm_id, prompt, params)
        self._registered.add(vllm_id)
        try:
            if vllm_id in self._aborting:
                await self._llm.abort(vllm_id)
            output = await collector.get()
            while not output.finished:
                output = await collector.get()
            return output
        finally:
            self._registered.discard(vllm_id)
            self._aborting.discard(vllm_id)

    async def _score(self, token_ids: list[int]) -> list[float]:
        output = await self._run(f"probe-{next(self._ids)}", token_ids, self._sampling.of_probe())
        return list(output.prompt_logprobs.logprobs)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._group.create_task(work)

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Exception as error:
            self._outstanding.fail(error)

    def _answer(self, inbox: str, result: GenerateResult) -> None:
        self._id_of.pop((inbox, result.request_id), None)
        if not self._answers:
            self._loop.call_soon(self._flush)
        self._answers.append((inbox, result))

    def _flush(self) -> None:
        answers, self._answers = self._answers, []
        self._outstanding.settle(answers)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        if self._closing:
            return
        error = None if task.cancelled() else task.exception()
        self._outstanding.fail(error or EngineError("vLLM's engine process ended"))


async def _hold_group(grouped: asyncio.Future[asyncio.TaskGroup]) -> None:
    async with asyncio.TaskGroup() as group:
        grouped.set_result(group)
        await asyncio.Event().wait()


@asynccontextmanager
async def _deadline(seconds: float, what: str) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise WaitTimeout(what, "vLLM", seconds) from None
