"""The clock that shares the time of an engine in another process, on a clock of the test's."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollart_hpc.data_plane.backends.vllm.shared_time import SharedTime
from rollart_hpc.types import Span

SPANS = (Span(0, 0, 5),)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_a_request_that_is_alone_has_all_of_the_time(time: Time):
    shared = SharedTime(8, time)
    shared.begin("a")
    time.now += 3.0
    assert shared.shares(1.0, 2.0, 10, SPANS) == pytest.approx((1.0, 2.0, 0.0))


def test_requests_that_overlap_share_what_they_overlap(time: Time):
    shared = SharedTime(8, time)
    shared.begin("a")
    time.now += 1.0
    shared.begin("b")
    time.now += 2.0
    assert shared.shares(1.5, 1.5, 10, SPANS) == pytest.approx((1.25, 0.75, 0.0))
    shared.end("a")
    time.now += 1.0
    assert shared.shares(1.0, 2.0, 10, SPANS) == pytest.approx((0.5, 1.5, 0.0))


def test_a_request_that_waits_in_the_engine_takes_nothing_from_those_that_run(time: Time):
    shared = SharedTime(1, time)
    shared.begin("runs")
    shared.begin("waits")
    time.now += 2.0
    assert shared.shares(1.0, 1.0, 10, SPANS) == pytest.approx((1.0, 1.0, 0.0))


def test_a_suspension_is_nobody_s_time(time: Time):
    shared = SharedTime(8, time)
    shared.begin("a")
    time.now += 2.0
    shared.suspend()
    time.now += 100.0
    shared.begin("b")
    time.now += 100.0
    shared.resume()
    time.now += 2.0
    assert shared.shares(1.0, 203.0, 10, SPANS) == pytest.approx((1.0, 2.0, 0.0))


def test_what_is_computed_again_is_estimated_by_the_first_prefill(time: Time):
    shared = SharedTime(8, time)
    shared.begin("a")
    time.now += 11.0
    # 10 prompt tokens took 1 s; 15 and 20 tokens were computed again.
    spans = (Span(0, 0, 5), Span(1, 5, 10), Span(2, 10, 12))
    assert shared.shares(1.0, 10.0, 10, spans) == pytest.approx((1.0, 6.5, 3.5))


def test_an_estimate_is_no_more_than_there_was(time: Time):
    shared = SharedTime(8, time)
    shared.begin("a")
    time.now += 2.0
    assert shared.shares(1.0, 1.0, 10, (Span(0, 0, 90), Span(1, 90, 91))) == pytest.approx((1.0, 0.0, 1.0))


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9)), max_size=60),
    st.sampled_from([1, 2, 8]),
)
def test_all_shares_together_are_the_time_in_which_anything_was_in_flight(
    events: list[tuple[str, int]], max_running: int
):
    """Each event begins its request or ends it, the oldest ``max_running`` run."""
    time = Time()
    shared = SharedTime(max_running, time)
    in_flight: dict[str, float] = {}
    busy_s = total_s = 0.0

    def end(name: str) -> None:
        nonlocal total_s
        began = in_flight.pop(name)
        for other in list(in_flight)[max_running - 1 : max_running]:
            in_flight[other] = max(in_flight[other], time.now)
        total_s += shared.shares(0.0, time.now - began, 10, SPANS).decode_s
        shared.end(name)

    for name, later in events:
        if name in in_flight:
            # In the order in which they came: one that waits has no first token.
            end(next(iter(in_flight)))
        else:
            in_flight[name] = time.now
            shared.begin(name)
        busy_s += later if in_flight else 0
        time.now += later
    for name in list(in_flight):
        end(name)
    assert total_s == pytest.approx(busy_s)


def test_the_past_is_forgotten_but_not_what_a_request_in_flight_began_in(time: Time, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollart_hpc.data_plane.backends.vllm.shared_time._PRUNE_ABOVE", 8)
    shared = SharedTime(2, time)
    pair(shared, time, lambda number: f"before {number}", 100)
    shared.begin("long")
    pair(shared, time, lambda number: f"beside {number}", 100)
    assert shared.shares(0.0, 100.0, 10, SPANS).decode_s == pytest.approx(50.0)
    shared.end("long")
    pair(shared, time, lambda number: f"after {number}", 100)
    assert len(shared._times) <= 18


def pair(shared: SharedTime, time: Time, name: Callable[[int], str], count: int) -> None:
    """Requests one after the other, a second each."""
    for number in range(count):
        shared.begin(name(number))
        time.now += 1.0
        shared.end(name(number))
