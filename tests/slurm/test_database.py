import getpass
from pathlib import Path

import pytest

from rollart_hpc.errors import PreflightError, SlurmError
from rollart_hpc.slurm.single_machine.database import install_database
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.programs import find_programs


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout.of(tmp_path / "cluster")
    for file in (layout.database, layout.output("any")):
        file.parent.mkdir(parents=True)
    return layout


@pytest.fixture
def programs() -> dict[str, str]:
    try:
        return find_programs(accounting=True)
    except PreflightError as error:
        pytest.skip(str(error))


def test_the_temporary_tables_of_another_database_server_stay(layout: Layout, programs: dict[str, str], tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    table = shared / "#sql-temptable-1-1-1.MAI"
    table.touch()
    install_database(layout, programs, getpass.getuser(), {"PATH": "/usr/bin:/bin", "TMPDIR": str(shared)})
    assert layout.database.is_dir()
    assert table.exists()


def test_a_failure_says_what_the_database_called_an_error(layout: Layout, programs: dict[str, str], tmp_path: Path):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'ERROR: 6  no such table'\necho advice\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(SlurmError, match=r"exit code 1\nERROR: 6  no such table$"):
        install_database(layout, programs | {"mariadb-install-db": str(failing)}, getpass.getuser(), {"PATH": "/bin"})
