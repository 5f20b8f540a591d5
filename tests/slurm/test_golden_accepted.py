"""The golden batch scripts are accepted by a real sbatch, which reads every value as it was meant."""

import os
import pwd
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.site import apply_site
from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import ask_slurm, run_slurm
from rollart_hpc.slurm.script.batch_options import quote
from rollart_hpc.slurm.script.render import render

GOLDEN = Path(__file__).parents[1] / "unit" / "slurm" / "golden"
SCRIPTS = sorted(GOLDEN.glob("*.sh"))
ODD = "a  b, \"c\" 'd' \\ \\\\ $HOME `id` %j # é 漢 !&;|<>(){}[]*?~=:@"

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def site(cluster: object) -> Iterator[None]:
    """What the script with all options asks for: a feature, licences, a reservation and an older job."""
    conf = Path(os.environ["SLURM_CONF"])
    before = conf.read_text()
    conf.write_text(f"{before}\nLicenses=simulator:4\n")
    run_slurm("scontrol", "reconfigure")
    run_slurm("scontrol", "update", "nodename=h800-1,h800-2", "features=nvlink")
    owner = f"users={pwd.getpwuid(os.geteuid()).pw_name}"
    size = ("starttime=now", "duration=10", "nodes=h20-1,h20-2", "flags=ignore_jobs")
    run_slurm("scontrol", "create", "reservation", "reservationname=for_runs", owner, *size)
    yield
    run_slurm("scontrol", "delete", "reservation=for_runs")
    run_slurm("scontrol", "update", "nodename=h800-1,h800-2", "activefeatures=", "availablefeatures=")
    conf.write_text(before)
    run_slurm("scontrol", "reconfigure")


def job_before() -> str:
    """The id of a job that has ended."""
    job = submit("#!/bin/bash\n#SBATCH --output=/dev/null\n#SBATCH --partition=cpu\n", "--wait")
    assert job.isdigit()
    return job


def submit(script: str, *arguments: str) -> str:
    return run_slurm("sbatch", "--parsable", *arguments, text=script, deadline_s=60).strip()


def assert_accepted(text: str) -> None:
    said = ask_slurm("sbatch", "--test-only", text=text).warnings
    assert re.fullmatch(r"sbatch: Job \d+ to start at .*", said), "a warning"


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.stem != "all_options"], ids=lambda path: path.stem)
def test_the_golden_script_is_accepted_without_a_warning(script: Path):
    assert_accepted(script.read_text())


def test_the_script_with_all_options_is_accepted_and_read_as_it_was_meant(site: None):
    text = (GOLDEN / "all_options.sh").read_text().replace("afterany:1", f"afterany:{job_before()}")
    assert_accepted(text)
    job = submit(text, "--hold")
    try:
        shown = run_slurm("scontrol", "show", "job", job)
    finally:
        run_slurm("scancel", job)
    first, h800, h20 = shown.strip().split("\n\n")
    for component in (first, h800, h20):
        assert re.search(r'JobName=rollart, "größer" #1$', component, re.MULTILINE)
        assert "Comment=two words, a 'quote' and a back\\slash" in component
        assert "TimeLimit=1-00:00:00" in component
        assert "Nice=10" in component
        assert "Requeue=1" in component
        assert "WorkDir=/shared/work" in component
    assert all(part in first for part in ("Licenses=simulator:2", "ReqNodeList=cpu-1", "MailUser=someone@example.org"))
    assert all(part in first for part in ("CPUs/Task=68", "MinMemoryNode=208G", "OverSubscribe=USER"))
    assert all(part in h800 for part in ("NumNodes=2", "Features=nvlink", "gpu:h800:2", "OverSubscribe=NO"))
    assert all(part in h20 for part in ("NumNodes=2", "gpu:h20:8", "Reservation=for_runs", "Licenses=(null)"))


def test_sbatch_reads_quoted_values_back():
    job = submit(f"#!/bin/bash\n#SBATCH --comment={quote(ODD)}\n#SBATCH --output=/dev/null\n", "--hold")
    try:
        assert f"Comment={ODD} \n" in run_slurm("scontrol", "show", "job", job)
    finally:
        run_slurm("scancel", job)


def test_a_script_that_asks_for_too_much_is_not_accepted():
    text = (GOLDEN / "three_pools.sh").read_text()
    with pytest.raises(SlurmError, match="not available"):
        assert_accepted(text.replace("--gres=gpu:2", "--gres=gpu:9"))


def small_config(**slurm: Any) -> Any:
    data = {
        "run": {"name": "small", "steps": 1, "directory": "runs/not there, yet"},
        "model": {"path": "/m"},
        "rollout": {"groups_per_step": 1},
        "pools": {
            "gpu": {"hardware": "H20", "actor_train": 1, "actor_gen": 1, "slurm": {"partition": "h20"}},
            "cpu": {"hardware": "cpu", "environment": 1, "reward": 1, "slurm": {"partition": "cpu"}},
        },
        "slurm": {"time": 5, **slurm},
        "tasks": {"a": {"environment": "m:E", "reward": "m:r"}},
    }
    return apply_site(parse_config(data), None)


def test_the_job_writes_into_a_run_directory_that_was_not_there(tmp_path: Path):
    """With a stand-in for the interpreter, from a directory whose name needs quotes."""
    here = tmp_path / 'from "here", 50%j'
    here.mkdir()
    python = here / "python"
    python.write_text('#!/bin/bash\necho "$PWD" "$@" "$SLURM_HET_SIZE"\ncat\n')
    python.chmod(0o755)
    job = submit(render(small_config(), python=str(python), directory=here))
    output = here / "runs/not there, yet" / f"slurm-{job}.out"
    deadline = time.monotonic() + 60
    while not (output.exists() and output.read_text().endswith("\n}\n")):
        assert time.monotonic() < deadline, run_slurm("scontrol", "show", "job", job)
        time.sleep(0.1)
    assert output.read_text().startswith(f"{here} -m rollart_hpc.cli.main lead 2\n{{\n")
