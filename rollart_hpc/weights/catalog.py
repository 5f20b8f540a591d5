"""The catalogue of published versions, in the key-value bucket ``weights`` of the bus.

Keys and what they mean (``id`` is ``<attempt>.<version>``):

- ``latest``: the id of the newest publication, moved by compare-and-set. A publication exists from this move on.
- ``manifest.<id>``: its manifest, written before ``latest`` moves.
- ``reader.<name>.<id>``: this worker is reading that publication; expires when the worker dies.
- ``dropped.<id>``: the manifest is gone, the objects under these keys are still to be removed.

Invariants: publications are ordered by attempt, then version, and ``latest`` never goes back: a writer of a lower
attempt is fenced off, and a new attempt may publish an older version again. A reader announces itself before it
checks that the manifest is there, and a collector drops the manifest before it looks for readers: one of the two
sees the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import msgspec
from nats.errors import ConnectionClosedError, MaxPayloadError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from rollart_hpc.bus.codec import decode, encode
from rollart_hpc.bus.subjects import WEIGHTS_BUCKET
from rollart_hpc.errors import FencedError, MissingWeightsError, NotReachableError, WeightsError
from rollart_hpc.types import Manifest

_log = logging.getLogger(__name__)
_LIST_DEADLINE_S = 10.0
_MARKER_TTL_S = 60
_REREAD_S = 5.0
_LISTING_FORGOTTEN_S = 2.0
_LISTING_TRIES = 3
_LATEST = "latest"


class Publication(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which publication: ordered by attempt, then version."""

    attempt: int
    version: int

    @classmethod
    def of(cls, manifest: Manifest) -> Publication:
        """The publication that the manifest describes."""
        return cls(manifest.attempt, manifest.version)

    def __str__(self) -> str:
        """As it stands in keys."""
        return f"{self.attempt}.{self.version}"


class ManifestCatalog:
    """What is published, who reads it, and what is to be removed.

    Args:
        js: a connected JetStream context.
        kv: the bucket ``weights``; its keys may carry a time to live.
        reader_ttl_s: how long a dead reader protects what it read.
    """

    def __init__(self, js: JetStreamContext, kv: KeyValue, *, reader_ttl_s: int = 10) -> None:
        self._js = js
        self._kv = kv
        self._reader_ttl_s = reader_ttl_s

    async def commit(self, manifest: Manifest) -> None:
        """Publishes a version whose buckets are all in the store; committing the same manifest again does nothing.

        Raises:
            FencedError: a newer attempt has published; this writer must end.
            WeightsError: the version is not newer than the latest of this attempt, or the manifest is too large
                for the bus. The caller removes its buckets.
        """
        publication, data = Publication.of(manifest), encode(manifest)
        if publication == await self.latest_publication() and await self.read(publication) == manifest:
            return
        await self._check_newer(publication)
        await self._record(publication, data)
        try:
            while not await self._advance(publication):
                _log.info("weights: %s: another commit came first; looking again", publication)
        except (WeightsError, FencedError):
            await self._kv.purge(_manifest_key(publication), msg_ttl=_MARKER_TTL_S)
            raise

    async def _record(self, publication: Publication, data: bytes) -> None:
        key = _manifest_key(publication)
        try:
            await self._kv.create(key, data)
        except MaxPayloadError as error:
            raise WeightsError(
                f"the manifest of {publication} has {len(data)} bytes, above the bus's payload limit; raise the "
                "server's max_payload"
            ) from error
        except KeyWrongLastSequenceError as error:
            # The writer may have lost the acknowledgement of its own first try.
            if (await self._kv.get(key)).value != data:
                raise WeightsError(f"{publication} is being committed with another manifest; publish once") from error

    async def _advance(self, publication: Publication) -> bool:
        revision = await self._check_newer(publication)
        try:
            await self._kv.update(_LATEST, encode(publication), last=revision)
        except KeyWrongLastSequenceError:
            # The bus may have been lost before it acknowledged this very move.
            return await self.latest_publication() == publication
        return True

    async def _check_newer(self, publication: Publication) -> int:
        """The revision of ``latest``, 0 when nothing is published."""
        try:
            entry = await self._kv.get(_LATEST)
        except KeyNotFoundError:
            return 0
        latest = decode(entry.value or b"", Publication)
        if publication.attempt < latest.attempt:
            raise FencedError(
                f"attempt {publication.attempt} may not publish version {publication.version}: attempt "
                f"{latest.attempt} has published; this process belongs to an ended attempt"
            )
        if publication <= latest:
            raise WeightsError(
                f"version {publication.version} is not newer than version {latest.version}, the latest of attempt "
                f"{latest.attempt}; versions only go up within an attempt"
            )
        return entry.revision or 0

    async def latest_publication(self) -> Publication | None:
        """Which publication is the newest; None before the first."""
        try:
            entry = await self._kv.get(_LATEST)
        except KeyNotFoundError:
            return None
        return decode(entry.value or b"", Publication)

    async def latest(self) -> Manifest | None:
        """The newest manifest; None before the first."""
        publication = await self.latest_publication()
        return None if publication is None else await self.read(publication)

    async def read(self, publication: Publication) -> Manifest | None:
        """A publication's manifest; None when it was dropped."""
        try:
            entry = await self._kv.get(_manifest_key(publication))
        except KeyNotFoundError:
            return None
        return decode(entry.value or b"", Manifest)

    async def watch(self) -> AsyncGenerator[Manifest]:
        """Yields the newest manifest and then every newer one; versions between may be skipped.

        Reads again every 5 s too, since a watcher may be silent for long after the server was away.
        """
        watcher = await self._kv.watch(_LATEST)
        seen: Publication | None = None
        try:
            while True:
                with suppress(TimeoutError):
                    await watcher.updates(timeout=_REREAD_S)
                manifest = await self._other_than(seen)
                if manifest is not None:
                    seen = Publication.of(manifest)
                    yield manifest
        finally:
            await watcher.stop()

    async def _other_than(self, seen: Publication | None) -> Manifest | None:
        try:
            publication = await self.latest_publication()
            if publication is None or publication == seen:
                return None
            return await self.read(publication)
        except ConnectionClosedError:
            raise
        except (NatsError, TimeoutError) as error:
            _log.warning("weights: the newest version could not be read: %r", error)
            return None

    @asynccontextmanager
    async def reading(self, reader: str, manifest: Manifest) -> AsyncGenerator[None]:
        """Protects a publication from collection while the block runs.

        Args:
            reader: member id of this worker.
            manifest: what it is about to read.

        Raises:
            MissingWeightsError: the publication was dropped; take the latest one.
        """
        publication = Publication.of(manifest)
        key = f"reader.{reader}.{publication}"
        await self._announce(key)
        renewal = asyncio.create_task(self._keep_announced(key), name=f"lease {key}")
        try:
            if await self.read(publication) is None:
                raise MissingWeightsError(f"version {manifest.version} was dropped; read the latest manifest again")
            yield
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])
            await self._withdraw(key)

    async def _announce(self, key: str) -> None:
        await self._js.publish(f"$KV.{WEIGHTS_BUCKET}.{key}", b"reading", msg_ttl=self._reader_ttl_s)

    async def _keep_announced(self, key: str) -> None:
        while True:
            await asyncio.sleep(self._reader_ttl_s / 3)
            try:
                await self._announce(key)
            except (NatsError, TimeoutError) as error:
                _log.warning("weights: lease %s could not be renewed: %r", key, error)

    async def _withdraw(self, key: str) -> None:
        try:
            await self._kv.purge(key, msg_ttl=_MARKER_TTL_S)
        except (NatsError, TimeoutError) as error:
            _log.warning("weights: lease %s expires in %d s: %r", key, self._reader_ttl_s, error)

    async def publications(self) -> list[Publication]:
        """Every publication that has a manifest, oldest first; those still being committed come last."""
        return sorted(_publication_of(key) for key in await self._keys("manifest."))

    async def readers(self) -> dict[Publication, list[str]]:
        """Names of the workers that read a publication now."""
        found: dict[Publication, list[str]] = {}
        for key in await self._keys("reader."):
            name = key.removeprefix("reader.").rsplit(".", 2)[0]
            found.setdefault(_publication_of(key), []).append(name)
        return found

    async def drop(self, publication: Publication) -> None:
        """Takes the manifest away, so that nobody starts to read; remembers the objects to remove."""
        manifest = await self.read(publication)
        if manifest is None:
            return
        keys = tuple(bucket.key for bucket in manifest.buckets)
        await self._kv.put(f"dropped.{publication}", encode(keys))
        await self._kv.purge(_manifest_key(publication), msg_ttl=_MARKER_TTL_S)

    async def dropped(self) -> dict[Publication, tuple[str, ...]]:
        """Objects that are still to be removed, by publication."""
        found: dict[Publication, tuple[str, ...]] = {}
        for key in await self._keys("dropped."):
            entry = await self._kv.get(key)
            found[_publication_of(key)] = decode(entry.value or b"", tuple[str, ...])
        return found

    async def forget(self, publication: Publication) -> None:
        """All objects of a dropped publication are removed."""
        await self._kv.purge(f"dropped.{publication}", msg_ttl=_MARKER_TTL_S)

    async def _keys(self, prefix: str) -> list[str]:
        """The keys below a prefix.

        A listing of nats-py may end before it has begun, when its messages arrive in an unlucky moment; one without
        ``latest``, which is there from the first commit on, is asked for again.
        """
        keys: list[str] = []
        for _ in range(_LISTING_TRIES):
            keys = await self._all_keys()
            if _LATEST in keys:
                break
        return [key for key in keys if key.startswith(prefix)]

    async def _all_keys(self) -> list[str]:
        """Every key. The server soon forgets the listing's consumer: their number is limited."""
        keys: list[str] = []
        try:
            async with asyncio.timeout(_LIST_DEADLINE_S):
                watcher = await self._kv.watch(
                    ">", ignore_deletes=True, meta_only=True, inactive_threshold=_LISTING_FORGOTTEN_S
                )
                try:
                    async for entry in watcher:
                        if entry is None:
                            break
                        keys.append(entry.key)
                finally:
                    await watcher.stop()
        except TimeoutError as error:
            raise NotReachableError(f"the bus did not list its weights within {_LIST_DEADLINE_S:g} s") from error
        return keys


def _manifest_key(publication: Publication) -> str:
    return f"manifest.{publication}"


def _publication_of(key: str) -> Publication:
    attempt, version = key.rsplit(".", 2)[-2:]
    return Publication(int(attempt), int(version))
