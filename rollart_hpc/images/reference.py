"""References: how an image is named. The grammar and the defaults are docker's.

A digest names bytes and is never asked for again; a tag names what its registry says today.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.errors import ImageError

DOCKER_HUB = "docker.io"
_HUB_ALIASES = ("index.docker.io", "registry-1.docker.io")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[([0-9a-fA-F:]+)\])(?::([0-9]{{1,5}}))?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_MAX_PATH = _MAX_HOST = 255
_MAX_PORT = 65535
_EXPECTED = "expected [HOST/]NAME[:TAG][@sha256:...], dir:PATH or oci:PATH[:TAG]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryReference:
    """An image of a registry."""

    registry: str
    """Host name, with the port where it has one."""
    repository: str
    tag: str | None = None
    """None when there is a digest: it decides, whatever tag stands beside it."""
    digest: str | None = None

    @property
    def wanted(self) -> str:
        """The digest or the tag, as a registry is asked for it."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        separator = "@" if self.digest else ":"
        return f"{self.registry}/{self.repository}{separator}{self.wanted}"


@dataclass(frozen=True, slots=True)
class DirectoryReference:
    """A root file system that lies on disk, used where it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class LayoutReference:
    """An image in an OCI layout on disk."""

    path: Path
    tag: str | None = None
    """None takes the only image that there is."""

    def __str__(self) -> str:
        return f"oci:{self.path}:{self.tag}" if self.tag else f"oci:{self.path}"


Reference = RegistryReference | DirectoryReference | LayoutReference


def parse_reference(text: str) -> Reference:
    """What a text names.

    Raises:
        ImageError: it is no reference; not retryable.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme in ("dir", "oci"):
        if not rest or "\0" in rest:
            raise _wrong(text, "it has no path")
        return DirectoryReference(absolute(Path(rest), text)) if scheme == "dir" else _layout(text, rest)
    if "://" in text:
        raise _wrong(text, f"leave out {text.partition('://')[0]}://")
    named, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise _wrong(text, f"the digest {digest!r} is not sha256: and 64 small hexadecimal digits")
    host, slash, path = named.partition("/")
    if not (slash and ("." in host or ":" in host or host == "localhost" or host != host.lower())):
        host, path = DOCKER_HUB, named
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _wrong(text, f"the tag {tag!r} has other than letters, digits, _, . and -, or over 128 of them")
    host = DOCKER_HUB if host in _HUB_ALIASES else host
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    if not _is_host(host):
        raise _wrong(text, f"the host {host!r} is none")
    if not _PATH.fullmatch(path) or len(path) > _MAX_PATH:
        raise _wrong(text, f"the name {path!r} has other than small letters, digits and single separators")
    return RegistryReference(
        registry=host,
        repository=path,
        tag=None if at else tag or "latest",
        digest=digest if at else None,
    )


def is_digest(text: str) -> bool:
    """Whether it is a digest that we verify; only such a one ever becomes a file's name."""
    return _DIGEST.fullmatch(text) is not None


def absolute(path: Path, what: str) -> Path:
    """A path with a user's home directory in place of its ``~``.

    Raises:
        ImageError: there is no such user; says what the path is of; not retryable.
    """
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ImageError(f"{what}: {path}: {str(error).rstrip('.')}; give the path in full", retryable=False) from error


def hex_of(digest: str) -> str:
    """The file name of what has this digest."""
    return digest.removeprefix("sha256:")


def digest_of_hex(name: str) -> str:
    """The digest of what has this file name."""
    return f"sha256:{name}"


def _layout(text: str, rest: str) -> LayoutReference:
    path, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        return LayoutReference(absolute(Path(rest), text))
    if not path or not tag:
        raise _wrong(text, "it has no path or no tag")
    return LayoutReference(absolute(Path(path), text), tag)


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    if found is None or int(found[2] or 0) > _MAX_PORT:
        return False
    try:
        return len(text) <= _MAX_HOST if found[1] is None else bool(ipaddress.IPv6Address(found[1]))
    except ValueError:
        return False


def _wrong(text: str, why: str) -> ImageError:
    return ImageError(f"image {text!r}: {why}; {_EXPECTED}", retryable=False)
