"""The options of a component: which there are, and what they become for sbatch and for srun."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from rollart_hpc.config.time_limit import parse_time_limit, time_limit_s

DEFAULTS: dict[str, object] = {"job_name": "submitit", "time": "00:05:00", "nodes": 1, "ntasks_per_node": 1}
_DEFAULT_NOTICE_S = 90

JOB_WIDE = frozenset({"setup", "teardown", "signal_delay_s", "stop_on_failure"})
"""Options of the whole job: they make no sense for one component."""
NOT_SUPPORTED = frozenset({"array_parallelism", "use_srun", "num_gpus"})
"""Options of the stock executor that a het job cannot have (arrays, no srun) or that it calls old."""
_NO_DIRECTIVES = JOB_WIDE | {"additional_parameters", "srun_args", "stderr_to_stdout"}
_OF_THE_STEP = ("cpus_per_task", "cpus_per_gpu", "gpus_per_task", "mem_per_cpu", "mem_per_gpu")
"""srun takes these from the surrounding batch script, where they are component 0's: said again for each step."""
_ENDLESS_MIN = 10 * 365 * 24 * 60


def check_names(given: Iterable[str], valid: Iterable[str]) -> None:
    """Raises ValueError when a name is none of the valid ones; lists them all."""
    known = set(valid)
    unknown = sorted(set(given) - known)
    if unknown:
        listed = "\n  - ".join(
            f"{name} (default: {DEFAULTS[name]!r})" if name in DEFAULTS else name for name in sorted(known)
        )
        raise ValueError(f"Unavailable parameter(s): {unknown}\nValid parameters are:\n  - {listed}")


def read_values(given: Mapping[str, object]) -> dict[str, object]:
    """The options with their values checked and in one form; those that sbatch itself refuses clearly are as given.

    Raises:
        ValueError: a value is wrong; the text names the option.
    """
    values = {name: _read(name, value) for name, value in given.items()}
    forced = {name.replace("-", "_") for name in _mapping(values.get("additional_parameters"))}
    if taken := sorted(forced & {"nodes", "ntasks_per_node", "time"}):
        raise ValueError(f"{', '.join(taken)} in additional_parameters; give it as an option of its own")
    return values


def check_memory(gigabytes: object) -> None:
    """Raises ValueError when ``mem_gb`` is no amount of memory."""
    if isinstance(gigabytes, bool) or not isinstance(gigabytes, int | float) or not math.isfinite(gigabytes):
        raise ValueError(f"mem_gb={gigabytes!r}: expected a number of gigabytes; mem takes Slurm's own words ('500M')")
    if gigabytes * 1024 < 1:
        raise ValueError(
            f"mem_gb={gigabytes!r}: expected at least a megabyte, 1/1024; for all memory of a node write mem='0'"
        )


def merge(shared: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """A component's options: the defaults, those of all components, its own; additional_parameters add up.

    None is as good as absent: it takes back what all components have.
    """
    additional = {**_mapping(shared.get("additional_parameters")), **_mapping(own.get("additional_parameters"))}
    given = {name: value for name, value in {**shared, **own}.items() if value is not None}
    return {**DEFAULTS, **given, "additional_parameters": additional}


def num_tasks(parameters: Mapping[str, object]) -> int:
    """Tasks of a component on all its nodes."""
    return cast("int", parameters["nodes"]) * cast("int", parameters["ntasks_per_node"])


def limit_minutes(parameters: Mapping[str, object]) -> int:
    """The time limit in minutes."""
    seconds = time_limit_s(str(parameters["time"]))
    return _ENDLESS_MIN if seconds is None else max(1, seconds // 60)


def notice_s(parameters: Mapping[str, object]) -> int:
    """How long before the time limit the functions are told."""
    return cast("int", parameters.get("signal_delay_s", _DEFAULT_NOTICE_S))


def directives(parameters: Mapping[str, object], seconds_of_notice: int) -> list[str]:
    """The #SBATCH lines of a component."""
    additional = _mapping(parameters["additional_parameters"])
    options = {name: value for name, value in parameters.items() if name not in _NO_DIRECTIVES}
    options["signal"] = f"B:USR2@{seconds_of_notice}"
    if not {"no_requeue", "no-requeue"} & additional.keys():
        options["requeue"] = True
    options = {name.replace("_", "-"): value for name, value in {**options, **additional}.items()}
    return [_directive(name, options[name]) for name in sorted(options) if options[name] is not False]


def step_options(parameters: Mapping[str, object]) -> list[str]:
    """The options of srun that give a component's one step all that the component has."""
    options = [f"--nodes={parameters['nodes']}", f"--ntasks={num_tasks(parameters)}"]
    options.append(f"--ntasks-per-node={parameters['ntasks_per_node']}")
    options += [f"--{name.replace('_', '-')}={parameters[name]}" for name in _OF_THE_STEP if name in parameters]
    return options


def words(parameters: Mapping[str, object], name: str) -> list[str]:
    """An option that is a list of words or lines; empty when absent."""
    return [str(word) for word in cast("Iterable[object]", parameters.get(name) or ())]


def _mapping(value: object) -> dict[str, object]:
    return dict(cast("Mapping[str, object]", value or {}))


def _directive(name: str, value: object) -> str:
    return f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={shlex.quote(str(value))}"


def _read(name: str, value: object) -> object:
    reader = _READERS.get(name)
    if reader is None or value is None:
        return value
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"{name}={error}") from None


def _count(value: object) -> int:
    """A number of nodes, tasks or seconds; ranges would leave the number of results open."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_whole or (isinstance(value, str) and value.strip().isdecimal())) or int(str(value)) < 1:
        raise ValueError(f"{value!r}: expected a whole number from 1")
    return int(str(value))


def _time(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r}: expected whole minutes as a number, or a text such as '1-12:00:00'")
    return parse_time_limit(value)


def _list(value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{value!r}: expected a list of texts")
    return [str(word) for word in cast("Iterable[object]", value)]


def _table(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r}: expected a dict, of options of sbatch and their values")
    return _mapping(cast("object", value))


_READERS: dict[str, Callable[[object], object]] = {
    "nodes": _count,
    "ntasks_per_node": _count,
    "signal_delay_s": _count,
    "time": _time,
    "setup": _list,
    "teardown": _list,
    "srun_args": _list,
    "additional_parameters": _table,
}
