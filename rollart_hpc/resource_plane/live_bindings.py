"""The bindings as a process that routes sees them: watched, and kept while the controller is away."""

from __future__ import annotations

from collections.abc import Callable

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import LiveView
from rollart_hpc.resource_plane.records import DEFAULT_TAG, RoleBindings
from rollart_hpc.types import Role


class LiveBindings:
    """Where generation is bound by tag. `run` must be running; until the first record what is declared holds."""

    def __init__(self, bus: Bus, declared: Callable[[str], str | None]) -> None:
        """``declared(tag)`` is the class that the config names, None for any."""
        self._declared = declared
        self._hardware: dict[str, str | None] = {}
        self._has_seen = False
        self._view = LiveView(bus, subjects.BINDINGS_BUCKET, RoleBindings)
        self._view.listen(self._changed)
        self.run = self._view.run

    def hardware_for(self, tag: str) -> str | None:
        """The class that serves a tag now, None for any; a lookup, since every turn asks."""
        try:
            return self._hardware[tag]
        except KeyError:
            pass
        found = self._hardware.get(DEFAULT_TAG) if self._has_seen else self._declared(tag)
        self._hardware[tag] = found
        return found

    def _changed(self, _: RoleBindings | None, after: RoleBindings | None) -> None:
        """A record that ends is kept: its owner is away, and the workers are as they were."""
        if after is not None and after.role is Role.ACTOR_GEN:
            self._hardware = {tag: binding.hardware or None for tag, binding in after.by_tag.items()}
            self._has_seen = True
