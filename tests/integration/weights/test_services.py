import time

import psutil
import pytest
import torch

from rollart_hpc.errors import ConfigError, MissingWeightsError, WeightsError
from rollart_hpc.types import Manifest
from rollart_hpc.weights import server
from rollart_hpc.weights.publisher import WeightPublisher
from rollart_hpc.weights.puller import WeightPuller
from rollart_hpc.weights.server import MemoryOwner, MooncakeMaster, missing_libraries
from rollart_hpc.weights.store import StoreEndpoint, WeightStore


@pytest.fixture
async def master(tmp_path):
    master = await MooncakeMaster.start(log_dir=tmp_path)
    yield master
    await master.stop()


@pytest.fixture
async def owner(master, tmp_path):
    owner = await MemoryOwner.start(master.endpoint, log_dir=tmp_path, size_mb=32)
    yield owner
    await owner.stop()


def test_this_machine_has_every_library_that_mooncake_needs():
    assert missing_libraries() == ()


async def test_stopping_leaves_no_process(tmp_path):
    master = await MooncakeMaster.start(log_dir=tmp_path)
    owner = await MemoryOwner.start(master.endpoint, log_dir=tmp_path, size_mb=32)
    await owner.stop()
    await master.stop()
    assert not psutil.pid_exists(owner.process.pid)
    assert not psutil.pid_exists(master.process.pid)


async def test_a_dead_master_is_named_within_its_deadline(master, owner):
    store = WeightStore.connect(master.endpoint)
    publisher = WeightPublisher(store, run="r", attempt=1, rank=0, bucket_mb=1)
    buckets = publisher.publish(1, [("w", torch.ones(100))])
    manifest = Manifest(version=1, attempt=1, buckets=buckets, probe_token_ids=b"", probe_logprobs=b"")
    master.process.kill()
    await master.process.wait()
    started = time.monotonic()
    with pytest.raises(MissingWeightsError, match="master does not answer"):
        WeightPuller(store, retry_s=0).prefetch(manifest)
    with pytest.raises(WeightsError, match="master does not answer"):
        publisher.publish(2, [("w", torch.ones(100))])
    assert time.monotonic() - started < 15
    store.close()


async def test_weights_of_a_dead_memory_owner_are_missing(master, owner):
    store = WeightStore.connect(master.endpoint)
    publisher = WeightPublisher(store, run="r", attempt=1, rank=0, bucket_mb=1)
    buckets = publisher.publish(1, [("w", torch.ones(100))])
    owner.process.kill()
    await owner.process.wait()
    manifest = Manifest(version=1, attempt=1, buckets=buckets, probe_token_ids=b"", probe_logprobs=b"")
    with pytest.raises(MissingWeightsError, match="memory owner is gone"):
        WeightPuller(store, retry_s=0.2).prefetch(manifest)
    store.close()


async def test_clients_find_a_store_that_was_started_again(master, owner, tmp_path):
    store, reader = WeightStore.connect(master.endpoint), WeightStore.connect(master.endpoint)
    publisher = WeightPublisher(store, run="r", attempt=1, rank=0, bucket_mb=1)
    publisher.snapshot(1, [("w", torch.arange(100.0))])
    buckets = publisher.upload()
    before = master.process.pid
    owner.process.kill()
    await owner.process.wait()
    await master.restart()
    second = await MemoryOwner.start(master.endpoint, log_dir=tmp_path, size_mb=32)
    try:
        assert master.process.pid != before
        # A connection that was open finds out with its first call.
        with pytest.raises(WeightsError, match="master does not answer"):
            publisher.upload()
        assert publisher.upload() == buckets
        manifest = Manifest(version=1, attempt=1, buckets=buckets, probe_token_ids=b"", probe_logprobs=b"")
        ((_, tensor),) = WeightPuller(reader, retry_s=10).prefetch(manifest).tensors()
        assert torch.equal(tensor, torch.arange(100.0))
    finally:
        store.close()
        reader.close()
        await second.stop()


def test_a_store_that_is_not_there_is_an_error():
    with pytest.raises(WeightsError, match=r"no weight store at 127\.0\.0\.1:1"):
        WeightStore.connect(StoreEndpoint(master="127.0.0.1:1"))


async def test_a_service_that_ends_at_start_shows_the_end_of_its_log(master, tmp_path):
    endpoint = StoreEndpoint(master=master.endpoint.master, metadata="http://127.0.0.1:1/metadata")
    with pytest.raises(WeightsError, match=r"(?s)mooncake_client ended at start with code.*127\.0\.0\.1:1/metadata"):
        await MemoryOwner.start(endpoint, log_dir=tmp_path, size_mb=32)


async def test_a_memory_owner_without_a_master_is_refused_at_once(tmp_path):
    with pytest.raises(WeightsError, match="is mooncake_master running"):
        await MemoryOwner.start(StoreEndpoint(master="127.0.0.1:1"), log_dir=tmp_path, size_mb=32)


async def test_more_memory_than_the_node_has_is_refused(master, tmp_path):
    with pytest.raises(ConfigError, match=r"lower weights\.store_mb"):
        await MemoryOwner.start(master.endpoint, log_dir=tmp_path, size_mb=1 << 30)


async def test_a_port_lost_to_another_process_is_replaced(master, monkeypatch, tmp_path):
    lost = int(master.endpoint.master.rsplit(":", 1)[1])
    free, asked = server.free_port, []

    def first_a_lost_one(host):
        asked.append(host)
        return lost if len(asked) == 1 else free(host)

    monkeypatch.setattr(server, "free_port", first_a_lost_one)
    second = await MooncakeMaster.start(log_dir=tmp_path)
    await second.stop()
    assert second.endpoint.master != master.endpoint.master


async def test_a_service_that_never_listens_is_ended_and_told(monkeypatch, tmp_path):
    for name in ("mooncake_master", "mooncake_client", "store.so"):
        (tmp_path / name).write_text("#!/bin/sh\necho thinking\nexec sleep 60")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setattr(server, "mooncake_folder", lambda: tmp_path)
    monkeypatch.setattr(server, "_READY_DEADLINE_S", 0.5)
    with pytest.raises(WeightsError, match=r"(?s)mooncake_master did not listen on port \d+ within 0\.5 s.*thinking"):
        await MooncakeMaster.start(log_dir=tmp_path)
    assert "sleep" not in [child.name() for child in psutil.Process().children(recursive=True)]
