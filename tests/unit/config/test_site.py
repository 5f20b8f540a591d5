"""The site profile: where it is found, and which layer's option wins."""

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config import site as site_module
from rollart_hpc.config.load import load_config, parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import apply_site, find_site, load_on_site, load_site
from rollart_hpc.config.slurm import ComponentOptions, ResourcesSection, SiteProfile
from rollart_hpc.errors import ConfigError

RUN: dict[str, Any] = {
    "run": {"name": "r", "steps": 3},
    "model": {"path": "/m"},
    "rollout": {"groups_per_step": 4},
    "pools": {
        "h20": {"hardware": "H20", "actor_train": 1, "actor_gen": 1},
        "cpu": {"hardware": "cpu", "environment": 1, "reward": 1},
    },
    "tasks": {"a": {"environment": "m:E", "reward": "m:r"}},
}
TEXT = """
[run]
name = "r"
steps = 3
[model]
path = "/m"
[rollout]
groups_per_step = 4
[pools.all]
hardware = "H20"
actor_train = 1
actor_gen = 1
environment = 1
reward = 1
[tasks.a]
environment = "m:E"
reward = "m:r"
"""


def run_config(slurm: dict[str, Any] | None = None, **of_pools: dict[str, Any]) -> RunConfig:
    pools = {name: {**pool, "slurm": of_pools.get(name, {})} for name, pool in RUN["pools"].items()}
    return parse_config({**RUN, "slurm": slurm or {}, "pools": pools})


def profile(slurm: dict[str, Any] | None = None, **hardware: dict[str, Any]) -> SiteProfile:
    return SiteProfile.model_validate({"slurm": slurm or {}, "hardware": hardware})


def site_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_site(site_file(tmp_path, text))
    assert all(line.startswith(str(tmp_path / "site.toml: ")) for line in str(caught.value).splitlines())
    return str(caught.value).replace(f"{tmp_path}/site.toml: ", "")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Every place of a profile, none of them there yet."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("ROLLART_SITE", raising=False)
    monkeypatch.setattr(site_module, "SYSTEM_SITE", tmp_path / "etc.toml")
    found = {"system": tmp_path / "etc.toml", "user": home / ".config/rollart-hpc/site.toml"}
    found["user"].parent.mkdir(parents=True)
    return {**found, "variable": tmp_path / "variable.toml", "explicit": tmp_path / "explicit.toml"}


def test_the_explicit_profile_goes_before_the_variables_the_users_and_the_systems(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    assert find_site(None) is None
    for name in ("system", "user", "variable"):
        places[name].touch()
        if name == "variable":
            monkeypatch.setenv("ROLLART_SITE", str(places[name]))
        assert find_site(None) == places[name]
    places["explicit"].touch()
    assert find_site(places["explicit"]) == places["explicit"]


def test_an_explicit_profile_and_that_of_the_variable_must_exist(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    places["user"].touch()
    with pytest.raises(ConfigError, match=r"--site = '.*explicit.toml': no such file"):
        find_site(places["explicit"])
    monkeypatch.setenv("ROLLART_SITE", str(places["variable"]))
    with pytest.raises(ConfigError, match=r"\$ROLLART_SITE = '.*variable.toml': no such file"):
        find_site(None)


def test_the_null_device_is_a_profile_that_says_nothing():
    assert load_site(Path("/dev/null")) == SiteProfile()


def test_each_layer_wins_over_the_ones_before_it():
    site = profile(
        {"account": "site", "qos": "site", "partition": "site", "time": 60},
        h20={"qos": "class", "partition": "class", "time": 120},
    )
    config = apply_site(run_config({"partition": "run", "time": 180}, h20={"time": 240}), site)
    got = config.pools["h20"].slurm
    assert (got.account, got.qos, got.partition, got.time) == ("site", "class", "run", "04:00:00")
    other = config.pools["cpu"].slurm
    assert (other.account, other.qos, other.partition, other.time) == ("site", "site", "run", "03:00:00")
    assert (config.slurm.account, config.slurm.partition, config.slurm.time) == ("site", "run", "03:00:00")


def test_an_option_that_is_set_to_its_default_still_wins():
    site = profile({"notice_s": 300, "exclusive": True})
    config = apply_site(run_config({"notice_s": 120}, cpu={"exclusive": False}), site)
    assert config.slurm.notice_s == 120
    assert (config.pools["cpu"].slurm.exclusive, config.pools["h20"].slurm.exclusive) == (False, True)


def test_lists_add_up_in_order_without_duplicates():
    site = profile({"extra": ["--a", "--b"], "skip": ["mem"], "setup": ["one"]}, H20={"extra": ["--c"]})
    config = apply_site(run_config({"extra": ["--b", "--d"], "setup": ["two"]}, h20={"extra": ["--e", "--d"]}), site)
    assert config.pools["h20"].slurm.extra == ["--a", "--b", "--c", "--d", "--e"]
    assert config.pools["cpu"].slurm.skip == ["mem"]
    assert config.slurm.setup == ["one", "two"]


def test_resources_merge_by_role_and_field():
    site = profile({"resources": {"reward": {"cpus": 1, "mem_gb": 1}}}, h20={"resources": {"actor_gen": {"gpus": 2}}})
    of_pool = {"resources": {"reward": {"cpus": 3}, "actor_gen": {"cpus": 4}}}
    assert apply_site(run_config(h20=of_pool), site).pools["h20"].slurm.resources == {
        "reward": ResourcesSection(cpus=3, mem_gb=1.0),
        "actor_gen": ResourcesSection(cpus=4, gpus=2),
    }


def test_a_container_is_replaced_as_a_whole():
    site = profile({"container": {"runtime": "pyxis", "image": "a", "mounts": ["/x"]}})
    config = apply_site(run_config(h20={"container": {"runtime": "apptainer", "image": "b"}}), site)
    container = config.pools["h20"].slurm.container
    assert container is not None
    assert (container.runtime, container.image, container.mounts) == ("apptainer", "b", [])


def test_licences_of_the_job_are_no_pools():
    config = apply_site(run_config({"licenses": "sim:1"}, cpu={"licenses": "sim:2"}), profile({"licenses": "sim:9"}))
    assert config.slurm.licenses == "sim:1"
    assert (config.pools["h20"].slurm.licenses, config.pools["cpu"].slurm.licenses) == (None, "sim:2")


def test_a_class_matches_in_any_case():
    site = profile(h20={"partition": "a"}, CPU={"partition": "b"})
    pools = apply_site(run_config(), site).pools
    assert (pools["h20"].slurm.partition, pools["cpu"].slurm.partition) == ("a", "b")


@pytest.mark.parametrize("through_json", [False, True], ids=["as it is", "read again from config.json"])
def test_applying_the_profile_again_changes_nothing(through_json: bool):
    container = {"runtime": "pyxis", "image": "a", "mounts": ["/x"]}
    resources = {"reward": {"cpus": 1}, "actor_gen": {"gpus": 2}}
    site = profile(
        {"extra": ["--a"], "setup": ["s"], "qos": "site", "notice_s": 300, "container": container, "licenses": "l:1"},
        h20={"qos": "class", "extra": ["--b"], "resources": resources},
    )
    once = apply_site(run_config({"extra": ["--c"], "exclusive": "user"}, h20={"skip": ["mem"], "nodes": 1}), site)
    again = parse_config(once.model_dump(mode="json")) if through_json else once
    assert apply_site(again, site) == once
    assert apply_site(again, None) == once


def test_without_a_profile_the_runs_options_reach_its_pools():
    config = apply_site(run_config({"qos": "run"}, h20={"qos": "pool"}), None)
    assert (config.pools["h20"].slurm.qos, config.pools["cpu"].slurm.qos) == ("pool", "run")


def test_a_template_of_a_profile_is_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir("/")
    assert load_site(site_file(tmp_path, '[slurm]\ntemplate = "t.j2"')).slurm.template == tmp_path / "t.j2"
    assert load_site(site_file(tmp_path, '[slurm]\ntemplate = "/x/t.j2"')).slurm.template == Path("/x/t.j2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[slurm]\npartion = "x"', "unknown key slurm.partion; did you mean 'partition'? valid keys here: account, "),
        ("[slurm]\nzzz = 1", "unknown key slurm.zzz; valid keys here: account, comment, constraint, "),
        ("[hardware.H20]\nnode = 1", "unknown key hardware.H20.node; did you mean 'nodes'? valid keys here: account, "),
        ("[hardwares]\n", "unknown key hardwares; did you mean 'hardware'? valid keys here: hardware, slurm"),
        (
            "[hardware.H20.resources.actor-gen]\ncpus = 1",
            "unknown key hardware.H20.resources.actor-gen; did you mean 'actor_gen'? valid keys here: actor_gen, "
            "actor_train, controller, environment, leader, reward",
        ),
        (
            "[slurm.resources.reward]\ncpu = 1",
            "unknown key slurm.resources.reward.cpu; did you mean 'cpus'? valid keys here: cpus, gpus, mem_gb",
        ),
        ("[hardware.h20]\n[hardware.H20]\n", "hardware: classes h20 and H20 are one"),
        ("[hardware.2x]\n", "hardware.2x: expected a name that begins with a letter"),
        ("slurm = 3", "slurm = 3: expected a section with keys of its own"),
        ("[slurm]\nresources = 3", "slurm.resources = 3: expected a section with keys of its own"),
        (
            '[slurm]\nexclusive = "x"',
            "slurm.exclusive = 'x': input should be a valid boolean, or input should be 'user' or 'mcs'",
        ),
        ('[slurm]\ntime = "1:30"', "slurm.time: '1:30' is 1 min 30 s to Slurm"),
        ("[slurm]\ntime = 1.5", "slurm.time: 1.5: expected text such as '01:30:00', or whole minutes"),
        ("[slurm]\ntime = true", "slurm.time: true: expected text"),
        ('[slurm]\nextra = ["switches=1"]', "slurm.extra: 'switches=1' is no sbatch option"),
        ('[slurm]\nextra = ["--a\\nb"]', "slurm.extra.0 = '--a\\nb': expected one printable line"),
        ('[slurm.container]\nruntime = "docker"\nimage = "i"', "slurm.container.runtime = 'docker': input should be"),
    ],
    ids=lambda value: value.replace("\n", " ")[:40],
)
def test_a_fault_of_a_profile_is_explained_on_one_line(tmp_path: Path, text: str, said: str):
    got = refusal(tmp_path, text)
    assert got.startswith(said)
    assert "\n" not in got


def test_unreadable_profiles_are_told_apart(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file; give the path of a site profile"):
        load_site(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_site(tmp_path)
    assert refusal(tmp_path, "[slurm").startswith("not valid TOML")


def test_a_time_without_quotes_is_a_time(tmp_path: Path):
    assert load_site(site_file(tmp_path, "[slurm]\ntime = 01:30:00")).slurm.time == "01:30:00"


def test_hardware_that_the_profile_does_not_know_is_odd(tmp_path: Path, places: dict[str, Path]):
    run = tmp_path / "run.toml"
    run.write_text(TEXT)
    known = site_file(tmp_path, '[hardware.h20]\nqos = "q"')
    config, oddities = load_on_site(run, ["slurm.account=me"], known)
    assert oddities == []
    assert (config.pools["all"].slurm.qos, config.pools["all"].slurm.account) == ("q", "me")
    known.write_text("[hardware.H200]\n[hardware.cpu]\n")
    _, oddities = load_on_site(run, site=known)
    assert oddities == [f"{known}: has no [hardware.H20] for pools.all; did you mean 'H200'? it has H200, cpu"]
    assert load_on_site(run) == (apply_site(load_config(run), None), [])


def test_the_levels_of_a_runs_slurm_sections_are_explained(tmp_path: Path):
    run = tmp_path / "run.toml"
    for text, said in (
        ("[pools.all.slurm.container]\nimag = 1", "unknown key pools.all.slurm.container.imag; did you mean 'image'?"),
        ("[pools.all.slurm.resources.actor]\n", "unknown key pools.all.slurm.resources.actor; did you mean 'actor_"),
        ("[slurm.resources.leader]\nmem = 1", "unknown key slurm.resources.leader.mem; did you mean 'mem_gb'?"),
    ):
        run.write_text(TEXT + text)
        with pytest.raises(ConfigError) as caught:
            load_config(run)
        assert said in str(caught.value)


def test_options_of_components_are_options_of_the_job_too():
    assert ComponentOptions.model_fields.keys() < type(run_config().slurm).model_fields.keys()
