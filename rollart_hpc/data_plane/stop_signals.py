"""TERM, INT and USR2, at any process of the run, mean: the whole run is to stop.

The handler sets a flag and nothing else, so that they may come any number of times, at any time; what comes before
there is an event loop is remembered. Imports little: a process calls `remember_stop_signals` in its first line.
"""

from __future__ import annotations

import asyncio
import signal
import time

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
EXIT_STOPPED = 75
"""Exit code of a process that stopped in order before the run was done, which can be resumed (EX_TEMPFAIL)."""
_remembered: list[tuple[str, float]] = []
"""Name and time of the first that came too early; it belongs to the process, as its signals do."""


def remember_stop_signals() -> None:
    """Keeps the stop signals from ending this process until there are `StopSignals`."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _: _remembered.append(_stamped(number)))


def disregard_stop_signals() -> None:
    """What comes from now on does nothing: the process is at its end, and its loop would take the handlers away.

    The mask is that of the main thread alone: a signal may come to another one.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    for number in STOP_SIGNALS:
        if loop is not None:
            loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """The stop signals of this process, on its event loop; those remembered count."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        """Set by each."""
        self.first: tuple[str, float] | None = None
        """Its name, and when it came in seconds since the epoch."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._receive, number)
        if _remembered:
            self._take(_remembered[0])
            _remembered.clear()

    def _receive(self, number: int) -> None:
        self._take(_stamped(number))

    def _take(self, stamped: tuple[str, float]) -> None:
        self.first = self.first or stamped
        self.told.set()


def _stamped(number: int) -> tuple[str, float]:
    return signal.Signals(number).name, time.time()
