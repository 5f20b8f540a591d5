"""What is wrong with the hardware affinity that a run declares, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.declared_affinity import declared_affinity
from rollart_hpc.errors import ConfigError
from rollart_hpc.resource_plane.binding import asked_for
from rollart_hpc.resource_plane.hardware import hardware_classes, missing_figures
from rollart_hpc.resource_plane.records import DEFAULT_TAG


def affinity_faults(config: RunConfig) -> Iterator[str]:
    """Every fault of `[affinity]` and of a worker class's ``hw_mapping``, and figures that the profiler lacks."""
    try:
        declared = declared_affinity(config)
    except ConfigError:
        return  # said where the class is named
    tags = sorted({config.tag_of(name) for name in config.tasks})
    hardware = {pool.hardware for pool in config.pools.values() if pool.actor_gen}
    for tag, wanted in config.affinity.items():
        if wanted not in hardware:
            yield (
                f"affinity.{tag} = {wanted!r}: no pool with generation workers has this hardware; "
                f"expected one of {sorted(hardware)}"
            )
        if tag != DEFAULT_TAG and tag not in tags:
            yield f"affinity.{tag}: no task has this tag; tags are {tags} and {DEFAULT_TAG!r}"
    for wanted, source in dict.fromkeys(asked_for(declared, tag)[:2] for tag in (*tags, DEFAULT_TAG)):
        if wanted and wanted not in hardware and not source.startswith("affinity."):
            yield (
                f"{source} = {wanted!r}: no pool with generation workers has this hardware; expected one of "
                f"{sorted(hardware)}; [affinity] of the config wins over it"
            )
    if without := [tag for tag in tags if config.affinity and not asked_for(declared, tag)[0]]:
        yield (
            f"affinity: has neither {DEFAULT_TAG!r} nor an entry for {without}; add one for each, or "
            f"{DEFAULT_TAG} = {sorted(hardware)[0]!r} for all tags that are not listed"
        )
    if config.profiler.affinity == "auto":
        yield from _unknown_figures(config, hardware)


def _unknown_figures(config: RunConfig, hardware: set[str]) -> Iterator[str]:
    for name, figures in hardware_classes(config).items():
        if name in hardware and (keys := missing_figures(figures)):
            wanted = " and ".join(f"hardware.{name}.{key}" for key in keys)
            yield (
                f"profiler.affinity = 'auto': the figures of {name} are not known; set {wanted}, or let the profiler "
                "'advise'"
            )
