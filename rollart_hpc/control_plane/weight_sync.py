"""WeightSync: new weights from the trainer to every generation worker (paper sections 6.2 and 6.3).

    trainer ──snapshot──▶ host copy ──upload──▶ store ──commit──▶ manifest
                                                                     │ for every worker that serves an older version
    prefetch (generation goes on) ─▶ suspend ─▶ load ─▶ resume ─▶ probe ─▶ confirmed
    suspend ─▶ prefetch ─▶ load ─▶ resume ─▶ probe ─▶ confirmed     where the mode's transfer is blocking

Consumes versions from the training loop and joins of generation workers; produces confirmed versions; waits for
the workers' acknowledgements, and where batches are played whole for the end of one; woken by a commit or by a member
that joined. A version counts only when checksums hold and the worker's own logprobs of the probe agree with the
trainer's. A worker that fails on the way is expelled: its requests go elsewhere at once, it ends, is started again, and
catches up with the newest manifest. One that leaves the run is not updated any more and holds nothing up. When the
store is started again, the trainers put the newest version back from their copy, under the same manifest; a worker
whose prefetch failed of it is not to blame.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

import numpy as np
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView, expel
from rollart_hpc.config.modes import WeightTransfer
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.protocol import Announce, ProtocolStep, unobserved
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.errors import BusError, RemoteError, StoreFullError, WaitTimeout, WeightsError
from rollart_hpc.types import Bucket, Manifest, Role
from rollart_hpc.weights.catalog import ManifestCatalog
from rollart_hpc.weights.garbage import WeightCollector
from rollart_hpc.weights.store import StoreLoss

_log = logging.getLogger(__name__)
_PROBE_TOKENS = 16
_ROOM_DEADLINE_S = 60.0
_ROOM_AGAIN_S = 0.5
_AGAIN = frozenset({StoreFullError.__name__, WeightsError.__name__})
"""What a trainer raises when the store is full or is being started again."""
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference of one probe logprob between trainer and engine that still means the same weights."""


@asynccontextmanager
async def at_any_time(version: int) -> AsyncGenerator[None]:
    """Nothing speaks against loading a version now."""
    yield


class WeightSync:
    """Owns which version is published and which is confirmed; `run` must be running."""

    def __init__(
        self,
        *,
        bus: Bus,
        trainers: Cluster[ActorTrainCls],
        generators: Cluster[ActorGenCls],
        view: MemberView,
        catalog: ManifestCatalog,
        collector: WeightCollector,
        attempt: int,
        dtype: str,
        probe_token_ids: list[int],
        on_confirmed: Callable[[int], None],
        on_published: Callable[[int, str], None],
        transfer: WeightTransfer = "background",
        loading: Callable[[int], AbstractAsyncContextManager[None]] = at_any_time,
        announce: Announce = unobserved,
    ) -> None:
        """``loading`` is entered when a version is about to be loaded, and left when it is confirmed or has failed."""
        self._bus, self._trainers, self._generators = bus, trainers, generators
        self._catalog, self._collector = catalog, collector
        self._attempt, self._tolerance = attempt, _TOLERANCE[dtype]
        self._probe_token_ids = probe_token_ids
        self._probe_logprobs: list[float] = []
        self._on_confirmed, self._on_published = on_confirmed, on_published
        self._is_blocking, self._loading = transfer == "blocking", loading
        self._announce = announce
        self._manifest: Manifest | None = None
        self._served: dict[str, int] = {}
        """Confirmed version by incarnation of a generation worker."""
        self._wake = asyncio.Event()
        self._confirmed = asyncio.Condition()
        self._collecting = asyncio.Lock()
        self._snapshots: asyncio.Queue[int | None] = asyncio.Queue()
        """Versions to upload; None for the newest again."""
        self._copying = asyncio.Lock()
        """Held while the trainers' copy is being made or put back."""
        self._num_losses = 0
        self._upload_idle = asyncio.Event()
        self._upload_idle.set()
        self.published_version = -1
        self.confirmed_version = -1
        self.probe_gap_max = 0.0
        self.seconds: dict[str, float] = {"prefetch": 0.0, "suspended": 0.0, "upload": 0.0}
        """Sums since the start; ``suspended`` is what generation was exposed to, a blocking transfer included."""
        view.listen(self._member_changed)

    async def publish(self, version: int) -> None:
        """Takes the trainers' weights as ``version``; they may train on when it returns, the rest goes on behind.

        Waits for the upload of the version before.

        Raises:
            BusError: a trainer did not answer.
            WeightsError: the weights give no finite logprobs; nobody may sample from them.
        """
        await self._upload_idle.wait()
        async with self._copying:
            await self._trainers.call(ActorTrainCls.snapshot, version)
        self._probe_logprobs = (await self._trainers.call(ActorTrainCls.probe, self._probe_token_ids))[0]
        if not np.isfinite(self._probe_logprobs).all():
            raise WeightsError(
                f"version {version}: the trainer's logprobs of the probe are not finite, the training has diverged; "
                "go on from the last checkpoint with a lower training.learning_rate"
            )
        self._upload_idle.clear()
        self._snapshots.put_nowait(version)

    async def wait_confirmed(self, version: int, deadline_s: float) -> Literal[True]:
        """Waits until every live generation worker is confirmed to serve ``version``.

        Raises:
            WaitTimeout: they were not within the deadline.
        """
        try:
            async with asyncio.timeout(deadline_s), self._confirmed:
                await self._confirmed.wait_for(lambda: self.confirmed_version >= version)
        except TimeoutError:
            members = [member.member_id for member in self._generators.members()]
            raise WaitTimeout(f"version {version} to be confirmed", f"{members}", deadline_s) from None
        return True

    async def run(self) -> None:
        """Uploads snapshots and keeps the generation workers up to date, until cancelled.

        Raises:
            WeightsError: the store did not take a version.
        """
        await self._bus.subscribe(subjects.STORE_LOST, self._store_lost)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._upload_snapshots())
            group.create_task(self._keep_up_to_date())

    async def _upload_snapshots(self) -> None:
        while True:
            version = await self._snapshots.get()
            if version is None:
                await self._put_back()
                continue
            begin = time.perf_counter()
            buckets = await self._upload()
            manifest = self._manifest_of(version, buckets)
            await self._catalog.commit(manifest)
            self._manifest, self.published_version = manifest, version
            self._on_published(version, manifest.digest)
            self.seconds["upload"] += time.perf_counter() - begin
            self._upload_idle.set()
            self._wake.set()
            _log.info("version %d is published, %d bytes", version, manifest.size_bytes)

    async def _store_lost(self, message: Msg) -> None:
        loss = codec.decode(message.data, StoreLoss)
        if loss.number > self._num_losses:
            self._num_losses = loss.number
            self._snapshots.put_nowait(None)

    async def _put_back(self) -> None:
        """Puts the newest version into the store again; one that is not uploaded yet is on its way by itself."""
        if self._manifest is None or not self._upload_idle.is_set():
            return
        async with self._copying:
            await self._upload()
        self._wake.set()
        _log.warning("the weight store was started again; version %d is in it again", self.published_version)

    async def _upload(self) -> list[Bucket]:
        """Puts the trainers' copy into the store.

        It may have to get rid of versions that were read a moment ago first, or to come back.
        """
        deadline = time.monotonic() + _ROOM_DEADLINE_S
        while True:
            try:
                return [bucket for share in await self._trainers.call(ActorTrainCls.upload) for bucket in share]
            except RemoteError as error:
                if error.error_type not in _AGAIN or time.monotonic() > deadline:
                    raise
                _log.warning("weights: trying again after collecting old versions: %s", error)
            await self._collect()
            await asyncio.sleep(_ROOM_AGAIN_S)

    def _manifest_of(self, version: int, buckets: Sequence[Bucket]) -> Manifest:
        return Manifest(
            version=version,
            attempt=self._attempt,
            buckets=tuple(buckets),
            probe_token_ids=np.asarray(self._probe_token_ids, np.int32).tobytes(),
            probe_logprobs=np.asarray(self._probe_logprobs, np.float32).tobytes(),
        )

    async def _keep_up_to_date(self) -> None:
        """Brings every generation worker to the newest manifest, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            manifest = self._manifest
            if manifest is None:
                continue
            behind = [member for member in self._staying() if self._version_of(member) < manifest.version]
            if behind:
                await self._update(manifest, behind)
            else:
                await self._confirm()
            await self._collect()

    async def _update(self, manifest: Manifest, members: list[Member]) -> None:
        if not self._is_blocking:
            begin = time.perf_counter()
            members = await self._prefetch(manifest, members)
            self.seconds["prefetch"] += time.perf_counter() - begin
        async with self._loading(manifest.version):
            await self._announce(ProtocolStep.SUSPEND, manifest.version)
            suspended = time.perf_counter()
            members = await self._on_each(members, lambda one: self._generators.call_one(one, ActorGenCls.suspend))
            if self._is_blocking:
                members = await self._prefetch(manifest, members)
            await self._announce(ProtocolStep.UPDATE, manifest.version)
            members = await self._on_each(
                members, lambda one: self._generators.call_one(one, ActorGenCls.load, manifest.version)
            )
            await self._announce(ProtocolStep.RESUME, manifest.version)
            members = await self._on_each(members, lambda one: self._generators.call_one(one, ActorGenCls.resume))
            self.seconds["suspended"] += time.perf_counter() - suspended
            await self._announce(ProtocolStep.RECOMPUTE, manifest.version)
            for member in await self._on_each(members, lambda one: self._probe(one, manifest)):
                self._served[member.incarnation] = manifest.version
            await self._confirm()

    async def _prefetch(self, manifest: Manifest, members: list[Member]) -> list[Member]:
        """A worker whose fetch fails goes on with what it has, until it is expelled or the store is back."""
        num_losses = self._num_losses

        async def fetch(member_id: str) -> None:
            try:
                await self._generators.call_one(member_id, ActorGenCls.prefetch, manifest)
            except RemoteError:
                if self._is_blocking:
                    await self._generators.call_one(member_id, ActorGenCls.resume)
                raise

        return await self._on_each(members, fetch, is_excused=lambda: self._num_losses > num_losses)

    async def _probe(self, member_id: str, manifest: Manifest) -> None:
        token_ids = np.frombuffer(manifest.probe_token_ids, np.int32).tolist()
        found = np.asarray(await self._generators.call_one(member_id, ActorGenCls.probe, token_ids))
        expected = np.frombuffer(manifest.probe_logprobs, np.float32)
        gap = math.inf
        if found.shape == expected.shape:
            gap = float(np.nan_to_num(np.abs(found - expected), nan=math.inf, posinf=math.inf).max())
        self.probe_gap_max = max(self.probe_gap_max, gap)
        if gap > self._tolerance:
            raise WeightsError(
                f"{member_id} does not serve version {manifest.version}: a probe logprob is {gap:.2g} off, at most "
                f"{self._tolerance:g} is allowed"
            )

    async def _on_each(
        self, members: list[Member], act: Callable[[str], object], *, is_excused: Callable[[], bool] = lambda: False
    ) -> list[Member]:
        """Acts on all members at once; returns those on which it succeeded. Expels the others unless excused."""
        results = await asyncio.gather(*(act(member.member_id) for member in members), return_exceptions=True)  # pyright: ignore[reportArgumentType, reportCallIssue]
        done: list[Member] = []
        for member, result in zip(members, results, strict=True):
            if isinstance(result, RemoteError) and is_excused():
                _log.warning(
                    "weights: %s takes the version when it is in the store again: %s", member.member_id, result
                )
            elif isinstance(result, (BusError, WeightsError)):
                # It may have left, or have ended and been started again: the new process has done nothing wrong.
                if any(live.incarnation == member.incarnation for live in self._generators.members()):
                    _log.error("weights: %s is expelled: %s", member.member_id, result)
                    await expel(self._bus, member.member_id)
                else:
                    _log.warning("weights: %s ended during an update: %s", member.member_id, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                done.append(member)
        return done

    def _version_of(self, member: Member) -> int:
        return self._served.get(member.incarnation, -1)

    def _staying(self) -> list[Member]:
        """The workers that count; one that leaves takes no new requests, and ends with the weights that it has."""
        return [member for member in self._generators.members() if not member.leaving]

    async def _confirm(self) -> None:
        members = self._staying()
        if not members:
            return
        confirmed = min(self._version_of(member) for member in members)
        if confirmed > self.confirmed_version:
            self.confirmed_version = confirmed
            self._on_confirmed(confirmed)
            async with self._confirmed:
                self._confirmed.notify_all()

    async def _collect(self) -> None:
        try:
            async with self._collecting:
                await self._collector.collect()
        except (WeightsError, BusError, NatsError, TimeoutError) as error:
            _log.warning("weights: old versions stay for now: %r", error)

    def _member_changed(self, before: Member | None, after: Member | None) -> None:
        changed = after or before
        if changed is None or changed.role is not Role.ACTOR_GEN:
            return
        if before is not None and (after is None or after.incarnation != before.incarnation):
            self._served.pop(before.incarnation, None)
        self._wake.set()


def probe_tokens(chat: ChatFormat) -> list[int]:
    """A short sequence that any model can read: the frame of an observation, repeated to a fixed length."""
    frame = np.frombuffer(chat.first_observation("0123456789") + chat.next_observation("0123456789"), np.int32)
    return np.resize(frame, _PROBE_TOKENS).tolist()
