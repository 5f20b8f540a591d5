"""What an image is to those who use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image on this node's disk, verified and unpacked; nothing in it is ever changed."""

    reference: str
    """As it was asked for."""
    digest: str
    """Of its manifest for this platform, ``sha256:...``; empty for a directory, which has none."""
    root: Path
    """Its root file system, all layers applied."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Variables of its config."""
    working_directory: str = "/"
