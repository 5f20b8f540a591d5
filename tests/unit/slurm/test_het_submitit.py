"""Components, their options and the batch script, without a Slurm."""

import math
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollart_hpc.slurm.het_submitit import Component, HetSlurmExecutor
from rollart_hpc.slurm.het_submitit.batch_script import ComponentStep, make_batch_script
from rollart_hpc.slurm.het_submitit.parameters import check_names, limit_minutes, merge, num_tasks, read_values


def options(shared: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    return merge(read_values(shared), read_values(own))


def script_of(*own: dict[str, object], **shared: object) -> str:
    steps = [
        ComponentStep(
            name=f"part {number}", folder=Path("/logs/%j") / f"part {number}", parameters=options(shared, one)
        )
        for number, one in enumerate(own)
    ]
    return make_batch_script(steps, python="python3", log=Path("/logs/50%/%j_batch.log"))


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "a\nb", "a\0b", "a%t", "%j"])
def test_a_name_that_is_no_folder_is_refused(name: str):
    with pytest.raises(ValueError, match="names a folder"):
        Component(name, print)


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"function": print, "command": ["a"]},
        {"command": "echo a"},
        {"command": []},
        {"command": ["a"], "args": (1,)},
    ],
    ids=["nothing", "both", "string", "empty", "arguments"],
)
def test_a_component_is_a_function_or_a_command(what: dict[str, object]):
    with pytest.raises(ValueError, match="component 'a'"):
        Component("a", **what)  # pyright: ignore[reportArgumentType]


def test_an_unknown_option_is_answered_with_all_valid_ones():
    with pytest.raises(ValueError, match=r": \['partitions'\]\nValid.*\n  - nodes \(default: 1\)\n  - partition$"):
        check_names({"partitions"}, {"partition", "nodes"})


def test_a_component_overrides_what_all_share():
    merged = options(
        {"time": 60, "partition": "a", "additional_parameters": {"switches": 1}},
        {"partition": None, "nodes": 2, "ntasks_per_node": "4", "additional_parameters": {"licenses": "x"}},
    )
    assert "partition" not in merged
    assert merged["additional_parameters"] == {"switches": 1, "licenses": "x"}
    assert num_tasks(merged) == 8


def test_none_takes_back_what_all_share():
    merged = options({"nodes": 4, "time": 60, "partition": "a"}, {"nodes": None, "time": None, "partition": None})
    assert (merged["nodes"], limit_minutes(merged), merged.get("partition")) == (1, 5, None)


WRONG_VALUES = {
    "nodes": [0, -1, "1-2", "x", 1.5, True],
    "tasks_per_node": [0, -1, "2-3"],
    "timeout_min": [0, -5, 1.5, True],
    "time": ["1:30", "1d", "0", "00:00:00"],
    "mem_gb": ["x", "8", 0, -1, 0.0001, math.nan, math.inf, True],
    "srun_args": ["--mpi=none", 3],
    "additional_parameters": [["a"], {"nodes": 2}, {"ntasks-per-node": 2}, {"time": "1:30"}],
}
WRONG_FOR_ALL = {"signal_delay_s": ["x", -1], "setup": ["module load cuda"], "teardown": [True]}


def pairs(values: Mapping[str, list[object]]) -> list[object]:
    return [pytest.param(name, value, id=f"{name}={value}") for name, them in values.items() for value in them]


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HetSlurmExecutor:
    """It believes in a Slurm, and has none."""
    monkeypatch.setattr(HetSlurmExecutor, "affinity", classmethod(lambda _: 1))
    monkeypatch.setattr(HetSlurmExecutor, "_sbatch", lambda *_: pytest.fail("this was submitted"))
    return HetSlurmExecutor(tmp_path / "jobs")


@pytest.mark.parametrize(("name", "value"), pairs({**WRONG_VALUES, **WRONG_FOR_ALL}))
def test_a_wrong_value_for_all_is_refused_in_words(executor: HetSlurmExecutor, name: str, value: object):
    with pytest.raises(ValueError, match=r"expected|to Slurm|option of its own"):
        executor.update_parameters(**{name: value})


@pytest.mark.parametrize(("name", "value"), pairs(WRONG_VALUES))
def test_a_wrong_value_of_a_component_is_refused_before_anything_is_submitted(
    executor: HetSlurmExecutor, name: str, value: object
):
    with pytest.raises(ValueError, match=r"component 'b'.*(expected|to Slurm|option of its own)"):
        executor.submit_components([Component("a", print), Component("b", print, **{name: value})])
    assert not executor.folder.exists()


def test_submitits_own_names_take_back_too(executor: HetSlurmExecutor):
    executor.update_parameters(mem_gb=4, tasks_per_node=2)
    executor.update_parameters(mem_gb=None, tasks_per_node=None)
    merged = merge(executor.parameters, {})
    assert ("mem" in merged, num_tasks(merged)) == (False, 1)


def test_a_folder_of_each_task_is_refused(executor: HetSlurmExecutor):
    executor.folder /= "%t"
    with pytest.raises(ValueError, match="only %j"):
        executor.submit_components([Component("a", print)])


@pytest.mark.parametrize(
    ("limit", "minutes"), [(5, 5), ("90", 90), ("1-00:00:00", 1440), ("00:30:00", 30), ("UNLIMITED", 5256000)]
)
def test_a_time_limit_is_read_as_slurm_does(limit: object, minutes: int):
    assert limit_minutes(options({"time": limit}, {})) == minutes


def test_only_the_first_component_says_where_the_output_goes():
    first, second = script_of({"partition": "a"}, {"partition": "b"}, comment="it's").split("#SBATCH hetjob\n")
    assert "#SBATCH --output=/logs/50%%/%j_batch.log" in first
    assert "--output=/logs" not in second
    for part in (first, second):
        assert "#SBATCH --signal=B:USR2@90\n" in part
        assert "#SBATCH --requeue\n" in part
        assert "#SBATCH --comment='it'\"'\"'s'\n" in part
        assert "#SBATCH --time=00:05:00\n" in part


def test_a_job_of_one_component_has_no_het_group():
    assert "--het-group" not in script_of({})
    assert script_of({}, {}).count("--het-group=") == 2


def test_the_step_is_told_what_it_gets():
    script = script_of({"cpus_per_task": 3, "nodes": 2, "srun_args": ["--mpi=none", "-v v"]})
    assert "'--job-name=part 0' --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=3 \\\n" in script
    assert "--mpi=none '-v v' \\\n" in script


def test_no_requeue_can_be_asked_for():
    script = script_of({}, additional_parameters={"no-requeue": True})
    assert "#SBATCH --no-requeue\n" in script
    assert "#SBATCH --requeue\n" not in script


def test_bash_understands_the_script():
    script = script_of(
        {"stderr_to_stdout": True}, {}, setup=["module() { :; }"], teardown=["true"], stop_on_failure=True
    )
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
