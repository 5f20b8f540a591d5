"""``rollart-hpc sandbox``: whether text of the policy can be executed safely on this node."""

from __future__ import annotations

import json

import typer

from rollart_hpc.cli.status import JsonOption

app = typer.Typer(help="Sandboxes, in which text of the policy is executed.", no_args_is_help=True)


@app.callback()
def sandbox() -> None:
    """Sandboxes, in which text of the policy is executed."""


@app.command("check")
def check(as_json: JsonOption = False) -> None:
    """Try each runtime on this node, and say why one does not isolate.

    Exit code 3: none isolates.
    """
    from rollart_hpc.errors import NoSandboxError
    from rollart_hpc.sandbox.overlay import overlay_program
    from rollart_hpc.sandbox.probe import kernel_hints, why_not
    from rollart_hpc.sandbox.runtimes import RUNTIMES

    reasons = {runtime: why_not(runtime) for runtime in RUNTIMES}
    try:
        roots = f"overlaid by {overlay_program() or 'the kernel'}"
    except NoSandboxError as error:
        roots = str(error)
    if as_json:
        print(json.dumps({"runtimes": reasons, "roots": roots, "kernel": kernel_hints()}))
    else:
        for runtime, reason in reasons.items():
            print(f"{runtime}: {'isolates' if reason is None else reason}")
        print(f"roots: {roots}")
        for hint in kernel_hints():
            print(f"the kernel: {hint}")
    if None not in reasons.values():
        raise typer.Exit(code=3)
