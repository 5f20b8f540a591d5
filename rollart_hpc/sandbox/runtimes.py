"""What can make an isolated enclosure, in the order in which ``runtime = "auto"`` tries them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollart_hpc.config.node import Runtime, SandboxSection
from rollart_hpc.sandbox.apptainer import ApptainerEnclosure
from rollart_hpc.sandbox.bubblewrap import BubblewrapEnclosure
from rollart_hpc.sandbox.enclosure import Enclosure

RUNTIMES: dict[Runtime, Callable[[Path | None, SandboxSection], Enclosure]] = {
    "bubblewrap": BubblewrapEnclosure,
    "apptainer": ApptainerEnclosure,
}
