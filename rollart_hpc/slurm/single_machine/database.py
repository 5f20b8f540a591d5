"""The system tables of the database behind sacct."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from rollart_hpc.errors import SlurmError
from rollart_hpc.processes import describe_exit
from rollart_hpc.slurm.single_machine.daemon import end_of
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.process_group import run_to_end

_DEADLINE_S = 120.0


def install_database(layout: Layout, programs: Mapping[str, str], user: str, environment: Mapping[str, str]) -> None:
    """Makes the tables, beside their place first: an interrupted try leaves nothing that looks whole.

    MariaDB removes the temporary tables of every other server from its directory for temporary files when it
    starts; that directory is therefore the cluster's own.

    Raises:
        SlurmError: it failed or did not end in time; the text has the errors that it printed, or the end of its output.
    """
    unfinished = layout.database.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    output = layout.output("mariadb-install-db")
    argv = [
        programs["mariadb-install-db"], "--no-defaults", f"--datadir={unfinished}", f"--user={user}",
        "--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}",
        "--skip-test-db", "--skip-name-resolve", f"--tmpdir={unfinished.parent}",
    ]  # fmt: skip
    code = run_to_end(argv, output=output, environment=environment, deadline_s=_DEADLINE_S)
    if code is None:
        raise SlurmError(f"mariadb-install-db did not end within {_DEADLINE_S:g} s{end_of(output)}")
    if code:
        raise SlurmError(f"mariadb-install-db: {describe_exit(code)}{_errors_in(output) or end_of(output)}")
    unfinished.rename(layout.database)


def _errors_in(output: Path) -> str:
    """What MariaDB calls errors; the program that ran it prints a page of advice after them."""
    lines = output.read_text(errors="replace").splitlines()
    return "".join(f"\n{line}" for line in lines if "ERROR" in line)
