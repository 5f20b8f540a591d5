"""The sandbox of every runtime: commands by a shell in an enclosure, one at a time.

Files are written and read by commands too. So a path is looked up where the command that reads it would look it up, and
no link leads out.
"""

from __future__ import annotations

import posixpath
import shlex
import threading
import time
from collections.abc import Mapping
from typing import Self

from rollart_hpc.config.node import SandboxSection
from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox.command import Bounds, Command, TooLongError
from rollart_hpc.sandbox.enclosure import Enclosure
from rollart_hpc.sandbox.sandbox import CommandResult

_FILE_S = 120.0
_MISSING = 44
_PART = 30_000
"""Characters in one argument: the kernel's bound for each is 128 KiB."""

# The first process of a command. It stays until the command has ended; what it says itself is not the command's output.
_ENTER = """exec 9>&2 2>/dev/null
[ -d "$1" ] || mkdir -p -- "$1"
cd -- "$1" || { echo "no directory $1" >&9; exit 126; }
shift
shell=sh; command -v bash >/dev/null && shell=bash
(exec 2>&9 9>&-; [ $# = 1 ] && exec $shell -c "$1"
exec $shell -c 'c=; for p; do c=$c$p; done; unset p; set --; eval "$c"' $shell "$@")
exit $?"""


class ShellSandbox:
    """A `Sandbox`."""

    def __init__(
        self,
        enclosure: Enclosure,
        *,
        directory: str = "/",
        environment: Mapping[str, str] | None = None,
        settings: SandboxSection,
    ) -> None:
        self._enclosure, self._directory, self._settings = enclosure, directory, settings
        self._environment = {**enclosure.environment, **(environment or {})}
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_new = True

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> CommandResult:
        """Runs a command; see `Sandbox`."""
        begin = time.monotonic()
        try:
            done = self._run(
                command,
                directory=self._directory if directory is None else directory,
                environment=environment or {},
                stdin=stdin,
                timeout_s=timeout_s,
                output_bytes=self._settings.max_output_kb << 10,
            )
        except TooLongError:
            return CommandResult(output="the command is too long for this machine\n", exit_code=126)
        return CommandResult(
            output=done.output.text(),
            exit_code=done.exit_code,
            ending=done.ending,
            seconds=time.monotonic() - begin,
        )

    def write_file(self, path: str, data: bytes) -> None:
        """Puts a file into the sandbox; see `Sandbox`."""
        path = self._enclosure.path(path)
        above, quoted = shlex.quote(posixpath.dirname(path) or "."), shlex.quote(path)
        done = self._file(f"{{ [ -d {above} ] || mkdir -p -- {above}; }} && cat > {quoted}", data, output_bytes=4096)
        if done.exit_code:
            raise SandboxError(f"{path} cannot be written in the sandbox: {done.output.text().strip()[-300:]}")

    def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The first bytes of a file; see `Sandbox`."""
        quoted = shlex.quote(self._enclosure.path(path))
        shown = f"[ -f {quoted} ] || exit {_MISSING}; head -c {max_bytes} -- {quoted}"
        done = self._file(shown, b"", output_bytes=2 * max_bytes + 4096)
        if done.exit_code == _MISSING:
            raise FileNotFoundError(f"no file {path} in the sandbox")
        if done.exit_code:
            raise SandboxError(f"{path} cannot be read in the sandbox: {done.output.text().strip()[-300:]}")
        return done.output.head()

    def _file(self, command: str, data: bytes, *, output_bytes: int) -> Command:
        return self._run(
            command,
            directory=self._directory,
            environment=self._enclosure.environment,
            stdin=data,
            timeout_s=_FILE_S,
            output_bytes=output_bytes,
        )

    def _run(
        self,
        text: str,
        *,
        directory: str,
        environment: Mapping[str, str],
        stdin: bytes,
        timeout_s: float,
        output_bytes: int,
    ) -> Command:
        with self._lock:
            if self._is_closed:
                raise SandboxError("the sandbox is closed")
            bounds = Bounds(
                timeout_s=timeout_s,
                memory_bytes=self._settings.memory_mb << 20,
                num_processes=self._settings.max_processes + self._enclosure.num_own_tasks,
                output_bytes=output_bytes,
            )
            command = Command(self._enclosure, bounds, is_first=self._is_new)
            arguments = _arguments(text, self._enclosure.path(directory))
            variables = {_clean(name): _clean(value) for name, value in {**self._environment, **environment}.items()}
            try:
                command.run(arguments, variables, stdin)
            except SandboxError:
                self._close()
                raise
            self._is_new = False
            return command

    def close(self) -> None:
        """Ends everything in it; see `Sandbox`."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._enclosure.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arguments(text: str, directory: str) -> list[bytes]:
    text = _clean(text)
    parts = [text[at : at + _PART] for at in range(0, len(text), _PART)] or [""]
    return [part.encode() for part in ("/bin/sh", "-c", _ENTER, "sh", _clean(directory), *parts)]


def _clean(text: str) -> str:
    """What the kernel takes: it ends texts at a NUL, and a lone half of a surrogate pair has no encoding."""
    return text.replace("\0", "").encode(errors="replace").decode()
