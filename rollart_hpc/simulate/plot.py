"""A PNG of measured scenarios: one row each, time per step beside what stood idle or was aborted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollart_hpc.errors import ConfigError
from rollart_hpc.simulate.measurement import Measurement
from rollart_hpc.simulate.scenario import Plot, ScenarioFile, series_of

_ROW_INCHES = 3.6
_WIDTH_INCHES = 11.0
_DPI = 120
Measured = Mapping[str, Measurement]


def check_plot(path: Path, scenarios: Iterable[ScenarioFile]) -> None:
    """Whether there will be something to draw and a place for it: before what takes long.

    Raises:
        ConfigError: there will not.
    """
    if path.suffix != ".png" or not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: expected the path of a .png file in a folder that is there")
    if all(file.plot is None for file in scenarios):
        raise ConfigError(f"--plot {path}: no scenario says how it is drawn; add [plot] to it, or leave --plot out")


def save_plot(scenarios: Mapping[str, tuple[ScenarioFile, Measured]], path: Path) -> None:
    """Draws every scenario that says how; by name, with the measurements of its configurations.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    rows = [(file.plot, measured) for file, measured in scenarios.values() if file.plot is not None and measured]
    figure = Figure(figsize=(_WIDTH_INCHES, _ROW_INCHES * max(1, len(rows))), layout="constrained")
    axes: Any = figure.subplots(max(1, len(rows)), 2, squeeze=False)
    for (left, right), (plot, measured) in zip(axes, rows, strict=False):
        if plot.kind == "bars":
            _bars(left, plot, measured)
        else:
            _lines(left, plot, measured, {name: one.step_s for name, one in measured.items()}, "time per step, s")
        if plot.shows_aborted:
            _lines(right, plot, measured, {name: one.stale_share for name, one in measured.items()}, "aborted share")
        else:
            _idle(right, measured)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror}; give a path that can be written") from error


def _bars(axis: Any, plot: Plot, measured: Measured) -> None:
    phases = [phase for phase in next(iter(measured.values())).phase_s if phase != "checkpoint"]
    bottom = dict.fromkeys(measured, 0.0)
    for phase in phases:
        heights = [one.phase_s[phase] for one in measured.values()]
        axis.bar(list(measured), heights, bottom=list(bottom.values()), label=phase)
        bottom = {name: bottom[name] + height for name, height in zip(measured, heights, strict=True)}
    for place, one in enumerate(measured.values()):
        axis.text(place, one.step_s, f"{one.step_s:.0f}", ha="center", va="bottom")
    axis.set(title=plot.title, xlabel=plot.x_label, ylabel="time per step, s")
    axis.margins(y=0.12)
    axis.legend(fontsize="small")


def _lines(axis: Any, plot: Plot, measured: Measured, values: Mapping[str, float], label: str) -> None:
    series: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for name in measured:
        kind, x = series_of(name)
        series[kind].append((x, values[name]))
    for kind, points in series.items():
        axis.plot(*zip(*sorted(points), strict=True), marker="o", label=kind)
    axis.set(title=plot.title, xlabel=plot.x_label, ylabel=label)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize="small")


def _idle(axis: Any, measured: Measured) -> None:
    pools = dict.fromkeys(pool for one in measured.values() for pool in one.idle_share)
    width = 0.8 / len(measured)
    for place, (name, one) in enumerate(measured.items()):
        places = [index + place * width for index in range(len(pools))]
        axis.bar(places, [one.idle_share.get(pool, 0.0) for pool in pools], width, label=name)
    axis.set_xticks([index + 0.4 - width / 2 for index in range(len(pools))], list(pools))
    axis.set(title="idle share by pool", ylim=(0, 1))
    axis.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))
