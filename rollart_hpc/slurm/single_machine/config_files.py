"""The cluster's configuration files, rendered from the templates beside this module."""

from __future__ import annotations

import socket
from pathlib import Path

from rollart_hpc.config.slurm import DEFAULT_RESOURCES, ResourcesSection
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.options import MEMORY_MB, NODE_GROUPS
from rollart_hpc.slurm.single_machine.record import ClusterRecord

_TEMPLATES = Path(__file__).with_name("templates")


def write_config_files(layout: Layout, record: ClusterRecord) -> None:
    """Writes slurm.conf and its companions, and the site profile."""
    places = {
        "slurm.conf": layout.slurm_conf,
        "gres.conf": layout.slurm_conf.with_name("gres.conf"),
        "cgroup.conf": layout.slurm_conf.with_name("cgroup.conf"),
        "site.toml": layout.site_profile,
    }
    if record.options.accounting:
        places["slurmdbd.conf"] = layout.slurm_conf.with_name("slurmdbd.conf")
    for name, place in places.items():
        # slurmdbd refuses a file that others may read.
        place.touch(mode=0o600 if name == "slurmdbd.conf" else 0o644)
        place.write_text(render(name, layout, record))


def render(name: str, layout: Layout, record: ClusterRecord) -> str:
    """One of the files as text."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return templates.get_template(f"{name}.j2").render(
        directory=layout.directory,
        layout=layout,
        user=record.user,
        host=socket.gethostname().partition(".")[0],
        options=record.options,
        ports=record.ports,
        groups=NODE_GROUPS,
        memory_mb=MEMORY_MB,
        resources=small_resources(),
    )


def small_resources() -> dict[str, ResourcesSection]:
    """What each process of a small run gets here; the leader's memory holds the weight store."""
    return {role: ResourcesSection(cpus=1, mem_gb=2.0 if role == "leader" else 1.0) for role in DEFAULT_RESOURCES}
