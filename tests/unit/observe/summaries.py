"""A summary as the controller writes it when all went well."""

import copy
from typing import Any

_GOOD: dict[str, Any] = {
    "run": "test",
    "attempt": 1,
    "steps": 3,
    "weight_version": 3,
    "published_version": 3,
    "confirmed_version": 3,
    "alpha": 1,
    "schedule": {"alpha": 1, "stale": "abort"},
    "dtype": "float32",
    "trajectories": {
        "dispatched": 20,
        "trained": 12,
        "stale": 1,
        "redundant": 2,
        "failed": 1,
        "truncated": 0,
        "poisoned": 0,
        "pending": 4,
    },
    "causes": {"failed: environment died": 1},
    "weight_sync_seconds": {"prefetch": 0.1, "suspended": 0.01, "upload": 0.2},
    "probe_gap_max": 1e-6,
    "max_staleness_trained": 1,
    "tasks": {
        "lake": {
            "success_first": 0.25,
            "success_last": 0.75,
            "reward_last": 0.7,
            "turns_mean": 4.5,
            "prefix_cached_share": 0.8,
            "tokens_by_hardware": {"H20": 1000},
            "seconds_per_trajectory": {"generate": 0.1},
        }
    },
    "profile": {"lake": {"hardware": {}}},
    "affinity": {"mode": "static", "mapping": {"lake": "any"}, "changes": 0, "advice": ""},
    "tokens_generated": 1000,
    "tokens_trained": 800,
    "tokens_per_s": 100.0,
    "seconds": {"total": 10.0, "startup": 4.0, "train_step": 5.0, "other": 1.0},
    "logprob_gap": {"mean": 1e-6, "max": 1e-5, "tokens": 500},
}


def summary(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(_GOOD), **changes}
