"""Using an image: pulled when it is not here, held while it is used."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rollart_hpc.config.node import ImagesSection, NodeSettings
from rollart_hpc.images.cache import ImageCache
from rollart_hpc.images.image import Image


@contextmanager
def use_image(reference: str, *, settings: ImagesSection | None = None) -> Generator[Image]:
    """The image, for as long as the block lasts; it is not collected meanwhile.

    Many processes may ask for the same one at once: one of them pulls it, the others wait for that.

    Args:
        reference: as in docker; with a digest it is pinned, without a registry it is of docker.io. ``dir:PATH`` is a
            directory with a root file system, ``oci:PATH[:TAG]`` an OCI layout on disk.
        settings: levels and bounds; those of the run when absent.

    Raises:
        ImageError: it cannot be had; ``retryable`` says whether trying again may help.
    """
    current = NodeSettings.current()
    with ImageCache(settings or current.images, current.run_directory).use(reference) as image:
        yield image
