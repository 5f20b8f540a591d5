"""Opening sandboxes by the runtime that this node has; probed once per process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollart_hpc.config.node import NodeSettings, Runtime, SandboxSection
from rollart_hpc.sandbox.probe import chosen_runtime
from rollart_hpc.sandbox.runtimes import RUNTIMES
from rollart_hpc.sandbox.sandbox import Sandbox
from rollart_hpc.sandbox.shell_sandbox import ShellSandbox
from rollart_hpc.sandbox.unisolated import UnisolatedEnclosure


def available_runtime(settings: SandboxSection | None = None) -> Runtime | None:
    """The runtime that sandboxes of this process use, tried by running a command; None when they are unisolated.

    Raises:
        NoSandboxError: none isolates here, and ``unisolated`` is not set; says why each one does not.
    """
    settings = settings or NodeSettings.current().sandbox
    return chosen_runtime(settings.runtime, unisolated=settings.unisolated)


def open_sandbox(
    *,
    root: Path | None = None,
    directory: str = "/",
    environment: Mapping[str, str] | None = None,
    settings: SandboxSection | None = None,
) -> Sandbox:
    """Opens a sandbox.

    Args:
        root: directory with the root file system, of an image; None for the host's own system directories and the
            Python of this process, read-only, with an empty home: what tests of small programs need.
        directory: working directory of its commands; made where it is missing.
        environment: variables of every command.
        settings: bounds; those of the run when absent.

    Raises:
        NoSandboxError: no runtime isolates on this node.
        SandboxError: it could not be opened; trying again may help.
    """
    settings = settings or NodeSettings.current().sandbox
    runtime = available_runtime(settings)
    enclosure = UnisolatedEnclosure(root, settings) if runtime is None else RUNTIMES[runtime](root, settings)
    return ShellSandbox(enclosure, directory=directory, environment=environment, settings=settings)
