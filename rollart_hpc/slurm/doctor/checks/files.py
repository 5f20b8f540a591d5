"""Whether the nodes see the files: the run's directory, the model, the interpreter, the directory of the submission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, error, note, suggest, warning
from rollart_hpc.slurm.doctor.machine_facts import Mount, existing_parent
from rollart_hpc.slurm.doctor.node_report import EndedEarly, NodeReport, NotProbed, own_version
from rollart_hpc.slurm.script.allocation import Component


def check_file_systems(case: Case) -> Iterator[Finding]:
    """What is not on a kind of file system that machines share is doubted until a node of every component saw it."""
    seen = [name for name, probe in case.probes.items() if isinstance(probe, NodeReport)]
    if {component.name for component in case.components} <= set(seen):
        # What they saw, or did not see, is `check_probe`'s to say.
        return
    paths = {
        "run.directory": existing_parent(case.config.run.path()),
        "model.path": case.config.model.path,
        "the interpreter": case.python,
        "the directory of the submission": case.directory,
    }
    doubtful: dict[Mount | None, list[str]] = {}
    for what, path in paths.items():
        mount = case.machine.mount_of(_resolved(path))
        if mount is None or not mount.shared:
            doubtful.setdefault(mount, []).append(f"{what} ({path})")
    for mount, what in doubtful.items():
        kind = "an unknown file system" if mount is None else f"{mount.file_system} at {mount.point}"
        found = f"on {kind}, which is not known to be shared with the nodes: {', '.join(what)}"
        yield warning("files", None, found, "use a shared file system, or let `rollart-hpc doctor` try the nodes")


def check_probe(case: Case, component: Component) -> Iterator[Finding]:
    """What a node of the component saw."""
    probe = case.probes.get(component.name)
    if isinstance(probe, NotProbed):
        found = f"not tried on a node: {probe.reason}"
        yield note("probe", component.name, found) if probe.busy else warning("probe", component.name, found)
    elif isinstance(probe, EndedEarly):
        yield _ended_early(case, component, probe)
    elif probe is not None:
        yield from _check_files(case, component, probe)
        yield from _check_python(case, component, probe)
        if component == case.components[0]:
            yield from _check_interface(case, component, probe)


def _ended_early(case: Case, component: Component, probe: EndedEarly) -> Finding:
    what = "the shell ended" if probe.line is None else f"slurm.setup: {probe.line!r} ended the shell"
    said = f": {probe.words}" if probe.words else ""
    found = f"{what} on {probe.node} with exit code {probe.exit_code}{said}"
    if isinstance(case.probes.get(case.components[0].name), NodeReport):
        # The batch script runs on a node of the leader's component only, and that one came through.
        return warning(
            "setup", component.name, found, "only the leader's node runs these lines; the rest was not tried"
        )
    return error("setup", component.name, found, "correct slurm.setup: the batch script would end there, too")


def _check_interface(case: Case, component: Component, probe: NodeReport) -> Iterator[Finding]:
    wanted, there = case.config.slurm.interface, probe.interfaces
    if wanted is not None and there is not None and wanted not in there:
        found = f"slurm.interface = {wanted!r}: {probe.node} has no such interface with an IPv4 address"
        yield error("interface", component.name, found, suggest(wanted, there, "it has"))


def _check_files(case: Case, component: Component, probe: NodeReport) -> Iterator[Finding]:
    name, node = component.name, probe.node
    parent = existing_parent(case.config.run.path())
    if not probe.reads_token:
        found = f"{node} does not see what is written to {parent}"
        yield error("files", name, found, "set run.directory to a file system that all nodes share")
    elif not probe.writes:
        found = f"{node} cannot write to {parent}"
        yield error("files", name, found, "set run.directory to where the nodes may write")
    if not probe.has_directory:
        found = f"{node} has no directory {case.directory}, where the processes are to run"
        yield error("files", name, found, "submit from a shared file system")
    model = case.config.model.path / "config.json"
    if model.is_file() and probe.model_bytes != model.stat().st_size:
        found = f"{node} does not see the model in {model.parent}"
        yield error("files", name, found, "put it on a shared file system and set model.path")


def _check_python(case: Case, component: Component, probe: NodeReport) -> Iterator[Finding]:
    name, node = component.name, probe.node
    if component.options.container is not None and component != case.components[0]:
        found = "its workers run in a container: the interpreter inside was not tried"
        yield note("probe", name, found)
    elif probe.python_error is not None:
        found = f"{case.python} does not run rollart_hpc on {node}: {probe.python_error}"
        change = "put it on a shared file system, load its modules in slurm.setup, or set slurm.python"
        yield error("interpreter", name, found, change)
    elif probe.version != own_version():
        found = f"{case.python} has rollart_hpc {probe.version} on {node}, here it is {own_version()}"
        yield error("interpreter", name, found, "install the same version, or set slurm.python")
    else:
        free = "" if probe.free_mb is None else f", {probe.free_mb / 1024:.0f} GB of memory free"
        yield note("probe", name, f"tried on {node}: files, interpreter{free}")


def _resolved(path: Path) -> Path:
    """Symbolic links followed; of an interpreter its directory's: `python` in a venv links to the system's."""
    return path.parent.resolve() / path.name if path.is_file() else path.resolve()
