from pathlib import Path

import pytest

from rollart_hpc.errors import PreflightError
from rollart_hpc.slurm.single_machine.layout import Layout


@pytest.mark.parametrize("name", ["with space", "a,b", "a#b", "50%n", "a=b", "[1-2]", 'quo"te', "new\nline"])
def test_a_path_that_slurm_conf_cannot_hold_is_refused(name: str):
    with pytest.raises(PreflightError, match="choose a directory of letters"):
        Layout(Path("/tmp") / name).check()


@pytest.mark.parametrize("letter", ["d", "ü"])
def test_a_path_too_long_for_sockets_is_refused_with_the_length_that_fits(letter: str):
    with pytest.raises(PreflightError, match="Linux allows 107") as refused:
        Layout(Path("/tmp") / (letter * 100)).check()
    longest = int(str(refused.value).split("at most ")[1].split()[0])
    Layout(Path("/" + "d" * (longest - 1))).check()
    with pytest.raises(PreflightError):
        Layout(Path("/" + "d" * longest)).check()


def test_a_step_socket_of_the_longest_kind_fits_into_every_accepted_path():
    with pytest.raises(PreflightError) as refused:
        Layout(Path("/" + "d" * 100)).check()
    longest = int(str(refused.value).split("at most ")[1].split()[0])
    step = "spool/h800-1/h800-1_4294967294.4294967291"
    assert longest + len("/") + len(step) <= 107


def test_the_directory_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Layout.of(Path("c")).directory == tmp_path / "c"
    assert Layout.of(Path("~/c")).directory == tmp_path / "home" / "c"


def test_a_second_command_on_the_same_cluster_is_kept_out(tmp_path: Path):
    layout = Layout(tmp_path)
    with layout.locked(), pytest.raises(PreflightError, match="at work here"), layout.locked():
        pass
    with layout.locked():
        pass
