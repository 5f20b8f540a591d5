"""Removes versions that are no longer needed from the weight store.

Invariants: the newest ``versions_kept`` publications stay, and so does one that is not committed yet. The manifest
goes first, the objects when no reader holds a lease on the publication and Mooncake's own read lease has passed.
What is left undone is remembered in the catalogue: any later call, of any process, goes on with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rollart_hpc.weights.catalog import ManifestCatalog, Publication
from rollart_hpc.weights.store import WeightStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one collection did."""

    dropped: tuple[Publication, ...]
    """Manifests taken away."""
    removed: tuple[Publication, ...]
    """Publications whose objects are all gone."""
    waiting: dict[Publication, str]
    """Dropped publications whose objects stay for now, and why."""


class WeightCollector:
    """Collects old versions; run it in one process, after each commit."""

    def __init__(self, catalog: ManifestCatalog, store: WeightStore, *, versions_kept: int) -> None:
        self._catalog = catalog
        self._store = store
        self._versions_kept = versions_kept

    async def collect(self) -> Collected:
        """Drops what is too old and removes what nobody reads.

        Raises:
            WeightsError: the store does not answer.
        """
        dropped = await self._drop_old()
        removed: list[Publication] = []
        waiting: dict[Publication, str] = {}
        objects = await self._catalog.dropped()
        readers = await self._catalog.readers() if objects else {}
        for publication, keys in objects.items():
            if names := readers.get(publication):
                waiting[publication] = f"read by {', '.join(sorted(names))}"
            elif leased := await asyncio.to_thread(self._store.remove, keys):
                waiting[publication] = f"{len(leased)} objects were read a moment ago"
            else:
                await self._catalog.forget(publication)
                removed.append(publication)
        return Collected(dropped=dropped, removed=tuple(removed), waiting=waiting)

    async def _drop_old(self) -> tuple[Publication, ...]:
        latest = await self._catalog.latest_publication()
        if latest is None:
            return ()
        committed = [one for one in await self._catalog.publications() if one <= latest]
        old = committed[: -self._versions_kept]
        for publication in old:
            await self._catalog.drop(publication)
        return tuple(old)
