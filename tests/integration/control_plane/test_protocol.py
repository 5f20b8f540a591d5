"""What the leader is told of the protocol, and how long the controller waits for its answer."""

import asyncio

import pytest

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.control_plane import protocol
from rollart_hpc.control_plane.protocol import ProtocolStep, announcer


async def test_a_leader_that_does_not_answer_holds_no_step_up(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(protocol, "_REPLY_DEADLINE_S", 0.2)
    heard = asyncio.Event()

    async def receive(_: object) -> None:
        heard.set()

    await bus.subscribe(subjects.PROTOCOL, receive)
    await asyncio.wait_for(announcer(bus)(ProtocolStep.SUSPEND, 3), 30)
    assert heard.is_set()
    assert "the leader did not answer to suspend of version 3" in caplog.text
