"""The image cache of a node: three levels, one pull for all who ask, and what is in use stays.

An image is used under a shared lock on its directory, which dies with its user; the collector takes only what it can
lock exclusively. One process pulls, under the lock of the image's digest; the others wait and find it there. Before it
is used every byte has been verified against the digest that was asked for: manifest, config and layers each time that
they are read, wherever they came from.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_hpc.config.node import ImagesSection
from rollart_hpc.errors import ImageError
from rollart_hpc.images.blobs import Blobs, combined
from rollart_hpc.images.collection import collect
from rollart_hpc.images.deadline import Deadline
from rollart_hpc.images.herd import one_of_the_herd
from rollart_hpc.images.image import Image
from rollart_hpc.images.layout import Layout
from rollart_hpc.images.locks import exclusive, in_use, unused
from rollart_hpc.images.manifest import (
    Manifest,
    choose_platform,
    node_architecture,
    parse_manifest,
)
from rollart_hpc.images.names import Names
from rollart_hpc.images.node_directory import NodeDirectory, is_full
from rollart_hpc.images.node_images import as_image, is_whole
from rollart_hpc.images.reference import (
    DirectoryReference,
    LayoutReference,
    RegistryReference,
    parse_reference,
)
from rollart_hpc.images.source import SourceError
from rollart_hpc.images.unpacking import unpack_image

if TYPE_CHECKING:
    from rollart_hpc.images.sources import Sources

_log = logging.getLogger(__name__)
_GIGABYTE = 10**9
_MAX_INDEXES = 3
_TRIES = 3


class ImageCache:
    """The cache as one process sees it; it keeps nothing in memory.

    Args:
        settings: levels and bounds.
        run_directory: of the run whose tags are pinned; None for none.

    Raises:
        ImageError: the node's directory belongs to somebody else; not retryable.
    """

    def __init__(self, settings: ImagesSection, run_directory: Path | None = None) -> None:
        self._settings = settings
        self.node = NodeDirectory(settings.node_directory)
        self.names = Names(self.node, run_directory)

    @contextmanager
    def use(self, text: str) -> Generator[Image]:
        """As `use_image`."""
        reference = parse_reference(text)
        if isinstance(reference, DirectoryReference):
            yield _image_of_directory(reference.path, text)
            return
        deadline = Deadline(self._settings.pull_timeout_s)
        for _ in range(_TRIES):
            digest = self._known_digest(reference)
            if digest is None:
                digest = self._pull(reference, text, deadline)
            directory = self.node.image(digest)
            with in_use(directory) as there:
                if there and is_whole(directory) and (image := as_image(directory, text)):
                    yield image
                    return
            self._pull(reference, text, deadline)
        raise ImageError(
            f"{text} was collected {_TRIES} times before it could be used: too many other images are used on this "
            "node; raise images.max_gb",
            retryable=True,
        )

    def collect(self, max_bytes: int | None = None) -> None:
        """Keeps the bound of the node's directory."""
        bound = int(self._settings.max_gb * _GIGABYTE) if max_bytes is None else max_bytes
        collected = collect(self.node, bound)
        for one in collected.removed:
            _log.info("collected %s %s of %d bytes", one.kind, one.reference or one.digest, one.size_bytes)

    def _known_digest(self, reference: RegistryReference | LayoutReference) -> str | None:
        """Of the manifest for this node, as far as it is known here; None when a source has to be asked."""
        if isinstance(reference, LayoutReference):
            digest = Layout(reference.path).resolve(reference)
        else:
            digest = reference.digest or self.names.pinned(str(reference))
        if digest is None or self.node.image(digest).exists():
            return digest
        return self.names.last_known(_of_this_node(digest))

    def _pull(self, reference: RegistryReference | LayoutReference, text: str, deadline: Deadline) -> str:
        """Makes the image on the node, or waits for the process that does; gives the digest of its manifest."""
        self.node.make()
        try:
            with one_of_the_herd(self.node, "pull", str(reference), deadline):
                digest = self._known_digest(reference)
                if digest is not None and self._is_there(digest, text):
                    return digest
                digest = self._pull_with_room(reference, text, deadline)
            self.collect()
        except OSError as error:
            # A full disk does not even take a lock file.
            raise self._disk_error(text, error) from error
        return digest

    def _disk_error(self, text: str, error: OSError) -> ImageError:
        return ImageError(f"{text}: {self.node.root}: {error.strerror or error}", retryable=True)

    def _pull_with_room(self, reference: RegistryReference | LayoutReference, text: str, deadline: Deadline) -> str:
        try:
            for sparing in (False, True):
                try:
                    return self._pull_once(reference, text, deadline, sparing)
                except OSError as error:
                    if not is_full(error):
                        raise
                    if not sparing:
                        _log.warning("the disk of %s is full; images that nobody uses are collected", self.node.root)
                        collect(self.node, 0)
        except OSError as error:
            raise self._disk_error(text, error) from error
        raise ImageError(
            f"{text}: the disk of {self.node.root} has no room for it, even without all images that nobody uses; "
            "make room there, or set images.node_directory to a larger disk",
            retryable=True,
        )

    def _pull_once(
        self, reference: RegistryReference | LayoutReference, text: str, deadline: Deadline, sparing: bool
    ) -> str:
        from rollart_hpc.images.sources import open_sources  # an HTTP client, which only who pulls needs

        with open_sources(reference, self._settings, self.node, deadline) as sources:
            blobs = Blobs(self.node, sources.nearest_first, shared=sources.shared, deadline=deadline)
            if isinstance(reference, LayoutReference):
                digest = Layout(reference.path).resolve(reference)
            else:
                digest = reference.digest or self._resolve(reference, sources, blobs)
            digest, manifest = self._manifest_of(digest, text, blobs)
            # The same image may be asked for under several names at once.
            with exclusive(self.node.lock("image", digest), deadline, text):
                if not self._is_there(digest, text):
                    unpack_image(self.node, blobs, manifest, digest=digest, reference=text, sparing=sparing)
            return digest

    def _resolve(self, reference: RegistryReference, sources: Sources, blobs: Blobs) -> str:
        """The digest of a tag: the run's, or what the first registry says that answers."""
        name = str(reference)
        if pinned := self.names.pinned(name):
            return pinned
        failures: list[SourceError] = []
        for source in sources.registries:
            try:
                digest = blobs.put(source.manifest(reference.wanted))
            except SourceError as error:
                failures.append(error)
                continue
            if sources.shared:
                with contextlib.suppress(SourceError):
                    sources.shared.keep_tag(name, digest)
            return self.names.pin(name, digest)
        return self.names.pin(name, self._last_known(name, sources, failures))

    def _last_known(self, name: str, sources: Sources, failures: list[SourceError]) -> str:
        """What the tag meant when a registry last answered, if its origin is down now."""
        known = self.names.last_known(name) if failures[-1].retryable else None
        if known is None and failures[-1].retryable and sources.shared:
            with contextlib.suppress(SourceError):
                known = sources.shared.tagged(name)
        if known is None:
            raise combined(failures)
        _log.warning("%s is taken for %s, as it was when its registry last answered: %s", name, known, failures[-1])
        return known

    def _manifest_of(self, digest: str, text: str, blobs: Blobs) -> tuple[str, Manifest]:
        """The manifest for this node, of a manifest's or an index's digest."""
        asked = digest
        for _ in range(_MAX_INDEXES):
            found = parse_manifest(blobs.manifest(digest), text)
            if isinstance(found, Manifest):
                if digest != asked:
                    self.names.record(_of_this_node(asked), digest)
                return digest, found
            digest = choose_platform(found, text).digest
        raise ImageError(f"{text} is an index of indexes of indexes; name the image in it", retryable=False)

    def _is_there(self, digest: str, text: str) -> bool:
        """Whether the image is there and whole; one that is not is thrown away."""
        directory = self.node.image(digest)
        if not directory.exists():
            return False
        if is_whole(directory):
            return True
        with unused(directory) as free:
            if not free:
                raise ImageError(
                    f"{text}: files are missing in {directory}, which is in use; do not let cleaners of temporary "
                    "files into images.node_directory",
                    retryable=True,
                )
            _log.warning("%s: files are missing in %s; it is unpacked again", text, directory)
            self.node.throw_away(directory)
        return False


def _image_of_directory(path: Path, text: str) -> Image:
    if not path.is_dir():
        raise ImageError(f"{text}: there is no such directory; give one with a root file system", retryable=False)
    return Image(reference=text, digest="", root=path)


def _of_this_node(digest: str) -> str:
    return f"{digest} for linux/{node_architecture()}"
