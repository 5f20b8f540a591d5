"""From the policy's text to a command, and back."""

import pytest

from rollart_hpc.envs.swe.actions import SUBMIT, NoCommandError, command_of, observation_of, submits
from rollart_hpc.sandbox import CommandResult


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ls -l", "ls -l"),
        ("I look.\n```bash\nls\n```\n", "ls"),
        ("```\nls\n```", "ls"),
        ("```bash\nfirst\n```\nno, rather\n```sh\nsecond\n```", "second"),
        ("```bash\ncat <<'E'\na\n\nb\nE\n```\nDone.", "cat <<'E'\na\n\nb\nE"),
        ("```bash\necho '```'\n```", "echo '```'"),
        ("It is\n```python\nx = 1\n```\nso\n```bash\nls\n```", "ls"),
        ("```bash\nls\n```\nwill print\n```\nfile\n```", "ls"),
        ("```Bash title=list\r\nls\r\n```", "ls"),
        ("````bash\ncat <<'E' > README.md\n```sh\nls\n```\nE\n````", "cat <<'E' > README.md\n```sh\nls\n```\nE"),
    ],
)
def test_the_last_block_is_the_command_or_a_text_without_any(text: str, command: str) -> None:
    assert command_of(text) == command


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "```bash\nls", "```python\nprint()\n```", "```bash\n\n```", "a\0b", "\ud800", "x" * 200_000],
)
def test_a_text_without_a_command_is_told_so(text: str) -> None:
    with pytest.raises(NoCommandError):
        command_of(text)


def test_the_first_line_submits_if_the_command_succeeded() -> None:
    assert submits(CommandResult(output=f"\n{SUBMIT}\nand more", exit_code=0))
    assert not submits(CommandResult(output=SUBMIT, exit_code=1))
    assert not submits(CommandResult(output=SUBMIT, exit_code=0, ending="timeout"))
    assert not submits(CommandResult(output=f"done\n{SUBMIT}", exit_code=0))
    assert not submits(CommandResult(output="", exit_code=0))


def test_of_a_long_output_the_middle_is_left_out() -> None:
    text = observation_of(CommandResult(output="a" * 600 + "b" * 600, exit_code=3), 100)
    assert text == (
        f"<returncode>3</returncode>\n<output>\n{'a' * 50}\n[the middle is left out: print less]\n{'b' * 50}</output>"
    )
    killed = observation_of(CommandResult(output="", exit_code=137, ending="timeout"), 100)
    assert killed.startswith("The command took too long")
