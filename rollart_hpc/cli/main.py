"""The command ``rollart-hpc``: registers the subcommands, turns our errors into one line and an exit code."""

from __future__ import annotations

import sys

import typer

from rollart_hpc.cli import (
    assess,
    bench,
    cancel,
    chaos,
    cluster,
    config,
    doctor,
    env,
    export,
    images,
    join,
    ledger,
    logs,
    pools,
    process,
    render,
    reward,
    run,
    sandbox,
    status,
    submit,
    warm_start,
)
from rollart_hpc.errors import RollartError

_EXIT_WRONG_INPUT = 2
_EXIT_INTERRUPTED = 130
_HERE = "A run on this machine"
_SLURM = "A run as a Slurm job"
_LIVE = "A run that goes on"
_RESULTS = "What a run did"
_TOOLS = "Tools"

app = typer.Typer(
    name="rollart-hpc",
    help="Disaggregated agentic RL training of LLMs on Slurm clusters, and on a laptop first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run", rich_help_panel=_HERE)(run.run)
app.command("resume", rich_help_panel=_HERE)(run.resume)
app.command("submit", rich_help_panel=_SLURM)(submit.submit)
app.command("status", rich_help_panel=_LIVE)(status.status)
app.command("pools", rich_help_panel=_LIVE)(pools.pools)
app.command("logs", rich_help_panel=_LIVE)(logs.logs)
app.command("cancel", rich_help_panel=_LIVE)(cancel.cancel)
app.command("join", rich_help_panel=_SLURM)(join.join)
app.command("list", rich_help_panel=_LIVE)(status.list_runs)
app.command("doctor", rich_help_panel=_SLURM)(doctor.doctor)
app.command("render", rich_help_panel=_SLURM)(render.render_command)
app.add_typer(cluster.app, name="cluster", rich_help_panel=_SLURM)
app.command("ledger", rich_help_panel=_RESULTS)(ledger.ledger)
app.command("assess", rich_help_panel=_RESULTS)(assess.assess)
app.command("chaos", rich_help_panel=_TOOLS)(chaos.chaos)
app.command("export", rich_help_panel=_RESULTS)(export.export)
app.add_typer(config.app, name="config", rich_help_panel=_TOOLS)
app.add_typer(env.app, name="env", rich_help_panel=_TOOLS)
app.command("warm-start", rich_help_panel=_TOOLS)(warm_start.warm_start_command)
app.add_typer(images.app, name="images", rich_help_panel=_TOOLS)
app.add_typer(sandbox.app, name="sandbox", rich_help_panel=_TOOLS)
app.add_typer(bench.app, name="bench", rich_help_panel=_TOOLS)
app.add_typer(reward.app, name="reward", rich_help_panel=_TOOLS)
process.register(app)


def main() -> None:
    """Entry point of the program."""
    try:
        app()
    except RollartError as error:
        level = "error" if error.exit_code else "note"
        for line in str(error).splitlines() or [type(error).__name__]:
            print(f"{level}: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"error: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(_EXIT_WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
