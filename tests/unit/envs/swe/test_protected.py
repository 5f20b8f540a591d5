"""A patch may not bring what steers the tests."""

from dataclasses import replace

import pytest

from rollart_hpc.envs.swe.grading.protected import admit
from rollart_hpc.envs.swe.instance import Instance, tiny_rows

INSTANCE = Instance.from_row(tiny_rows()[0])


def change(path: str, *, creates: bool = True) -> bytes:
    header = f"diff --git a/{path} b/{path}\n" + ("new file mode 100644\nindex 0000000..1111111\n" if creates else "")
    old = "/dev/null" if creates else f"a/{path}"
    hunk = "@@ -0,0 +1 @@\n+x\n" if creates else "@@ -1 +1 @@\n-y\n+x\n"
    return f"{header}--- {old}\n+++ b/{path}\n{hunk}".encode()


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "deep/in/conftest.py",
        "pytest.ini",
        ".pytest.toml",
        "setup.cfg",
        "tox.ini",
        "pyproject.toml",
        "src/sitecustomize.py",
        "usercustomize/__init__.py",
        "evil.pth",
        "pkg.egg-info/entry_points.txt",
        "evil-1.0.dist-info/entry_points.txt",
        "pkg/__pycache__/core.cpython-311.pyc",
        "pkg/core.pyc",
        "pkg/core.cpython-311-x86_64-linux-gnu.so",
        "tests/test_bucket.py",
        "tests/helper/data.json",
        "pkg/tests",
        "pkg/core_test.py",
        "test_helpers.py",
        ".git/hooks/post-checkout",
        ".gitattributes",
        "json.py",
        "src/pytest.py",
        "_pytest/__init__.py",
        "unittest/case.py",
    ],
)
def test_what_steers_tests_is_taken_out(path: str) -> None:
    admitted = admit(change("bucket/other.py") + change(path) + change("z.py"), INSTANCE)
    assert (admitted.paths, admitted.dropped) == (("bucket/other.py", "z.py"), (path,))
    assert admitted.text == change("bucket/other.py") + change("z.py")


def test_a_new_file_that_is_told_as_a_change_is_a_new_file() -> None:
    told = change("json.py").replace(b"new file mode 100644\n", b"").replace(b"/dev/null", b"a/json.py")
    assert admit(told, INSTANCE).dropped == ("json.py",)


@pytest.mark.parametrize(
    ("path", "creates"),
    [
        ("bucket/json.py", True),
        ("json.py", False),
        ("json/data.txt.d", False),
        ("testing.py", True),
        ("latest/contest.py", True),
        ("setup.py", True),
        ("README.md", True),
        (".github/workflows/ci.yml", True),
    ],
)
def test_what_does_not_is_kept(path: str, creates: bool) -> None:
    assert admit(change(path, creates=creates), INSTANCE).paths == (path,)


def test_a_task_whose_gold_patch_needs_such_a_file_lets_it_change() -> None:
    instance = replace(INSTANCE, patch=change("setup.cfg", creates=False).decode())
    assert admit(change("setup.cfg", creates=False) + change("tox.ini"), instance).paths == ("setup.cfg",)


def test_files_of_the_test_patch_and_what_would_lie_across_their_way_are_taken_out() -> None:
    instance = replace(INSTANCE, test_patch=change("checks/deep/check.py").decode())
    patch = change("checks/deep/check.py") + change("checks/deep") + change("checks/other.py")
    assert admit(patch, instance).paths == ("checks/other.py",)
