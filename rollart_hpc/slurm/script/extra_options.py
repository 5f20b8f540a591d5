"""Options in ``extra`` that the config has a key for: sbatch would take them in place of ours, past every check."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rollart_hpc.slurm.script.allocation import Component

_KEYS = {
    "account": "account",
    "comment": "comment",
    "constraint": "constraint",
    "cpus-per-task": "cpus_per_node",
    "dependency": "dependency",
    "exclude": "exclude",
    "exclusive": "exclusive",
    "job-name": "job_name",
    "licenses": "licenses",
    "mail-type": "mail_type",
    "mail-user": "mail_user",
    "mem": "mem_gb",
    "nodelist": "nodelist",
    "nodes": "nodes",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
    "signal": "notice_s",
    "time": "time",
}
_GPU_KEYS = dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres"), "gpu_type")
_OF_THE_JOB = frozenset({"job_name", "notice_s"})
_SHORT = {
    "A": "account",
    "C": "constraint",
    "c": "cpus-per-task",
    "d": "dependency",
    "G": "gpus",
    "J": "job-name",
    "L": "licenses",
    "N": "nodes",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
_FLAGS = "hHIkOQsuvVW"
"""Short options without a value: another one may follow in the same word."""


def with_a_key(component: Component) -> Iterator[tuple[str, str]]:
    """Each option in the component's ``extra`` that has a key, and that key as a user writes it.

    Where the config leaves GPUs to ``extra`` (``gpu_form = "none"``) they have none; neither has a GRES that is no
    GPU, unless it would replace ours.
    """
    by_gpus = component.options.gpu_form != "none"
    for option in component.options.extra:
        asks_for_gpus = by_gpus and (component.gpus > 0 or "gpu" in option)
        keys = _KEYS | _GPU_KEYS if asks_for_gpus else _KEYS
        for key in (_key(word, keys) for word in shlex.split(option) if word.startswith("-")):
            if key is not None:
                yield option, f"slurm.{key}" if key in _OF_THE_JOB else f"pools.{component.name}.slurm.{key}"


def _key(word: str, keys: dict[str, str]) -> str | None:
    if not word.startswith("--"):
        return keys.get(_SHORT.get(word[1:].lstrip(_FLAGS)[:1], ""))
    name = word[2:].partition("=")[0]
    # sbatch takes the beginning of a name for the whole.
    return keys.get(name) or next((key for whole, key in keys.items() if name and whole.startswith(name)), None)
