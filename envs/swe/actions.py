"""From the policy's text to a command, and from a command's end to what the policy sees of it."""

from __future__ import annotations

from rollart_hpc.envs.code.blocks import last_block
from rollart_hpc.sandbox import CommandResult

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_LANGUAGES = ("bash", "sh", "shell")
_MAX_COMMAND_BYTES = 100_000
_ENDINGS = {
    "timeout": "The command took too long and was killed with all that it had started.",
    "memory": "The command used too much memory and was killed.",
    "processes": "The command started too many processes and was killed.",
    "disk": "The command wrote more than there is room for and was killed.",
}


class NoCommandError(ValueError):
    """The text holds no command that can be run; the message is for the policy."""


def command_of(action: str) -> str:
    """The command in the last ```bash block, else in the last block of no language; the text where it has no fence.

    Raises:
        NoCommandError: a block is not closed, of another language, empty, too long, or not valid text.
    """
    block = last_block(action, _LANGUAGES)
    if block is None and "```" in action:
        raise NoCommandError("No block of the form ```bash ... ``` was found; is it closed?")
    command = (action if block is None else block).strip()
    if not command:
        raise NoCommandError("The command is empty.")
    if "\0" in command or len(command.encode(errors="replace")) > _MAX_COMMAND_BYTES:
        raise NoCommandError(f"A command has at most {_MAX_COMMAND_BYTES} bytes and no NUL.")
    if any("\ud800" <= character <= "\udfff" for character in command):
        raise NoCommandError("The command is not valid Unicode.")
    return command


def submits(result: CommandResult) -> bool:
    """The command succeeded and its first line of output is the one that ends the episode."""
    lines = result.output.lstrip().splitlines()
    return result.ending == "exit" and result.exit_code == 0 and bool(lines) and lines[0].strip() == SUBMIT


def observation_of(result: CommandResult, max_chars: int) -> str:
    """Exit code and output; of a long one its beginning and its end."""
    output = result.output
    if len(output) > max_chars:
        half = max_chars // 2
        output = f"{output[:half]}\n[the middle is left out: print less]\n{output[-half:]}"
    note = f"{_ENDINGS[result.ending]}\n" if result.ending != "exit" else ""
    return f"{note}<returncode>{result.exit_code}</returncode>\n<output>\n{output}</output>"
