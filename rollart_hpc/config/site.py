"""The site profile: what is the same for every run on a cluster, found, read and merged into a run's config.

A later layer wins, option by option: the profile's ``[slurm]``, its ``[hardware.CLASS]``, the run's ``[slurm]``, the
run's ``[pools.NAME.slurm]``. The lists ``extra``, ``skip`` and ``setup`` add up, resources merge role by role, a
container is replaced as a whole. Licences are the exception: those of ``[slurm]`` are the job's and no pool's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollart_hpc.config.faults import nearest
from rollart_hpc.config.load import load_config, read_toml, validate
from rollart_hpc.config.schema import PoolSection, RunConfig
from rollart_hpc.config.slurm import ComponentOptions, SiteProfile, SlurmSection
from rollart_hpc.errors import ConfigError

SITE_VARIABLE = "ROLLART_SITE"
SYSTEM_SITE = Path("/etc/rollart-hpc/site.toml")
_ADDING = frozenset({"extra", "skip", "setup"})
_OF_THE_JOB = frozenset({"licenses"})


def load_on_site(path: Path, overrides: Sequence[str] = (), site: Path | None = None) -> tuple[RunConfig, list[str]]:
    """The run's config with the site's profile merged in, and what is odd about the two together.

    Raises:
        ConfigError: as in `load_config`, `find_site` and `load_site`.
    """
    return merge_site(load_config(path, overrides), site)


def merge_site(config: RunConfig, site: Path | None = None) -> tuple[RunConfig, list[str]]:
    """A config with the site's profile merged in, and what is odd about the two together.

    Raises:
        ConfigError: as in `find_site` and `load_site`.
    """
    found = find_site(site)
    profile = None if found is None else load_site(found)
    oddities = [] if profile is None else [f"{found}: {oddity}" for oddity in _unknown_hardware(config, profile)]
    return apply_site(config, profile), oddities


def find_site(explicit: Path | None) -> Path | None:
    """The profile's file: the explicit one, $ROLLART_SITE, the user's, the system's; None when there is none.

    Raises:
        ConfigError: the explicit one, or the one that $ROLLART_SITE names, does not exist.
    """
    variable = os.environ.get(SITE_VARIABLE)
    for path, said in ((explicit, "--site"), (Path(variable) if variable else None, f"${SITE_VARIABLE}")):
        if path is None:
            continue
        if not path.exists():
            raise ConfigError(f"{said} = {str(path)!r}: no such file; give the path of a site profile (TOML)")
        return path
    usual = (Path.home() / ".config" / "rollart-hpc" / "site.toml", SYSTEM_SITE)
    return next((path for path in usual if path.exists()), None)


def load_site(path: Path) -> SiteProfile:
    """The profile in ``path``; a template's path is relative to its folder.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; every fault is listed, one a line.
    """
    profile = validate(SiteProfile, read_toml(path, expected="a site profile (TOML)"), str(path))
    template = profile.slurm.template
    if template is None:
        return profile
    absolute = path.absolute().parent / template.expanduser()
    return profile.model_copy(update={"slurm": profile.slurm.model_copy(update={"template": absolute})})


def apply_site(config: RunConfig, site: SiteProfile | None) -> RunConfig:
    """The config with every option resolved: ``slurm`` for the job, ``pools.NAME.slurm`` for each component.

    Applying the same profile again changes nothing.
    """
    profile = site or SiteProfile()
    classes = {name.casefold(): options for name, options in profile.hardware.items()}

    def resolved(pool: PoolSection) -> PoolSection:
        of_class = classes.get(pool.hardware.casefold(), ComponentOptions())
        layers = (_shared(profile.slurm), _given(of_class), _shared(config.slurm), _given(pool.slurm))
        return pool.model_copy(update={"slurm": ComponentOptions.model_validate(_overlay(*layers))})

    job = SlurmSection.model_validate(_overlay(_given(profile.slurm), _given(config.slurm)))
    pools = {name: resolved(pool) for name, pool in config.pools.items()}
    return config.model_copy(update={"slurm": job, "pools": pools})


def _given(options: ComponentOptions) -> dict[str, Any]:
    return options.model_dump(exclude_unset=True, exclude_none=True)


def _shared(job: SlurmSection) -> dict[str, Any]:
    """What every component takes over from the job."""
    names = ComponentOptions.model_fields.keys() - _OF_THE_JOB
    return {name: value for name, value in _given(job).items() if name in names}


def _overlay(*layers: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name in _ADDING:
                merged[name] = _added(merged.get(name, []), value)
            elif name == "resources":
                before: dict[str, dict[str, Any]] = merged.get(name, {})
                merged[name] = before | {role: before.get(role, {}) | share for role, share in value.items()}
            else:
                merged[name] = value
    return merged


def _added(before: list[str], more: list[str]) -> list[str]:
    """Both without duplicates; a list that has all that came before is in the right order already."""
    return more if set(before) <= set(more) else list(dict.fromkeys([*before, *more]))


def _unknown_hardware(config: RunConfig, site: SiteProfile) -> list[str]:
    known = {name.casefold() for name in site.hardware}
    if not known:
        return []
    return [
        f"has no [hardware.{pool.hardware}] for pools.{name}; {nearest(pool.hardware, list(site.hardware))}"
        f"it has {', '.join(site.hardware)}"
        for name, pool in config.pools.items()
        if pool.hardware.casefold() not in known
    ]
