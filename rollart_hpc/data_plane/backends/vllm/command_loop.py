"""The command-driven event loop of an inference worker in its own thread (paper section 6.1).

    take commands -> ADD, ABORT, CALL      between two steps, in the order they came
    answer what they finished
    one engine step                        unless suspended or idle
    answer what it finished                before the next step

Consumes commands from a queue, produces answers, waits for a command when it is idle or suspended.

Invariants: the engine is touched by this thread only; an error of one request is its answer; any other exception
ends the loop, and no command is left without an end.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from rollart_hpc.data_plane.backends.admission import AdmittedRequest, admit, refusal
from rollart_hpc.data_plane.backends.outstanding import Key
from rollart_hpc.data_plane.backends.vllm import compat
from rollart_hpc.data_plane.backends.vllm.running import RunningRequest, UsageCounter
from rollart_hpc.data_plane.backends.vllm.sampling import FINISH_REASONS, SamplingCache
from rollart_hpc.data_plane.backends.vllm.steppers import StepOutput, Stepper
from rollart_hpc.data_plane.engine import Answer
from rollart_hpc.errors import EngineError, RollartError
from rollart_hpc.types import FinishReason, GenerateRequest, TagUsage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Add:
    inbox: str
    requests: Sequence[GenerateRequest]


@dataclass(frozen=True, slots=True)
class _Abort:
    keys: Sequence[Key]


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    future: Future[Any]


class CommandLoop:
    """Owns a `Stepper` and the requests that run on it; everything but `run` may be called by any thread."""

    def __init__(self, open_stepper: Callable[[], Stepper], emit: Callable[[list[Answer]], None]) -> None:
        self._open_stepper, self._emit = open_stepper, emit
        self._commands: queue.SimpleQueue[_Add | _Abort | _Call] = queue.SimpleQueue()
        self._end_lock = threading.Lock()
        self._ended = False
        self._closing = False
        self._suspended = False
        self._version = 0
        self._ids = itertools.count()
        self._running: dict[str, RunningRequest] = {}
        self._id_of: dict[Key, str] = {}
        self._probes: dict[str, Future[list[float]]] = {}
        self._answers: list[Answer] = []
        self._usage = UsageCounter()
        self._unshared_s = 0.0
        """Time of steps that gave no token: parts of a long prefill. The next one's requests share it."""

    @property
    def version(self) -> int:
        """The version that is loaded."""
        return self._version

    def usage(self) -> dict[str, TagUsage]:
        """By tag."""
        return self._usage.by_tag()

    def add(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        """ADD; no key may be outstanding already."""
        self._post(_Add(inbox, requests))

    def abort(self, keys: Iterable[Key]) -> None:
        """ABORT."""
        self._post(_Abort(list(keys)))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """CALL: runs a function between two steps; gives its result."""
        future: Future[T] = Future()
        if not self._post(_Call(function, future)):
            future.set_exception(EngineError("the engine has ended"))
        return future

    def probe(self, token_ids: list[int]) -> Future[list[float]]:
        """Logprobs of tokens 1.. under the loaded weights."""
        future: Future[list[float]] = Future()
        # The probe ends some steps after its command, so the command's own future only carries its failure.
        self.call(lambda: self._start_probe(token_ids, future)).add_done_callback(
            lambda started: _forward_exception(started, future)
        )
        return future

    def suspend(self) -> None:
        """In the loop: no step any more."""
        self._suspended = True

    def resume(self) -> None:
        """In the loop: goes on."""
        self._suspended = False

    def replace_weights(self, version: int, tensors: list[tuple[str, Any]]) -> None:
        """In the loop, while suspended: swaps the weights and drops all KV."""
        if not self._suspended:
            raise EngineError("load needs a suspended engine; call suspend first")
        for running in self._running.values():
            running.cut(self._version)
        self._stepper.replace_weights(tensors)
        self._stepper.drop_kv()
        self._version = version

    def close(self) -> None:
        """In the loop: ends it."""
        self._closing = True

    def run(self, started: Future[None]) -> None:
        """Serves until `close`; the thread's main function.

        Args:
            started: done when the model is loaded, or with the exception that prevented it.

        Raises:
            Exception: the engine failed; whatever it still owed has no answer.
        """
        started.set_running_or_notify_cancel()
        try:
            self._stepper = self._open_stepper()
        except BaseException as error:
            self._end(error)
            started.set_exception(error)
            return
        try:
            self._serve(started)
        finally:
            self._stepper.close()

    def _serve(self, started: Future[None]) -> None:
        try:
            self._sampling = SamplingCache(final_only=False)
            self._request_errors = compat.request_errors()
            self._warm_up()
        except BaseException as error:
            self._end(error)
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            while not self._closing:
                self._take_commands()
                if self._is_busy():
                    self._step()
                    self._flush()
            self._end(EngineError("the engine was closed"))
        except BaseException as error:
            self._end(error)
            raise

    def _step(self) -> None:
        begin = time.perf_counter()
        outputs = list(self._stepper.step())
        self._unshared_s += time.perf_counter() - begin
        if outputs:
            share_s, self._unshared_s = self._unshared_s / len(outputs), 0.0
            for output in outputs:
                self._take_output(output, share_s)

    def _is_busy(self) -> bool:
        return not self._suspended and bool(self._running or self._probes)

    def _warm_up(self) -> None:
        # A model that the kernels refuse fails here and not at the first request.
        self._stepper.add("warm-up", [0, 0], self._sampling.of_probe())
        while not any(output.finish_reason for output in self._stepper.step()):
            pass

    def _post(self, command: _Add | _Abort | _Call) -> bool:
        with self._end_lock:
            if not self._ended:
                self._commands.put(command)
            return not self._ended

    def _end(self, error: BaseException) -> None:
        with self._end_lock:
            self._ended = True
        for probe in self._probes.values():
            probe.set_exception(error)
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, _Call) and command.future.set_running_or_notify_cancel():
                command.future.set_exception(error)

    def _take_commands(self) -> None:
        if not self._is_busy():
            self._execute(self._commands.get())
        while not self._closing:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                break
            self._execute(command)
        self._flush()

    def _execute(self, command: _Add | _Abort | _Call) -> None:
        match command:
            case _Add(inbox, requests):
                for request in requests:
                    self._start(inbox, request)
            case _Abort(keys):
                for key in keys:
                    self._abort(key)
            case _Call(function, future):
                # False when the caller has given up; from here on it cannot any more.
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    future.set_result(function())
                except RollartError as error:
                    future.set_exception(error)
                except BaseException as error:
                    future.set_exception(error)
                    raise

    def _start(self, inbox: str, request: GenerateRequest) -> None:
        admitted = admit(request, self._stepper.limits)
        if not isinstance(admitted, AdmittedRequest):
            self._answers.append((inbox, admitted))
            return
        vllm_id = str(next(self._ids))
        try:
            params = self._sampling.of(request, admitted.max_tokens)
            self._stepper.add(vllm_id, admitted.token_ids, params)
        except self._request_errors as error:
            self._answers.append((inbox, refusal(request, f"{type(error).__name__}: {error}")))
            return
        self._running[vllm_id] = RunningRequest(inbox, request, len(admitted.token_ids))
        self._id_of[inbox, request.request_id] = vllm_id

    def _abort(self, key: Key) -> None:
        if vllm_id := self._id_of.pop(key, None):
            self._stepper.abort(vllm_id)
            running = self._running.pop(vllm_id)
            self._usage.count(running)
            self._answers.append((running.inbox, running.result(self._version, FinishReason.ABORT)))

    def _start_probe(self, token_ids: list[int], future: Future[list[float]]) -> None:
        if self._suspended:
            raise EngineError("a suspended engine cannot be probed; call resume first")
        if not future.set_running_or_notify_cancel():
            return
        vllm_id = f"probe-{next(self._ids)}"
        self._stepper.add(vllm_id, token_ids, self._sampling.of_probe())
        self._probes[vllm_id] = future

    def _take_output(self, output: StepOutput, share_s: float) -> None:
        running = self._running.get(output.request_id)
        if running is None:
            if output.request_id in self._probes and output.prompt_logprobs is not None:
                self._probes.pop(output.request_id).set_result(output.prompt_logprobs)
            return
        running.extend(output, share_s)
        if output.finish_reason is None:
            return
        del self._running[output.request_id]
        del self._id_of[running.inbox, running.request.request_id]
        self._usage.count(running)
        reason = FINISH_REASONS.get(output.finish_reason)
        if reason is None:
            answer = refusal(running.request, f"vLLM ended the request with {output.finish_reason}")
        else:
            answer = running.result(self._version, reason)
        self._answers.append((running.inbox, answer))

    def _flush(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self._emit(answers)


def _forward_exception(source: Future[None], target: Future[list[float]]) -> None:
    error = source.exception()
    if error is not None and not target.done():
        target.set_exception(error)
