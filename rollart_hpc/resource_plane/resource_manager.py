"""ResourceManager: devices by hardware class, and who has them (paper section 5.2, Listing 1).

    ResourceManager({"H800": list(range(0, 8))}, {"H20": list(range(8, 32))})

Binding never waits: when the preferred class is absent or full, a compatible one serves at once, and the placement
says so. What is released is free again, so that the next placement is in the preferred class. Bookkeeping alone; no
process is started here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from rollart_hpc.errors import WorkerDeclarationError
from rollart_hpc.resource_plane.hardware import HardwareClass, by_bandwidth, by_compute, hardware_class
from rollart_hpc.types import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one worker runs."""

    role: Role
    hardware: str
    """Class of its devices."""
    device_ids: tuple[int, ...]
    reason: str
    """Why it is that class, in words."""


class ResourceManager:
    """Devices that workers are placed on; a device has one worker at a time."""

    def __init__(
        self, *groups: Mapping[str, Sequence[int]], figures: Mapping[str, HardwareClass] = MappingProxyType({})
    ) -> None:
        """Takes the devices of each class.

        Args:
            groups: device ids by hardware class.
            figures: of classes that are not known, or differ from what is known; they decide the roles' defaults.

        Raises:
            WorkerDeclarationError: a class or a device is there twice, an id is none, or there is no device at all.
        """
        self._free = _checked(groups)
        self._all = {name: tuple(ids) for name, ids in self._free.items()}
        self._figures = {name: figures.get(name) or hardware_class(name) for name in self._free}
        self._placed: set[tuple[int, ...]] = set()

    @property
    def classes(self) -> dict[str, tuple[int, ...]]:
        """Every device id by hardware class, taken or not, as declared."""
        return dict(self._all)

    @property
    def free(self) -> dict[str, tuple[int, ...]]:
        """The ids of devices without a worker by hardware class; a class that has none left is there, empty."""
        return {name: tuple(ids) for name, ids in self._free.items()}

    def place(
        self, role: Role, count: int = 1, preferred: str | None = None, *, devices_each: int = 1
    ) -> list[Placement]:
        """Takes devices for ``count`` workers: in the preferred class, then in compatible ones, best first.

        Args:
            role: of the workers; without a preference its default class is taken.
            count: number of workers.
            preferred: hardware class; one that was not declared here is absent, which is no error.
            devices_each: devices of one worker, all of one class.

        Returns:
            One placement for each worker.

        Raises:
            WorkerDeclarationError: there is not room for all of them; none is placed then.
        """
        if count < 1 or devices_each < 1:
            raise WorkerDeclarationError(f"{count} {role} workers of {devices_each} devices each: expected 1 or more")
        default = self._compatible(role)
        order = list(dict.fromkeys([preferred, *default] if preferred else default))
        room = [name for name in order for _ in range(len(self._free.get(name, ())) // devices_each)]
        if len(room) < count:
            raise WorkerDeclarationError(self._no_room(role, count, devices_each, len(room), default))
        reasons = {name: self._reason(role, name, order[0], preferred) for name in order}
        return [self._take(role, name, devices_each, reasons[name]) for name in room[:count]]

    def release(self, placement: Placement) -> None:
        """Gives a worker's devices back.

        Raises:
            WorkerDeclarationError: it has none here, or gave them back already.
        """
        if placement.device_ids not in self._placed or placement.hardware not in self._free:
            raise WorkerDeclarationError(
                f"{placement.hardware} {list(placement.device_ids)}: no worker is placed on these devices; "
                "release what place() returned, once"
            )
        self._placed.remove(placement.device_ids)
        self._free[placement.hardware] = sorted([*self._free[placement.hardware], *placement.device_ids])

    def _take(self, role: Role, name: str, devices_each: int, reason: str) -> Placement:
        ids, self._free[name] = tuple(self._free[name][:devices_each]), self._free[name][devices_each:]
        self._placed.add(ids)
        return Placement(role=role, hardware=name, device_ids=ids, reason=reason)

    def _compatible(self, role: Role) -> list[str]:
        """Classes that can serve a role, its default first (paper section 5.2)."""
        return [one.name for one in _COMPATIBLE[role](self._figures.values())]

    def _reason(self, role: Role, name: str, first: str, preferred: str | None) -> str:
        if name == first:
            return f"{name} was asked for" if preferred else f"{name} is the default of {role}"
        lack = "is full" if first in self._all else "was not declared"
        return f"{first} {lack}; {name} serves"

    def _no_room(self, role: Role, count: int, devices_each: int, room: int, classes: Sequence[str]) -> str:
        left = ", ".join(f"{name} {len(ids)} of {len(self._all[name])}" for name, ids in self._free.items())
        fit = f"; {role} runs on {' and '.join(classes)}" if len(classes) < len(self._all) else ""
        return (
            f"{count} {role} workers with {devices_each} of the devices each: there is room for {room}{fit}; "
            f"free devices: {left}; declare more, or release some"
        )


def _gpus_first(
    order: Callable[[Iterable[HardwareClass]], list[HardwareClass]],
) -> Callable[[Iterable[HardwareClass]], list[HardwareClass]]:
    """GPUs alone where there are any; the CPU where there is nothing else, as on a laptop."""

    def compatible(classes: Iterable[HardwareClass]) -> list[HardwareClass]:
        known = list(classes)
        return order([one for one in known if one.is_gpu] or known)

    return compatible


def _cpu_first(classes: Iterable[HardwareClass]) -> list[HardwareClass]:
    return sorted(classes, key=lambda one: one.is_gpu)


_COMPATIBLE: Mapping[Role, Callable[[Iterable[HardwareClass]], list[HardwareClass]]] = MappingProxyType(
    {
        Role.ACTOR_TRAIN: _gpus_first(by_compute),
        Role.ACTOR_GEN: _gpus_first(by_bandwidth),
        Role.ENVIRONMENT: _cpu_first,
        Role.REWARD: list,
    }
)


def _checked(groups: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Free devices by class, ids in order."""
    found: dict[str, list[int]] = {}
    owners: dict[int, str] = {}
    for group in groups:
        for name, ids in _items(group):
            if name in found:
                raise _wrong(f"the class {name!r} is there twice; give all of its devices in one list")
            for device in ids:
                if device in owners:
                    raise _wrong(f"device {device} is of {owners[device]!r} and again of {name!r}; a device is one")
                owners[device] = name
            found[name] = sorted(ids)
    if not found:
        raise _wrong('no devices; give them by class, such as {"H800": [0, 1]}')
    return found


def _items(group: object) -> list[tuple[str, list[int]]]:
    if not isinstance(group, Mapping):
        raise _wrong(f'expected a mapping such as {{"H800": [0, 1]}}, got {group!r:.80}')
    items: list[tuple[str, list[int]]] = []
    for name, ids in cast("Mapping[object, object]", group).items():
        if not isinstance(name, str) or not name:
            raise _wrong(f"expected the name of a hardware class, got {name!r:.80}")
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise _wrong(f"{name!r}: expected a list of device ids, got {ids!r:.80}")
        devices = list(cast("Iterable[object]", ids))
        wrong = [one for one in devices if isinstance(one, bool) or not isinstance(one, int) or one < 0]
        if wrong or not devices:
            raise _wrong(
                f"{name!r}: expected device ids, whole numbers from 0 on and at least one, got {devices!r:.80}"
            )
        items.append((name, cast("list[int]", devices)))
    return items


def _wrong(text: str) -> WorkerDeclarationError:
    return WorkerDeclarationError(f"ResourceManager: {text}")
