"""The srun command of a process, word by word."""

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.slurm import ComponentOptions
from rollart_hpc.errors import ConfigError
from rollart_hpc.slurm.step import StepPlace, step_argv, with_mounts

COMMAND = ["/venv/bin/python", "-m", "rollart_hpc.cli.main", "actor-gen", "--attempt=/with space/attempt.json"]
INSIDE = ["-m", "rollart_hpc.cli.main", "actor-gen", "--attempt=/with space/attempt.json"]
FLAGS = [
    "srun",
    "--exact",
    "--unbuffered",
    "--jobid=12",
    "--nodes=1",
    "--ntasks=1",
    "--nodelist=h20-2",
    "--cpus-per-task=8",
    "--job-name=actor_gen-0",
    "--mpi=none",
    "--kill-on-bad-exit=0",
]


def place(**changes: Any) -> StepPlace:
    values: dict[str, Any] = {"job_id": "12", "het_group": None, "node": "h20-2", "cpus": 8, "mem_mb": 1536, "gpus": 0}
    return StepPlace(**(values | changes))


def argv(options: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    return step_argv("actor_gen-0", COMMAND, place(**changes), ComponentOptions.model_validate(options or {}))


def split(words: list[str], first: str) -> tuple[set[str], list[str]]:
    """srun's own options, in whatever order, and the command from ``first`` on."""
    at = words.index(first)
    return set(words[:at]), words[at:]


def test_a_step_gets_its_node_and_its_share_of_it():
    assert argv() == [*FLAGS, "--mem=1536M", *COMMAND]


def test_a_step_of_a_heterogeneous_job_says_its_component_the_first_one_too():
    for group in (0, 2):
        assert argv(het_group=group) == [*FLAGS, f"--het-group={group}", "--mem=1536M", *COMMAND]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["--gres=gpu:2"]),
        ({"gpu_form": "gres"}, ["--gres=gpu:2"]),
        ({"gpu_form": "gres", "gpu_type": "h800"}, ["--gres=gpu:h800:2"]),
        ({"gpu_form": "gpus-per-node", "gpu_type": "h800"}, ["--gres=gpu:h800:2"]),
        ({"gpu_form": "none", "gpu_type": "h800"}, []),
    ],
    ids=["default", "gres", "gres with type", "gpus-per-node", "none"],
)
def test_gpus_are_asked_for_as_the_component_has_them(options: dict[str, Any], words: list[str]):
    assert argv(options, gpus=2) == [*FLAGS, "--mem=1536M", *words, *COMMAND]


@pytest.mark.parametrize("options", [{}, {"gpu_type": "h800"}, {"gpu_form": "gpus-per-node"}])
def test_a_process_without_gpus_asks_for_none(options: dict[str, Any]):
    assert argv(options) == [*FLAGS, "--mem=1536M", *COMMAND]


@pytest.mark.parametrize(
    ("skip", "form", "missing"),
    [
        ("mem", "gres", "--mem=1536M"),
        ("--mem", "gres", "--mem=1536M"),
        ("gres", "gres", "--gres=gpu:2"),
        ("gpus-per-node", "gpus-per-node", "--gres=gpu:2"),
    ],
)
def test_what_the_job_did_not_ask_for_is_not_shared_out(skip: str, form: str, missing: str):
    whole = argv({"gpu_form": form}, gpus=2)
    assert argv({"gpu_form": form, "skip": [skip]}, gpus=2) == [word for word in whole if word != missing]
    assert missing in whole


@pytest.mark.parametrize("skip", ["nodes", "nodelist", "cpus-per-task", "job-name", "chdir", "gpus-per-node"])
def test_a_step_needs_what_only_the_submission_must_not_say(skip: str):
    assert argv({"skip": [skip]}, gpus=2) == argv(gpus=2)


def test_where_slurm_does_not_count_gpus_the_process_is_told_its_devices():
    words = argv({"gpu_form": "none"}, gpus=2, gpu_indices=(2, 3))
    assert words == [*FLAGS, "--mem=1536M", "env", "CUDA_VISIBLE_DEVICES=2,3", *COMMAND]


def test_a_process_in_a_pyxis_container_runs_its_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    container = {"runtime": "pyxis", "image": "/i.sqsh", "mounts": ["/a:/b:ro", "/c:/c"], "extra": ["--no-container-x"]}
    options, command = split(argv({"container": container, "gpu_form": "none"}, gpus=1, gpu_indices=(1,)), "env")
    assert command == ["env", "CUDA_VISIBLE_DEVICES=1", "python3", *INSIDE]
    assert options == {
        *FLAGS,
        "--mem=1536M",
        "--container-image=/i.sqsh",
        "--container-mounts=/a:/b:ro,/c:/c",
        f"--container-workdir={tmp_path}",
        "--no-container-x",
    }


@pytest.mark.parametrize(("gpus", "nv"), [(0, []), (1, ["--nv"])])
def test_a_process_in_an_apptainer_container_runs_its_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: int, nv: list[str]
):
    monkeypatch.chdir(tmp_path)
    container = {
        "runtime": "apptainer",
        "image": "/i.sif",
        "mounts": ["/a:/b:ro", "/c"],
        "python": "/opt/python",
        "extra": ["--cleanenv"],
    }
    options, command = split(argv({"container": container}, gpus=gpus), "apptainer")
    assert options == {*FLAGS, "--mem=1536M", *(f"--gres=gpu:{gpus}" for _ in nv)}
    binds = ["--bind=/a:/b:ro", "--bind=/c", f"--pwd={tmp_path}", "--cleanenv"]
    assert command == ["apptainer", "exec", *nv, *binds, "/i.sif", "/opt/python", *INSIDE]


def test_an_apptainer_container_gets_the_devices_from_outside():
    container = {"runtime": "apptainer", "image": "/i.sif"}
    _, command = split(argv({"container": container, "gpu_form": "none"}, gpus=1, gpu_indices=(3,)), "env")
    assert command[:4] == ["env", "CUDA_VISIBLE_DEVICES=3", "apptainer", "exec"]


def test_paths_are_mounted_where_they_are_once_after_the_user_s_own():
    options = ComponentOptions.model_validate(
        {"container": {"runtime": "pyxis", "image": "i", "mounts": ["/data:/d", "/run:/run"]}}
    )
    mounted = with_mounts(options, [Path("/run"), Path("/with space"), Path("/with space")])
    assert mounted.container is not None
    assert mounted.container.mounts == ["/data:/d", "/run:/run", "/with space:/with space"]
    assert options.container is not None
    assert options.container.mounts == ["/data:/d", "/run:/run"]


@pytest.mark.parametrize("path", ["/a,b/run", "/a:b"])
def test_a_path_that_a_mount_cannot_say_is_refused_where_there_is_a_container(path: str):
    contained = ComponentOptions.model_validate({"container": {"runtime": "apptainer", "image": "i"}})
    with pytest.raises(ConfigError, match=f"{path}: a path that is mounted .* must not have ':' or ','; rename it"):
        with_mounts(contained, [Path("/fine"), Path(path)])
    assert with_mounts(ComponentOptions(), [Path(path)]) == ComponentOptions()
