"""The processes below this one that run; those that have ended and only wait to be reaped are none."""

import psutil


def live_children(process: psutil.Process | None = None, *, recursive: bool = False) -> list[psutil.Process]:
    return [child for child in (process or psutil.Process()).children(recursive=recursive) if _is_alive(child)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
