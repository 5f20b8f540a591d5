"""The batch script: whole against golden files, and by what bash and the leader make of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import load_config, parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import apply_site, load_site
from rollart_hpc.errors import ConfigError
from rollart_hpc.slurm.script import render as render_module
from rollart_hpc.slurm.script.batch_options import RENDERED, quote
from rollart_hpc.slurm.script.render import render

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("*.toml") if not path.name.endswith(".site.toml"))
PYTHON = "/shared/venv/bin/python3"
DIRECTORY = Path("/shared/work")


def golden_config(case: str) -> RunConfig:
    profile = GOLDEN / f"{case}.site.toml"
    return apply_site(load_config(GOLDEN / f"{case}.toml"), load_site(profile) if profile.exists() else None)


def small_config(**changes: dict[str, Any]) -> RunConfig:
    data = {
        "run": {"name": "r", "steps": 1},
        "model": {"path": "/m"},
        "rollout": {"groups_per_step": 1},
        "pools": {
            "gpu": {"hardware": "H20", "actor_train": 1, "actor_gen": 1},
            "cpu": {"hardware": "cpu", "environment": 1, "reward": 1},
        },
        "tasks": {"a": {"environment": "m:E", "reward": "m:r"}},
    }
    for section, values in changes.items():
        data[section] = {**data.get(section, {}), **values}
    return apply_site(parse_config(data), None)


def script_of(config: RunConfig, directory: Path = DIRECTORY) -> str:
    return render(config, python=PYTHON, directory=directory)


def options(script: str) -> list[list[str]]:
    """By component, its option lines."""
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line == "hetjob":
            blocks.append([])
        else:
            blocks[-1].append(line)
    return blocks


def refusal(**changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        script_of(small_config(**changes))
    return str(caught.value)


def run_by_bash(script: Path) -> subprocess.CompletedProcess[bytes]:
    variables = {"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"}
    return subprocess.run(["bash", str(script)], env=variables, capture_output=True, timeout=30, check=False)


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_the_golden_one(case: str, request: pytest.FixtureRequest):
    script, golden = script_of(golden_config(case)), GOLDEN / f"{case}.sh"
    if request.config.getoption("--update-golden"):
        golden.write_text(script)
    assert script == golden.read_text(), f"see the difference; if it is meant: pytest {__file__} --update-golden"


@pytest.mark.parametrize("case", CASES)
def test_bash_runs_the_script_and_the_leader_gets_the_whole_config(case: str, tmp_path: Path):
    """With a stand-in for the interpreter that keeps what it is given."""
    python = tmp_path / "it's a python"
    python.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >"{tmp_path}/arguments"\ncat >"{tmp_path}/stdin"\necho led\n')
    python.chmod(0o755)
    config = golden_config(case)
    here = config.model_copy(
        update={
            "run": config.run.model_copy(update={"directory": Path("new dir/$HOME 'x'")}),
            "slurm": config.slurm.model_copy(update={"python": None, "setup": ["echo set up"]}),
        }
    )
    script = tmp_path / "script.sh"
    script.write_text(render(here, python=str(python), directory=tmp_path))
    ended = run_by_bash(script)
    run_directory = tmp_path / "new dir/$HOME 'x'"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert (run_directory / "slurm-7.out").read_text() == "set up\nled\n"
    assert (tmp_path / "arguments").read_text().split() == ["-m", "rollart_hpc.cli.main", "lead"]
    given = parse_config(json.loads((tmp_path / "stdin").read_text()))
    assert given == here.model_copy(update={"run": here.run.model_copy(update={"directory": run_directory})})
    assert apply_site(given, None) == given


def test_a_job_whose_run_directory_cannot_be_made_fails(tmp_path: Path):
    (tmp_path / "file").touch()
    script = tmp_path / "script.sh"
    script.write_text(script_of(small_config(run={"directory": str(tmp_path / "file" / "run")})))
    assert run_by_bash(script).returncode == 2


def test_only_the_first_component_names_the_job_and_its_output():
    first, *others = options(script_of(small_config(slurm={"mail_type": "END"})))
    job_wide = ("--job-name=r", "--output=/dev/null", "--open-mode=append", "--mail-type=END")
    assert set(job_wide) <= set(first)
    assert others
    for block in others:
        assert not {line.partition("=")[0] for line in job_wide} & {line.partition("=")[0] for line in block}
        assert {"--requeue", "--signal=B:USR2@120", "--nodes=1"} <= set(block)


@pytest.mark.parametrize(
    ("form", "kind", "line"),
    [
        (None, None, "--gres=gpu:2"),
        ("gres", "h20", "--gres=gpu:h20:2"),
        ("gpus-per-node", None, "--gpus-per-node=2"),
        ("gpus-per-node", "h20", "--gpus-per-node=h20:2"),
        ("none", "h20", None),
    ],
)
def test_gpus_are_asked_for_in_the_sites_form(form: str | None, kind: str | None, line: str | None):
    values = {"gpu_form": form, "gpu_type": kind}
    cpu, gpu = options(script_of(small_config(slurm={key: value for key, value in values.items() if value})))
    assert [option for option in gpu if "gpu" in option] == ([line] if line else [])
    assert not [option for option in cpu if "gpu" in option]


def test_licences_of_the_job_are_asked_for_once():
    script = script_of(small_config(slurm={"licenses": "sim:1"}))
    assert script.count("#SBATCH --licenses=sim:1\n") == 1
    assert "--licenses=sim:1" in options(script)[0]


def test_skipped_options_are_left_out_with_or_without_dashes():
    whole = options(script_of(small_config()))
    skipped = options(script_of(small_config(slurm={"skip": ["mem", "--chdir", "signal"]})))
    for before, after in zip(whole, skipped, strict=True):
        assert [line for line in before if not line.startswith(("--mem=", "--chdir=", "--signal="))] == after


def test_extra_options_come_last_as_they_stand():
    extra = ["--switches=1@10", '--wckey="a # b"', "-S 1", "--gres-flags=enforce-binding", "--mem-per-cpu=1G"]
    assert all(block[-5:] == extra for block in options(script_of(small_config(slurm={"extra": extra}))))


@pytest.mark.parametrize(
    ("slurm", "said"),
    [
        ({"skip": ["memm"]}, "skip: 'memm' is no option that the script has; did you mean 'mem'? expected one of acc"),
        ({"skip": ["--switches"]}, "is no option that the script has"),
        ({"extra": ["--wckey=a #b"]}, "sbatch ends the line at '#'"),
        ({"extra": ["--wckey=a#b"]}, "sbatch ends the line at '#'"),
        ({"extra": ["--wckey='a"]}, "a quote is not closed"),
        ({"dependency": "afterok:3,singleton"}, "use afterany:JOBID"),
        ({"leader": "gpus"}, "slurm.leader = 'gpus': no such pool; did you mean 'gpu'? expected one of gpu, cpu"),
    ],
)
def test_what_sbatch_would_misread_is_refused(slurm: dict[str, Any], said: str):
    assert said in refusal(slurm=slurm)


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("--time=1:30", "pools.cpu.slurm.time"),
        ("--time 1:30", "pools.cpu.slurm.time"),
        ("--tim=1:30", "pools.cpu.slurm.time"),
        ("-t 1:30", "pools.cpu.slurm.time"),
        ("-t1:30", "pools.cpu.slurm.time"),
        ("-Ht1:30", "pools.cpu.slurm.time"),
        ("--nice=3 --time=1:30", "pools.cpu.slurm.time"),
        ("-p x", "pools.cpu.slurm.partition"),
        ("-A x", "pools.cpu.slurm.account"),
        ("-N 2", "pools.cpu.slurm.nodes"),
        ("-q x", "pools.cpu.slurm.qos"),
        ("--mem=0", "pools.cpu.slurm.mem_gb"),
        ("-c 3", "pools.cpu.slurm.cpus_per_node"),
        ("--gres=gpu:1", "pools.cpu.slurm.gpu_type"),
        ("-w n1", "pools.cpu.slurm.nodelist"),
        ("--exclusive", "pools.cpu.slurm.exclusive"),
        ('--comment="a b"', "pools.cpu.slurm.comment"),
        ("-J x", "slurm.job_name"),
        ("--signal=B:TERM@5", "slurm.notice_s"),
    ],
)
def test_an_extra_option_that_has_a_key_is_refused_with_the_key(option: str, key: str):
    said = refusal(slurm={"extra": ["--switches=1", option]}).splitlines()[0]
    assert said == f"pools.cpu.slurm.extra: {option!r} has a key of its own, which is checked; set {key} instead"


def test_extra_options_may_ask_for_gpus_where_the_config_leaves_them_to_it():
    extra = ["--gpus=1", "--gres=gpu:1,nvme:2"]
    assert "'--gpus=1' has a key" in refusal(slurm={"extra": extra})
    script = script_of(small_config(slurm={"extra": extra, "gpu_form": "none"}))
    assert all(block[-2:] == extra for block in options(script))


def test_another_resource_than_gpus_is_refused_only_where_it_would_replace_them():
    said = refusal(slurm={"extra": ["--gres=nvme:2"]}).splitlines()
    assert [line.partition(":")[0] for line in said] == ["pools.gpu.slurm.extra"]


def test_a_directory_that_no_script_line_can_hold_is_refused():
    with pytest.raises(ConfigError, match="rename it"):
        script_of(small_config(), directory=Path("/a\nb"))


def test_values_that_json_cannot_hold_are_refused():
    task = {"environment": "m:E", "reward": "m:r", "environment_args": {"x": float("inf")}}
    assert "environment_args of tasks.a" in refusal(tasks={"a": task})


def test_the_marker_ends_the_config_and_nothing_in_it():
    task = {"environment": "m:E", "reward": "m:r", "environment_args": {"END_OF_CONFIG": "END_OF_CONFIG_"}}
    script = script_of(small_config(tasks={"a": task}))
    assert "<<'END_OF_CONFIG__'\n" in script
    assert script.endswith("\nEND_OF_CONFIG__\n")


def test_plain_values_stay_plain_and_others_are_quoted():
    assert quote("gpu:h20:2") == "gpu:h20:2"
    assert quote('a "b" \\') == '"a \\"b\\" \\\\"'


def test_every_option_that_may_be_skipped_is_one_that_is_written():
    written = {
        line.removeprefix("--").partition("=")[0]
        for case in CASES
        for block in options(script_of(golden_config(case)))
        for line in block
    }
    assert set(RENDERED) <= written


def templated(tmp_path: Path, text: str) -> RunConfig:
    template = tmp_path / "mine.j2"
    template.write_text(text)
    return small_config(slurm={"template": str(template)})


def test_a_users_template_replaces_ours(tmp_path: Path):
    config = templated(tmp_path, TEMPLATE)
    script = script_of(config)
    assert script.startswith("#!/bin/zsh\n# test of r\n#SBATCH --job-name=r ")
    assert f"\nexport A=1\n{PYTHON} -u -m rollart_hpc.cli.main lead <<'END_OF_CONFIG'\n{{" in script


LEAD = "{{ python }} -u -m rollart_hpc.cli.main lead"
TEMPLATE = f"""\
#!/bin/zsh
# test of {{{{ name }}}}
{{% for part in components %}}
{{{{ "#SBATCH hetjob\\n" if not loop.first }}}}#SBATCH {{{{ part.options | join(" ") }}}} --nice

{{% endfor %}}
export A=1
{LEAD} <<'{{{{ marker }}}}'
{{{{ config }}}}
{{{{ marker }}}}
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("#!/bin/zsh\n", "", ["a first line that begins with #!"]),
        ("#!", "\n#!", ["a first line that begins with #!"]),
        ("#SBATCH hetjob\\n", "", ["`#SBATCH hetjob` between the components", "2 components, 0 such", "component 1"]),
        ("hetjob", "--x", ["2 components, 0 such lines"]),
        (
            "#SBATCH {{",
            "# SBATCH {{",
            ["lines of component 0", "component 0, before the first command: none", "lines of component 1"],
        ),
        (
            "part.options |",
            "part.options[:-1] |",
            ["lines of component 0", "component 0, before the first command: not --signal=B:USR2@120\n"],
        ),
        ("# test", "date\n# test", ["before the first command", "lines of component 0"]),
        (LEAD, "cat", ["the leader's command: {{ python }} -m rollart_hpc.cli.main lead"]),
        (LEAD, f"# {LEAD}\ncat", ["the leader's command"]),
        ("{{ config }}", "{}", ["the config on the leader's standard input: {{ config }}"]),
        (TEMPLATE, "echo hi", ["#!", "hetjob", "component 0", "component 1", "command", "config", "het_job.sh.j2"]),
        (TEMPLATE, "", ["#!", "hetjob", "component 0", "component 1", "command", "config"]),
    ],
)
def test_a_template_that_leaves_out_what_the_job_needs_is_refused(
    tmp_path: Path, before: str, after: str, said: list[str]
):
    assert before in TEMPLATE
    with pytest.raises(ConfigError) as caught:
        script_of(templated(tmp_path, TEMPLATE.replace(before, after)))
    text = str(caught.value)
    assert text.startswith(f"slurm.template = '{tmp_path}/mine.j2': the script lacks ")
    assert [part for part in said if part not in text] == [], text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a\n{{ pyton }}\n",
            r"mine.j2:2: 'pyton' is undefined; names in a template are components, config, marker, name",
        ),
        (
            "{% for c in components %}\n{{ c.optoins }}\n{% endfor %}",
            r"mine.j2:2: .*has no attribute 'optoins'; .*name and opt",
        ),
        ("a\nb\n{% for %}\n", r"mine.j2:3: Expected an expression"),
        ("{{ name + 1 }}", r"mine.j2:1: can only concatenate"),
        ("{% include 'no.j2' %}", r"no.j2 is no readable file"),
    ],
    ids=["name", "attribute", "syntax", "expression", "include"],
)
def test_a_fault_of_a_users_template_is_shown_with_its_line(tmp_path: Path, text: str, said: str):
    with pytest.raises(ConfigError, match=said):
        script_of(templated(tmp_path, text))


def test_a_missing_template_is_named():
    assert "slurm.template = '/none.j2': /none.j2 is no readable file" in refusal(slurm={"template": "/none.j2"})


def test_our_template_ships_with_the_package():
    assert render_module.TEMPLATE.is_file()
