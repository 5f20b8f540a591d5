"""Says whether tasks are sound: ``python -m rollart_hpc.envs.swe.validate ROWS.jsonl``; the tasks that ship by default.

A task is sound when its gold patch solves it, and when at its base none of FAIL_TO_PASS passes and all of PASS_TO_PASS
do. Exit code 1 when one is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

from rollart_hpc.envs.swe.grading.evaluate import evaluate, evaluate_base
from rollart_hpc.envs.swe.instance import TINY, Instance
from rollart_hpc.errors import RollartError


def main() -> int:
    """Checks each row and prints a line for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="?", default=TINY / "tasks.jsonl")
    parser.add_argument("--snapshots", type=Path, help="what relative paths of snapshots are relative to")
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    arguments = parser.parse_args()
    try:
        lines = arguments.rows.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{arguments.rows} cannot be read ({error}); expected a file of rows, a JSON object a line")
    faults = 0
    for number, line in enumerate(lines, start=1):
        begin = time.monotonic()
        name, fault = _fault(line, arguments.snapshots or arguments.rows.parent, arguments.timeout_s)
        faults += bool(fault)
        seconds = time.monotonic() - begin
        sys.stdout.write(f"line {number}  {name}  {seconds:.1f} s  {fault or 'sound'}\n")
        sys.stdout.flush()
    return 1 if faults else 0


def _fault(line: str, snapshots: Path, timeout_s: float) -> tuple[str, str]:
    """The task's name and what is wrong with it; empty where nothing is."""
    name = "?"
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            return name, f"the row is {line!r:.100}; expected a JSON object with the fields of SWE-bench"
        instance = Instance.from_row(cast(dict[str, Any], row), snapshots=snapshots)
        name = instance.instance_id
        gold = evaluate(instance, instance.patch.encode(), timeout_s=timeout_s)
        if not gold.resolved:
            return name, f"its gold patch does not solve it ({gold.reason}, dropped {gold.dropped}):\n{gold.log}"
        base = evaluate_base(instance, timeout_s=timeout_s)
        if (base.fail_to_pass, base.pass_to_pass) != (0.0, 1.0):
            shares = f"{base.fail_to_pass:.0%} of FAIL_TO_PASS and {base.pass_to_pass:.0%} of PASS_TO_PASS pass"
            return name, f"at its base {shares} ({base.reason}):\n{base.log}"
    except (ValueError, OSError, RollartError) as error:
        return name, f"{type(error).__name__}: {error}"
    return name, ""


if __name__ == "__main__":
    sys.exit(main())
