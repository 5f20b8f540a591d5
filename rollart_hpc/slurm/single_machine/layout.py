"""The directory of a cluster: what lies where, and which directories can hold one.

Invariant: everything that the cluster writes is under this directory.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rollart_hpc.errors import PreflightError
from rollart_hpc.slurm.single_machine.options import node_names

_LONGEST_SOCKET = 107
_STEP_SOCKET = "spool/{node}/{node}_4294967295.4294967295"
"""slurmstepd makes a socket of this form for every step; ids have 32 bits."""
_USABLE = re.compile(r"[\w./+-]+")
"""slurm.conf gives spaces and # , % = [ ] a meaning of its own and has no quotes."""
_FOLDERS = ("etc", "run", "log", "state", "spool", "munge", "mysql", "dev")


class Layout(msgspec.Struct, frozen=True):
    """The files of the cluster in ``directory`` (absolute)."""

    directory: Path

    @classmethod
    def of(cls, directory: Path) -> Layout:
        """The layout under a directory that may be relative, start with ~ or go through links."""
        return cls(directory.expanduser().resolve())

    @property
    def record(self) -> Path:
        """What runs here: `rollart_hpc.slurm.single_machine.record`."""
        return self.directory / "cluster.json"

    @property
    def slurm_conf(self) -> Path:
        """The path for SLURM_CONF; gres.conf, cgroup.conf and slurmdbd.conf lie beside it."""
        return self.directory / "etc" / "slurm.conf"

    @property
    def site_profile(self) -> Path:
        """The site profile of this cluster."""
        return self.directory / "site.toml"

    @property
    def run(self) -> Path:
        """Working directory of the daemons."""
        return self.directory / "run"

    @property
    def munge_key(self) -> Path:
        """The secret that Slurm's messages are signed with."""
        return self.directory / "munge" / "munge.key"

    @property
    def munge_socket(self) -> Path:
        """Where munged listens."""
        return self.directory / "munge" / "munge.sock"

    @property
    def database(self) -> Path:
        """MariaDB's data."""
        return self.directory / "mysql" / "data"

    @property
    def database_socket(self) -> Path:
        """Where MariaDB listens."""
        return self.directory / "mysql" / "mysql.sock"

    def output(self, name: str) -> Path:
        """What a daemon printed since its start; its log with times is beside it (.log)."""
        return self.directory / "log" / f"{name}.out"

    def check(self) -> None:
        """Whether a cluster can live here.

        Raises:
            PreflightError: the path has characters that slurm.conf cannot hold, or is too long for sockets.
        """
        if not _USABLE.fullmatch(str(self.directory)):
            odd = sorted(set(re.sub(_USABLE, "", str(self.directory))))
            raise PreflightError(
                f"{self.directory}: slurm.conf cannot hold a path with {' '.join(map(repr, odd))}; choose a directory "
                "of letters, digits and . _ + - only"
            )
        sockets = [self.munge_socket, self.database_socket]
        sockets += [self.directory / _STEP_SOCKET.format(node=node) for node in node_names()]
        longest = max(len(os.fsencode(path)) for path in sockets)
        if longest > _LONGEST_SOCKET:
            own = len(os.fsencode(self.directory))
            raise PreflightError(
                f"{self.directory}: {own} bytes are too long, the sockets in it would have {longest} and Linux allows "
                f"{_LONGEST_SOCKET}; choose a directory of at most {own - longest + _LONGEST_SOCKET} bytes, for "
                "example under /tmp"
            )

    def create(self) -> None:
        """Makes the folders and the files that pose as GPUs."""
        for folder in (*_FOLDERS, *(f"spool/{node}" for node in node_names())):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        # Only a link to a character device is a GPU for slurmd: a plain file gives no CUDA_VISIBLE_DEVICES.
        for number in range(8):
            link = self.directory / "dev" / f"nvidia{number}"
            if not link.is_symlink():
                link.symlink_to("/dev/null")

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keeps a second start or stop of this cluster out.

        Raises:
            PreflightError: one is at work.
        """
        with (self.directory / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PreflightError(
                    f"{self.directory}: another `cluster up` or `cluster down` is at work here; wait for its end"
                ) from None
            yield
