"""Every subject, stream and key-value bucket of a run's bus, with its delivery guarantee.

One nats-server belongs to one attempt of one run, with a token of its own: names need no run prefix.

- ``mux.<member>`` (core): requesters to a generation or reward worker. At most once; the requester's deadline
  and the idempotent request id repair losses.
- ``inbox.<member>`` (core): the worker's answers to the requester. At most once, as above.
- ``call.<member>`` (request-reply): controller to any worker. At least once; a call id makes handlers idempotent.
- ``progress`` (core): controller to launcher and other watchers. At most once; metrics.jsonl is the record.
- ``traj.<member>`` (stream TRAJ): environment workers to controller. At least once; deduplicated by trajectory id,
  acknowledged when it is in the journal.
- ``log.<member>`` (same stream): turn logs of running trajectories, handed in when the run stops or the worker
  leaves it. As above, deduplicated by trajectory id and worker.
- ``notice`` (core): a process that was told to stop (TERM, INT, USR2) to leader and controller: the run is to stop.
  At most once; every process says it again until the attempt ends. A guest does not say it: it leaves.
- ``end`` (core): leader to every process of the attempt: it is over, end in order. At most once; the leader ends by
  signal what is still there after its grace.
- ``alive`` (core): controller to leader, every second: its event loop runs. At most once; the leader ends an attempt
  whose controller is silent.
- ``store`` (core): leader to controller: the weight store was started again and is empty. At most once; said again for
  some seconds.
- ``protocol`` (request-reply): controller to leader, only where faults are injected: what it is about to do. It waits
  for the reply, at most 10 s.
- ``members`` (KV): every process to everyone. Last value with a time to live; the revision is the fencing token.
- ``pools`` (KV): the leader, and whoever lets workers join, to everyone. As ``members``.
- ``bindings`` (KV): controller to everyone: where each role's work goes by tag. As ``members``; readers keep the last
  value that they saw while the controller is away.
- ``rendezvous`` (KV): rank 0 of a collective to its peers. Written once per attempt.
- ``weights`` (KV): controller to generation workers. Last value by compare-and-set; never goes back.
"""

from __future__ import annotations

TRAJECTORY_STREAM = "TRAJ"
TRAJECTORY_SUBJECTS = ("traj.*", "log.*")
TRAJECTORY_CONSUMER = "controller"
MEMBERS_BUCKET = "members"
POOLS_BUCKET = "pools"
BINDINGS_BUCKET = "bindings"
WEIGHTS_BUCKET = "weights"
RENDEZVOUS_BUCKET = "rendezvous"
PROGRESS = "progress"
NOTICE = "notice"
END = "end"
ALIVE = "alive"
PROTOCOL = "protocol"
STORE_LOST = "store"


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


def turn_logs(member_id: str) -> str:
    """Where an environment worker hands in what it was playing."""
    return f"log.{member_id}"


def published_by(member_id: str) -> str:
    """All that an environment worker puts on the stream."""
    return f"*.{member_id}"
