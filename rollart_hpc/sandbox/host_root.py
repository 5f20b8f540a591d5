"""The root file system of sandboxes without one: this node's system directories and this process's Python.

All is read-only but the home directory, /tmp and the directories above what is mounted, which are new and empty. Of
/etc there is what programs need to start, nothing that tells of the host's users, services or network.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from rollart_hpc.sandbox.stage import Stage

HOME = "/home/sandbox"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = (
    "/etc/alternatives",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_WRITTEN = {
    "passwd": f"root:x:0:0:root:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def environment() -> dict[str, str]:
    """PATH, with this process's Python first, HOME and LANG."""
    python = Path(sys.executable).parent
    return {"PATH": f"{python}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": HOME, "LANG": "C.UTF-8"}


def script() -> str:
    """Shell commands that fill the new directory ``root``."""
    lines = [f"mkdir -p root/etc/ssl root{HOME}; mkdir -m 1777 root/tmp"]
    lines += [f"printf %s {shlex.quote(text)} > root/etc/{name}" for name, text in _WRITTEN.items()]
    links = [path for path in map(Path, _SYSTEM) if path.is_symlink()]
    merged = [f"usr{path}" for path in links if str(path.readlink()).lstrip("/") == f"usr{path}"]
    lines += [f"ln -s {' '.join(merged)} root"] if merged else []
    lines += [f"ln -s {shlex.quote(str(path.readlink()))} root{path}" for path in links if f"usr{path}" not in merged]
    return "\n".join(lines)


def mounts(stage: Stage | None) -> list[tuple[str, str]]:
    """What belongs to the host, as pairs of where it is and where it is seen, to be mounted read-only."""
    system = [Path(path) for path in _SYSTEM]
    found = [(str(path), str(path)) for path in system if path.is_dir() and not path.is_symlink()]
    found += [(str(Path(path).resolve()), path) for path in _SETTINGS if Path(path).exists()]
    for path in python_directories():
        found.append((str(path) if stage is None else _shown(stage, path), str(path)))
    return found


def parents(mounts: Iterable[tuple[str, str]]) -> list[str]:
    """The directories above what is mounted, but the root, outer ones first."""
    return sorted({str(path) for _, target in mounts for path in Path(target).parents} - {"/"})


def python_directories() -> list[Path]:
    """Where this Python and its packages lie, outside of the system directories; outer ones first."""
    found = {Path(prefix) for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)}
    # A virtual environment's python may reach the real one by way of further links.
    program = Path(sys.executable)
    while program.is_symlink():
        program = program.parent / program.readlink()
        found.add(program.parent.parent)
    found -= {path for path in found if len(path.parts) <= 2 or path == Path.home() or path.is_relative_to("/usr")}
    kept = sorted(found)
    return [path for path in kept if not any(path.is_relative_to(other) for other in kept if other != path)]


@cache
def _shown(stage: Stage, path: Path) -> str:
    return stage.show(path)
