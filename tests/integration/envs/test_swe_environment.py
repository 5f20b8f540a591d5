"""Scripted policies play whole episodes: good, bad and cheating ones."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.data_plane.environment_instance import EnvironmentInstance
from rollart_hpc.envs.swe import SWE
from rollart_hpc.envs.swe.actions import SUBMIT
from rollart_hpc.envs.swe.instance import TINY, Instance, tiny_rows
from rollart_hpc.envs.swe.pack import pack
from rollart_hpc.envs.swe.patch import parse_patch
from rollart_hpc.reward_functions import swe_tests
from rollart_hpc.types import Episode, FinishReason, Score, Turn
from tests.integration.envs.repairs import git, solution, tiny

SUBMISSION = f"```bash\necho {SUBMIT}\n```"
BROKEN_GIT = "mkdir -p /tmp/bin; printf '#!/bin/sh\\nexit 1\\n' >/tmp/bin/git; chmod +x /tmp/bin/git; rm -rf .git"


def bash(command: str) -> str:
    return f"I do this.\n```bash\n{command}\n```"


def writing(files: dict[str, str]) -> list[str]:
    return [bash(f"mkdir -p $(dirname {path}); cat >{path} <<'END'\n{text}END") for path, text in files.items()]


def play(actions: list[str], row: dict[str, Any] | None = None, **settings: Any) -> Episode:
    """An episode of these actions, in the task slug, as the host of a run plays it."""
    environment = EnvironmentInstance("rollart_hpc.envs.swe:SWE", settings)
    state = environment.reset(0, row or tiny("slug"))
    info = dict(state.info)
    turns: list[Turn] = []
    for action in actions:
        before = state.observation
        state = environment.step(action)
        turns.append(Turn(observation=before, action=action, reward=state.reward, finish_reason=FinishReason.STOP))
        info |= state.info
        if state.terminated or state.truncated:
            break
    environment.close()
    return Episode(
        task="swe",
        seed=0,
        turns=turns,
        final_observation=state.observation,
        terminated=state.terminated,
        truncated=state.truncated,
        info=info,
    )


async def test_a_policy_that_solves_the_task_gets_1() -> None:
    look = bash("ls; cat slug/core.py; git log --oneline | wc -l")
    episode = play([look, *writing(solution("slug")), bash("python -B -c 'import slug'"), SUBMISSION])
    assert "def slugify" in episode.turns[1].observation
    assert "<returncode>0</returncode>" in episode.turns[1].observation
    assert (episode.terminated, episode.info["commands"], episode.info["submitted"]) == (True, 4, True)
    score = await swe_tests.score(episode)
    assert (score.reward, score.success) == (1.0, True)
    assert (score.metrics["fail_to_pass"], score.metrics["submitted"], score.metrics["ended_resolved"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("actions", "ending"),
    [
        ([SUBMISSION], "empty"),
        ([bash("rm slug/core.py"), SUBMISSION], "tests_failed"),
        ([*writing(solution("slug")), "and now?"], "empty"),
        ([bash("rm -rf /testbed"), SUBMISSION], "empty"),
        ([*writing(solution("slug")), bash(BROKEN_GIT), SUBMISSION], "empty"),
        (
            [bash("mv tests away"), *writing({"tests/test_slug.py": "def test_plain(): pass\n"}), SUBMISSION],
            "empty",
        ),
        ([*writing({"conftest.py": "import os\nos._exit(0)\n"}), SUBMISSION], "empty"),
        ([bash("head -c 3000000 /dev/urandom >big; git add -f big"), SUBMISSION], "empty"),
        (
            [
                bash("git config diff.external false; git config core.fsmonitor false; git config alias.diff '!echo'"),
                SUBMISSION,
            ],
            "empty",
        ),
    ],
    ids=["nothing", "damage", "no end", "all gone", "no git", "tests moved", "conftest", "too large", "git settings"],
)
async def test_a_policy_that_does_not_gets_0(actions: list[str], ending: str) -> None:
    score = await swe_tests.score(play(actions))
    assert (score.reward, score.success) == (0.0, False)
    assert score.metrics[f"ended_{ending}"] == 1


async def test_git_settings_of_the_policy_neither_hide_nor_break_its_patch() -> None:
    settings = "git config diff.noprefix true; git config diff.external /bin/false; git config color.ui always"
    hooks = (
        "printf '#!/bin/sh\\nexit 1\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; touch .git/index.lock"
    )
    episode = play([bash(settings), bash(hooks), *writing(solution("slug")), SUBMISSION])
    assert (await swe_tests.score(episode)).reward == 1.0
    committed = play(
        [*writing(solution("slug")), bash("git add -A; git -c user.name=a -c user.email=b commit -qm x"), SUBMISSION]
    )
    assert (await swe_tests.score(committed)).reward == 1.0


async def test_the_answer_that_reaches_max_commands_ends_with_what_is_there() -> None:
    episode = play([*writing(solution("slug")), "```bash\nls"], max_commands=2)
    assert (episode.terminated, episode.truncated, episode.info["submitted"]) == (False, True, False)
    assert (episode.info["commands"], episode.info["invalid_turns"]) == (1, 1)
    assert (await swe_tests.score(episode)).reward == 1.0


def test_hidden_tests_and_the_gold_patch_are_nowhere_in_the_policys_sandbox() -> None:
    row = tiny("slug")
    hidden = "test_a_run_becomes|sep[.]join|FAIL_TO_PASS"
    files = f"grep -rlE '{hidden}' /testbed /tmp ~ -s | grep -v ^{sys.prefix}/"
    search = f"git log -p --all | grep -E '{hidden}'; env | grep -E '{hidden}'; {files}"
    episode = play([bash(search)])
    assert episode.final_observation.endswith("</returncode>\n<output>\n</output>")
    assert not any(case in episode.turns[0].observation for case in row["FAIL_TO_PASS"])


def test_nonsense_is_an_observation_and_never_an_exception() -> None:
    endless = bash("yes")
    actions = ["", "```python\n1\n```", "\ud800", bash("\\x00\0"), bash("exit 3"), bash("kill -9 $$"), endless]
    environment = SWE(command_timeout_s=1.0)
    environment.reset(seed=0, task=tiny("slug"))
    observations = [environment.step(action)[0] for action in actions]
    assert all("```bash block" in observation for observation in observations[:4])
    assert "<returncode>3</returncode>" in observations[4]
    assert "<returncode>137</returncode>" in observations[5]
    assert "took too long" in observations[6]
    assert len(observations[6]) < 11_000
    assert "left out: print less" in observations[6]
    environment.close()
    with pytest.raises(RuntimeError, match="without a reset"):
        environment.step("ls")


def test_an_instance_is_used_again_and_its_episodes_share_nothing() -> None:
    environment = SWE()
    for seed, row in enumerate(tiny_rows()[:2]):
        text, info = environment.reset(seed=seed, task={})
        assert row["problem_statement"] in text
        assert info["instance"] == row
        observation = environment.step("cat /tmp/mark mark; touch mark /tmp/mark")[0]
        assert observation.count("No such file") == 2
    environment.close()


async def test_a_patch_that_is_no_utf8_arrives_as_it_was() -> None:
    episode = play([bash("printf 'caf\\351 = 1\\n' >latin.txt"), *writing(solution("slug")), SUBMISSION])
    assert episode.info["patch_encoding"] == "latin-1"
    assert (await swe_tests.score(episode)).reward == 1.0


def test_what_an_images_shell_says_first_does_not_spoil_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollart_hpc.envs.swe.work_tree._ENVIRONMENT", {"BASH_ENV": "$(echo welcome >&2)"})
    episode = play(writing({"new.txt": "x\n"}), tiny("slug") | {"base_commit": ""}, max_commands=1)
    assert (episode.info["patch_error"], "+x\n" in episode.info["patch"]) == ("", True)


async def test_an_episode_of_another_environment_is_refused() -> None:
    episode = play([SUBMISSION])
    other = Episode(**{field: getattr(episode, field) for field in episode.__struct_fields__} | {"info": {}})
    with pytest.raises(ValueError, match="swe_tests scores episodes of"):
        await swe_tests.score(other)
    assert isinstance(await swe_tests.score(episode), Score)


def test_what_ships_is_what_its_sources_say() -> None:
    rows = {row["repo"]: row for row in tiny_rows()}
    for source in sorted(TINY.glob("*.toml")):
        row, snapshot = pack(tomllib.loads(source.read_text()), source.with_suffix(".tar").name)
        assert row == rows.pop(row["repo"])
        assert snapshot == source.with_suffix(".tar").read_bytes()
        assert Instance.from_row(row).snapshot
    assert not rows


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"rollart_hpc.envs.swe.{module}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_tools_say_what_is_wrong_with_their_files(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("[]\n3\n{}\nx\n")
    wrong = run("validate", str(tmp_path / "rows.jsonl"))
    assert (wrong.returncode, wrong.stderr, wrong.stdout.count("\n")) == (1, "", 4)
    assert "line 1  ?  0.0 s  the row is '[]'; expected a JSON object" in wrong.stdout
    for done in (run("validate", str(tmp_path / "missing")), run("pack", str(tmp_path))):
        assert (done.returncode, "Traceback" in done.stderr, str(tmp_path) in done.stderr) == (2, False, True)
    (tmp_path / "task.toml").write_text("instance_id = 'x'\n")
    assert "task.toml: the task has no tables ['files', 'solution', 'tests']" in run("pack", str(tmp_path)).stderr


def test_what_git_writes_is_understood(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    old = {
        "plain": "a\nb\n",
        "gone": "x\n",
        "moved": "m\n" * 9,
        "bin": "\0\1",
        "mode": "x",
        "empty": "",
        "no newline": "a",
    }
    new = {
        "plain": "a\r\n\x0cb\n",
        "sub/moved": "m\n" * 9,
        "bin": "\0\2" * 99,
        "mode": "x",
        "full": "",
        "no newline": "b",
    }
    new |= {'quo"te\tä\n': "--- a/x\n+++ b/x\n@@ -1 +1 @@\n", "with blank ": "diff --git a/x b/x\n"}
    for files in (old, new):
        for file in tmp_path.iterdir():
            if file.is_file():
                file.unlink()
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(text.encode())
        git(tmp_path, "add", "-A")
        if files is old:
            git(tmp_path, "commit", "-qm", "x")
    (tmp_path / "mode").chmod(0o755)
    (tmp_path / "link").symlink_to("plain")
    git(tmp_path, "add", "-A")
    for options in ([], ["--binary", "--full-index", "--no-renames"], ["-M", "-C"]):
        patch = git(tmp_path, "diff", "--cached", *options).encode()
        files = parse_patch(patch)
        assert b"".join(file.text for file in files) == patch
        names = git(tmp_path, "diff", "--cached", "--name-only", "-z", "--no-renames").split("\0")[:-1]
        assert {path for file in files for path in file.paths} == set(names)
