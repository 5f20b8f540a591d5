"""The emulated policy: tokens that mean nothing, and log-probabilities that tell which version gave them.

Engines and trainers of one run agree on it, so that the probe of a weight update and the gap between sampler and
trainer are checked as in a real run.
"""

from __future__ import annotations

import zlib

import numpy as np

from rollart_hpc.types import Float32Array, GenerateRequest, Int32Array

_LEVELS = 97
"""Prime: two versions differ on every token unless they are a multiple of it apart."""


def sample(inbox: str, request: GenerateRequest, *, num_ids: int, vocab_size: int, stops: bool) -> Int32Array:
    """[num_ids] of one request, the same each time; the last one is a stop token where it ``stops`` and has one."""
    seed = request.seed if request.seed is not None else zlib.crc32(f"{inbox}/{request.request_id}".encode())
    token_ids = np.random.default_rng(seed).integers(vocab_size, size=num_ids, dtype=np.int32)
    stop_ids = request.stop_token_ids
    if stop_ids:
        plain = next((token_id for token_id in range(vocab_size) if token_id not in stop_ids), 0)
        token_ids[np.isin(token_ids, stop_ids)] = plain
        if stops:
            token_ids[-1] = stop_ids[0]
    return token_ids


def logprobs(token_ids: Int32Array, version: int) -> Float32Array:
    """[T] of each token under a version, whatever stands before it and whatever the temperature."""
    levels = (token_ids.astype(np.int64) * 31 + version * 17) % _LEVELS
    return (-(levels + 1) / _LEVELS).astype(np.float32)
