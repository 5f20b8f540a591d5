"""Making a root file system of an image's manifest: fetch, unpack, and put in place by one rename."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rollart_hpc.images.blobs import Blobs
from rollart_hpc.images.layers import apply_layer
from rollart_hpc.images.manifest import Descriptor, Manifest, parse_config
from rollart_hpc.images.node_directory import NodeDirectory
from rollart_hpc.images.node_images import ImageRecord, boot_id, measure, root_of, write_record

_FETCHED_AT_ONCE = 3
_MOUNT_POINTS = {"dev": 0o755, "proc": 0o755, "sys": 0o755, "tmp": 0o1777}


def unpack_image(
    node: NodeDirectory, blobs: Blobs, manifest: Manifest, *, digest: str, reference: str, sparing: bool
) -> None:
    """Makes the image of a manifest on the node; whoever calls it holds the image's lock.

    Args:
        node: where it is made.
        blobs: gives config and layers.
        manifest: of the image.
        digest: of the manifest.
        reference: as it was asked for.
        sparing: keeps no layer beside what was unpacked of it, for a disk that is nearly full.

    Raises:
        ImageError: something cannot be fetched, or is broken.
        OSError: the disk does not take it; nothing is left of it.
    """
    with blobs.held(manifest.config) as path:
        config = parse_config(path.read_bytes(), reference)
    directory = node.unpacking(digest)
    node.throw_away(directory)
    root = root_of(directory)
    try:
        root.mkdir(parents=True)
        with _layers(blobs, manifest.layers, sparing) as layers:
            for layer, archive in layers:
                apply_layer(archive, root, name=f"{reference}, layer {layer.digest}")
        _finish(root)
        record = ImageRecord(
            reference=reference,
            digest=digest,
            measure=measure(root),
            boot=boot_id(),
            environment=config.environment,
            working_directory=config.working_directory,
        )
        write_record(directory, record)
        directory.chmod(0o755)
        directory.rename(node.image(digest))
    except BaseException:
        node.throw_away(directory)
        raise


@contextmanager
def _layers(blobs: Blobs, layers: Sequence[Descriptor], sparing: bool) -> Generator[Generator[tuple[Descriptor, Path]]]:
    """The layers from below with their files: all fetched at first, or one at a time where room is short."""
    with contextlib.ExitStack() as held:
        yield _one_at_a_time(blobs, layers) if sparing else _all_at_first(blobs, layers, held)


def _one_at_a_time(blobs: Blobs, layers: Sequence[Descriptor]) -> Generator[tuple[Descriptor, Path]]:
    for layer in layers:
        with blobs.held(layer) as path:
            yield layer, path
        blobs.forget(layer)


def _all_at_first(
    blobs: Blobs, layers: Sequence[Descriptor], held: contextlib.ExitStack
) -> Generator[tuple[Descriptor, Path]]:
    def hold(layer: Descriptor) -> Path:
        # Its lock belongs to an open file, not to the thread that took it.
        return held.enter_context(blobs.held(layer))

    with ThreadPoolExecutor(_FETCHED_AT_ONCE, thread_name_prefix="layers") as pool:
        paths = list(pool.map(hold, layers))
    yield from zip(layers, paths, strict=True)


def _finish(root: Path) -> None:
    """What a sandbox mounts something on has to be there; its user has to get into the root."""
    root.chmod(0o755)
    for name, mode in _MOUNT_POINTS.items():
        place = root / name
        if not place.is_symlink() and not place.exists():
            place.mkdir()
            place.chmod(mode)
