"""Worker classes that processes of a deployment import."""

import asyncio
import os
import signal
from typing import Any

import rollart_hpc.distributed as rdist
from rollart_hpc.distributed.worker import ActorTrainCls, RewardCls


class Judge(RewardCls):
    @rdist.register()
    def where(self) -> list[Any]:
        return [self.member.hardware, os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()]

    @rdist.register()
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Broken(ActorTrainCls):
    async def setup(self) -> None:
        raise ValueError("no such planet")


class Slow(ActorTrainCls):
    async def setup(self) -> None:
        await asyncio.Event().wait()
