"""A worker's process as it is started: ``python small_worker.py ATTEMPT_FILE MODE``, a guest with the word guest."""

import asyncio
import sys
import time
from pathlib import Path

from rollart_hpc.data_plane.stop_signals import remember_stop_signals

MODE = sys.argv[2] if __name__ == "__main__" else ""


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    remember_stop_signals()
    if MODE == "slow start":
        write("starting")
        time.sleep(1)
    from rollart_hpc.bus import resending
    from rollart_hpc.data_plane import worker_process
    from rollart_hpc.data_plane.declarations import register
    from rollart_hpc.data_plane.worker import Worker
    from rollart_hpc.types import Role

    if MODE == "lonely":
        resending.AWAY_DEADLINE_S = worker_process.AWAY_DEADLINE_S = 2.0
    if MODE == "impatient":
        worker_process._STOP_MARGIN_S = 0.5
    if MODE == "slow close":
        worker_process._CLOSE_DEADLINE_S = 0.2
    if MODE == "guest for ever busy":
        worker_process.LEAVE_DEADLINE_S = 0.5

    class Small(Worker):
        role = Role.REWARD

        async def setup(self) -> None:
            if "slow setup" in MODE:
                write("setting up")
                await asyncio.sleep(600)
            if MODE == "stuck thread":
                async with asyncio.timeout(0.2):
                    await asyncio.to_thread(time.sleep, 600)

        async def run(self) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            if MODE == "slow close":
                await asyncio.sleep(600)
            write("closed")

        num_tasks = 0

        @property
        def num_busy(self) -> int:
            return 1 if MODE == "guest for ever busy" else self.num_tasks

        @register()
        async def work(self, num_tasks: int) -> None:
            self.num_tasks = num_tasks

        @register()
        async def double(self, value: int) -> int:
            return 2 * value

    worker_process.worker_class = lambda config, role: Small  # pyright: ignore[reportAttributeAccessIssue]
    guest = MODE.startswith("guest")
    worker_process.run_worker(Role.REWARD, Path(sys.argv[1]), member_id="reward-0", hardware="cpu", guest=guest)


if __name__ == "__main__":
    main()
