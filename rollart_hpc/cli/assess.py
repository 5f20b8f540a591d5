"""``rollart-hpc assess``: whether a run learned and kept its promises; what tells a right run from a broken one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer


def assess(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")],
    success: Annotated[
        list[str] | None,
        typer.Option("--success", metavar="TASK=LEAST", help="Success that the sampler must end with (last 5 steps)."),
    ] = None,
) -> None:
    """Check RUN's summary: success per task, the ledger, the staleness bound, delivery of weights.

    Exit code 1 lists what does not hold.
    """
    from rollart_hpc.errors import ConfigError, RollartError
    from rollart_hpc.observe.assessment import assess_summary, require_summary

    thresholds: dict[str, float] = {}
    for item in success or []:
        task, _, least = item.partition("=")
        try:
            thresholds[task] = float(least)
        except ValueError:
            thresholds[task] = math.nan
        if not task or not math.isfinite(thresholds[task]):
            raise ConfigError(f"--success {item}: expected TASK=LEAST, for example arithmetic=0.9")
    faults = assess_summary(require_summary(directory), thresholds)
    if faults:
        raise RollartError("\n".join(faults))
    print(f"{directory}: all holds")
