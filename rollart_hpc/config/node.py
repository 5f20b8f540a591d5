"""What nodes give to environments and rewards: the sections ``[sandbox]`` and ``[images]`` of a run's config.

User code in child processes has no config of the run; these two reach it by one environment variable, which workers set
before they start children (`NodeSettings.publish`) and `NodeSettings.current` reads. Without it the defaults hold, so
that the same code runs in a test, a notebook and a served reward function.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from rollart_hpc.config.section import PositiveFloat, PositiveInt, Section
from rollart_hpc.errors import ConfigError

_VARIABLE = "ROLLART_NODE_SETTINGS"
Runtime = Literal["auto", "bubblewrap", "apptainer"]


class SandboxSection(Section):
    """Isolation of what the policy's text executes, and the bounds of one sandbox."""

    runtime: Runtime = "auto"
    """``auto`` takes the first that isolates on this node, in the order of the type."""
    unisolated: bool = False
    """Where none isolates, commands run as plain processes with your rights, instead of the run being refused."""
    memory_mb: PositiveInt = 2048
    """All processes of a sandbox together."""
    disk_mb: PositiveInt = 1024
    """What a sandbox may write."""
    max_processes: PositiveInt = 256
    max_output_kb: PositiveInt = 1024
    """Of one command; what it prints beyond that is dropped, its beginning and its end are kept."""


class ImagesSection(Section):
    """Container images of environments: where they come from and where copies are kept (three levels)."""

    node_directory: Path | None = Field(default=None, strict=False)
    """Level 1, on the node's own disk; a folder of the user's in the temporary directory when absent."""
    shared_directory: Path | None = Field(default=None, strict=False)
    """Level 2, on the file system that all nodes share; none when absent."""
    mirrors: dict[str, str] = {}
    """Level 2 as a pull-through registry: its URL by the registry's host name, such as "docker.io"."""
    credentials: Path | None = Field(default=None, strict=False)
    """A file in the format of ~/.docker/config.json."""
    max_gb: PositiveFloat = 50.0
    """Of level 1; the images that were not used for longest go first, never one in use."""
    pull_timeout_s: PositiveFloat = 900.0

    @field_validator("mirrors")
    @classmethod
    def _mirrors_have_a_scheme(cls, mirrors: dict[str, str]) -> dict[str, str]:
        for registry, url in mirrors.items():
            if not re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", url):
                raise ValueError(
                    f"the mirror of {registry!r} is {url!r}; give its URL, such as https://mirror.site:5000"
                )
        return mirrors


class NodeSettings(Section):
    """Both sections, and which run they are of."""

    sandbox: SandboxSection = SandboxSection()
    images: ImagesSection = ImagesSection()
    run_directory: Path | None = Field(default=None, strict=False)
    """Of the run; what a tag means is pinned there for all nodes. None outside of a run."""

    def publish(self) -> None:
        """Makes these the current settings of this process and of all that it starts."""
        os.environ[_VARIABLE] = self.model_dump_json()

    @classmethod
    def current(cls) -> NodeSettings:
        """The settings of this process.

        Raises:
            ConfigError: the environment variable does not hold such settings.
        """
        text = os.environ.get(_VARIABLE)
        if text is None:
            return cls()
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"{_VARIABLE}={text!r}: {error}; unset it, or let a run set it") from error
