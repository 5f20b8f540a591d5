"""Patches as git writes them, file by file.

The parser is strict: what it does not understand whole, line by line as the hunks count them, is refused. A patch comes
from a sandbox in which the policy may have put anything in git's place; a lenient parser and ``git apply`` could read
two different things from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_MODE = re.compile(rb"(?:old mode|new mode|new file mode|deleted file mode) \d{6}$")
_NAMED = re.compile(rb"(?:rename|copy) (?:from|to) (.+)$")
_PLAIN = re.compile(rb"(?:dis)?similarity index \d+%$|index [0-9a-f]+\.\.[0-9a-f]+(?: \d{6})?$")
_BINARY_SIZE = re.compile(rb"(?:literal|delta) \d+$")
_BINARY_LINE = re.compile(rb"[A-Za-z][!-~]+$")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class MalformedPatchError(ValueError):
    """The text is no patch in git's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """What a patch does to one file."""

    paths: tuple[str, ...]
    """Relative to the repository; two where it is renamed or copied."""
    creates: bool
    text: bytes


def parse_patch(data: bytes) -> list[FilePatch]:
    """The patch by its files.

    Raises:
        MalformedPatchError: it has anything that git would not have written.
    """
    if not data.strip():
        return []
    return _Parser(data).files()


class _Parser:
    def __init__(self, data: bytes) -> None:
        self._lines = data.split(b"\n")
        if self._lines[-1] == b"":
            self._lines.pop()
        self._at = 0

    def files(self) -> list[FilePatch]:
        files: list[FilePatch] = []
        while self._at < len(self._lines):
            files.append(self._file())
        return files

    def _peek(self) -> bytes:
        return self._lines[self._at] if self._at < len(self._lines) else b""

    def _next(self) -> bytes:
        line = self._peek()
        self._at += 1
        return line

    def _refuse(self, expected: str) -> MalformedPatchError:
        return MalformedPatchError(f"line {self._at + 1} of the patch is {self._peek()!r:.100}; expected {expected}")

    def _file(self) -> FilePatch:
        begin = self._at
        if not self._peek().startswith(b"diff --git "):
            raise self._refuse("diff --git")
        header = self._next().removeprefix(b"diff --git ")
        named, creates = self._extended_header()
        paths = {_without_prefix(name) for name in _both_names(header)} or set(named)
        if not paths or (named and set(named) != paths and _both_names(header)):
            self._at = begin
            raise self._refuse("two names")
        creates |= self._peek() == b"--- /dev/null"
        if self._peek().startswith(b"--- "):
            self._text_hunks(paths)
        elif self._peek() == b"GIT binary patch":
            self._binary_hunks()
        elif self._peek().startswith(b"Binary files ") and self._peek().endswith(b" differ"):
            self._next()
        text = b"\n".join(self._lines[begin : self._at]) + b"\n"
        # To patch, which applies what git does not, this is a file that is made whatever the names say.
        creates |= b"\n@@ -0,0 " in text
        names = tuple(sorted(path.decode(errors="surrogateescape") for path in paths))
        return FilePatch(paths=names, creates=creates, text=text)

    def _extended_header(self) -> tuple[list[bytes], bool]:
        named: list[bytes] = []
        creates = False
        while True:
            line = self._peek()
            if match := _NAMED.match(line):
                named.append(_unquoted(match[1]))
                creates |= b" to " in line
            elif not (_MODE.match(line) or _PLAIN.match(line)):
                return named, creates
            creates |= line.startswith(b"new file")
            self._at += 1

    def _text_hunks(self, paths: set[bytes]) -> None:
        for prefix in (b"--- ", b"+++ "):
            line = self._peek()
            name = _unquoted(line.removeprefix(prefix).split(b"\t")[0])
            if not line.startswith(prefix) or (name != b"/dev/null" and _without_prefix(name) not in paths):
                raise self._refuse(f"{prefix.decode()}and a name of the header")
            self._at += 1
        while match := _HUNK.match(self._peek()):
            self._at += 1
            self._hunk(int(match[1] or b"1"), int(match[2] or b"1"))

    def _hunk(self, num_old: int, num_new: int) -> None:
        while num_old or num_new or self._peek().startswith(b"\\"):
            kind = self._peek()[:1]
            if self._at >= len(self._lines) or kind not in b" +-\\" or min(num_old, num_new) < 0:
                raise self._refuse("a line of a hunk")
            num_old -= kind in b" -"
            num_new -= kind in b" +"
            self._at += 1

    def _binary_hunks(self) -> None:
        self._at += 1
        while _BINARY_SIZE.match(self._peek()):
            self._at += 1
            while _BINARY_LINE.match(self._peek()):
                self._at += 1
            if self._peek():
                raise self._refuse("the end of a binary hunk")
            self._at += 1


def _both_names(header: bytes) -> set[bytes]:
    """The two names of ``diff --git``; empty where they differ, which the lines of a rename or copy tell then."""
    if quoted := _QUOTED.match(header):
        first, second = _unquoted(quoted[0]), _unquoted(header[quoted.end() + 1 :])
    else:
        half = len(header) // 2
        first, second = header[:half], _unquoted(header[half + 1 :])
    return {first, second} if first[2:] == second[2:] and len(first) > 2 else set()


def _without_prefix(name: bytes) -> bytes:
    if not name.startswith((b"a/", b"b/")):
        raise MalformedPatchError(f"the patch names {name!r:.100}; expected a/ or b/ before the path")
    return name[2:]


def _unquoted(name: bytes) -> bytes:
    """The name that git put in quotes for its unusual characters."""
    match = _QUOTED.fullmatch(name)
    if not match:
        return name

    def character(escape: re.Match[bytes]) -> bytes:
        code = escape[1]
        return bytes([int(code, 8) & 0xFF]) if code.isdigit() else _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, match[1])
