"""Hardware affinity by tag: what is declared, and what of it holds."""

from __future__ import annotations

from collections.abc import Mapping

from rollart_hpc.resource_plane.records import DEFAULT_TAG


def preferred_hardware(affinity: Mapping[str, str], tag: str) -> str | None:
    """The hardware class that a tag is mapped to, by its own entry or the default's; None where nothing is declared."""
    return affinity.get(tag, affinity.get(DEFAULT_TAG))
