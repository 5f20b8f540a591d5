"""Logging of a process: one line per event on stderr, which its supervisor appends to the process's log file."""

from __future__ import annotations

import logging
import sys


def log_to_stderr(process: str) -> None:
    """Sends everything from INFO on to stderr, but for what says each request."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    for name in ("nats", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
