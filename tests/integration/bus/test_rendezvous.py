"""How the ranks of a collective learn where to meet."""

import asyncio

import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.rendezvous import meet
from rollart_hpc.errors import WaitTimeout


async def test_all_ranks_meet_where_rank_0_says_whoever_comes_first(bus: Bus):
    early = asyncio.create_task(meet(bus, "trainer", rank=1, deadline_s=30))
    await asyncio.sleep(0.05)
    place = await meet(bus, "trainer", rank=0, deadline_s=30)
    assert await early == place == await meet(bus, "trainer", rank=2, deadline_s=30)


async def test_a_rank_0_that_never_comes_is_told(bus: Bus):
    with pytest.raises(WaitTimeout, match=r"waited 0\.2 s for the address of trainer from its rank 0, in vain"):
        await meet(bus, "trainer", rank=1, deadline_s=0.2)
