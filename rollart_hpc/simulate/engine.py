"""An engine without a model that takes the time of one: continuous batching on stated hardware (paper section 6.1).

Prompts are prefilled one after the other, and decoding pauses meanwhile; what the prefix cache has is free. Then all
requests that are in the batch decode, a token each in a step. There is one timer, for the next prefill or request that
ends, and what is due is reckoned with the time at which it was due: a late event loop delays answers, not the work.

Token ids are fewer than the tokens that they stand for: the cost is that of tokens, and counts of prompts, responses,
caches and usage are of ids.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollart_hpc.data_plane.backends.admission import AdmittedRequest, ModelLimits, admit
from rollart_hpc.data_plane.backends.outstanding import Key, Outstanding
from rollart_hpc.data_plane.engine import Answer, Deliver, OnFailure
from rollart_hpc.errors import ConfigError, EngineError
from rollart_hpc.simulate import policy
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.cost_model import EngineCost
from rollart_hpc.simulate.decoding import DecodingBatch
from rollart_hpc.simulate.generated import Generated
from rollart_hpc.simulate.kv_memory import KvMemory
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, TagUsage

if TYPE_CHECKING:
    import torch

_ROUNDING_S = 1e-9
"""An event that is due so soon is due: a timer's time and its event's differ by rounding."""


class EmulatedEngine:
    """Implements `Engine`; see the module for its model of time."""

    def __init__(
        self,
        *,
        clock: Clock,
        cost: EngineCost,
        response_tokens: Callable[[str], int],
        tokens_per_id: int,
        max_context: int,
        vocab_size: int,
        kv_tokens: int,
    ) -> None:
        """An engine that was not started.

        Args:
            clock: of the emulation.
            cost: what its steps take.
            response_tokens: tokens of the next response of a tag, before it is cut to what the request allows.
            tokens_per_id: tokens that one id stands for.
            max_context: ids of prompt and response together.
            vocab_size: ids of responses are below it.
            kv_tokens: tokens whose KV it has memory for, such as ``cost.kv_tokens``.

        Raises:
            ConfigError: the memory is too small for one context.
        """
        if kv_tokens < max_context * tokens_per_id:
            raise ConfigError(
                f"the engine has memory for the KV of {kv_tokens} tokens and a context may have "
                f"{max_context * tokens_per_id}; give it more devices or lower model.max_context"
            )
        self._clock, self._cost, self._response_tokens = clock, cost, response_tokens
        self._tokens_per_id = tokens_per_id
        self._limits = ModelLimits(max_context=max_context, vocab_size=vocab_size)
        self._outstanding = Outstanding()
        self._memory = KvMemory(capacity=kv_tokens // tokens_per_id, max_context=max_context)
        self._version = 0
        self._is_suspended = False
        self._requests: dict[Key, Generated] = {}
        """Not ended; each is waiting, in the prefill or in the batch."""
        self._waiting: deque[Generated] = deque()
        self._prefill: Generated | None = None
        self._prefill_left_s = 0.0
        self._batch = DecodingBatch(cost)
        self._answers: list[Answer] = []
        """Ended; delivered by the timer."""
        self._timer: asyncio.TimerHandle | None = None
        self._worked_to_s = 0.0
        """The simulated time up to which the work was reckoned."""
        self._busy_s = 0.0
        self._usage: dict[str, TagUsage] = {}

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self._version

    @property
    def num_running(self) -> int:
        """See `Engine`."""
        return len(self._outstanding)

    @property
    def busy_s(self) -> float:
        """Simulated seconds of work so far; it neither waits for requests nor is suspended in them."""
        return self._busy_s + min(self._due_s(), self._clock.now() - self._worked_to_s) * self._is_working

    def usage(self) -> Mapping[str, TagUsage]:
        """See `Engine`; seconds are simulated ones."""
        return dict(self._usage)

    async def start(self, deliver: Deliver, on_failure: OnFailure) -> None:
        """See `Engine`."""
        self._outstanding.open(deliver, on_failure)

    def add(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        """See `Engine`."""
        fresh = self._outstanding.accept(inbox, requests)
        self._change(lambda: self._enqueue(inbox, fresh))

    def abort(self, inbox: str, request_ids: Iterable[int]) -> None:
        """See `Engine`."""
        self._change(lambda: self._abort(inbox, request_ids))

    async def suspend(self) -> None:
        """See `Engine`; the step that is under way goes on at `resume`."""
        self._outstanding.require_open()
        self._change(lambda: self._set_suspended(True))

    async def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Engine`; takes no time of its own, and the tensors are read and forgotten."""
        if not self._is_suspended:
            raise EngineError("load needs a suspended engine; call suspend first")
        for _ in tensors:
            pass
        self._change(lambda: self._start_again(version))

    async def resume(self) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        self._change(lambda: self._set_suspended(False))

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        """See `Engine`; as `policy.logprobs` has it, takes no time."""
        if self._is_suspended:
            raise EngineError("a suspended engine cannot be probed; call resume first")
        if len(token_ids) > self._limits.max_context:
            raise EngineError(f"the probe has {len(token_ids)} ids; expected at most {self._limits.max_context}")
        return policy.logprobs(np.asarray(token_ids[1:], np.int32), self._version).tolist()

    async def close(self) -> None:
        """See `Engine`."""
        self._lose_all()
        self._outstanding.end("the engine was closed")

    # --- time ------------------------------------------------------------------------------------------

    @property
    def _is_working(self) -> bool:
        return not self._is_suspended and (self._prefill is not None or len(self._batch) > 0)

    def _change(self, change: Callable[[], None]) -> None:
        """Reckons the work up to now, makes a change, and waits for what is due next; an error ends the engine."""
        try:
            self._catch_up(self._clock.now())
            change()
            self._begin_prefill()
            self._set_timer()
        except Exception as error:
            self._lose_all()
            self._outstanding.fail(error)

    def _catch_up(self, now: float) -> None:
        while self._is_working and (due_s := self._due_s()) <= now - self._worked_to_s + _ROUNDING_S:
            self._worked_to_s += due_s
            self._busy_s += due_s
            self._take_next_event()
            self._begin_prefill()
        now = max(now, self._worked_to_s)
        if self._is_working:
            self._work(now - self._worked_to_s)
        self._worked_to_s = now

    def _due_s(self) -> float:
        """Seconds of work until the next event."""
        return self._prefill_left_s if self._prefill is not None else self._batch.seconds_to_next_end()

    def _take_next_event(self) -> None:
        if self._prefill is None:
            for one in self._batch.go_on_to_next_end():
                self._end(one, one.finish_reason)
            return
        one, self._prefill = self._prefill, None
        one.take_prefill(self._prefill_left_s)
        self._keep(one)
        self._batch.join(one)

    def _work(self, seconds: float) -> None:
        """Works for less time than until the next event."""
        self._busy_s += seconds
        if self._prefill is None:
            self._batch.go_on(seconds)
        else:
            self._prefill.take_prefill(seconds)
            self._prefill_left_s -= seconds

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_s = 0.0 if self._answers else self._due_s() if self._is_working else math.inf
        self._timer = None if math.isinf(due_s) else self._clock.call_later(due_s, self._on_time)

    def _on_time(self) -> None:
        self._change(self._deliver)

    def _set_suspended(self, is_suspended: bool) -> None:
        self._is_suspended = is_suspended

    # --- requests --------------------------------------------------------------------------------------

    def _enqueue(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            begun = self._begin(inbox, request)
            if isinstance(begun, GenerateResult):
                self._answers.append((inbox, begun))
            else:
                self._requests[inbox, request.request_id] = begun
                self._waiting.append(begun)

    def _begin(self, inbox: str, request: GenerateRequest) -> Generated | GenerateResult:
        admitted = admit(request, self._limits)
        if not isinstance(admitted, AdmittedRequest):
            return admitted
        wanted = max(1, round(self._response_tokens(request.tag) / self._tokens_per_id))
        num_ids, stops = min(wanted, admitted.max_tokens), wanted <= admitted.max_tokens
        vocab_size = self._limits.vocab_size
        return Generated(
            inbox,
            request,
            prompt=np.asarray(admitted.token_ids, np.int32),
            response=policy.sample(inbox, request, num_ids=num_ids, vocab_size=vocab_size, stops=stops),
            finish_reason=FinishReason.STOP if stops else FinishReason.LENGTH,
            tokens_per_id=self._tokens_per_id,
        )

    def _begin_prefill(self) -> None:
        """Of the request that waits longest, if nothing else is prefilled and its memory is free."""
        if self._prefill is None and self._waiting:
            one = self._waiting[0]
            if (lease := self._memory.hold(one.context, one.num_left)) is not None:
                self._prefill = self._waiting.popleft()
                self._prefill_left_s = self._cost.prefill_s(one.begin_prefill(lease))

    def _abort(self, inbox: str, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            if (one := self._requests.get((inbox, request_id))) is not None:
                self._interrupt(one)
                self._end(one, FinishReason.ABORT)

    def _interrupt(self, one: Generated) -> None:
        """Takes a request from where it is, with what it has."""
        if one is self._prefill:
            self._prefill = None
        elif one.lease is None:
            self._waiting.remove(one)
        else:
            self._batch.leave(one)
            self._keep(one)

    def _start_again(self, version: int) -> None:
        """Drops all KV: what runs waits for its prefill, before those that wait already."""
        running = self._batch.leave_all()
        if self._prefill is not None:
            running.append(self._prefill)
            self._prefill = None
        for one in running:
            one.cut(self._version)
            self._release(one)
        self._memory.forget_all()
        self._waiting.extendleft(reversed(running))
        self._version = version

    def _end(self, one: Generated, reason: FinishReason) -> None:
        if reason is not FinishReason.ABORT:
            self._keep(one)
        self._release(one)
        self._usage[one.request.tag] = self._usage.get(one.request.tag, TagUsage()).plus(one.usage())
        del self._requests[one.inbox, one.request.request_id]
        self._answers.append((one.inbox, one.result(self._version, reason)))

    def _deliver(self) -> None:
        answers, self._answers = self._answers, []
        self._outstanding.settle(answers)

    def _keep(self, one: Generated) -> None:
        if one.lease is not None:
            self._memory.keep(one.lease, one.context)

    def _release(self, one: Generated) -> None:
        if one.lease is not None:
            self._memory.release(one.lease)
            one.lease = None

    def _lose_all(self) -> None:
        """Stops for good; what is outstanding is answered by whoever calls this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._requests.clear()
        self._waiting.clear()
        self._prefill, self._batch = None, DecodingBatch(self._cost)
