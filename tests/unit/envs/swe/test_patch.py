"""Patches are read as git reads them, or not at all."""

import pytest

from rollart_hpc.envs.swe.instance import tiny_rows
from rollart_hpc.envs.swe.patch import FilePatch, MalformedPatchError, parse_patch

ONE = b"diff --git a/x.py b/x.py\nindex 1111111..2222222 100644\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new\n"
NEW = b"diff --git a/conftest.py b/conftest.py\nnew file mode 100644\nindex 0000000..2222222\n--- /dev/null\n"
NEW += b"+++ b/conftest.py\n@@ -0,0 +1 @@\n+evil\n\\ No newline at end of file\n"


def paths(patch: bytes) -> list[tuple[str, ...]]:
    return [file.paths for file in parse_patch(patch)]


def test_files_of_a_patch_are_found_and_together_are_the_patch() -> None:
    assert parse_patch(ONE + NEW) == [
        FilePatch(paths=("x.py",), creates=False, text=ONE),
        FilePatch(paths=("conftest.py",), creates=True, text=NEW),
    ]
    for row in tiny_rows():
        for field in ("patch", "test_patch"):
            assert b"".join(file.text for file in parse_patch(row[field].encode())).decode() == row[field]
    assert parse_patch(b"") == parse_patch(b"\n \n") == []


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (b"diff --git a/a b/a\nold mode 100644\nnew mode 100755\n", ("a",)),
        (b"diff --git a/a b b/a b\ndeleted file mode 100644\nindex 11..00\n--- a/a b\t\n+++ /dev/null\n", ("a b",)),
        (b"diff --git a/a b/b\nsimilarity index 90%\nrename from a\nrename to b\n", ("a", "b")),
        (b'diff --git "a/\\303\\244\\n" "b/\\303\\244\\n"\nnew file mode 100644\nindex 00..11\n', ("ä\n",)),
        (b"diff --git a/p.png b/p.png\nindex 11..22 100644\nBinary files a/p.png and b/p.png differ\n", ("p.png",)),
        (
            b"diff --git a/d b/d\nindex 11..22\nGIT binary patch\nliteral 3\nKcmZQzU|?Vb\n\nliteral 0\nHcmV?d00001\n\n",
            ("d",),
        ),
    ],
    ids=["mode", "blank in name", "rename", "quoted", "binary without data", "binary"],
)
def test_every_kind_of_change_names_its_files(patch: bytes, expected: tuple[str, ...]) -> None:
    assert paths(patch + ONE) == [expected, ("x.py",)]


@pytest.mark.parametrize(
    "patch",
    [
        b"--- a/x.py\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+evil\n",
        ONE + b"--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+evil\n",
        ONE + b"Index: conftest.py\n",
        ONE + b"some words\n" + NEW,
        ONE.replace(b"+++ b/x.py", b"+++ b/conftest.py"),
        ONE.replace(b"--- a/x.py", b"--- a/../x.py"),
        ONE.replace(b"b/x.py\nindex", b"b/y.py\nindex"),
        ONE.replace(b"@@ -1 +1 @@", b"@@ -1,2 +1,9 @@") + NEW,
        ONE.replace(b"@@ -1 +1 @@", b"@@ -1 +1,0 @@"),
        ONE.replace(b"a/", b"i/").replace(b"b/", b"w/"),
        b"diff --cc x.py\n",
        b"rm -rf /\n",
        b"\x00\xff\n",
    ],
)
def test_what_git_would_not_write_is_refused(patch: bytes) -> None:
    with pytest.raises(MalformedPatchError):
        parse_patch(patch)
