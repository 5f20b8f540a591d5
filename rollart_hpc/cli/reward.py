"""``rollart-hpc reward``: a reward function as an HTTP service."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rollart_hpc.cli.arguments import parse_arguments
from rollart_hpc.errors import ConfigError

app = typer.Typer(help="Reward functions outside of a run.", no_args_is_help=True)


@app.command("serve")
def serve(
    function: Annotated[str, typer.Argument(help="A registered name, or MODULE[:ATTRIBUTE]; `score` when absent.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 in a container.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any free one, which is printed.", min=0, max=65535)] = 9000,
    args: Annotated[str, typer.Option(help="Keyword arguments of the function, a JSON object.")] = "{}",
    workers: Annotated[int, typer.Option(help="Processes that run the function.", min=1)] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds that one call may take.", min=0.001, max=86_400)] = 60.0,
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the bearer token.")] = None,
    secret_env: Annotated[str | None, typer.Option(help="Environment variable with the secret of signatures.")] = None,
    references: Annotated[Path | None, typer.Option(help="Directory of episodes that come by reference.")] = None,
    max_body_mb: Annotated[float, typer.Option(help="Larger requests are refused.", min=0.001, max=1_000_000)] = 32.0,
) -> None:
    """Serve one reward function over HTTP: POST an episode, get its score.

    It is what a task's reward_url calls. GET /health says what it did. It ends on SIGTERM when the calls that it has
    are answered.
    """
    import uvloop

    from rollart_hpc.config.registered import REWARDS, registered
    from rollart_hpc.rewards.reward_server import ServedFunction, listen
    from rollart_hpc.rewards.reward_server import serve as run_server

    served = ServedFunction(
        entry_point=registered(REWARDS).get(function) or (function if ":" in function else f"{function}:score"),
        arguments=parse_arguments(args, example='\'{"field": "answer"}\''),
        timeout_s=timeout,
        num_processes=workers,
        bearer=_variable(token_env, "--token-env"),
        secret=_variable(secret_env, "--secret-env"),
        references=references,
        max_body_bytes=int(max_body_mb * (1 << 20)),
    )
    if references is not None and not references.is_dir():
        raise ConfigError(f"--references {references}: no such directory")
    try:
        listening = listen(host, port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--host {host} --port {port}: {reason}; choose another") from error
    # A URL has brackets around an IPv6 address.
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}/"
    uvloop.run(run_server(served, listening, on_ready=lambda: _say(f"serving {served.entry_point} at {url}")))


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)


def _variable(name: str | None, option: str) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"{option} {name}: the environment variable is not set or empty; export it before the start")
    return value
