"""Every subject, stream and key-value bucket of a run's bus, with its delivery guarantee.

One nats-server belongs to one attempt of one run, with a token of its own: names need no run prefix.

- ``mux.<member>`` (core): requesters to a generation or reward worker. At most once; the requester's deadline
  and the idempotent request id repair losses.
- ``inbox.<member>`` (core): the worker's answers to the requester. At most once, as above.
- ``call.<member>`` (request-reply): controller to any worker. At least once; a call id makes handlers idempotent.
- ``progress`` (core): controller to launcher and other watchers. At most once; metrics.jsonl is the record.
- ``traj.<member>`` (stream TRAJ): environment workers to controller. At least once; deduplicated by trajectory id,
  acknowledged when it is in the journal.
- ``members`` (KV): every process to everyone. Last value with a time to live; the revision is the fencing token.
- ``rendezvous`` (KV): rank 0 of a collective to its peers. Written once per attempt.
- ``weights`` (KV): controller to generation workers. Last value by compare-and-set; never goes back.
"""

from __future__ import annotations

TRAJECTORY_STREAM = "TRAJ"
TRAJECTORY_SUBJECTS = "traj.*"
TRAJECTORY_CONSUMER = "controller"
MEMBERS_BUCKET = "members"
WEIGHTS_BUCKET = "weights"
RENDEZVOUS_BUCKET = "rendezvous"
PROGRESS = "progress"


def mux(member_id: str) -> str:
    """Where a worker takes batched requests."""
    return f"mux.{member_id}"


def inbox(member_id: str) -> str:
    """Where a requester takes batched answers."""
    return f"inbox.{member_id}"


def call(member_id: str) -> str:
    """Where a worker takes method calls."""
    return f"call.{member_id}"


def trajectories(member_id: str) -> str:
    """Where an environment worker publishes finished trajectories."""
    return f"traj.{member_id}"
