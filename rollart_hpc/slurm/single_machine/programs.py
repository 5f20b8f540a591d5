"""The programs that a cluster needs, and the Debian packages that have them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rollart_hpc.errors import PreflightError

SLURM_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
    "scancel": "slurm-client",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "squeue": "slurm-client",
}
ACCOUNTING_PROGRAMS = {
    "sacct": "slurm-client",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}
MYSQL_PLUGIN = "slurm-wlm-mysql-plugin"
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Daemons are here, and an ordinary user's PATH often lacks it."""


def search_path() -> str:
    """PATH with the directories of daemons."""
    return f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATH}"


def find_programs(*, accounting: bool, path: str | None = None, libraries: Path = Path("/usr/lib")) -> dict[str, str]:
    """Where each program is.

    Raises:
        PreflightError: some are missing; the text has the line that installs them.
    """
    needed = SLURM_PROGRAMS | (ACCOUNTING_PROGRAMS if accounting else {})
    found = {program: shutil.which(program, path=path or search_path()) for program in needed}
    missing = {needed[program] for program, place in found.items() if place is None}
    if accounting and _lacks_mysql_plugin(libraries):
        missing.add(MYSQL_PLUGIN)
    if missing:
        hint = " (or do without sacct: --no-accounting)" if missing.isdisjoint(SLURM_PROGRAMS.values()) else ""
        packages = " ".join(sorted(missing))
        raise PreflightError(
            f"programs are missing; install them: apt-get install -y --no-install-recommends {packages}{hint}"
        )
    return {program: place for program, place in found.items() if place is not None}


def _lacks_mysql_plugin(libraries: Path) -> bool:
    """Debian splits this plugin off; where Slurm's plugins lie elsewhere, slurmdbd itself says what it lacks."""
    folders = [plugin.parent for plugin in libraries.glob("*/slurm*/auth_munge.so")]
    return bool(folders) and not any((folder / "accounting_storage_mysql.so").exists() for folder in folders)
