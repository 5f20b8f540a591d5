import threading

import msgspec
import pytest
import torch

from rollart_hpc.errors import CorruptWeightsError, MissingWeightsError, WeightsError
from rollart_hpc.types import Manifest
from rollart_hpc.weights.publisher import WeightPublisher
from rollart_hpc.weights.puller import WeightPuller
from rollart_hpc.weights.store import WeightStore

pytestmark = pytest.mark.asyncio(loop_scope="module")


def manifest_of(buckets, version=1):
    return Manifest(version=version, attempt=1, buckets=buckets, probe_token_ids=b"", probe_logprobs=b"")


def model(dtype, seed=0):
    """Five tensors; with buckets of 1 MiB they take several, one of them above the bucket size."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(300, 300), (7,), (1000, 400), (500, 300), (3, 5, 7)]
    return [(f"layer{i}", torch.randn(shape, generator=generator).to(dtype)) for i, shape in enumerate(shapes)]


@pytest.fixture
def puller(store):
    return WeightPuller(store, retry_s=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
async def test_published_weights_are_pulled_bit_for_bit(publisher, puller, dtype):
    tensors = model(dtype)
    buckets = publisher.publish(1, tensors)
    assert len(buckets) > 1
    pulled = dict(puller.prefetch(manifest_of(buckets)).tensors())
    assert list(pulled) == [name for name, _ in tensors]
    for name, tensor in tensors:
        assert pulled[name].dtype == dtype
        assert torch.equal(pulled[name], tensor)


async def test_a_snapshot_is_uploaded_as_it_was_when_it_was_taken(publisher, puller):
    tensors = model(torch.float32)
    expected = {name: tensor.clone() for name, tensor in tensors}
    publisher.snapshot(1, tensors)
    for _, tensor in tensors:
        tensor.zero_()
    pulled = dict(puller.prefetch(manifest_of(publisher.upload())).tensors())
    assert all(torch.equal(pulled[name], expected[name]) for name in expected)


async def test_streaming_and_snapshot_give_the_same_buckets(publisher, store):
    other = WeightPublisher(store, run="other", attempt=1, rank=0, bucket_mb=1)
    streamed = publisher.publish(1, model(torch.float32))
    other.snapshot(1, model(torch.float32))
    assert [b.checksum for b in streamed] == [b.checksum for b in other.upload()]


async def test_a_flipped_byte_is_noticed(publisher, puller):
    buckets = publisher.publish(1, model(torch.float32))
    # The manifest of the same weights with one bit flipped: what the store holds does not agree with it.
    altered = model(torch.float32)
    altered[0][1].view(torch.uint8)[0, 0] ^= 1
    expected = publisher.publish(2, altered)[0].checksum
    wrong = (msgspec.structs.replace(buckets[0], checksum=expected), *buckets[1:])
    with pytest.raises(CorruptWeightsError, match="checksum"):
        puller.prefetch(manifest_of(wrong))


async def test_a_bucket_of_another_size_is_corrupt(publisher, puller):
    (bucket,) = publisher.publish(1, [("a", torch.ones(64))])
    for size in (bucket.size_bytes - 64, bucket.size_bytes + 64):
        with pytest.raises(CorruptWeightsError, match="expected"):
            puller.prefetch(manifest_of((msgspec.structs.replace(bucket, size_bytes=size),)))


async def test_a_missing_version_raises_within_its_deadline(publisher, puller, store):
    buckets = publisher.publish(1, model(torch.float32))
    store.remove([buckets[-1].key])
    with pytest.raises(MissingWeightsError, match="no such object"):
        puller.prefetch(manifest_of(buckets))


async def test_a_bucket_that_appears_while_the_puller_retries_is_pulled(publisher, store):
    tensors = model(torch.float32)
    buckets = publisher.publish(1, tensors)
    store.remove([bucket.key for bucket in buckets])
    later = threading.Timer(0.3, publisher.publish, (1, tensors))
    later.start()
    pulled = WeightPuller(store, retry_s=20).prefetch(manifest_of(buckets))
    later.join()
    assert torch.equal(dict(pulled.tensors())["layer0"], tensors[0][1])


async def test_weights_stay_readable_through_the_next_prefetch_and_not_beyond(publisher, puller):
    first, second, third = (manifest_of(publisher.publish(v, model(torch.float32, v)), v) for v in (1, 2, 3))
    pulled = puller.prefetch(first)
    puller.prefetch(second)
    assert torch.equal(dict(pulled.tensors())["layer2"], model(torch.float32, 1)[2][1])
    puller.prefetch(third)
    with pytest.raises(WeightsError, match="version 1 was overwritten"):
        next(pulled.tensors())


async def test_a_key_is_never_written_twice_and_the_first_value_stays(publisher, puller):
    buckets = publisher.publish(1, model(torch.float32))
    with pytest.raises(WeightsError, match="written once"):
        publisher.publish(1, model(torch.float32, seed=1))
    assert puller.prefetch(manifest_of(buckets)).manifest.version == 1


async def test_a_second_call_while_the_publisher_is_busy_is_refused(publisher):
    def tensors():
        yield "a", torch.ones(1)
        with pytest.raises(WeightsError, match="still busy"):
            publisher.snapshot(2, model(torch.float32))

    publisher.publish(1, tensors())


async def test_an_upload_without_a_snapshot_is_refused(publisher):
    with pytest.raises(WeightsError, match="take a snapshot first"):
        publisher.upload()


async def test_a_snapshot_that_the_store_has_lost_is_uploaded_again_under_its_keys(publisher, puller, store):
    publisher.snapshot(1, model(torch.float32))
    buckets = publisher.upload()
    assert len(buckets) > 1
    store.remove([bucket.key for bucket in buckets[1:]])
    assert publisher.upload() == buckets
    assert all(store.exists([bucket.key for bucket in buckets]))
    assert dict(puller.prefetch(manifest_of(buckets)).tensors()).keys() == dict(model(torch.float32)).keys()


async def test_the_first_upload_of_a_snapshot_writes_no_key_twice(publisher):
    publisher.publish(1, model(torch.float32))
    publisher.snapshot(1, model(torch.float32, seed=1))
    with pytest.raises(WeightsError, match="written once"):
        publisher.upload()


async def test_a_full_store_says_so_and_keeps_nothing_of_the_version(publisher, store):
    too_much = ((f"t{i}", torch.ones(1 << 20)) for i in range(40))
    with pytest.raises(WeightsError, match="store is full"):
        publisher.publish(1, too_much)
    assert not any(store.exists([f"{publisher._prefix(1)}/b{i}" for i in range(40)]))


async def test_messages_of_any_size_come_back_as_they_were(store, publisher):
    key = publisher._prefix(1)
    for index, data in enumerate((b"", b"x", bytes(range(256)) * 40_000)):
        store.put_bytes(f"{key}/{index}", data)
        assert store.get_bytes(f"{key}/{index}") == data
    with pytest.raises(MissingWeightsError, match="no such object"):
        store.get_bytes(f"{key}/3")


async def test_a_message_with_a_flipped_byte_is_corrupt(store, publisher):
    key = publisher._prefix(1)
    buffer = store.allocate(64)
    buffer[:] = 1
    store.put([key], [buffer])
    with pytest.raises(CorruptWeightsError, match="checksum"):
        store.get_bytes(key)


async def test_a_closed_store_raises_instead_of_crashing(endpoint):
    store = WeightStore.connect(endpoint)
    store.close()
    store.close()
    with pytest.raises(WeightsError, match="closed"):
        store.exists(["a"])
