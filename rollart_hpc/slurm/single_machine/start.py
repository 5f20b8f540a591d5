"""The start of a cluster: each daemon when what it needs answers, and all of them down again when one fails."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from rollart_hpc.errors import PreflightError, SlurmError
from rollart_hpc.processes import describe_exit
from rollart_hpc.slurm.single_machine.cluster import Cluster
from rollart_hpc.slurm.single_machine.config_files import write_config_files
from rollart_hpc.slurm.single_machine.daemon import end_of, signals_held, start_daemon
from rollart_hpc.slurm.single_machine.database import install_database
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.options import ClusterOptions, node_names
from rollart_hpc.slurm.single_machine.ports import free_ports, is_listening
from rollart_hpc.slurm.single_machine.programs import find_programs
from rollart_hpc.slurm.single_machine.record import ClusterRecord, current_user, read_record
from rollart_hpc.slurm.single_machine.stop import stop_daemons

_READY_S = 60.0
_POLL_S = 0.02
_PORT_TRIES = 3
_PORT_TAKEN = "Address already in use"


class DaemonEndedError(SlurmError):
    """A daemon ended while the cluster was starting; ``lost_port`` when another process took its port."""

    lost_port = False


def start_cluster(directory: Path, options: ClusterOptions | None = None) -> Cluster:
    """Starts a cluster under ``directory`` and waits until all of its nodes are idle.

    Raises:
        ConfigError: an option is out of range.
        PreflightError: programs are missing, the directory cannot hold a cluster, or one runs there.
        SlurmError: a daemon ended or was not ready in time; all were ended, the text has the end of the log.
    """
    options = options or ClusterOptions()
    options.check()
    layout = Layout.of(directory)
    layout.check()
    programs = find_programs(accounting=options.accounting)
    layout.create()
    with layout.locked():
        _refuse_running(layout)
        for remaining in reversed(range(_PORT_TRIES)):
            try:
                return _Startup(layout, options, programs).run()
            except DaemonEndedError as error:
                if not (error.lost_port and remaining):
                    raise
    raise AssertionError("the last try returns or raises")


def _refuse_running(layout: Layout) -> None:
    record = read_record(layout)
    if record is None:
        return
    alive = [daemon.name for daemon in record.daemons if daemon.alive]
    if alive:
        raise PreflightError(
            f"{layout.directory}: of its cluster run {', '.join(alive)}; end them first: "
            f"rollart-hpc cluster down {layout.directory}"
        )


class _Startup:
    """One try to start all daemons."""

    def __init__(self, layout: Layout, options: ClusterOptions, programs: dict[str, str]) -> None:
        self._layout = layout
        self._programs = programs
        self._record = ClusterRecord(user=current_user(), options=options, ports=free_ports())
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def _cluster(self) -> Cluster:
        return Cluster(self._layout, self._record)

    def run(self) -> Cluster:
        """Starts everything, or leaves nothing running."""
        write_config_files(self._layout, self._record)
        try:
            self._start_munged()
            if self._record.options.accounting:
                self._start_accounting()
            self._wait_for_socket("munged", self._layout.munge_socket)
            self._start_slurm()
        except BaseException:
            # A slurmd that never reached slurmctld does not listen to SIGTERM, and there is nothing to lose yet.
            stop_daemons(self._layout, self._record, self._cluster.environment(), grace_s=1.0)
            raise
        return self._cluster

    def _start_munged(self) -> None:
        key = self._layout.munge_key
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(128))
        folder = key.parent
        # Without --force it refuses to live below a directory that others may not enter, as homes often are.
        self._launch(
            "munged", "--foreground", "--force", f"--socket={self._layout.munge_socket}", f"--key-file={key}",
            f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed", "--num-threads=4",
        )  # fmt: skip

    def _start_accounting(self) -> None:
        data, folder = self._layout.database, self._layout.database.parent
        if not data.exists():
            install_database(self._layout, self._programs, self._record.user, self._cluster.environment())
        self._launch(
            "mariadbd", "--no-defaults", f"--datadir={data}", f"--user={self._record.user}",
            f"--socket={self._layout.database_socket}", f"--pid-file={folder}/mariadbd.pid", f"--tmpdir={folder}",
            "--skip-networking", "--skip-name-resolve",
            # slurmdbd asks for the second; the first spares a trial cluster a disk flush per transaction.
            "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        self._wait_for_socket("mariadbd", self._layout.database_socket)
        self._wait_for_socket("munged", self._layout.munge_socket)
        self._launch("slurmdbd", "-D")
        self._wait_for_port("slurmdbd", self._record.ports.slurmdbd)

    def _start_slurm(self) -> None:
        # -c: every start is without jobs and with all nodes in service; numbers of jobs go on.
        self._launch("slurmctld", "-D", "-c")
        self._wait_for_port("slurmctld", self._record.ports.slurmctld)
        for node in node_names():
            self._launch("slurmd", "-D", "-N", node, name=f"slurmd.{node}")
        self._wait("slurmctld", "all nodes to be idle", self._nodes_not_idle)

    def _nodes_not_idle(self) -> str:
        try:
            # Short: a stranger on slurmctld's port may accept the question and never answer.
            nodes = self._cluster.nodes(deadline_s=2.0)
        except SlurmError as error:
            return str(error)
        waiting = dict.fromkeys(node_names(), "unknown to slurmctld")
        waiting |= {node.name: node.state for node in nodes}
        return ", ".join(f"{name} is {state}" for name, state in waiting.items() if state != "idle")

    def _launch(self, program: str, *arguments: str, name: str | None = None) -> None:
        name = name or program
        environment = self._cluster.environment() | {"MYSQL_UNIX_PORT": str(self._layout.database_socket)}
        with signals_held():
            daemon, self._processes[name] = start_daemon(
                name,
                [self._programs[program], *arguments],
                output=self._layout.output(name),
                directory=self._layout.run,
                environment=environment,
            )
            self._record = self._record.with_daemon(daemon)
            self._record.save(self._layout)

    def _wait_for_port(self, name: str, port: int) -> None:
        self._wait(name, "its port", lambda: "" if is_listening(port) else f"nothing listens on port {port}")

    def _wait_for_socket(self, name: str, path: Path) -> None:
        self._wait(name, "its socket", lambda: "" if _accepts(path) else f"nothing listens on {path}")

    def _wait(self, name: str, what: str, still_missing: Callable[[], str]) -> None:
        """Waits until ``still_missing`` returns no reason any more."""
        deadline = time.monotonic() + _READY_S
        while reason := still_missing():
            self._check_processes()
            if time.monotonic() > deadline:
                end = end_of(self._layout.output(name))
                raise SlurmError(f"{name}: waited {_READY_S:g} s for {what}, in vain: {reason}{end}")
            time.sleep(_POLL_S)

    def _check_processes(self) -> None:
        for name, process in self._processes.items():
            code = process.poll()
            if code is not None:
                end = end_of(self._layout.output(name))
                error = DaemonEndedError(f"{name} ended while the cluster was starting: {describe_exit(code)}{end}")
                error.lost_port = _PORT_TAKEN in end
                raise error


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
