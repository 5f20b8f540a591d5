"""The system calls that no command of a sandbox may make, as a filter for the kernel.

Two reasons. Memory that belongs to no process and to no file system (memory files, System V segments and queues)
would be counted by nobody and outlive the process that filled it. And some families of calls and of sockets are not
divided into namespaces (keyrings, vsock) or are attacked often and needed by hardly any program under test
(io_uring, bpf, AF_ALG). They answer as if this kernel did not have them, which programs are prepared for.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    socket: int
    denied: tuple[int, ...]


DENIED_CALLS = (
    *("shmget", "msgget", "memfd_create", "memfd_secret", "add_key", "request_key", "keyctl", "bpf"),
    *("perf_event_open", "userfaultfd", "io_uring_setup"),
)
# Their numbers, in this order.
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 41, (29, 68, 319, 447, 248, 249, 250, 321, 298, 323, 425)),
    "aarch64": _Machine(0xC00000B7, 198, (194, 186, 279, 447, 217, 218, 219, 280, 241, 282, 425)),
}


def call_filter(machine: str = platform.machine()) -> bytes | None:
    """The filter as the kernel reads it; None on a kind of machine whose numbers are not known here."""
    known = _MACHINES.get(machine)
    if known is None:
        return None
    missing, no_family = _ERROR | errno.ENOSYS, _ERROR | errno.EAFNOSUPPORT
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, known.audit),
        (_RETURN, 0, 0, missing),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, missing),
    ]
    for number in known.denied:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, missing)]
    families = [(_EQUAL, len(SOCKET_FAMILIES) - at, 0, family) for at, family in enumerate(SOCKET_FAMILIES)]
    program += [
        (_EQUAL, 0, len(families) + 2, known.socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *families,
        (_RETURN, 0, 0, no_family),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
