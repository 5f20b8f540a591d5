"""What checking an environment came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rollart_hpc.interfaces import EnvironmentProperties

Ruling = Literal["kept", "broken", "note", "skipped"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one promise."""

    promise: str
    ruling: Ruling
    text: str
    """What was seen."""
    advice: str = ""
    """What to change, where it is broken."""


@dataclass(slots=True)
class Figures:
    """What one environment costs here; NaN where it was not measured."""

    start_s: float = float("nan")
    """Of a child: interpreter, import and the first constructor and reset."""
    reset_ms: dict[str, float] = field(default_factory=dict[str, float])
    """p50 and p99, in the child."""
    step_ms: dict[str, float] = field(default_factory=dict[str, float])
    child_mb: float = float("nan")
    """Memory that a child and its processes have to themselves, with one instance."""
    instance_kb: float = float("nan")
    """What a further instance adds."""
    episode_kb: float = float("nan")
    """By how much an instance grows with each episode; near 0 where nothing leaks."""


@dataclass(frozen=True, slots=True)
class Report:
    """All of one class."""

    entry_point: str
    properties: EnvironmentProperties
    verdicts: list[Verdict]
    figures: Figures

    @property
    def is_sound(self) -> bool:
        """No promise is broken."""
        return all(verdict.ruling != "broken" for verdict in self.verdicts)

    def as_record(self) -> dict[str, Any]:
        """As plain values; what was not measured is None."""
        record = asdict(self)
        figures = record["figures"]
        record["figures"] = {name: None if value != value else value for name, value in figures.items()}  # noqa: PLR0124
        return {**record, "is_sound": self.is_sound}
