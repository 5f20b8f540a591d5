"""The command ``rollart-hpc``: registers the subcommands, turns our errors into one line and an exit code."""

from __future__ import annotations

import sys

import typer

from rollart_hpc.cli import assess, bench, config, export, ledger, process, run, warm_start
from rollart_hpc.errors import RollartError

_EXIT_WRONG_INPUT = 2
_EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="rollart-hpc",
    help="Disaggregated agentic RL training of LLMs on Slurm clusters, and on a laptop first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("assess")(assess.assess)
app.command("ledger")(ledger.ledger)
app.command("export")(export.export)
app.command("warm-start")(warm_start.warm_start_command)
app.add_typer(config.app, name="config")
app.add_typer(bench.app, name="bench")
process.register(app)


def main() -> None:
    """Entry point of the program."""
    try:
        app()
    except RollartError as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"error: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(_EXIT_WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
