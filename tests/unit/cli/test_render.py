import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "quickstart.toml"


def rendered(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Of a process that finds no Slurm on its PATH."""
    return subprocess.run(
        [sys.executable, "-m", "rollart_hpc.cli.main", "render", str(EXAMPLE), *arguments],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_script_and_nothing_else_is_printed_without_slurm(tmp_path: Path):
    done = rendered(tmp_path, "--site", os.devnull, "--set", "slurm.time=90")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("#!/bin/bash\n")
    assert done.stdout.endswith("\nEND_OF_CONFIG\n")
    assert done.stdout.count("#SBATCH --time=01:30:00\n") == 3
    assert f"\nrun={tmp_path}/runs/quickstart\n" in done.stdout
    assert f"exec {sys.executable} -m rollart_hpc.cli.main lead <<" in done.stdout


def test_oddities_go_to_standard_error(tmp_path: Path):
    site = tmp_path / "site.toml"
    site.write_text('[hardware.H800]\npartition = "big"\n[hardware.CPU]\n')
    done = rendered(tmp_path, ROLLART_SITE=str(site))
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {site}: has no [hardware.H20] for pools.h20; did you mean")
    assert done.stdout.count("#SBATCH --partition=big\n") == 1


def test_wrong_input_prints_no_script(tmp_path: Path):
    for arguments, said in (
        (("--site", "no.toml"), "error: --site = 'no.toml': no such file"),
        (("--set", "pools.h20.slurm.node=2"), "unknown key pools.h20.slurm.node; did you mean 'nodes'? valid keys"),
        (("--set", "pools.h20.slurm.nodes=2"), "error: pools.h20.slurm.nodes = 2: actor_gen = 1 leave a node"),
    ):
        done = rendered(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
