import re
from pathlib import Path

import pytest

from rollart_hpc.errors import PreflightError
from rollart_hpc.slurm.single_machine import programs
from rollart_hpc.slurm.single_machine.programs import (
    ACCOUNTING_PROGRAMS,
    MYSQL_PLUGIN,
    SLURM_PROGRAMS,
    find_programs,
    search_path,
)

SETUP = Path(__file__).parents[3] / "scripts" / "setup.sh"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with all programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in SLURM_PROGRAMS | ACCOUNTING_PROGRAMS:
        (folder / program).touch(mode=0o755)
    return folder


def find(folder: Path, *, accounting: bool) -> dict[str, str]:
    return find_programs(accounting=accounting, path=str(folder), libraries=folder.parent / "lib")


def test_every_program_is_found_where_it_is(folder: Path):
    found = find(folder, accounting=True)
    assert found == {name: str(folder / name) for name in SLURM_PROGRAMS | ACCOUNTING_PROGRAMS}


def test_only_the_missing_packages_are_named_on_one_line(folder: Path):
    for program in ("slurmd", "srun", "sbatch"):
        (folder / program).unlink()
    with pytest.raises(PreflightError) as refused:
        find(folder, accounting=True)
    assert refused.value.exit_code == 3
    assert str(refused.value).endswith("apt-get install -y --no-install-recommends slurm-client slurmd")


def test_the_database_is_needed_for_accounting_only(folder: Path):
    for program in ("mariadbd", "slurmdbd"):
        (folder / program).unlink()
    with pytest.raises(PreflightError, match=r"mariadb-server-core slurmdbd \(or .*--no-accounting\)"):
        find(folder, accounting=True)
    assert "slurmctld" in find(folder, accounting=False)


def test_a_missing_plugin_of_slurmdbd_is_named_where_plugins_are_known_to_lie(folder: Path):
    plugins = folder.parent / "lib" / "x86_64-linux-gnu" / "slurm-wlm"
    plugins.mkdir(parents=True)
    (plugins / "auth_munge.so").touch()
    with pytest.raises(PreflightError, match=f"recommends {MYSQL_PLUGIN} "):
        find(folder, accounting=True)
    (plugins / "accounting_storage_mysql.so").touch()
    find(folder, accounting=True)


def test_daemons_are_searched_where_an_ordinary_path_does_not_lead(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert search_path().split(":")[:2] == ["/usr/bin", "/bin"]
    assert "/usr/sbin" in search_path().split(":")


def test_the_setup_script_installs_every_package():
    needed = {*SLURM_PROGRAMS.values(), *ACCOUNTING_PROGRAMS.values(), programs.MYSQL_PLUGIN}
    assert needed <= set(re.split(r"[\s:;()]+", SETUP.read_text()))
