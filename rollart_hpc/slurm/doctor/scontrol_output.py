"""The text of `scontrol show`, read with care: fields come and go between versions, values may hold spaces.

What is not there, or is one of Slurm's many words for nothing, is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rollart_hpc.config.time_limit import time_limit_s

_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z0-9_:/]*)=")
_SETTING = re.compile(r"^\s*([A-Za-z][\w\[\]]*)\s*=\s?(.*)$")
_NOTHING = frozenset({"", "(null)", "n/a", "none", "n/s", "not_set", "unlimited", "infinite", "(null type)"})
_NUMBER = re.compile(r"\d+")
_PARENTHESES = re.compile(r"\([^)]*\)")
_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def read_records(text: str, key: str) -> Iterator[dict[str, str]]:
    """Records of ``scontrol show ... --oneliner``: the lines that start with ``key=``."""
    for line in text.splitlines():
        if line.startswith(f"{key}="):
            yield read_fields(line)


def read_fields(line: str) -> dict[str, str]:
    """``Key=value`` pairs of one line; a value goes to the next key, and the first of two equal keys counts.

    A free text (OS, Comment, Reason) that looks like a field can therefore not replace a field before it.
    """
    found = list(_FIELD.finditer(line))
    ends = [match.start() for match in found] + [len(line)]
    fields: dict[str, str] = {}
    for match, end in zip(found, ends[1:], strict=True):
        fields.setdefault(match[1], line[match.end() : end].strip())
    return fields


def read_settings(text: str) -> dict[str, str]:
    """``Name = value`` lines of ``scontrol show config``."""
    matches = (_SETTING.match(line) for line in text.splitlines())
    return {match[1]: match[2].strip() for match in matches if match}


def word(fields: Mapping[str, str], key: str) -> str | None:
    """A value, None when Slurm has none."""
    value = fields.get(key, "")
    return None if value.lower() in _NOTHING else value


def words(fields: Mapping[str, str], key: str) -> tuple[str, ...] | None:
    """A comma list, None for all or none."""
    value = word(fields, key)
    return None if value is None or value.upper() == "ALL" else tuple(part for part in value.split(",") if part)


def count(fields: Mapping[str, str], key: str) -> int | None:
    """The number that a value begins with (``30 sec``), None without one."""
    match = _NUMBER.match(word(fields, key) or "")
    return int(match[0]) if match else None


def duration_s(fields: Mapping[str, str], key: str) -> int | None:
    """Seconds of a time limit, None without limit or in a form that is not known."""
    try:
        return time_limit_s(word(fields, key) or "NONE")
    except ValueError:
        return None


def gpus_by_type(gres: str | None) -> dict[str, int]:
    """GPUs of a node by type, from its Gres (``gpu:h800:8(S:0-1),gpu:2,shard:16``); "" is a GPU without type."""
    gpus: dict[str, int] = {}
    for entry in _PARENTHESES.sub("", gres or "").split(","):
        name, *parts = entry.strip().split(":")
        if name != "gpu":
            continue
        number, kinds = _gres_count(parts)
        kind = next((part for part in kinds if part != "no_consume"), "")
        gpus[kind] = gpus.get(kind, 0) + number
    return gpus


def _gres_count(parts: list[str]) -> tuple[int, list[str]]:
    match = re.fullmatch(r"(\d+)([KMGT]?)", parts[-1]) if parts else None
    if match is None:
        return 1, parts
    return int(match[1]) * _SUFFIXES[match[2]], parts[:-1]
