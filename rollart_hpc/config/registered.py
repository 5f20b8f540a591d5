"""Short names of environments and reward functions: entry points of installed packages.

A package registers what it ships under the groups `ENVIRONMENTS` and `REWARDS`; a config may then say
``environment = "frozen_lake"`` for ``module:Class``. Names are looked up while the config is read: all else sees the
latter, and the run's own record says which class it was. Nothing is imported for it.
"""

from __future__ import annotations

import re
from importlib import metadata

from pydantic_core import PydanticCustomError

from rollart_hpc.config.faults import nearest

ENVIRONMENTS = "rollart_hpc.environments"
REWARDS = "rollart_hpc.rewards"
_ENTRY_POINT = re.compile(r"[\w.]+:[\w.]+")


def registered(group: str) -> dict[str, str]:
    """``module:attribute`` by name of all that is registered in a group."""
    return {point.name: point.value for point in metadata.entry_points(group=group)}


def entry_point_of(text: str, group: str) -> str:
    """``module:attribute``, as it is written or as the name is registered.

    Raises:
        PydanticCustomError: a ValueError: it is neither; says which names there are.
    """
    if _ENTRY_POINT.fullmatch(text):
        return text
    known = registered(group)
    if text in known:
        return known[text]
    names = f"a registered name ({', '.join(sorted(known))})" if known else f"a name registered in the group {group}"
    raise PydanticCustomError(
        "unknown_name",
        "{hint}expected module:attribute, such as my_package.my_module:MyClass, or {names}",
        {"hint": nearest(text, list(known)), "names": names},
    )
