"""Which runtime isolates on this node: each is tried with a command that looks for what it must not find."""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path

from rollart_hpc.config.node import Runtime, SandboxSection
from rollart_hpc.errors import NoSandboxError, SandboxError
from rollart_hpc.sandbox.lifeline import lifeline
from rollart_hpc.sandbox.per_process import PerProcess
from rollart_hpc.sandbox.runtimes import RUNTIMES
from rollart_hpc.sandbox.shell_sandbox import ShellSandbox

_PROBE_S = 60.0
_MAX_PROCESSES = 12
_SMALL = SandboxSection(memory_mb=512, disk_mb=16, max_processes=64)
# Switches of the kernel that keep ordinary users from namespaces: the value that does so, and what to say of it.
_SWITCHES = {
    "/proc/sys/user/max_user_namespaces": ("0", "user namespaces are off; `sysctl user.max_user_namespaces=15000`"),
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "user namespaces are off for ordinary users; `sysctl kernel.unprivileged_userns_clone=1`",
    ),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor keeps unconfined programs from user namespaces; "
        "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or a profile for bwrap",
    ),
}


def chosen_runtime(wanted: Runtime, *, unisolated: bool) -> Runtime | None:
    """The first that isolates; None where none does and that is allowed.

    Raises:
        NoSandboxError: none does, and it is not allowed.
    """
    reasons: list[str] = []
    candidates: list[Runtime] = list(RUNTIMES) if wanted == "auto" else [wanted]
    for runtime in candidates:
        reason = why_not(runtime)
        if reason is None:
            return runtime
        reasons.append(f"{runtime}: {reason}")
    if unisolated:
        return None
    raise NoSandboxError(
        f"no sandbox on {socket.gethostname()}, where text of the policy would be executed:\n"
        + "".join(f"  {reason}\n" for reason in reasons)
        + "".join(f"  the kernel: {hint}\n" for hint in kernel_hints())
        + "Install one of them, have the administrator change what is named, or, where the policy's text may run with "
        "your own rights, set sandbox.unisolated = true"
    )


class _Probes:
    """What came of trying the runtimes; each is tried once, whoever asks meanwhile waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[Runtime, str | None] = {}

    def why_not(self, runtime: Runtime) -> str | None:
        with self._lock:
            if runtime not in self._reasons:
                self._reasons[runtime] = _try(runtime)
            return self._reasons[runtime]


_probes = PerProcess(_Probes)


def why_not(runtime: Runtime) -> str | None:
    """Why a runtime does not isolate on this node; None when it does. Tried once per process."""
    return _probes().why_not(runtime)


def _try(runtime: Runtime) -> str | None:
    with tempfile.NamedTemporaryFile(dir=lifeline().directory) as secret:
        try:
            with ShellSandbox(RUNTIMES[runtime](None, _SMALL), settings=_SMALL) as sandbox:
                found = sandbox.run(_script(secret.name), timeout_s=_PROBE_S)
        except SandboxError as error:
            return str(error)
    if found.exit_code == 0 and found.output.strip() == "isolated":
        return None
    return f"does not isolate: {found.output.strip()[-500:] or found.ending}"


def _script(secret: str) -> str:
    return f"""
[ ! -e {secret} ] || echo "a file of the host is there"
[ "$(ls -d /proc/[0-9]* | wc -l)" -le {_MAX_PROCESSES} ] || echo "processes of the host are there"
[ "$(grep -c : /proc/net/dev)" -le 1 ] || echo "a network is there"
grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo "its processes have capabilities"
[ ! -w /proc/sys/kernel/core_pattern ] || echo "settings of the kernel can be written"
[ ! -w /usr ] || echo "system directories can be written"
: > "$HOME/file" || echo "its home cannot be written"
echo isolated
"""


def kernel_hints() -> list[str]:
    """What is known to keep sandboxes from this node."""
    hints: list[str] = []
    for path, (value, hint) in _SWITCHES.items():
        try:
            if Path(path).read_text().strip() == value:
                hints.append(hint)
        except OSError:
            continue
    return hints
