"""Layers are applied as their specification says, and never outside of the root."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zstandard

from rollart_hpc.errors import ImageError
from rollart_hpc.images.layers import apply_layer

Entry = tuple[str, bytes | str | None] | tarfile.TarInfo


def special(name: str, kind: bytes, *, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, mode
    return member


def link(name: str, target: str) -> tarfile.TarInfo:
    return special(name, tarfile.SYMTYPE, target=target)


def hard(name: str, target: str) -> tarfile.TarInfo:
    return special(name, tarfile.LNKTYPE, target=target)


def directory(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    return special(name, tarfile.DIRTYPE, mode=mode)


def archive(entries: Sequence[Entry]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
            else:
                name, content = entry
                member = tarfile.TarInfo(name)
                data = content.encode() if isinstance(content, str) else content or b""
                member.size, member.mode, member.mtime = len(data), 0o644, 1_000_000_000
                tar.addfile(member, io.BytesIO(data))
    return raw.getvalue()


Apply = Callable[..., Path]


@pytest.fixture
def apply(tmp_path: Path) -> Apply:
    """Applies layers, each a list of entries, to one root; gives it."""
    root = tmp_path / "image" / "root"
    root.mkdir(parents=True)

    def run(*layers: Sequence[Entry]) -> Path:
        for number, entries in enumerate(layers):
            file = tmp_path / f"{number}.tar"
            file.write_bytes(archive(entries))
            apply_layer(file, root, name=f"layer {number}")
        return root

    return run


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_a_later_layer_replaces_what_it_has_and_whiteouts_remove(apply: Apply):
    root = apply(
        [("a", "1"), ("gone", "1"), ("dir/x", "1"), ("dir/y", "1"), ("full/z", "1"), ("turns/into/file", "1")],
        [("a", "2"), (".wh.gone", None), ("dir/.wh.x", None), (".wh.full", None), ("turns/.wh.into", None)],
        [("turns/into", "3"), (".wh.never_was", None)],
    )
    assert tree(root) == {"a": "2", "dir/y": "1", "turns/into": "3"}


@pytest.mark.parametrize("order", [1, -1], ids=["marker last", "marker first"])
def test_an_opaque_directory_keeps_only_its_own_layer_s_files(apply: Apply, order: int):
    lower: list[Entry] = [("d/old", "1"), ("d/sub/old", "1"), ("d/mixed/old", "1"), ("e/old", "1")]
    upper: list[Entry] = [("d/new", "2"), ("d/mixed/new", "2"), ("d/.wh..wh..opq", None)]
    assert tree(apply(lower, upper[::order])) == {"d/new": "2", "d/mixed/new": "2", "e/old": "1"}


def test_links_directories_and_files_replace_each_other(apply: Apply):
    root = apply(
        [("f", "1"), link("l", "f"), directory("d"), ("d/x", "1"), hard("h", "f")],
        [("d", "file"), directory("l"), ("l/in", "2"), link("f", "h")],
    )
    assert tree(root) == {"d": "file", "l/in": "2", "f": "-> h", "h": "1"}


def test_a_hard_link_is_the_same_file_and_one_to_a_link_is_that_link(apply: Apply):
    root = apply([("f", "1"), link("l", "/etc/passwd"), hard("h", "f"), hard("k", "l")])
    assert (root / "h").stat().st_ino == (root / "f").stat().st_ino
    assert os.readlink(root / "k") == "/etc/passwd"  # noqa: PTH115


def test_links_on_the_way_are_followed_as_the_root_s_own(apply: Apply, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    root = apply(
        [directory("usr"), directory("usr/lib"), link("lib", "usr/lib"), link("abs", "/usr/lib")],
        [("lib/a", "1"), ("abs/b", "2")],
        [link("up", "../../outside"), link("far", str(tmp_path / "outside"))],
        [("up/c", "3"), ("far/d", "4"), ("up/.wh.nothing", None)],
    )
    assert (root / "usr/lib/a").read_text() + (root / "usr/lib/b").read_text() == "12"
    assert list((tmp_path / "outside").iterdir()) == []
    assert (root / "outside/c").read_text() == "3"
    assert (root / str(tmp_path / "outside/d").lstrip("/")).read_text() == "4"


@pytest.mark.parametrize(
    "entries",
    [
        [("../evil", "x")],
        [("a/../../evil", "x")],
        [("../.wh.keep", None)],
        [(".wh...", None)],
        [(".wh.", None)],
        [hard("h", "../keep")],
        [link("out", ".."), hard("h", "out/keep")],
        [link("a", "b"), link("b", "a"), ("a/x", "1")],
        [("f", "1"), ("f/x", "2")],
        [directory("d"), hard("h", "d")],
    ],
    ids=lambda entries: str([getattr(one, "name", one) for one in entries]),
)
def test_a_layer_that_leaves_the_root_or_contradicts_itself_is_refused(
    apply: Apply, tmp_path: Path, entries: list[Entry]
):
    (tmp_path / "image" / "keep").write_text("kept")
    with pytest.raises(ImageError, match="layer 0") as raised:
        apply(entries)
    assert not raised.value.retryable
    assert [path.name for path in (tmp_path / "image").iterdir() if path.name != "root"] == ["keep"]
    assert not (tmp_path / "evil").exists()


def test_a_name_that_no_disk_takes_is_the_image_s_error(apply: Apply):
    with pytest.raises(ImageError, match="too long") as raised:
        apply([("x" * 300, "1")])
    assert not raised.value.retryable


def test_nothing_is_written_or_removed_through_a_link_that_has_the_entry_s_name(apply: Apply, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("safe")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("safe")
    root = apply(
        [link("f", str(victim)), link("d", str(tmp_path / "full"))],
        [("f", "evil"), ("d/.wh..wh..opq", None), ("d/file", "evil"), directory("d", mode=0o777)],
    )
    assert victim.read_text() == "safe"
    assert (tmp_path / "full" / "file").read_text() == "safe"
    assert (root / "f").read_text() == "evil"


def test_rights_are_bounded_and_devices_left_out(apply: Apply):
    suid = special("suid", tarfile.REGTYPE, mode=0o6755)
    closed = special("closed", tarfile.REGTYPE, mode=0o000)
    root = apply(
        [suid, closed, directory("sticky", mode=0o1777), directory("locked", mode=0o555), ("locked/in", "1")]
        + [
            special(name, kind)
            for name, kind in (("c", tarfile.CHRTYPE), ("b", tarfile.BLKTYPE), ("p", tarfile.FIFOTYPE))
        ]
    )
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()}
    opened = 0o044 if os.geteuid() == 0 else 0  # sandboxes of root run as another user
    assert modes == {"suid": 0o755, "closed": 0o600 | opened, "sticky": 0o1777, "locked": 0o755}
    assert (root / "locked/in").stat().st_mtime == 1_000_000_000


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lambda data: zstandard.compress(data[:9000]) + zstandard.compress(data[9000:])]
)
def test_a_layer_may_be_compressed_in_every_usual_way(tmp_path: Path, compress: Callable[[bytes], bytes]):
    (tmp_path / "layer").write_bytes(compress(archive([("a" * 150, "x" * 20_000), ("é", "1")])))
    (tmp_path / "root").mkdir()
    apply_layer(tmp_path / "layer", tmp_path / "root", name="layer")
    assert tree(tmp_path / "root") == {"a" * 150: "x" * 20_000, "é": "1"}


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense" * 200,
        gzip.compress(archive([("a", "x" * 5000)]))[:-20],
        zstandard.compress(b"nonsense" * 200),
        archive([("a", "x" * 5000)])[:2000],
        b"\x1f\x8bnonsense",
    ],
    ids=["nonsense", "cut gzip", "zstd of nonsense", "cut tar", "no gzip"],
)
def test_a_broken_archive_is_an_error_of_the_image(tmp_path: Path, data: bytes):
    (tmp_path / "layer").write_bytes(data)
    (tmp_path / "root").mkdir()
    with pytest.raises(ImageError, match="layer 7") as raised:
        apply_layer(tmp_path / "layer", tmp_path / "root", name="layer 7")
    assert not raised.value.retryable
