import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from rollart_hpc.cli.main import app

HEAVY = {"torch", "vllm", "megatron", "mooncake", "transformers", "nats", "tensorboard"}
SHOW_HELP = f"""
import sys
from typer.testing import CliRunner
from rollart_hpc.cli.main import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
assert CliRunner().invoke(app, ["bench", "turns", "--help"]).exit_code == 0
print(*(sys.modules.keys() & {HEAVY!r}))
"""


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))


def all_commands() -> list[tuple[str, ...]]:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    return [(), *commands(root)]


def test_help_imports_nothing_heavy():
    shown = subprocess.run([sys.executable, "-c", SHOW_HELP], capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, shown.stdout.split(), shown.stderr) == (0, [], "")


@pytest.mark.parametrize("command", all_commands(), ids=lambda path: " ".join(path) or "the program")
def test_every_command_has_a_help(command: tuple[str, ...]):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output
    assert "--help" in result.output
