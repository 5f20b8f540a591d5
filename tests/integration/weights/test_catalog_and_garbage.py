import asyncio

import psutil
import pytest
import torch

from rollart_hpc.bus.subjects import WEIGHTS_BUCKET
from rollart_hpc.errors import FencedError, MissingWeightsError, NotReachableError, WeightsError
from rollart_hpc.types import Bucket, Manifest
from rollart_hpc.weights import catalog as catalog_module
from rollart_hpc.weights.catalog import Publication
from rollart_hpc.weights.garbage import WeightCollector
from rollart_hpc.weights.puller import WeightPuller

pytestmark = pytest.mark.asyncio(loop_scope="module")


def manifest_of(version, attempt=1, buckets=()):
    return Manifest(version=version, attempt=attempt, buckets=buckets, probe_token_ids=b"", probe_logprobs=b"")


async def published(catalog, publisher, version):
    manifest = manifest_of(version, buckets=publisher.publish(version, [("w", torch.full((256,), float(version)))]))
    await catalog.commit(manifest)
    return manifest


async def test_the_newest_version_is_the_latest(catalog):
    assert await catalog.latest() is None
    for version in (1, 2):
        await catalog.commit(manifest_of(version))
    assert (await catalog.latest()).version == 2


async def test_an_older_or_equal_version_of_the_same_attempt_is_refused(catalog):
    await catalog.commit(manifest_of(5))
    for version in (4, 5):
        other = manifest_of(version, buckets=(Bucket("k", 1, "0", ()),))
        with pytest.raises(WeightsError, match=f"version {version} is not newer than version 5"):
            await catalog.commit(other)
    assert await catalog.latest() == manifest_of(5)
    assert await catalog.publications() == [Publication(1, 5)]


async def test_a_stale_attempt_is_fenced_off_even_with_a_newer_version(catalog):
    await catalog.commit(manifest_of(3, attempt=2))
    with pytest.raises(FencedError, match="attempt 2 has published"):
        await catalog.commit(manifest_of(9, attempt=1))
    assert (await catalog.latest()).attempt == 2


async def test_a_new_attempt_may_publish_an_older_version_again(catalog):
    await catalog.commit(manifest_of(9, attempt=1))
    await catalog.commit(manifest_of(7, attempt=2))
    assert (await catalog.latest()).version == 7


async def test_committing_the_same_manifest_again_does_nothing(catalog):
    await catalog.commit(manifest_of(1))
    await catalog.commit(manifest_of(1))
    assert await catalog.publications() == [Publication(1, 1)]


async def test_a_commit_whose_acknowledgement_was_lost_is_one(catalog, monkeypatch):
    await catalog.commit(manifest_of(1))
    move = catalog._kv.update

    async def twice(*arguments, **options):
        await move(*arguments, **options)
        return await move(*arguments, **options)

    monkeypatch.setattr(catalog._kv, "update", twice)
    await catalog.commit(manifest_of(2))
    assert (await catalog.latest()).version == 2


async def test_of_racing_commits_the_newest_wins_and_the_order_holds(catalog):
    seen = []

    async def follow():
        async for manifest in catalog.watch():
            seen.append(manifest.version)
            if manifest.version == 12:
                return

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(follow())
        results = await asyncio.gather(
            *(catalog.commit(manifest_of(version)) for version in range(1, 13)), return_exceptions=True
        )
    assert results[-1] is None
    assert all(result is None or isinstance(result, WeightsError) for result in results)
    assert seen == sorted(seen)
    committed = [version for version, result in enumerate(results, start=1) if result is None]
    assert await catalog.publications() == [Publication(1, version) for version in committed]


async def test_a_watcher_sees_what_is_there_and_what_comes(catalog):
    await catalog.commit(manifest_of(1))
    watching = catalog.watch()
    async with asyncio.timeout(5):
        assert (await anext(watching)).version == 1
        await catalog.commit(manifest_of(2))
        assert (await anext(watching)).version == 2
    await watching.aclose()


async def test_only_the_newest_versions_are_kept(catalog, publisher, store):
    manifests = [await published(catalog, publisher, version) for version in (1, 2, 3, 4)]
    collected = await WeightCollector(catalog, store, versions_kept=2).collect()
    assert collected.removed == (Publication(1, 1), Publication(1, 2))
    kept = [store.exists([manifest.buckets[0].key])[0] for manifest in manifests]
    assert kept == [False, False, True, True]
    assert await catalog.publications() == [Publication(1, 3), Publication(1, 4)]
    assert not await catalog.dropped()


async def test_a_version_that_is_being_read_goes_only_after_its_release(catalog, publisher, store):
    collector = WeightCollector(catalog, store, versions_kept=2)
    oldest = await published(catalog, publisher, 1)
    async with catalog.reading("gen-0", oldest):
        for version in (2, 3):
            await published(catalog, publisher, version)
        collected = await collector.collect()
        assert collected.waiting == {Publication(1, 1): "read by gen-0"}
        assert collected.dropped == (Publication(1, 1),)
        assert collected.removed == ()
        WeightPuller(store, retry_s=0).prefetch(oldest)
    assert (await collector.collect()).waiting == {Publication(1, 1): "1 objects were read a moment ago"}
    async with asyncio.timeout(10):
        # Mooncake tells nobody when its read lease ends.
        while not (await collector.collect()).removed:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert store.exists([oldest.buckets[0].key]) == [False]


async def test_a_lease_outlives_its_time_to_live_while_the_reader_lives(catalog):
    manifest = manifest_of(1)
    await catalog.commit(manifest)
    async with catalog.reading("gen-0", manifest):
        await asyncio.sleep(3)
        assert await catalog.readers() == {Publication(1, 1): ["gen-0"]}
    assert await catalog.readers() == {}


async def test_a_dead_reader_protects_nothing_after_its_time_to_live(catalog, bus):
    expiry = await (await bus.bucket("weights")).watch("reader.>")
    await bus.js.publish("$KV.weights.reader.gen-0.1.1", b"reading", msg_ttl=1)
    assert await catalog.readers() == {Publication(1, 1): ["gen-0"]}
    async with asyncio.timeout(10):
        while (entry := await expiry.updates(timeout=10)) is None or entry.operation != "PURGE":
            pass
    assert await catalog.readers() == {}


async def test_reading_a_dropped_version_is_refused(catalog):
    manifest = manifest_of(1)
    await catalog.commit(manifest)
    await catalog.drop(Publication(1, 1))
    with pytest.raises(MissingWeightsError, match="version 1 was dropped"):
        async with catalog.reading("gen-0", manifest):
            raise AssertionError("the block must not run")
    assert await catalog.readers() == {}


async def test_a_collection_that_was_cut_off_is_ended_by_the_next(catalog, publisher, store):
    manifests = [await published(catalog, publisher, version) for version in (1, 2, 3)]
    await catalog.drop(Publication(1, 1))
    collected = await WeightCollector(catalog, store, versions_kept=2).collect()
    assert collected.removed == (Publication(1, 1),)
    assert store.exists([manifests[0].buckets[0].key]) == [False]


async def test_listing_again_and_again_leaves_no_consumers_behind(catalog):
    async def num_consumers() -> int:
        return (await catalog._js.stream_info(f"KV_{WEIGHTS_BUCKET}")).state.consumer_count

    await catalog.commit(manifest_of(1))
    before = await num_consumers()
    for _ in range(60):
        assert await catalog.publications() == [Publication(1, 1)]
    async with asyncio.timeout(30):
        while await num_consumers() > before:
            await catalog.latest()


async def test_a_bus_that_hangs_does_not_hold_a_listing(catalog, monkeypatch):
    monkeypatch.setattr(catalog_module, "_LIST_DEADLINE_S", 0.3)
    (server,) = [child for child in psutil.Process().children() if child.name() == "nats-server"]
    server.suspend()
    try:
        with pytest.raises(NotReachableError, match=r"the bus did not list its weights within 0\.3 s"):
            await asyncio.wait_for(catalog.publications(), 8)
    finally:
        server.resume()
