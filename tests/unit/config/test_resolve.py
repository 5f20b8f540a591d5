import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.config.resolve import resolve
from rollart_hpc.errors import ConfigError


@pytest.fixture(autouse=True)
def _user_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "my_lakes.py").write_text("class Lake:\n    class Deep: ...\n")
    (tmp_path / "my_broken.py").write_text("raise RuntimeError('no luck')\n")
    (tmp_path / "my_exit.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "my_poor.py").write_text("import no_such_library\n")
    yield
    for name in ("my_lakes", "my_broken", "my_exit", "my_poor"):
        sys.modules.pop(name, None)


def test_an_entry_point_is_found_below_the_current_directory() -> None:
    assert resolve("my_lakes:Lake").__name__ == "Lake"
    assert resolve("my_lakes:Lake.Deep").__name__ == "Deep"


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        ("my_lakes", "expected module:attribute"),
        (":Lake", "expected module:attribute"),
        ("my_lake:Lake", "no module named 'my_lake'"),
        ("my_lakes.deeper:Lake", "no module named 'my_lakes.deeper'"),
        ("my_poor:Lake", "needs 'no_such_library', not installed"),
        ("my_broken:Lake", r"RuntimeError: no luck \(.*my_broken.py:1\)"),
        ("my_exit:Lake", "importing my_exit raised SystemExit"),
        ("my_lakes:Lak", "my_lakes has no attribute 'Lak'; did you mean 'Lake'?"),
        ("my_lakes:Lake.Deeper", "my_lakes:Lake has no attribute 'Deeper'; did you mean 'Deep'?"),
        ("my_lakes:x", "has no attribute 'x'$"),
    ],
)
def test_what_fails_is_named(entry_point: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(entry_point)
