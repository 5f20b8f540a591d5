"""Slurm's time limits, without its traps: `1:30` is 90 seconds to Slurm, `0` is no limit at all."""

from __future__ import annotations

import re

UNLIMITED = "UNLIMITED"
_FORM = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_DAYS = re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>[0-5]?\d))?")
_EXPECTED = "expected HH:MM:SS, D-HH:MM:SS, whole minutes as a number, or UNLIMITED"
_NO_LIMIT = "is no limit at all to Slurm; write UNLIMITED for that"


def parse_time_limit(value: int | str) -> str:
    """The limit as ``[D-]HH:MM:SS`` or UNLIMITED.

    Raises:
        ValueError: it is no limit, or one that Slurm reads in another way than people do.
    """
    if isinstance(value, int):
        if value <= 0:
            raise ValueError(f"{value} minutes: {_EXPECTED}; 0 means no limit to Slurm, write UNLIMITED for that")
        return _format(value * 60)
    text = value.strip()
    if text.upper() in {UNLIMITED, "INFINITE"}:
        return UNLIMITED
    if re.fullmatch(r"\d+", text):
        return parse_time_limit(int(text))
    if short := re.fullmatch(r"(\d+):([0-5]?\d)", text):
        first, second = (int(number) for number in short.groups())
        if not first and not second:
            raise ValueError(f"{text!r} {_NO_LIMIT}")
        raise ValueError(
            f"{text!r} is {first} min {second} s to Slurm; write {_format(first * 60 + second)} for that, or "
            f"{_format((first * 60 + second) * 60)} for {first} h {second} min"
        )
    found = _FORM.fullmatch(text) or _DAYS.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: {_EXPECTED}; one day is 1-00:00:00")
    parts = {unit: int(number or 0) for unit, number in found.groupdict().items()}
    seconds = ((parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]) * 60 + parts.get("seconds", 0)
    if seconds == 0:
        raise ValueError(f"{text!r} {_NO_LIMIT}")
    return _format(seconds)


def time_limit_s(text: str) -> int | None:
    """Seconds of a limit as Slurm or `parse_time_limit` prints it (``[D-]HH:MM:SS``, ``MM:SS``); None without limit."""
    if text.upper() in {UNLIMITED, "INFINITE", "NONE", "N/A", "NOT_SET"}:
        return None
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        parts += [0] * (3 - len(parts))
    else:
        parts = [0] * (3 - len(parts)) + parts
    hours, minutes, seconds = parts
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _format(seconds: int) -> str:
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock
