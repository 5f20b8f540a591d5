"""The records that travel between processes.

All are frozen msgspec structs (see `rollart_hpc.bus.codec`). Token ids, logprobs and versions travel as
raw little-endian arrays: numpy fields where they are computed on, ``bytes`` on the path of a turn, where
an array object would cost more than the message itself.

One word per idea: a *trajectory* is one episode of one environment; its *turns* alternate observation and
action; g trajectories of one seed are a *group*; a *version* counts the trainer's optimizer steps.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


class Role(StrEnum):
    """The kinds of worker process."""

    ACTOR_TRAIN = "actor_train"
    ACTOR_GEN = "actor_gen"
    ENVIRONMENT = "environment"
    REWARD = "reward"


class Outcome(StrEnum):
    """How a dispatched trajectory ends; exactly one of these, or it is pending."""

    TRAINED = "trained"
    STALE = "stale"
    REDUNDANT = "redundant"
    FAILED = "failed"
    TRUNCATED = "truncated"
    POISONED = "poisoned"


class FinishReason(StrEnum):
    """Why generation of one turn ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    CONTEXT = "context"
    """The prompt leaves no room for a single token of the model's context; nothing was generated."""


# --- generation: environment worker <-> generation worker -------------------------------------------


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Tokens ``start <= i < end`` of a response (or a trajectory) were sampled by ``version``."""

    version: int
    start: int
    end: int


class GenerateRequest(msgspec.Struct, frozen=True, array_like=True):
    """One turn to generate (the ADD command). Token in, token out."""

    request_id: int
    """Unique per reply inbox and idempotent: the same id sent twice is generated once."""
    token_ids: bytes
    """Prompt, int32 little-endian."""
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    tag: str = "default"
    """The task's tag: what hardware affinity and the profiler go by."""
    seed: int | None = None
    """None samples from the engine's generator; a number makes this request deterministic."""


class GenerateResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one `GenerateRequest`, sent as soon as that request finishes."""

    request_id: int
    token_ids: bytes
    """Response, int32 little-endian, including the stop token where there is one."""
    logprobs: bytes
    """float32 little-endian, one per response token, under temperature and top_p as sampled."""
    spans: tuple[Span, ...]
    """Which weight version sampled which response tokens; together they cover the response."""
    finish_reason: FinishReason
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    error: str = ""
    """Not empty: the engine refused or lost the request; the other fields mean nothing."""


class TagUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the ended requests of one tag took so far; what the profiler goes by.

    A request counts when it ends with a token, an aborted one too. Seconds are those of the engine and not of the
    requests: each moment in which it works is shared equally by the requests that it works on, so that the sums over
    all tags are the time in which it was busy. A request that waits and an engine that is suspended add nothing.
    """

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache when the request began."""
    num_new_tokens: int = 0
    prefill_s: float = 0.0
    """Until the first token."""
    decode_s: float = 0.0
    """From the first token to the last."""
    recompute_s: float = 0.0
    """From a weight update until the first token after it, of requests that had tokens; in neither of the two above."""

    def plus(self, other: TagUsage) -> TagUsage:
        """Both together."""
        return TagUsage(
            num_requests=self.num_requests + other.num_requests,
            num_prompt_tokens=self.num_prompt_tokens + other.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens + other.num_cached_tokens,
            num_new_tokens=self.num_new_tokens + other.num_new_tokens,
            prefill_s=self.prefill_s + other.prefill_s,
            decode_s=self.decode_s + other.decode_s,
            recompute_s=self.recompute_s + other.recompute_s,
        )


# --- an episode as reward functions see it ----------------------------------------------------------


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange with the environment."""

    observation: str
    """What the policy saw before it acted."""
    action: str
    """The text that the policy wrote."""
    reward: float
    """The environment's own reward for this action."""
    finish_reason: FinishReason


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """What a reward function gets: a finished episode in text."""

    task: str
    seed: int
    turns: list[Turn]
    final_observation: str
    terminated: bool
    """The environment reached an end."""
    truncated: bool
    """The episode was cut: turn limit, context length or the environment's own limit."""
    info: dict[str, Any]
    """The info mapping of the last step, over that of reset."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A reward with what is worth watching beside it."""

    reward: float
    success: bool = False
    metrics: dict[str, float] = {}


# --- tickets and trajectories -----------------------------------------------------------------------


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """An order to play one trajectory; pushed by the rollout scheduler to one environment worker."""

    trajectory_id: str
    group_id: str
    task: str
    seed: int
    """Of the environment; the same for all members of a group."""
    admitted_version: int
    """Version that the generation workers held when the group was opened."""
    timeout_s: float | None = None
    """The trajectory's deadline, from its arrival to its score; None for `rollout.trajectory_timeout_s`."""
    turn_timeout_s: float | None = None
    """Of each turn, generation and step; None for the task's `turn_timeout_s`."""
    log: TurnLog | None = None
    """Where an earlier attempt, or a worker that left, was with it: it goes on from there if its environment can be
    rebuilt."""


class TurnLog(msgspec.Struct, frozen=True, kw_only=True):
    """A running trajectory as its environment worker hands it in when the run stops or the worker leaves: all that was
    played so far."""

    trajectory_id: str
    group_id: str
    task: str
    seed: int
    turns: tuple[Turn, ...]
    """Those that the environment has answered."""
    observation: str
    """What follows the last turn, or the reset: the policy has not answered it, or only with ``action``."""
    action: str | None
    """Sampled after ``observation``, its answer was not there yet; None when nothing was sampled."""
    finish_reason: FinishReason | None
    """Of ``action``."""
    token_ids: bytes
    """[T] int32, observations and responses in order, those of ``observation`` and ``action`` included."""
    loss_mask: bytes
    """[T] uint8, 1 on tokens that the policy sampled."""
    logprobs: bytes
    """[T] float32, 0 where the mask is 0."""
    spans: tuple[Span, ...]
    """Versions by position; they cover every sampled token."""
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0
    tokens_by_hardware: dict[str, int] = {}
    """As in `Trajectory`."""
    seconds: dict[str, float] = {}
    """Wall time by phase, as in `Trajectory`."""

    @property
    def start_version(self) -> int | None:
        """Version of the first sampled token; None while nothing is sampled."""
        return self.spans[0].version if self.spans else None


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One finished trajectory, scored or failed."""

    trajectory_id: str
    group_id: str
    task: str
    seed: int
    worker: str
    """Member id of the environment worker that played it."""
    token_ids: Int32Array
    """[T] observations and responses in order: exactly what the engine saw."""
    loss_mask: npt.NDArray[np.uint8]
    """[T] 1 on tokens that the policy sampled."""
    logprobs: Float32Array
    """[T] the sampler's logprobs; 0 where the mask is 0."""
    spans: tuple[Span, ...]
    """Versions by position in ``token_ids``; they cover every sampled token."""
    start_version: int
    """Version of the first sampled token: what the staleness bound goes by."""
    reward: float
    success: bool
    truncated: bool
    num_turns: int
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0
    """Prompt tokens over all turns, cached ones included."""
    tokens_by_hardware: dict[str, int] = {}
    """Sampled tokens by the hardware class of the worker that sampled them."""
    failure: str = ""
    """Not empty: the kind of an infrastructure failure, the same for all of its kind; reward and arrays mean
    nothing."""
    failure_detail: str = ""
    """What happened this time, for people."""
    retryable: bool = True
    seconds: dict[str, float] = {}
    """Wall time by phase: generate, environment, reward."""
    slowest_turn_s: float = 0.0
    """Of its turns, generation and step."""
    metrics: dict[str, float] = {}
    num_continued_turns: int = 0
    """Turns that it went on from, of an earlier attempt or a worker that left; the environment was rebuilt by playing
    them again."""
    restarted: str = ""
    """Not empty: it had turns to go on from and started again all the same, for this reason."""

    def token_versions(self) -> Int32Array:
        """[T] version that sampled each token, -1 where none did."""
        versions = np.full(len(self.token_ids), -1, np.int32)
        for span in self.spans:
            versions[span.start : span.end] = span.version
        return np.where(self.loss_mask > 0, versions, -1).astype(np.int32)


# --- training ---------------------------------------------------------------------------------------


class TrainBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One data-parallel rank's share of a batch; B sequences packed one after the other, T tokens in all.

    The loss of a step is the sum over all ranks' tokens of ``loss_weights * policy loss``: the weights
    carry the global denominators, so no rank or micro-batch averages anything by itself.
    """

    step: int
    token_ids: Int32Array
    """[T]"""
    lengths: Int32Array
    """[B] tokens of each sequence; their sum is T."""
    advantages: Float32Array
    """[T]"""
    loss_weights: Float32Array
    """[T] 0 on tokens that are not trained; token i is predicted from the tokens before it."""
    sampler_logprobs: Float32Array
    """[T]"""
    same_version: npt.NDArray[np.uint8]
    """[T] 1 where the sampler's version is the trainer's version at this step."""


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A `TrainBatch` that is too large for the bus and lies in the weight store."""

    key: str


class TrainStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one train step reports; equal on every rank."""

    step: int
    loss: float
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    clip_fraction: float
    """Share of trained tokens whose ratio was clipped."""
    ratio_mean: float
    entropy: float
    """Mean over trained tokens, nats."""
    num_tokens: int
    """Tokens with a non-zero loss weight, all ranks."""
    gap_sum: float
    """Sum over same-version tokens of |sampler logprob - trainer logprob|."""
    gap_max: float
    gap_count: int
    seconds: dict[str, float] = {}


# --- weights ----------------------------------------------------------------------------------------


class TensorSlot(msgspec.Struct, frozen=True, array_like=True):
    """Where one tensor lies in its bucket."""

    name: str
    dtype: str
    """torch's name without the prefix: float32, bfloat16, ..."""
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """One object in the weight store."""

    key: str
    size_bytes: int
    checksum: str
    """xxh3-64 of the bucket's bytes, hexadecimal."""
    tensors: tuple[TensorSlot, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One published version: committed last, by compare-and-set, when every bucket is in the store."""

    version: int
    attempt: int
    buckets: tuple[Bucket, ...]
    probe_token_ids: bytes
    """int32; a short sequence whose logprobs tell whether the right weights are loaded."""
    probe_logprobs: bytes
    """float32; the trainer's logprobs of tokens 1.. of the probe under this version, no temperature."""

    @property
    def digest(self) -> str:
        """xxh3-64 over all buckets, hexadecimal: equal for equal weights in buckets of one size and layout."""
        return xxhash.xxh3_64_hexdigest("".join(bucket.checksum for bucket in self.buckets).encode())

    @property
    def size_bytes(self) -> int:
        """Bytes of all buckets."""
        return sum(bucket.size_bytes for bucket in self.buckets)
