"""``rollart-hpc doctor``: whether this cluster can run a run, before it is submitted."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_hpc.cli.render import SiteOption
from rollart_hpc.cli.run import SetOption, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from rollart_hpc.config.schema import RunConfig
    from rollart_hpc.slurm.doctor.checks.case import Case
    from rollart_hpc.slurm.doctor.checks.finding import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    overrides: SetOption = None,
    site: SiteOption = None,
    probe: Annotated[
        bool, typer.Option(help="Try one node of each component by srun: files, interpreter, limits.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check CONFIG against this cluster: partitions, limits, nodes, GPUs, preemption, files.

    Nothing is submitted but a try of a few seconds on one free node of each component. Exit code 0: no errors;
    2: the input is wrong; 3: Slurm would refuse the run or never start it, or there is no Slurm.
    """
    from rollart_hpc.config.site import load_on_site
    from rollart_hpc.errors import PreflightError
    from rollart_hpc.launcher.slurm_continuation import last_stop_s
    from rollart_hpc.slurm.doctor.checks.finding import errors_of
    from rollart_hpc.slurm.doctor.examination import examine

    settings, oddities = load_on_site(config, overrides or [], site)
    warn(oddities)
    case, findings = examine(
        settings,
        directory=Path.cwd(),
        probe=probe,
        store_mb=_store_mb(settings),
        last_stop_s=last_stop_s(settings.run.path()),
    )
    if as_json:
        _print_json(case, findings)
    else:
        from rich.console import Console

        _print(Console(highlight=False), case, findings)
    if errors_of(findings):
        raise typer.Exit(PreflightError.exit_code)


def _store_mb(config: RunConfig) -> int | None:
    """What the weight store needs; None while the model is not there to be measured."""
    from rollart_hpc.launcher.services import store_size_mb

    known = config.weights.store_mb is not None or config.model.path.is_dir()
    return store_size_mb(config) if known else None


def _print_json(case: Case, findings: Sequence[Finding]) -> None:
    import json
    from dataclasses import asdict

    shown = {
        "slurm_version": case.facts.settings.version,
        "components": [
            {"name": part.name, "nodes": part.nodes, "cpus": part.cpus, "mem_mb": part.mem_mb, "gpus": part.gpus}
            for part in case.components
        ],
        "probes": {name: {"kind": type(probe).__name__, **asdict(probe)} for name, probe in case.probes.items()},
        "findings": [asdict(finding) for finding in findings],
    }
    print(json.dumps(shown, indent=2))


def _print(console: Console, case: Case, findings: Sequence[Finding]) -> None:
    from rich.text import Text

    from rollart_hpc.slurm.doctor.checks.finding import Severity
    from rollart_hpc.slurm.script.allocation import gigabytes

    for part in case.components:
        partition = part.options.partition or "default partition"
        gpus = f", {_counted(part.gpus, 'GPU')}" if part.gpus else ""
        head = f"  {partition}: {part.nodes} x ({_counted(part.cpus, 'CPU')}, {gigabytes(part.mem_mb)} GB{gpus})"
        console.print(Text(part.name, style="bold").append(head, style="not bold"))
        _print_group(console, [finding for finding in findings if finding.component == part.name])
    console.print(Text("job", style="bold"))
    _print_group(console, [finding for finding in findings if finding.component is None])
    severities = [finding.severity for finding in findings]
    console.print(", ".join(_counted(severities.count(severity), severity) for severity in Severity))


def _print_group(console: Console, findings: Sequence[Finding]) -> None:
    from rich.text import Text

    for finding in findings:
        severity = str(finding.severity)
        lines = _wrapped(console, f"  {severity:<9}", finding.found) + _wrapped(
            console, "           → ", finding.change
        )
        text = Text("\n".join(lines))
        text.stylize(_STYLES[severity], 0, len(lines[0]) - len(lines[0].lstrip()) + len(severity))
        console.print(text)


def _wrapped(console: Console, start: str, text: str) -> list[str]:
    return textwrap.wrap(text, min(console.width, 100), initial_indent=start, subsequent_indent=" " * len(start))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
