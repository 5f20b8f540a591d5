"""The console that commands print to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_FILES = 120


def console() -> Console:
    """A console as wide as the terminal; wide enough for our tables where it is none."""
    from rich.console import Console

    made = Console()
    return made if made.is_terminal else Console(width=_WIDTH_OF_FILES)
