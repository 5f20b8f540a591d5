from pathlib import Path

import pytest

from rollart_hpc.errors import WeightsError
from rollart_hpc.weights import server
from rollart_hpc.weights.server import missing_text, parse_missing

LDD = """\
\tlinux-vdso.so.1 (0x00007f2560d23000)
\tlibibverbs.so.1 => not found
\tlibcurl.so.4 => /lib/x86_64-linux-gnu/libcurl.so.4 (0x00007f255eb51000)
\tlibnl-3.so.200 => not found
"""


def test_libraries_that_the_loader_does_not_find_are_named():
    assert parse_missing(LDD) == ("libibverbs.so.1", "libnl-3.so.200")


def test_a_user_is_told_which_debian_packages_to_install():
    assert "apt-get install libibverbs1 libnl-3-200" in missing_text(("libibverbs.so.1", "libnl-3.so.200"))


def test_a_library_without_a_known_package_is_named_itself():
    assert "<the package of libodd.so.1>" in missing_text(("libodd.so.1",))


def test_a_file_system_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ldd").write_text("#!/bin/sh\nexec /bin/sleep 60")
    (tmp_path / "ldd").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(server, "_LDD_DEADLINE_S", 0.2)
    with pytest.raises(WeightsError, match=r"ldd .*mooncake_master did not end within 0\.2 s: the file system"):
        server.missing_libraries()
