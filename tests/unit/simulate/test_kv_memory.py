"""Which prefixes an emulated engine finds, and which go when memory is needed."""

import numpy as np

from rollart_hpc.simulate.kv_memory import KvMemory


def ids(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)


def serve(memory: KvMemory, context: np.ndarray) -> None:
    """Computes a context and leaves it to others."""
    lease = memory.hold(context, 0)
    assert lease is not None
    memory.keep(lease, context)
    memory.release(lease)


def known(memory: KvMemory, context: np.ndarray) -> int:
    lease = memory.hold(context, 0)
    assert lease is not None
    memory.release(lease)
    return lease.num_known


def test_a_context_that_differs_in_one_id_or_its_position_is_another():
    memory = KvMemory(capacity=100, max_context=20)
    serve(memory, ids(0, 10))
    changed = ids(0, 12)
    changed[9] = 77
    assert known(memory, ids(0, 12)) == 10
    assert known(memory, changed) == 0
    assert known(memory, np.array([1, 0, *range(2, 12)], np.int32)) == 0


def test_the_least_recently_used_conversation_goes_first_and_from_its_end():
    memory = KvMemory(capacity=40, max_context=40)
    for start in (100, 200):
        for length in (10, 20):
            serve(memory, ids(start, length))
    assert memory.free == 0
    assert known(memory, ids(100, 20)) == 20
    serve(memory, ids(300, 10))
    assert [known(memory, ids(start, 20)) for start in (100, 200)] == [20, 10]


def test_what_a_running_request_stands_on_stays_and_a_request_without_room_costs_nothing():
    memory = KvMemory(capacity=40, max_context=60)
    serve(memory, ids(100, 10))
    serve(memory, ids(200, 10))
    lease = memory.hold(ids(100, 15), 10)
    assert lease is not None
    assert memory.hold(ids(300, 25), 0) is None
    assert known(memory, ids(200, 10)) == 10
    serve(memory, ids(300, 15))
    assert [known(memory, ids(start, 10)) for start in (100, 200)] == [10, 0]
    memory.release(lease)
    memory.forget_all()
    assert memory.free == 40


def test_two_that_compute_the_same_context_at_the_same_time_leave_it_once():
    memory = KvMemory(capacity=100, max_context=20)
    serve(memory, ids(0, 5))
    leases = [memory.hold(ids(0, 8), 7) for _ in range(2)]
    for lease in leases:
        assert lease is not None
        memory.keep(lease, ids(0, 15))
        memory.release(lease)
    assert memory.free == 85
    memory.forget_all()
    assert memory.free == 100
