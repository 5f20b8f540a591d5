"""A short synchronous run whose weights are the same bit for bit whenever it is repeated."""

import os
import subprocess
import sys
from pathlib import Path

ARITHMETIC = Path(__file__).parents[1] / "examples" / "arithmetic.toml"
STEPS = 8
SETTINGS = (
    f"run.steps={STEPS}",
    "run.checkpoint_every=4",
    "rollout.mode=sync",
    "rollout.alpha=0",
    "rollout.groups_per_step=8",
    "tasks.arithmetic.group_size=4",
    "generation.deterministic=true",
)


def run_unbroken(directory: Path, model: Path) -> None:
    """Runs it to its end, on this machine."""
    own = (f"model.path={model}", f"run.directory={directory}")
    argv = [sys.executable, "-m", "rollart_hpc.cli.main", "run", str(ARITHMETIC)]
    argv += [f"--set={one}" for one in (*SETTINGS, *own)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
