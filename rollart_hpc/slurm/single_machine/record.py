"""What runs in a cluster's directory: written while it starts, read by every later command, removed when it is down."""

from __future__ import annotations

import os
import pwd

import msgspec

from rollart_hpc.errors import PreflightError
from rollart_hpc.slurm.single_machine.daemon import Daemon
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.options import ClusterOptions
from rollart_hpc.slurm.single_machine.ports import Ports


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a cluster."""

    user: str
    options: ClusterOptions
    ports: Ports
    daemons: list[Daemon] = []
    """In the order of their start."""

    def with_daemon(self, daemon: Daemon) -> ClusterRecord:
        """The record with one daemon more."""
        return msgspec.structs.replace(self, daemons=[*self.daemons, daemon])

    def daemon(self, name: str) -> Daemon:
        """The daemon of this name; KeyError when it was not started."""
        return {daemon.name: daemon for daemon in self.daemons}[name]

    def save(self, layout: Layout) -> None:
        """Writes the record, whole or not at all."""
        written = layout.record.with_suffix(".new")
        written.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        written.replace(layout.record)


def read_record(layout: Layout) -> ClusterRecord | None:
    """The record of a directory; None when nothing was started or all was ended.

    Raises:
        PreflightError: the file is no record, or this user may not touch the cluster.
    """
    try:
        record = msgspec.json.decode(layout.record.read_bytes(), type=ClusterRecord)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise PreflightError(
            f"{layout.record}: not the record of a cluster ({error}); choose another directory, or end its daemons "
            "yourself and remove the file"
        ) from None
    if os.geteuid() and record.user != (own := current_user()):
        raise PreflightError(f"{layout.directory}: the cluster of {record.user}, and this is {own}; use your own")
    return record


def current_user() -> str:
    """The name that Slurm and MariaDB run under.

    Raises:
        PreflightError: the user has no name.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise PreflightError(
            f"user {os.geteuid()} has no name in the system's user list, and Slurm needs one; add it to /etc/passwd"
        ) from None
