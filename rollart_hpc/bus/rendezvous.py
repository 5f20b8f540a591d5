"""How peers of one attempt find each other: rank 0 publishes its address, the others wait for it."""

from __future__ import annotations

import asyncio
import socket

import msgspec
from nats.js.errors import KeyNotFoundError

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.errors import WaitTimeout
from rollart_hpc.ports import free_port

_LOOK_EVERY_S = 0.1


async def meet(bus: Bus, name: str, *, rank: int, deadline_s: float) -> tuple[str, int]:
    """Address and port of the rendezvous ``name``; rank 0 chooses them on its own node.

    Raises:
        WaitTimeout: rank 0 published nothing within the deadline.
    """
    bucket = await bus.bucket(subjects.RENDEZVOUS_BUCKET)
    if rank == 0:
        address = own_address(bus)
        found = (address, free_port(address))
        await bucket.put(name, msgspec.json.encode(found))
        return found
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    entry = await bucket.get(name)
                except KeyNotFoundError:
                    await asyncio.sleep(_LOOK_EVERY_S)
                    continue
                return msgspec.json.decode(entry.value or b"", type=tuple[str, int])
    except TimeoutError:
        raise WaitTimeout(f"the address of {name}", "its rank 0", deadline_s) from None


def own_address(bus: Bus) -> str:
    """The address of this node as the bus's server sees it: reachable by whoever reaches the bus."""
    url = bus.nc.connected_url
    host = url.hostname if url is not None else None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host or "127.0.0.1", 9))
        return str(probe.getsockname()[0])
