"""Level 1: the copies on a node's own disk, and where each kind of file lies.

    images/HEX/     root/ and image.json; appears whole, by a rename, and is never changed
    blobs/HEX       manifests, configs and layers as registries have them, verified
    partial/HEX     blobs that are being fetched, or were when their fetcher died
    unpacking/HEX   an image that is being unpacked
    names/HEX       what a tag meant when it was last asked for
    locks, failed, breakers, trash

All is of one user. The names in them are digests, or hashes of texts, so no text from outside is ever a path.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from rollart_hpc.errors import ImageError
from rollart_hpc.images.reference import absolute, hex_of

_KINDS = ("images", "blobs", "partial", "unpacking", "names", "locks", "failed", "breakers", "trash")
_OWN_DIRECTORY = ".lock"
"""What a temporary directory that ends with its process has in it (`rollart_hpc.temporary`)."""


class NodeDirectory:
    """The directory, which need not be there yet.

    Args:
        root: where; None for a folder of the user's in the node's temporary directory.

    Raises:
        ImageError: it is no directory, belongs to somebody else, or its path names a user whom there is not; not
            retryable.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = absolute(root, "images.node_directory") if root else default_root()
        self._is_default = root is None
        if self._is_default and os.path.lexists(self.root):
            _check_own(self.root)
        elif self.root.exists() and not self.root.is_dir():
            raise ImageError(f"{self.root} is no directory; set images.node_directory to one", retryable=False)

    def make(self) -> None:
        """Makes what is missing of it.

        Raises:
            ImageError: it cannot be made; retryable where its disk is full.
        """
        try:
            self.root.mkdir(mode=0o700, parents=not self._is_default, exist_ok=True)
            if self._is_default:
                _check_own(self.root)
            for kind in _KINDS:
                (self.root / kind).mkdir(mode=0o700, exist_ok=True)
            if os.geteuid() == 0:
                # Sandboxes of root run as another user, who passes through and sees nothing but the images.
                for directory in (self.root, self.root / "images"):
                    directory.chmod(0o711)
        except OSError as error:
            raise ImageError(
                f"the directory of images on this node, {self.root}: {error.strerror or error}; "
                "set images.node_directory to one on the node's own disk that you may write and that has room",
                retryable=is_full(error),
            ) from error

    def image(self, digest: str) -> Path:
        """An unpacked image by the digest of its manifest."""
        return self.root / "images" / hex_of(digest)

    def blob(self, digest: str) -> Path:
        """A verified blob."""
        return self.root / "blobs" / hex_of(digest)

    def partial(self, digest: str) -> Path:
        """A blob that is being fetched."""
        return self.root / "partial" / hex_of(digest)

    def unpacking(self, digest: str) -> Path:
        """An image that is being unpacked."""
        return self.root / "unpacking" / hex_of(digest)

    def lock(self, kind: str, name: str) -> Path:
        """The lock file of whoever makes something."""
        return self.root / "locks" / f"{kind}-{hashed(name)}"

    def failure(self, name: str) -> Path:
        """How the last try of something failed."""
        return self.root / "failed" / hashed(name)

    def breaker(self, name: str) -> Path:
        """The state of a second level."""
        return self.root / "breakers" / hashed(name)

    def name(self, reference: str) -> Path:
        """What a tag meant."""
        return self.root / "names" / hashed(reference)

    def throw_away(self, path: Path) -> None:
        """Removes a directory; at once for whoever looks for it."""
        trash = self.root / "trash" / secrets.token_hex(8)
        try:
            path.rename(trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    """A small file that is there whole or not at all."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        fresh.write_bytes(data)
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def is_full(error: OSError) -> bool:
    """Whether it says that there is no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def default_root() -> Path:
    """The node's temporary directory, and not a process's own one, which ends with it."""
    temporary = Path(tempfile.gettempdir()).absolute()
    while (temporary / _OWN_DIRECTORY).exists() and temporary != temporary.parent:
        temporary = temporary.parent
    return temporary / f"rollart-images-{os.geteuid()}"


def _check_own(root: Path) -> None:
    """Anybody may make names in a temporary directory; what lies under one of another user is not trusted."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ImageError(
            f"{root} is not a directory of this user alone (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})"
            "; remove it, or set images.node_directory",
            retryable=False,
        )


def hashed(text: str) -> str:
    """The name of a file for any text."""
    return hashlib.sha256(text.encode()).hexdigest()
