"""The options of a component as sbatch reads them from its script's ``#SBATCH`` lines.

sbatch splits these lines by rules of its own: a ``#`` ends the line, double quotes keep all but ``"`` and the
backslash. What later components do not take over from the first one is repeated in each.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollart_hpc.config.faults import nearest
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.slurm.script.allocation import Component
from rollart_hpc.slurm.script.extra_options import with_a_key

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+\[\]-]+")
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
RENDERED = (
    "job-name", "output", "open-mode", "mail-type", "mail-user", "chdir", "partition", "account", "qos", "nodes",
    "ntasks-per-node", "cpus-per-task", "mem", "gres", "gpus-per-node", "constraint", "reservation", "exclusive",
    "time", "licenses", "nodelist", "exclude", "dependency", "comment", "requeue", "signal",
)  # fmt: skip
"""Names of the options that we write, in their order; a site may skip any of them."""


def option_lines(config: RunConfig, parts: Sequence[Component], directory: Path) -> list[list[str]]:
    """By component, what stands behind ``#SBATCH`` on each line; the job starts in ``directory``.

    Raises:
        ConfigError: an option cannot be written so that sbatch reads what was meant; every fault is listed.
    """
    faults = [fault for part in parts for fault in _faults(part, is_heterogeneous=len(parts) > 1)]
    if _UNWRITABLE.search(str(directory)):
        faults.append(f"{str(directory)!r}: a directory with such characters cannot be submitted from; rename it")
    if faults:
        raise ConfigError("\n".join(faults))
    return [_lines(config, part, directory, is_first=part is parts[0]) for part in parts]


def quote(value: str) -> str:
    """The value as sbatch reads it back from a ``#SBATCH`` line."""
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lines(config: RunConfig, part: Component, directory: Path, *, is_first: bool) -> list[str]:
    skipped = {name.lstrip("-") for name in part.options.skip}
    values = dict(_common(config, part, directory))
    if is_first:
        values |= _of_the_job(config, part)
    chosen = ((name, values.get(name)) for name in RENDERED if name not in skipped)
    written = [f"--{name}={quote(value)}" if value else f"--{name}" for name, value in chosen if value is not None]
    return written + part.options.extra


def _of_the_job(config: RunConfig, part: Component) -> dict[str, str | None]:
    return {
        "job-name": config.slurm.job_name or config.run.name,
        "output": "/dev/null",
        "open-mode": "append",
        "mail-type": part.options.mail_type,
        "mail-user": part.options.mail_user,
    }


def _common(config: RunConfig, part: Component, directory: Path) -> Iterator[tuple[str, str | None]]:
    """Options of any component: None leaves one out, the empty text is an option without a value."""
    options = part.options
    for name in ("partition", "account", "qos", "constraint", "reservation", "time", "licenses"):
        yield name, getattr(options, name)
    for name in ("nodelist", "exclude", "dependency", "comment"):
        yield name, getattr(options, name)
    yield "chdir", str(directory)
    yield "nodes", str(part.nodes)
    yield "ntasks-per-node", "1"
    yield "cpus-per-task", str(part.cpus)
    yield "mem", f"{part.mem_mb}M"
    if part.gpus:
        yield from _gpus(part)
    if options.exclusive:
        yield "exclusive", "" if options.exclusive is True else options.exclusive
    yield "requeue", ""
    yield "signal", f"B:USR2@{config.slurm.notice_s}"


def _gpus(part: Component) -> Iterator[tuple[str, str]]:
    number = f"{part.options.gpu_type}:{part.gpus}" if part.options.gpu_type else str(part.gpus)
    if part.options.gpu_form == "gpus-per-node":
        yield "gpus-per-node", number
    elif part.options.gpu_form != "none":
        yield "gres", f"gpu:{number}"


def _faults(part: Component, *, is_heterogeneous: bool) -> Iterator[str]:
    where = f"pools.{part.name}.slurm"
    for name in part.options.skip:
        bare = name.lstrip("-")
        if bare not in RENDERED:
            yield (
                f"{where}.skip: {name!r} is no option that the script has; {nearest(bare, RENDERED)}"
                f"expected one of {', '.join(sorted(RENDERED))}"
            )
    misread = [(option, fault) for option in part.options.extra if (fault := _misread(option))]
    yield from (f"{where}.extra: {option!r}: {fault}" for option, fault in misread)
    if not misread:
        for option, key in with_a_key(part):
            yield f"{where}.extra: {option!r} has a key of its own, which is checked; set {key} instead"
    if is_heterogeneous and "singleton" in re.split(r"[,?:]", part.options.dependency or ""):
        yield (
            f"{where}.dependency: Slurm never starts a job of several components with singleton, since they share a "
            "name and wait for each other; use afterany:JOBID"
        )


def _misread(option: str) -> str | None:
    """Why sbatch would read another option than the one that stands there."""
    try:
        if shlex.split(option) != shlex.split(option, comments=True):
            return "sbatch ends the line at '#'; put the value into double quotes"
    except ValueError:
        return "a quote is not closed; close it or escape it by a backslash"
    return None
