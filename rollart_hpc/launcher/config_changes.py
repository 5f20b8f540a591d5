"""What may be another in the config of a run that goes on, and what makes another run of it.

The newest checkpoint, the journal and the trajectories that wait to be trained were made with the run's config. A key
that changes what they mean is refused; any other is taken, listed at the start and recorded with the attempt. A key
belongs to the first pattern that it matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "run.name": "it names the run",
        "run.seed": "it decides which seeds were played and which are next",
        "model.path": "the run trains that model, and it is still there",
        "model.dtype": "the versions so far are weights of that type",
        "model.max_context": "the trajectories that wait to be trained were cut off by it",
        "generation.temperature": "the tokens that wait to be trained were sampled with it",
        "generation.top_p": "the tokens that wait to be trained were sampled with it",
        "tasks.*.environment": "the task's trajectories are of that environment",
        "tasks.*.dataset": "the task's seeds are rows of it",
        "tasks.*.group_size": "the groups that wait to be trained have that many members",
    }
)
"""By pattern, why another value is another run."""
NOT_THE_RUNS: Mapping[str, str] = MappingProxyType(
    {
        "run.directory": "a run may be moved",
        "slurm.*": "what Slurm is asked for is a job's",
        "pools.*.slurm.*": "the same, for one component",
    }
)
"""By pattern, why it is not worth a word."""
TAKEN: Mapping[str, str] = MappingProxyType(
    {
        "run.*": "when the run ends, and how often it saves",
        "algorithm.*": "holds from the next batch on",
        "training.*": "the optimizer's settings from the next step on; checkpoints are of no layout",
        "generation.*": "the engine's settings",
        "rollout.*": "bounds and deadlines of what is started from now on",
        "weights.*": "the store belongs to the attempt",
        "affinity*": "where requests go from now on",
        "serverless*": "where serverless functions are called from now on",
        "workers.*": "the classes of the workers that are started from now on",
        "profiler.*": "what is done about the mapping from now on",
        "hardware*": "figures for the profiler",
        "pools.*": "workers belong to the attempt",
        "sandbox.*": "of sandboxes that are opened from now on",
        "images.*": "where images are kept from now on",
        "tasks.*": "new tasks begin at their first seed; other settings hold for what is started from now on",
    }
)
"""By pattern, what another value means."""
_ABSENT = "absent"


def take_changes(old: RunConfig, new: RunConfig, *, advice: str) -> dict[str, list[Any]]:
    """What differs between the config of a run and the one that it shall go on with: by key, old and new value.

    A whole task or pool that only one of them has is one key.

    Raises:
        ConfigError: the second one is of another run; every key with both values, the reason, and ``advice``.
    """
    changes = _differences(old, new)
    refused = {key: values for key, values in changes.items() if _is_refused(key, old, new)}
    if refused:
        lines = [f"  {describe(key, values)}: {_reason(key)}" for key, values in refused.items()]
        raise ConfigError("\n".join([f"{old.run.path()} holds another run:", *lines, advice]))
    return {key: values for key, values in changes.items() if not _matches(key, NOT_THE_RUNS)}


def describe(key: str, values: list[Any]) -> str:
    """A changed key in words."""
    old, new = (_ABSENT if value is None else "there" if isinstance(value, dict) else repr(value) for value in values)
    return f"{key} = {new}, was {old}"


def _is_refused(key: str, old: RunConfig, new: RunConfig) -> bool:
    if key == "model.path":
        return old.model.path.is_dir() and not _is_same(old.model.path, new.model.path)
    if key.startswith("tasks.") and key.count(".") == 1:
        return key.removeprefix("tasks.") not in new.tasks
    return _matches(key, REFUSED)


def _is_same(first: Path, second: Path) -> bool:
    return second.exists() and first.samefile(second)


def _reason(key: str) -> str:
    found = next((reason for pattern, reason in REFUSED.items() if fnmatchcase(key, pattern)), None)
    return found or "trajectories of this task wait to be trained"


def _matches(key: str, patterns: Mapping[str, str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _differences(old: RunConfig, new: RunConfig) -> dict[str, list[Any]]:
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    sections = {
        f"{kind}.{name}": [before[kind].pop(name, None), after[kind].pop(name, None)]
        for kind in ("pools", "tasks")
        for name in sorted(before[kind].keys() ^ after[kind].keys())
    }
    flat = [_flatten(config) for config in (before, after)]
    keys = sorted(flat[0].keys() | flat[1].keys())
    differing = {key: [values.get(key) for values in flat] for key in keys if flat[0].get(key) != flat[1].get(key)}
    return sections | differing


def _flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
