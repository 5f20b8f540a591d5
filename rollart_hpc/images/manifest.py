"""What registries say about images: indexes, manifests, configs; of OCI and of docker alike.

A digest in them is checked before it is used as a file's name. What is not understood is refused, never guessed.
"""

from __future__ import annotations

import platform
from typing import TypeVar

import msgspec

from rollart_hpc.errors import ImageError
from rollart_hpc.images.reference import is_digest

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)
MAX_MANIFEST_BYTES = 4 << 20
TAG_ANNOTATION = "org.opencontainers.image.ref.name"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """For which machines an image is."""

    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bytes by their digest."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if not is_digest(self.digest):
            raise ValueError(f"the digest {self.digest!r} is not sha256: and 64 hexadecimal digits")
        if self.size < 0:
            raise ValueError(f"the size {self.size} is negative")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An image: its config and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a container of the image starts with."""

    environment: tuple[str, ...] | None = msgspec.field(name="Env", default=None)
    working_directory: str | None = msgspec.field(name="WorkingDir", default=None)


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An image's config."""

    architecture: str = ""
    os: str = ""
    config: RuntimeConfig | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Its variables."""
        pairs = (self.config and self.config.environment) or ()
        return {name: value for name, separator, value in (pair.partition("=") for pair in pairs) if separator}

    @property
    def working_directory(self) -> str:
        """Where its commands start."""
        return (self.config and self.config.working_directory) or "/"


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An index or a manifest: told apart by what it has, since the media type is optional in both."""

    schema_version: int = 2
    manifests: tuple[Descriptor, ...] | None = None
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] | None = None


_T = TypeVar("_T")


def node_architecture() -> str:
    """This machine's, as images name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def parse_manifest(data: bytes, name: str) -> Manifest | tuple[Descriptor, ...]:
    """A manifest, or the entries of an index.

    Raises:
        ImageError: it is neither; not retryable.
    """
    document = _decode(data, _Document, f"{name}: its manifest")
    if document.manifests is not None:
        return document.manifests
    if document.config is None or document.layers is None:
        what = "is of schema 1, which is no longer used" if document.schema_version == 1 else "has no config and layers"
        raise ImageError(f"{name}: its manifest {what}; push it again with a current tool", retryable=False)
    return Manifest(config=document.config, layers=document.layers)


def parse_config(data: bytes, name: str) -> ImageConfig:
    """An image's config.

    Raises:
        ImageError: it is none, or says that the image is for other machines; not retryable.
    """
    config = _decode(data, ImageConfig, f"{name}: its config")
    if config.architecture not in ("", node_architecture()) or config.os not in ("", "linux"):
        raise ImageError(
            f"{name} is for {config.os}/{config.architecture}, this node is linux/{node_architecture()}; "
            "use an image for this node's architecture",
            retryable=False,
        )
    return config


def choose_platform(entries: tuple[Descriptor, ...], name: str) -> Descriptor:
    """The entry of an index for this machine; an entry without a platform is for all.

    Raises:
        ImageError: there is none; not retryable.
    """
    wanted = node_architecture()
    for entry in entries:
        if entry.platform is None or (entry.platform.os, entry.platform.architecture) == ("linux", wanted):
            return entry
    had = ", ".join(f"{one.platform.os}/{one.platform.architecture}" for one in entries if one.platform) or "nothing"
    raise ImageError(f"{name} has no image for linux/{wanted}, but {had}; use one that has", retryable=False)


def _decode(data: bytes, model: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(data, type=model)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ImageError(f"{what} is not understood: {error}", retryable=False) from error
