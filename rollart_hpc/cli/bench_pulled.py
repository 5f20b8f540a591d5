"""The environment of ``rollart-hpc bench resets``: each reset pulls an image and runs a command in a sandbox on it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

from rollart_hpc.errors import SandboxError
from rollart_hpc.images import use_image
from rollart_hpc.interfaces import EnvironmentProperties
from rollart_hpc.sandbox import open_sandbox


class Pulled:
    """Ends with its first step.

    Args:
        references: of the images; a seed names one of them.
        start_faults: share of sandboxes that do not start, by chance and not by the seed.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(thread_safe=True, sandboxed=True)

    def __init__(self, *, references: list[str], start_faults: float) -> None:
        self._references, self._start_faults = references, start_faults
        self._held = ExitStack()

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Reads the file that tells this image from the others."""
        self.close()
        number = seed % len(self._references)
        with ExitStack() as held:
            image = held.enter_context(use_image(self._references[number]))
            if random.SystemRandom().random() < self._start_faults:
                raise SandboxError("did not start, on purpose")
            sandbox = held.enter_context(open_sandbox(root=image.root))
            said = sandbox.run("read number < /number && echo $number", timeout_s=30.0).output
            if said != f"{number}\n":
                raise RuntimeError(f"the sandbox of image {number} said {said!r}")
            self._held = held.pop_all()
        return said, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Ends the episode."""
        return "", 0.0, True, False, {}

    def close(self) -> None:
        """Gives back the image and the sandbox."""
        self._held.close()
