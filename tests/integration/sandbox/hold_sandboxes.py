"""Opens sandboxes, runs a command in each at once, and waits to be killed: ``hold_sandboxes.py COUNT MARK RUNTIME``."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rollart_hpc.config.node import Runtime, SandboxSection
from rollart_hpc.sandbox import Sandbox, open_sandbox


def play(sandbox: Sandbox, mark: str) -> None:
    sandbox.run(f"echo kept > /tmp/file; sleep {mark} & setsid sleep {mark} & wait", timeout_s=600)


def main(count: int, mark: str, runtime: Runtime) -> None:
    settings = SandboxSection(memory_mb=100, disk_mb=4, runtime=runtime)
    begin = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        sandboxes = list(threads.map(lambda _: open_sandbox(settings=settings), range(count)))
    opened = time.monotonic()
    for sandbox in sandboxes:
        threading.Thread(target=play, args=(sandbox, mark), daemon=True).start()
    sys.stdout.write(f"{opened - begin:.2f}\n")
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], "apptainer" if sys.argv[3] == "apptainer" else "bubblewrap")
