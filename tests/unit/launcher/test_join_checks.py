"""What is checked before workers join a run, as far as it needs no bus, and what they are given."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollart_hpc.bus.server import BusEndpoint
from rollart_hpc.control_plane.model_identity import describe_model
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.guests import guest_environment
from rollart_hpc.launcher.join_checks import JoinRequest, check_machine, devices_of, own_origin, plan_guests
from rollart_hpc.types import Role
from rollart_hpc.warm_start.tokenizer import save_tokenizer
from tests.builders import run_config
from tests.unit.cli.test_wrong_input import QWEN3


def model(directory: Path, **changes: object) -> Path:
    save_tokenizer(directory, max_length=64)
    (directory / "config.json").write_text(json.dumps({**QWEN3, **changes}))
    save_file({"weight": np.zeros(4, np.float32)}, directory / "model.safetensors")
    return directory


def request(role: Role = Role.ACTOR_GEN, workers: int = 1) -> JoinRequest:
    return JoinRequest(role=role, pool="all", hardware=None, workers=workers)


@pytest.mark.parametrize(
    ("role", "hidden_size", "said"),
    [
        (Role.ACTOR_GEN, 64, ""),
        (Role.ACTOR_GEN, 128, "config.json hidden_size is 64, the run's has 128"),
        (Role.REWARD, 128, "tasks.a.reward"),
    ],
    ids=["the run's", "another", "a reward worker needs none"],
)
async def test_the_model_on_the_machine_must_be_the_run_s(tmp_path: Path, role: Role, hidden_size: int, said: str):
    config = run_config().model_dump(mode="json")
    config["model"]["path"] = str(model(tmp_path / "here"))
    attempt = Attempt(
        run_directory=str(tmp_path),
        number=1,
        bus=BusEndpoint(url="", token=""),
        store=None,
        config=config,
        model=describe_model(model(tmp_path / "there", hidden_size=hidden_size)),
    )
    if not said:
        await check_machine(attempt, request(role), {})
        return
    with pytest.raises(ConfigError) as caught:
        await check_machine(attempt, request(role), {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ("model.path" in str(caught.value)) == (role is Role.ACTOR_GEN)


@pytest.mark.parametrize(
    ("visible", "workers", "devices"),
    [(None, 2, []), ("", 2, []), ("3", 1, ["3"]), ("4,5,6", 2, ["4", "5"])],
)
def test_each_generation_worker_gets_devices_of_its_own(visible: str | None, workers: int, devices: list[str]):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert devices_of(request(workers=workers), run_config(), environment) == devices
    assert devices_of(request(Role.ENVIRONMENT, workers), run_config(), environment) == []


def test_more_workers_than_devices_are_refused():
    config = run_config()
    config = config.model_copy(update={"generation": config.generation.model_copy(update={"tensor_parallel": 2})})
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert devices_of(request(), config, environment) == ["0,1"]
    with pytest.raises(ConfigError, match=r"--workers 2: of 2 GPUs each .* has 3: 0,1,2; ask for more GPUs or fewer"):
        devices_of(request(workers=2), config, environment)


def test_a_guest_s_environment_has_nothing_of_its_job_but_its_node_and_its_devices():
    job = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "1",
        "SLURMD_NODENAME": "h20-1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PMI_RANK": "1",
    }
    given = guest_environment(job, "1")
    assert {key: given[key] for key in job.keys() & given.keys()} == {
        "PATH": "/bin",
        "SLURMD_NODENAME": "h20-1",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert given["OMP_NUM_THREADS"] == "1"
    assert guest_environment({}, None).keys() & job.keys() == set()


@pytest.mark.parametrize("job", [None, "1042"])
def test_names_of_guests_are_one_token_of_a_subject_and_tell_where_they_are_from(
    monkeypatch: pytest.MonkeyPatch, job: str | None
):
    monkeypatch.setenv("SLURMD_NODENAME", "n.1 of*here")
    origin = own_origin({} if job is None else {"SLURM_JOB_ID": job})
    first, second = plan_guests(request(workers=2), "H20", origin)
    assert (first.pool, first.hardware, first.guest, second.index) == ("all", "H20", True, 1)
    assert first.member_id.startswith("actor_gen-j1042-n_1_of_here-" if job else "actor_gen-n_1_of_here-")
    assert first.member_id != second.member_id
