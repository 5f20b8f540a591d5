"""The steps of the paper's weight synchronization protocol (section 6.2), as others are told of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec
from nats.errors import Error as NatsError

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus

_log = logging.getLogger(__name__)
_REPLY_DEADLINE_S = 10.0


class ProtocolStep(StrEnum):
    """What the controller is about to do; ``checkpoint`` and ``commit`` are ours."""

    GET_BATCH = "get_batch"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    RECOMPUTE = "recompute"
    """Generation goes on with the new weights; running requests compute their cache again."""
    TRAIN_STEP = "train_step"
    CHECKPOINT = "checkpoint"
    """The trainer's state is copied and its files are being written."""
    COMMIT = "commit"
    """The files are written, the checkpoint is not published yet."""


class Announcement(msgspec.Struct, frozen=True):
    """The controller is about to do a step for a version."""

    step: ProtocolStep
    version: int


Announce = Callable[[ProtocolStep, int], Awaitable[None]]
"""Is told the step and the version that it is about, before it is done; fault injection waits here."""


async def unobserved(step: ProtocolStep, version: int) -> None:
    """Nobody wants to know."""


def announcer(bus: Bus) -> Announce:
    """Tells the leader of every step and waits until it has answered, for 10 s at most."""

    async def announce(step: ProtocolStep, version: int) -> None:
        try:
            await bus.nc.request(subjects.PROTOCOL, codec.encode(Announcement(step, version)), _REPLY_DEADLINE_S)
        except (NatsError, TimeoutError) as error:
            _log.warning("the leader did not answer to %s of version %d: %r", step, version, error)

    return announce
