"""Reward of a mathematical answer, by the library math-verify: ``2x+2`` is ``2(x+1)``, ``0.5`` is ``\\frac{1}{2}``.

Some texts keep a computer algebra system busy for ever (``9^{9^{9^9}}``), and the library's own limit is a signal that
only a main thread gets. So every verification runs in a process of its own, a fork of a template that has the library
imported:

  score() ── socket ──▶ template ── fork ──▶ verification ── pipe ──▶ template ── socket ──▶ score()

Invariants:
  - A verification has ``cpu_limit_s`` of processor time, by the kernel; waiting for a processor does not count. One
    that uses it up, or more memory than it may, is wrong, with the metric ``unverifiable``: it is the policy's text
    that burns. A right answer that cannot be read is a fault of the data, and raised.
  - None delays others: as many run at the same time as there are processors, and one that is not done after `QUICK_S`
    no longer counts among them; one that has used that much processor time goes on with a low priority.
  - Verifications die with the template, and the template dies with its parent.

Run as a program, this file is the template.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from rollart_hpc.types import Episode, Score

QUICK_S = 0.2
_WALL_LIMIT_S = 60.0
"""Of one that gets no processor: a fault of the machine."""
_MEMORY_LIMIT_BYTES = 2 << 30
_MAX_RUNNING = 64
_MAX_LENGTH = 20_000
"""Characters of a text; of a longer one its end counts."""
_LINE_BYTES = 1 << 20
_READ, _UNREADABLE, _RIGHT, _WRONG, _BROKEN = b"r", b"u", b"1", b"0", b"b"
"""What a verification writes: that the right answer is read, or cannot be; then one of the other three."""


async def score(
    episode: Episode,
    *,
    field: str = "answer",
    boxed: bool = True,
    right: float = 1.0,
    wrong: float = 0.0,
    unanswered: float = 0.0,
    cpu_limit_s: int = 2,
) -> Score:
    """``right`` if the policy's last text gives the answer in ``episode.info[field]``, or one of those in a list there.

    Args:
        episode: a finished episode.
        field: of the info, with the right answer: LaTeX, a number, or a list of these.
        boxed: only the last ``\\boxed{}`` counts; otherwise whatever math-verify finds in the text.
        right: the reward of a right answer.
        wrong: the reward of a wrong answer, and of one that cannot be verified.
        unanswered: the reward of a text without an answer.
        cpu_limit_s: processor time of a verification, whole seconds.
    """
    expected = _right_answers(episode, field)
    text = episode.turns[-1].action[-_MAX_LENGTH:] if episode.turns else ""
    given = _last_box(text) if boxed else text.strip()
    if not given:
        return Score(reward=unanswered, metrics={"answered": 0.0, "unverifiable": 0.0})
    verdict = await _template().verify(expected, given, cpu_limit_s)
    metrics = {"answered": 1.0, "unverifiable": float(verdict == "unverifiable")}
    return Score(reward=right if verdict == "right" else wrong, success=verdict == "right", metrics=metrics)


def _right_answers(episode: Episode, field: str) -> list[str]:
    if field not in episode.info:
        raise KeyError(f"the info has no {field!r}, only {sorted(episode.info)}; name the field of the right answer")
    value: Any = episode.info[field]
    answers = value if isinstance(value, list | tuple) else [value]
    if not answers or any(isinstance(answer, bool) or not isinstance(answer, str | int | float) for answer in answers):
        raise ValueError(f"info[{field!r}] is {value!r:.80}; expected LaTeX, a number, or a list of these")
    # A float in plain digits: 1e-05 would be read as a difference.
    texts = [format(Decimal(str(answer)), "f") if isinstance(answer, float) else str(answer) for answer in answers]
    return [text if "\\boxed" in text or "$" in text else f"\\boxed{{{text}}}" for text in texts]


def _last_box(text: str) -> str | None:
    """The last ``\\boxed{}`` with what it holds; None if there is none, if it never ends or is empty."""
    begin = text.rfind("\\boxed{")
    depth = 0
    for position in range(begin + len("\\boxed"), len(text) if begin >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin : position + 1] if text[begin + len("\\boxed{") : position].strip() else None
    return None


# --- the side of the reward function ------------------------------------------------------------------


class _Template:
    """The template process, as one event loop sees it."""

    def __init__(self) -> None:
        self._ids = count()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def verify(self, expected: Sequence[str], given: str, cpu_limit_s: int) -> str:
        """Right, wrong or unverifiable.

        Raises:
            ValueError: a right answer cannot be read.
            RuntimeError: there is no verdict, by no fault of the text.
        """
        async with self._starting:
            if self._writer is None:
                await self._start()
        assert self._writer is not None
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "expected": list(expected), "given": given, "cpu_limit_s": cpu_limit_s}
        self._writer.write(json.dumps(request).encode() + b"\n")
        try:
            verdict = await answer
        finally:
            del self._answers[number]
            if answer.cancelled() and self._writer is not None:
                self._writer.write(json.dumps({"cancel": number}).encode() + b"\n")
        if verdict == "unreadable":
            raise ValueError(f"math-verify cannot read the right answer {expected!r:.200}")
        if verdict not in ("right", "wrong", "unverifiable"):
            raise RuntimeError(f"no verdict on {given!r:.80}: {verdict}")
        return verdict

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        with theirs:
            command = [sys.executable, __file__, str(os.getpid())]
            # From this thread, with which the template dies; another one might end at once.
            self._process = subprocess.Popen(command, stdin=theirs, env=environment)  # noqa: ASYNC220
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        self._reading = asyncio.create_task(self._read(reader, self._writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if (answer := self._answers.get(message["id"])) is not None and not answer.done():
                    answer.set_result(message["verdict"])
        except (OSError, ValueError):
            pass
        finally:
            writer.close()
            self._writer = None
            if self._process is not None:
                self._process.poll()
            _templates.pop(asyncio.get_running_loop(), None)
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_result("the verifying process ended; is the package math-verify installed?")


_templates: dict[asyncio.AbstractEventLoop, _Template] = {}
"""Those that are alive, one an event loop."""


def _template() -> _Template:
    return _templates.setdefault(asyncio.get_running_loop(), _Template())


# --- the template and its forks -----------------------------------------------------------------------


@dataclass(slots=True)
class _Verification:
    """One fork."""

    number: int
    pid: int
    pipe: int
    cpu_limit_s: int
    begin: float = field(default_factory=time.monotonic)
    is_quick: bool = True
    """It has not run for `QUICK_S` yet."""
    is_favoured: bool = True
    """It has not used `QUICK_S` of processor time yet."""
    is_late: bool = False
    written: bytes = b""


class _Server:
    """The template's loop: consumes requests of its socket, produces verdicts; ends when the socket does."""

    def __init__(self, connection: socket.socket, verify: Callable[[Sequence[str], str, int], None]) -> None:
        self._connection = connection
        self._verify = verify
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._received = b""
        self._waiting: deque[dict[str, Any]] = deque()
        self._running: dict[int, _Verification] = {}
        """By the pipe's descriptor."""
        self._num_processors = len(os.sched_getaffinity(0))

    def serve(self) -> None:
        """Until the parent closes its end."""
        while True:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is not self._connection:
                    self._hear(self._running[key.fd])
                elif not self._receive():
                    return
            self._look_after()
            self._begin()

    def _patience(self) -> float | None:
        """Seconds to wait while nothing is heard; None if nothing runs."""
        return QUICK_S / 2 if self._running else None

    def _receive(self) -> bool:
        data = self._connection.recv(1 << 16)
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "cancel" in message:
                self._cancel(message["cancel"])
            else:
                self._waiting.append(message)
        return bool(data)

    def _cancel(self, number: int) -> None:
        self._waiting = deque(request for request in self._waiting if request["id"] != number)
        for one in self._running.values():
            if one.number == number:
                os.kill(one.pid, signal.SIGKILL)

    def _look_after(self) -> None:
        now = time.monotonic()
        for one in self._running.values():
            one.is_quick = now - one.begin < QUICK_S
            if not one.is_quick and one.is_favoured and _cpu_s(one.pid) >= QUICK_S:
                one.is_favoured = False
                os.setpriority(os.PRIO_PROCESS, one.pid, 10)
            if now - one.begin >= _WALL_LIMIT_S and not one.is_late:
                one.is_late = True
                os.kill(one.pid, signal.SIGKILL)

    def _begin(self) -> None:
        template = os.getpid()
        num_quick = sum(one.is_quick for one in self._running.values())
        while self._waiting and num_quick < self._num_processors and len(self._running) < _MAX_RUNNING:
            request = self._waiting.popleft()
            pipe, end = os.pipe()
            pid = os.fork()
            if pid == 0:
                self._connection.close()
                _verify_and_exit(self._verify, request, end, template)
            os.close(end)
            self._running[pipe] = _Verification(request["id"], pid, pipe, request["cpu_limit_s"])
            self._selector.register(pipe, selectors.EVENT_READ)
            num_quick += 1

    def _hear(self, one: _Verification) -> None:
        written = os.read(one.pipe, 64)
        one.written += written
        if written:
            return
        self._selector.unregister(one.pipe)
        os.close(one.pipe)
        del self._running[one.pipe]
        _, status, usage = os.wait4(one.pid, 0)
        unused_s = one.cpu_limit_s - usage.ru_utime - usage.ru_stime
        verdict = _verdict(one.written, os.waitstatus_to_exitcode(status), unused_s)
        self._connection.sendall(json.dumps({"id": one.number, "verdict": verdict}).encode() + b"\n")


def _cpu_s(pid: int) -> float:
    """Processor time of a child that is not waited for yet."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _verdict(written: bytes, exit_code: int, unused_s: float) -> str:
    """What the fork's last words and its end mean."""
    known = {_READ + _RIGHT: "right", _READ + _WRONG: "wrong", _UNREADABLE: "unreadable"}
    if written in known:
        return known[written]
    if exit_code == -signal.SIGKILL and unused_s > 0:
        return (
            f"it was killed with {unused_s:.1f} s of processor time left; is the machine out of memory or overloaded?"
        )
    return "unverifiable" if written.startswith(_READ) else "unreadable"


def _verify_and_exit(
    verify: Callable[[Sequence[str], str, int], None], request: Mapping[str, Any], pipe: int, template: int
) -> None:
    """The life of a fork."""
    try:
        _die_with(template)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_limit_s"], request["cpu_limit_s"] + 1))
        verify(request["expected"], request["given"], pipe)
    except BaseException:
        # Whatever a text raises in the library, memory and recursion included, is the text's.
        os.write(pipe, _BROKEN)
    finally:
        os._exit(0)


def _verify_one(expected: Sequence[str], given: str, pipe: int) -> None:
    from math_verify import parse, verify  # noqa: PLC0415

    zero = parse("0", parsing_timeout=None)
    readings = []
    for answer in expected:
        try:
            readings.append(parse(answer, parsing_timeout=None))
        except Exception:
            readings.append([])
    if not all(readings):
        os.write(pipe, _UNREADABLE)
        return
    for reading in readings:
        # One that burns here would burn with every answer: this is before the mark, so it counts as unreadable.
        verify(reading, zero, timeout_seconds=None)
    os.write(pipe, _READ)
    answer = parse(given, parsing_timeout=None)
    is_right = any(verify(reading, answer, timeout_seconds=None) for reading in readings)
    os.write(pipe, _RIGHT if is_right else _WRONG)


def _die_with(parent: int) -> None:
    """Ends this process when its parent ends, also if that is the case already (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _main(parent: int) -> None:
    _die_with(parent)
    # A terminal's interrupt is the parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # This file has the library's name: its folder, which a program's path begins with, must not hide the library.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    import logging  # noqa: PLC0415

    # The library warns at every call that it sets no limit of its own.
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify  # noqa: PLC0415

    for text in ("\\boxed{\\frac{1}{2}}", "\\boxed{2(x+1)}", "\\boxed{\\{1,2\\}}", "\\boxed{(1,2]}", "$1.5$", "3"):
        # What the first use of each kind of answer builds is built before the forks, once for all of them.
        verify(parse(text, parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None)
    with socket.socket(fileno=0) as connection:
        _Server(connection, _verify_one).serve()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
