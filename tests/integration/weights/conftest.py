import uuid

import pytest
import pytest_asyncio

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.bus.subjects import WEIGHTS_BUCKET
from rollart_hpc.weights.catalog import ManifestCatalog
from rollart_hpc.weights.publisher import WeightPublisher
from rollart_hpc.weights.server import MemoryOwner, MooncakeMaster
from rollart_hpc.weights.store import WeightStore


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(tmp_path_factory):
    """A weight store of 128 MiB whose read leases last half a second."""
    logs = tmp_path_factory.mktemp("weights")
    master = await MooncakeMaster.start(log_dir=logs, lease_s=0.5)
    try:
        owner = await MemoryOwner.start(master.endpoint, log_dir=logs, size_mb=128)
        try:
            yield master.endpoint
        finally:
            await owner.stop()
    finally:
        await master.stop()


@pytest.fixture(scope="module")
def store(endpoint):
    connected = WeightStore.connect(endpoint)
    yield connected
    connected.close()


@pytest.fixture
def publisher(store):
    return WeightPublisher(store, run=f"r{uuid.uuid4().hex[:8]}", attempt=1, rank=0, bucket_mb=1)


@pytest_asyncio.fixture(loop_scope="module")
async def bus(tmp_path):
    server = await NatsServer.start(log=tmp_path / "nats.log")
    try:
        connection = await Bus.connect(server.endpoint, "test")
        yield connection
        await connection.close()
    finally:
        await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def catalog(bus):
    return ManifestCatalog(bus.js, await bus.bucket(WEIGHTS_BUCKET), reader_ttl_s=2)
