"""``rollart-hpc images``: the copies of container images on this node."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollart_hpc.cli.run import SetOption
from rollart_hpc.cli.status import JsonOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollart_hpc.config.node import NodeSettings
    from rollart_hpc.config.schema import RunConfig
    from rollart_hpc.images.collection import Kept
    from rollart_hpc.images.node_directory import NodeDirectory

_GIGABYTE = 10**9
_MEGABYTE = 10**6
_SHORT_DIGEST = len("sha256:") + 12

app = typer.Typer(help="Pull, list and collect the container images on this node.", no_args_is_help=True)
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A run's TOML file, whose [images] holds.")
]
DirectoryOption = Annotated[
    Path | None, typer.Option("--node-directory", metavar="DIR", help="Where the copies are, instead of [images].")
]


@app.command("pull")
def pull(
    references: Annotated[list[str] | None, typer.Argument(metavar="[REF]...", help="As in docker.")] = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
    node_directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pull images to this node; with --config also those that the run's tasks need.

    Exit code 1: not all could be pulled; the text says why.
    """
    from rollart_hpc.errors import ConfigError
    from rollart_hpc.images.prefetch import pull_all

    run, settings = _settings(config, overrides, node_directory)
    wanted = [*(references or []), *(_images_of(run) if run else [])]
    if not wanted:
        raise ConfigError("no image to pull: give a REF, or --config of a run whose tasks need some")
    results: list[dict[str, Any]] = []
    for one in pull_all(wanted, settings):
        results.append({name: getattr(one, name) for name in one.__struct_fields__})
        if not as_json:
            print(f"{one.reference}: {one.error or f'{one.digest} in {one.seconds:.1f} s'}")
    if as_json:
        print(json.dumps(results, indent=2))
    if any(one["error"] for one in results):
        raise typer.Exit(1)


@app.command("list")
def list_images(
    config: ConfigOption = None,
    overrides: SetOption = None,
    node_directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the images on this node, what tags meant when they were last asked for, and the room that all takes."""
    from rollart_hpc.images.collection import is_in_use, kept_on
    from rollart_hpc.images.names import Names

    node = _node(_settings(config, overrides, node_directory)[1])
    kept = kept_on(node)
    shown = {
        "node_directory": str(node.root),
        "images": [{**_shown(one), "in_use": is_in_use(one)} for one in kept if one.kind == "image"],
        "names": {name.reference: name.digest for name in Names(node, None).all()},
        "blobs": sum(one.kind == "blob" for one in kept),
        "bytes": sum(one.size_bytes for one in kept),
    }
    print(json.dumps(shown, indent=2)) if as_json else _print(shown)


@app.command("gc")
def gc(
    config: ConfigOption = None,
    overrides: SetOption = None,
    node_directory: DirectoryOption = None,
    max_gb: Annotated[
        float | None, typer.Option(min=0, help="What may stay, instead of images.max_gb; 0 removes all.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what was not used for longest, down to the bound; nothing that is in use.

    Of the shared directory only what writers left that died a day ago or earlier.
    """
    from rollart_hpc.images.collection import collect
    from rollart_hpc.images.sources import shared_directory

    settings = _settings(config, overrides, node_directory)[1]
    bound_gb = settings.images.max_gb if max_gb is None else max_gb
    node = _node(settings)
    collected = collect(node, int(bound_gb * _GIGABYTE))
    if settings.images.shared_directory is not None:
        shared_directory(settings.images.shared_directory, node).sweep()
    if as_json:
        removed = [_shown(one) for one in collected.removed]
        print(json.dumps({"removed": removed, "left_bytes": collected.left_bytes}, indent=2))
        return
    for one in collected.removed:
        print(f"removed {one.kind} {one.reference or one.digest}: {_megabytes(one.size_bytes)}")
    print(f"{_megabytes(collected.removed_bytes)} removed, {_megabytes(collected.left_bytes)} left")


def _settings(
    config: Path | None, overrides: list[str] | None, node_directory: Path | None
) -> tuple[RunConfig | None, NodeSettings]:
    from rollart_hpc.config.load import load_config
    from rollart_hpc.config.node import NodeSettings
    from rollart_hpc.errors import ConfigError

    if overrides and config is None:
        raise ConfigError("--set overrides keys of a run's config; give its file with --config, too")
    run = load_config(config, overrides or []) if config else None
    settings = run.node_settings() if run else NodeSettings.current()
    if node_directory is not None:
        images = settings.images.model_copy(update={"node_directory": node_directory})
        settings = settings.model_copy(update={"images": images})
    return run, settings


def _node(settings: NodeSettings) -> NodeDirectory:
    from rollart_hpc.images.node_directory import NodeDirectory

    return NodeDirectory(settings.images.node_directory)


def _images_of(run: RunConfig) -> Iterator[str]:
    """Those of the environments and of all rows of the data sets."""
    from rollart_hpc.config.resolve import resolve

    for task in run.tasks.values():
        properties = getattr(resolve(task.environment), "properties", None)
        if image := getattr(properties, "image", ""):
            yield image
        if task.dataset is not None and getattr(properties, "sandboxed", False):
            yield from _images_in(task.dataset)


def _images_in(dataset: Path) -> Iterator[str]:
    from rollart_hpc.data_plane.task_rows import TaskRows

    for row in TaskRows(dataset).rows():
        if isinstance(image := row.get("image"), str) and image:
            yield image


def _shown(one: Kept) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "reference": one.reference,
        "digest": one.digest,
        "bytes": one.size_bytes,
        "used_at": one.used_at,
    }


def _print(shown: dict[str, Any]) -> None:
    from rich.table import Table

    from rollart_hpc.observe.console import console

    screen = console()
    table = Table("image", "digest", "size", "last used", "", box=None, pad_edge=False)
    for one in shown["images"]:
        table.add_row(
            one["reference"],
            one["digest"][:_SHORT_DIGEST],
            _megabytes(one["bytes"]),
            datetime.fromtimestamp(one["used_at"]).isoformat(" ", "minutes"),
            "in use" if one["in_use"] else "",
        )
    screen.print(table, highlight=False)
    names = Table("name", "digest", box=None, pad_edge=False)
    for reference, digest in shown["names"].items():
        names.add_row(reference, digest[:_SHORT_DIGEST])
    if shown["names"]:
        screen.print("", names, highlight=False)
    total = f"{_megabytes(shown['bytes'])} in all, {shown['blobs']} blobs among it"
    screen.print(f"\n{shown['node_directory']}: {total}", highlight=False, soft_wrap=True)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / _MEGABYTE:,.1f} MB"
