"""Applying a layer to a root file system: an archive from outside, unpacked without trust.

Invariants:

- Nothing outside the root is read, written or removed, whatever the archive says: a name is followed component by
  component, links as the root's own, and a name with ``..`` is refused.
- What is unpacked belongs to the running user, has no setuid and setgid bits, and can be read and removed by its owner.
  What root unpacks can be read by everybody: sandboxes never run as root. Devices and named pipes are left out.
- A whiteout removes what lower layers have, never what its own layer has.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any, cast

from rollart_hpc.errors import ImageError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MARKERS = ".wh..wh."
_COPY_BYTES = 1 << 17
_MAX_LINKS = 40
_LAST_TIME = 1 << 33
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def apply_layer(archive: Path, root: Path, *, name: str) -> None:
    """Unpacks a layer over what is in ``root``.

    Args:
        archive: tar, as it is or compressed with gzip or zstd.
        root: the layers below, applied.
        name: of the layer, for errors.

    Raises:
        ImageError: the archive is broken or names what no layer may; not retryable.
        OSError: the disk does not take it.
    """
    try:
        with archive.open("rb") as compressed, _decompressed(compressed) as stream:
            layer = _Layer(root, name)
            with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
                while (member := tar.next()) is not None:
                    cast("Any", tar).members.clear()  # it would keep every name of the archive
                    layer.add(tar, member)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, _zstd_error(), ValueError) as error:
        raise ImageError(f"{name} is no archive that can be unpacked: {error}", retryable=False) from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise ImageError(f"{name} has an entry whose name is too long for this disk", retryable=False) from error


class _Layer:
    """One layer while it is applied."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = str(root), name
        open_to_all = os.geteuid() == 0
        self._file_mode, self._directory_mode = (0o644, 0o755) if open_to_all else (0o600, 0o700)
        """Rights that everything has at least."""
        self._own: set[str] = set()
        """Paths that this layer made, and the directories above them."""
        self._resolved: dict[str, str] = {}
        """Directories by the name in the archive; forgotten when a removal may change what names mean."""

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        if not parts:
            if member.isdir():
                self._finish(self._root, member, 0o755)
            return
        directory, base = self._directory(parts[:-1]), parts[-1]
        if base == _OPAQUE:
            self._clear(directory)
        elif base.startswith(_MARKERS):
            return
        elif base.startswith(_WHITEOUT):
            if base.removeprefix(_WHITEOUT) in ("", ".", ".."):
                raise self._refused(member.name, "is a whiteout of nothing")
            self._remove_lower(f"{directory}/{base.removeprefix(_WHITEOUT)}")
        else:
            self._make(tar, member, f"{directory}/{base}")

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.isdir():
            self._replace(path, keep_directory=True)
            if not os.path.lexists(path):
                os.mkdir(path)  # noqa: PTH102
            self._finish(path, member, member.mode & 0o1777 | self._directory_mode)
        elif member.isreg():
            self._replace(path)
            self._write(tar, member, path)
            self._finish(path, member, member.mode & 0o777 | self._file_mode)
        elif member.issym():
            self._replace(path)
            os.symlink(member.linkname, path)  # noqa: PTH211
        elif member.islnk():
            target = self._target(member)
            if target != path:
                self._replace(path)
                os.link(target, path, follow_symlinks=False)
        else:
            return  # devices and pipes: a sandbox has its own /dev
        self._mark(path)

    def _target(self, member: tarfile.TarInfo) -> str:
        parts = self._parts(member.linkname)
        target = "/".join([self._directory(parts[:-1], make=False), *parts[-1:]])
        try:
            mode = os.lstat(target).st_mode
        except FileNotFoundError:
            raise self._refused(member.name, f"links to {member.linkname!r}, which is not there") from None
        if stat.S_ISDIR(mode):
            raise self._refused(member.name, f"links to the directory {member.linkname!r}")
        return target

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        source = tar.extractfile(member)
        assert source is not None
        # O_EXCL and O_NOFOLLOW: the name was made free above, and nothing is ever written through a link.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb", buffering=0) as file:
            shutil.copyfileobj(source, cast("IO[bytes]", file), _COPY_BYTES)
            if file.tell() != member.size:
                raise tarfile.ReadError(f"{member.name!r} ends early")

    def _finish(self, path: str, member: tarfile.TarInfo, mode: int) -> None:
        os.chmod(path, mode)  # noqa: PTH101
        # Python compares a source's time with that in its compiled file.
        seconds = min(max(member.mtime, 0), _LAST_TIME)
        os.utime(path, (seconds, seconds))

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in name:
            raise self._refused(name, "leaves the root")
        return parts

    def _directory(self, parts: list[str], *, make: bool = True) -> str:
        """The real path of a directory of the root; links on the way are followed as the root's own."""
        key = "/".join(parts)
        if (known := self._resolved.get(key)) is not None:
            return known
        at, todo, links = self._root, parts[::-1], 0
        while todo:
            part = todo.pop()
            if part == "..":
                at = at if at == self._root else at.rpartition("/")[0]
                continue
            path = f"{at}/{part}"
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                if not make:
                    raise self._refused(key, "is a directory that is not there") from None
                os.mkdir(path)  # noqa: PTH102
                os.chmod(path, 0o755)  # noqa: PTH101
                mode = stat.S_IFDIR
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MAX_LINKS:
                    raise self._refused(key, "goes around in links")
                target = os.readlink(path)  # noqa: PTH115
                at = self._root if target.startswith("/") else at
                todo += [step for step in target.split("/")[::-1] if step not in ("", ".")]
            elif stat.S_ISDIR(mode):
                at = path
            else:
                raise self._refused(key, f"goes through {part!r}, which is no directory")
        self._resolved[key] = at
        return at

    def _replace(self, path: str, *, keep_directory: bool = False) -> None:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not (keep_directory and stat.S_ISDIR(mode)):
            self._remove(path, mode)

    def _remove_lower(self, path: str) -> None:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if path not in self._own:
            self._remove(path, mode)
        elif stat.S_ISDIR(mode):
            self._clear(path)

    def _clear(self, directory: str) -> None:
        for name in os.listdir(directory):  # noqa: PTH208
            self._remove_lower(f"{directory}/{name}")

    def _remove(self, path: str, mode: int) -> None:
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)  # noqa: PTH108
        if not stat.S_ISREG(mode):
            self._resolved.clear()

    def _mark(self, path: str) -> None:
        while path not in self._own and len(path) > len(self._root):
            self._own.add(path)
            path = path.rpartition("/")[0]

    def _refused(self, name: str, why: str) -> ImageError:
        return ImageError(f"{self._name}: its entry {name!r} {why}; the image is broken or hostile", retryable=False)


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    """The archive itself; how it is compressed is told by its first bytes, which media types sometimes misstate."""
    start = file.read(4)
    file.seek(0)
    if start.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if start == _ZSTD:
        import zstandard

        return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    return file


def _zstd_error() -> type[Exception]:
    import zstandard

    return cast("type[Exception]", zstandard.ZstdError)
