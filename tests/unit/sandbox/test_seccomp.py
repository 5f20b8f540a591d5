"""The filter, run by an interpreter of the kernel's instructions."""

import errno
import struct

import pytest

from rollart_hpc.sandbox.seccomp import call_filter

X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ALLOWED, MISSING, NO_FAMILY = 0x7FFF0000, 0x50000 | errno.ENOSYS, 0x50000 | errno.EAFNOSUPPORT


def verdict(program: bytes, audit: int, number: int, first_argument: int = 0) -> int:
    data = struct.pack("=IIQQ", number, audit, 0, first_argument)
    instructions = list(struct.iter_unpack("=HBBI", program))
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("=I", data, operand)
            case 0x15:
                at += if_true if loaded == operand else if_false
            case 0x35:
                at += if_true if loaded >= operand else if_false
            case 0x06:
                return operand


@pytest.mark.parametrize(
    ("machine", "audit", "denied", "socket", "write"),
    [("x86_64", X86, (29, 68, 319, 250, 321, 425), 41, 1), ("aarch64", ARM, (194, 186, 279, 219, 280, 425), 198, 64)],
)
def test_calls(machine: str, audit: int, denied: tuple[int, ...], socket: int, write: int):
    program = call_filter(machine)
    assert program is not None
    assert {verdict(program, audit, number) for number in denied} == {MISSING}
    assert verdict(program, audit, write) == ALLOWED
    assert [verdict(program, audit, socket, family) for family in (1, 2, 10, 16)] == [ALLOWED] * 4
    assert [verdict(program, audit, socket, family) for family in (0, 3, 17, 38, 40)] == [NO_FAMILY] * 5
    assert verdict(program, I386, write) == MISSING, "calls of another architecture have other numbers"
    assert verdict(program, audit, 0x40000000 | write) == MISSING


def test_other_machines_have_no_filter():
    assert call_filter("riscv64") is None
