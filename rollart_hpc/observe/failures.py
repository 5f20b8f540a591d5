"""Why a process of an attempt failed: one small file each, which the leader shows instead of the end of a log."""

from __future__ import annotations

from pathlib import Path

from rollart_hpc.errors import RollartError


def record_failure(directory: Path, name: str, error: BaseException) -> None:
    """Writes the innermost causes of a failure, our own errors first."""
    causes = sorted(innermost(error), key=lambda cause: not isinstance(cause, RollartError))
    lines = [f"{type(cause).__name__}: {cause}" for cause in causes]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.txt").write_text("\n".join(dict.fromkeys(lines)))
    except OSError:
        return


def read_failure(directory: Path, name: str) -> str:
    """What a process wrote about its failure; empty when it wrote nothing."""
    path = directory / f"{name}.txt"
    return path.read_text() if path.is_file() else ""


def innermost(error: BaseException) -> list[BaseException]:
    """The leaves of nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in innermost(inner)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return [error]
