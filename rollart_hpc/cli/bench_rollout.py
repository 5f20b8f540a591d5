"""``rollart-hpc bench rollout``: the modes and what makes them differ, over emulated hardware."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollart_hpc.simulate.measurement import Measurement
    from rollart_hpc.simulate.scenario import Scenario, ScenarioFile

_DEFAULT = ("modes", "interaction", "redundancy", "staleness")


def bench_rollout(
    scenarios: Annotated[
        list[str] | None,
        typer.Option("--scenario", metavar="NAME|FILE", help="Scenario to run; any number of times."),
    ] = None,
    modes: Annotated[
        str, typer.Option(help="Configurations to run, with commas; those of the scenarios that are called so.")
    ] = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. emulation.steps=4.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the results into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Time per step of whole configurations, by the real control plane over emulated hardware.

    Everything that coordinates is real: controller, environment worker, bus, weight store. Engines, train steps,
    environments and rewards take the time of a stated model, scaled: docs/benchmarks.md has the model, its sources
    and how each mode is built. Scenarios that come with the package: interaction, mixing, modes, redundancy, scale,
    staleness; without --scenario all that compare. What limits it is one event loop for everything: `lateness_s`
    says how much later than due things happen.
    """
    from rollart_hpc.simulate.plot import check_plot, save_plot
    from rollart_hpc.simulate.scenario import find_scenario, load_scenario

    chosen = [load_scenario(find_scenario(name), overrides or []) for name in scenarios or _DEFAULT]
    wanted = [name.strip() for name in modes.split(",") if name.strip()]
    _check_wanted(wanted, chosen)
    if plot is not None:
        check_plot(plot, chosen)
    measured: dict[str, tuple[ScenarioFile, dict[str, Measurement]]] = {file.name: (file, {}) for file in chosen}
    try:
        for file in chosen:
            for name, one in file.configurations.items():
                if not wanted or name in wanted:
                    measured[file.name][1][name] = _measure(file.name, one, quiet=as_json)
    finally:  # one that fails costs nothing of what is measured
        if as_json:
            print(json.dumps(_flat(measured)))
        else:
            _print_ratios(measured)
    if plot is not None:
        save_plot(measured, plot)


def _check_wanted(wanted: list[str], chosen: list[ScenarioFile]) -> None:
    from rollart_hpc.errors import ConfigError

    known = [name for file in chosen for name in file.configurations]
    if twice := [name for name, count in Counter(known).items() if count > 1]:
        raise ConfigError(f"configuration {twice[0]} is in more than one scenario; measure these one by one")
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--modes {name}: no scenario has it; there are {', '.join(known)}")


def _measure(scenario: str, configuration: Scenario, *, quiet: bool) -> Measurement:
    import tempfile

    import uvloop
    from rich.console import Console

    from rollart_hpc.simulate.emulated_run import run_scenario
    from rollart_hpc.simulate.measurement import measure

    # In memory where that is possible: time is scaled, a disk is not.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rollart-bench-", dir=memory if memory.is_dir() else None) as folder:
        with _stderr_into(Path(folder) / "stderr"):
            run = uvloop.run(run_scenario(configuration, Path(folder)))
        found = measure(run, configuration)
    if not quiet:
        idle = ", ".join(f"{pool} {share:.0%}" for pool, share in found.idle_share.items())
        Console(highlight=False).print(
            f"{scenario}  {configuration.name:<16} {found.step_s:8.1f} s a step; aborted {found.stale_share:.1%}; "
            f"idle: {idle}"
        )
    return found


@contextmanager
def _stderr_into(path: Path) -> Generator[None]:
    """Takes what this process says on stderr meanwhile, libraries that are not Python's included."""
    before = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _ratios(file: ScenarioFile, measured: dict[str, Measurement]) -> dict[str, float]:
    return {
        name: measured[ratio.slow].step_s / measured[ratio.fast].step_s
        for name, ratio in file.ratios.items()
        if ratio.slow in measured and ratio.fast in measured
    }


def _flat(measured: dict[str, tuple[ScenarioFile, dict[str, Measurement]]]) -> dict[str, float]:
    """Every figure under a name of its own."""
    flat: dict[str, float] = {}
    for file, found in measured.values():
        flat |= {name: round(value, 3) for name, value in _ratios(file, found).items()}
        for name, one in found.items():
            flat[f"step_s.{name}"] = round(one.step_s, 2)
            flat[f"stale_share.{name}"] = round(one.stale_share, 4)
            flat[f"staleness_max.{name}"] = one.staleness_max
            flat[f"lateness_s.{name}"] = round(one.lateness_s, 3)
            flat |= {f"idle_share.{name}.{pool}": round(share, 4) for pool, share in one.idle_share.items()}
            flat |= {f"phase_s.{name}.{phase}": round(seconds, 2) for phase, seconds in one.phase_s.items()}
            flat |= {f"trained_share.{name}.{task}": round(share, 4) for task, share in one.trained_share.items()}
    return flat


def _print_ratios(measured: dict[str, tuple[ScenarioFile, dict[str, Measurement]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "measured", "expected", "paper", box=None)
    for file, found in measured.values():
        for name, value in _ratios(file, found).items():
            ratio = file.ratios[name]
            expected = "" if ratio.at_least is None else f">= {ratio.at_least:g}"
            table.add_row(name, f"{value:.2f}", expected, "" if ratio.paper is None else f"{ratio.paper:g}")
    if table.row_count:
        Console().print(table)
