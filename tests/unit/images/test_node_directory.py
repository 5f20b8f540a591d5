"""Where a node keeps its copies, and what is refused."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
from pydantic import ValidationError

from rollart_hpc.config.node import ImagesSection
from rollart_hpc.errors import ImageError
from rollart_hpc.images.node_directory import NodeDirectory
from rollart_hpc.temporary import own_temporary_directory


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_copies_outlive_the_process_whose_temporary_directory_does_not(elsewhere: Path):
    with own_temporary_directory("worker"):
        assert NodeDirectory(None).root == elsewhere / f"rollart-images-{os.geteuid()}"


@pytest.mark.parametrize("kind", ["link", "writable", "file"])
def test_a_directory_that_others_could_have_made_is_not_trusted(elsewhere: Path, kind: str):
    root = NodeDirectory(None).root
    if kind == "link":
        root.symlink_to(elsewhere)
    elif kind == "writable":
        root.mkdir()
        root.chmod(0o777)
    else:
        root.write_text("")
    with pytest.raises(ImageError, match=r"set images\.node_directory"):
        NodeDirectory(None)


def test_a_place_that_cannot_be_written_is_named(elsewhere: Path):
    (elsewhere / "file").write_text("")
    with pytest.raises(ImageError, match=r"Not a directory; set images\.node_directory") as raised:
        NodeDirectory(elsewhere / "file" / "images").make()
    assert not raised.value.retryable


@pytest.mark.parametrize("url", ["mirror:5000", "ftp://mirror", "https://", "http://a b"])
def test_a_mirror_is_a_url(url: str):
    with pytest.raises(ValidationError, match="give its URL"):
        ImagesSection(mirrors={"docker.io": url})
    ImagesSection(mirrors={"docker.io": "https://mirror:5000/hub"})


def test_a_path_of_a_user_whom_there_is_not_is_an_error_of_the_config():
    with pytest.raises(ImageError, match=r"images\.node_directory: .*give the path in full"):
        NodeDirectory(Path("~nobody.of.this.name/images"))


def test_a_full_disk_may_have_room_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(ImageError, match="No space left") as raised:
        NodeDirectory(tmp_path / "new").make()
    assert raised.value.retryable


def test_a_file_is_no_directory(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ImageError, match="is no directory"):
        NodeDirectory(file)
