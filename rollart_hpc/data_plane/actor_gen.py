"""The generation worker: one inference engine behind its command loop (paper section 6.1).

Consumes batches of ADD and ABORT from the requesters' LLMProxies and calls from the controller's weight sync;
produces results as each request finishes. When the engine fails, every open request is answered with the error
and the process ends, to be started again.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rollart_hpc.bus import subjects
from rollart_hpc.bus.mux import MuxServer
from rollart_hpc.data_plane.declarations import register
from rollart_hpc.data_plane.generation_model import OWN_INBOX, GenerationModel
from rollart_hpc.data_plane.worker import Worker, WorkerContext
from rollart_hpc.errors import RollartError, WeightsError
from rollart_hpc.types import GenerateRequest, GenerateResult, Manifest, Role, TagUsage
from rollart_hpc.weights.catalog import ManifestCatalog
from rollart_hpc.weights.puller import PulledWeights, WeightPuller
from rollart_hpc.weights.store import WeightStore

if TYPE_CHECKING:
    from rollart_hpc.data_plane.engine import Answer, Engine

_log = logging.getLogger(__name__)


class ActorGenCls(Worker):
    """Serves generation with the newest weights that it was given."""

    role = Role.ACTOR_GEN

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.member = msgspec.structs.replace(self.member, capacity=context.config.generation.max_concurrent)
        self._mux: MuxServer[GenerateRequest, GenerateResult] = MuxServer(
            context.bus, context.member.member_id, GenerateRequest, self._receive
        )
        self._model = GenerationModel(context.config, self._running_engine)
        self._engine: Engine | None = None
        self._failure: asyncio.Future[None] | None = None
        self._store: WeightStore | None = None
        self._catalog: ManifestCatalog | None = None
        self._puller: WeightPuller | None = None
        self._pulled: PulledWeights | None = None

    async def setup(self) -> None:
        """Starts the engine and loads the newest published weights, if there are any."""
        self._failure = asyncio.get_running_loop().create_future()
        self._engine = self.create_engine(seed=zlib.crc32(self._seed_name().encode()) >> 1)
        await self._engine.start(self._deliver, self._engine_failed)
        self._store = await self.connect_store()
        if self._store is None:
            return
        self._puller = WeightPuller(self._store)
        bucket = await self.context.bus.bucket(subjects.WEIGHTS_BUCKET)
        self._catalog = ManifestCatalog(self.context.bus.js, bucket)
        newest = await self._catalog.latest()
        if newest is not None:
            await self.prefetch(newest)
            await self.suspend()
            await self.load(newest.version)
            await self.resume()

    def create_engine(self, *, seed: int) -> Engine:
        """The engine of this worker, not started yet; ``seed`` is its own, or two engines would sample the same."""
        from rollart_hpc.data_plane.engine import create_engine

        return create_engine(self.context.config, seed=seed)

    async def run(self) -> None:
        """Serves until cancelled.

        Raises:
            RollartError: the engine failed.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mux.run())
            group.create_task(self._watch_engine())

    async def close(self) -> None:
        """Ends the engine."""
        if self._engine is not None:
            await self._engine.close()
        if self._puller is not None and self._store is not None:
            self._puller.close()
            await asyncio.to_thread(self._store.close)

    @property
    def model(self) -> GenerationModel:
        """What methods of a subclass generate with."""
        return self._model

    @property
    def num_busy(self) -> int:
        """Requests that the engine has not answered."""
        return 0 if self._engine is None else self._engine.num_running

    # --- weight synchronisation: called by the controller, in this order -------------------------------

    @register()
    async def prefetch(self, manifest: Manifest) -> None:
        """Pulls and verifies a version into host memory while generation goes on."""
        if self._puller is None or self._catalog is None:
            raise WeightsError("this attempt has no weight store")
        async with self._catalog.reading(self.member.member_id, manifest):
            self._pulled = await asyncio.to_thread(self._puller.prefetch, manifest)

    @register()
    async def suspend(self) -> None:
        """Freezes generation between two engine steps; new requests wait."""
        await self._running_engine().suspend()

    @register()
    async def load(self, version: int) -> None:
        """Swaps in the prefetched weights; every KV block of the old ones is dropped."""
        pulled = self._pulled
        if pulled is None or pulled.manifest.version != version:
            raise WeightsError(f"version {version} was not prefetched")
        await self._running_engine().load(version, pulled.tensors())
        self.member = msgspec.structs.replace(self.member, version=version)

    @register()
    async def resume(self) -> None:
        """Goes on; requests in flight recompute their KV under the new weights."""
        await self._running_engine().resume()

    @register()
    async def probe(self, token_ids: list[int]) -> list[float]:
        """Logprobs of a short sequence's tokens 1.. under the loaded weights."""
        return await self._running_engine().probe(token_ids)

    @register()
    async def usage(self) -> dict[str, TagUsage]:
        """What its engine did by tag since this process began."""
        return dict(self._running_engine().usage())

    # --- requests ------------------------------------------------------------------------------------

    def _receive(self, inbox: str, requests: list[GenerateRequest], aborts: list[int]) -> None:
        engine = self._running_engine()
        if requests:
            engine.add(inbox, requests)
        if aborts:
            engine.abort(inbox, aborts)

    def _deliver(self, answers: Sequence[Answer]) -> None:
        for inbox, result in answers:
            if inbox == OWN_INBOX:
                self._model.deliver(result)
            else:
                self._mux.answer(inbox, result)

    def _engine_failed(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(RollartError(f"the engine failed: {type(error).__name__}: {error}"))

    async def _watch_engine(self) -> None:
        if self._failure is not None:
            await self._failure

    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the engine is not set up")
        return self._engine

    def _seed_name(self) -> str:
        return f"{self.context.config.run.seed}/{self.context.member.member_id}/{self.context.attempt.number}"
