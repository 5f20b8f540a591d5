"""Which mapping is the better one, and what it is said to gain."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollart_hpc.resource_plane import advisor
from rollart_hpc.resource_plane.advisor import advise, describe, key_of
from rollart_hpc.resource_plane.hardware import HardwareClass
from rollart_hpc.resource_plane.predictions import Situation
from rollart_hpc.resource_plane.profile import Profiler
from rollart_hpc.types import TagUsage

# A has four times the compute, B twice the bandwidth.
FIGURES = {"A": HardwareClass(name="A", tflops=400, memory_gb_s=1000),
           "B": HardwareClass(name="B", tflops=100, memory_gb_s=2000),
           "C": HardwareClass(name="C", tflops=200, memory_gb_s=1500)}  # fmt: skip
Measured = dict[tuple[str, str], tuple[float, float]]


def measured(seconds: Measured, workers: dict[str, int], *, requests: int = 100, iterations: int = 1) -> Situation:
    """A situation from prefill and decode seconds of an iteration by tag and class."""
    profiler = Profiler()
    for iteration in range(1, iterations + 1):
        for (tag, hardware), (prefill_s, decode_s) in seconds.items():
            usage = TagUsage(
                num_requests=iteration * requests,
                num_prompt_tokens=iteration * 1000,
                num_new_tokens=iteration * 1000,
                prefill_s=iteration * prefill_s,
                decode_s=iteration * decode_s,
                recompute_s=1000.0,
            )
            profiler.take_usage(f"{tag} {hardware}", hardware, {tag: usage})
        profiler.end_iteration()
    return Situation(profile=profiler.profile(), workers=workers, hardware=FIGURES)


def test_prefill_goes_by_compute_and_decode_by_bandwidth():
    situation = measured({("reads", "B"): (8.0, 0.0), ("writes", "A"): (0.0, 8.0)}, {"A": 1, "B": 1})
    assert situation.costs["reads"]["A"].seconds == pytest.approx(2.0)
    assert situation.costs["writes"]["B"].seconds == pytest.approx(4.0)
    advice = advise(situation, {"reads": "B", "writes": "A"})
    assert advice.mapping == {"reads": "A", "writes": "B"}
    assert advice.expected_s == pytest.approx({"A": 2.0, "B": 4.0})
    assert advice.current_s == pytest.approx({"A": 8.0, "B": 8.0})
    assert advice.gain == pytest.approx(0.5)


def test_the_workers_of_a_class_share_its_load():
    situation = measured({("reads", "B"): (8.0, 0.0)}, {"A": 1, "B": 8})
    assert advise(situation, {"reads": "B"}).mapping == {"reads": "B"}


def test_what_was_measured_on_a_class_counts_and_not_its_figures():
    situation = measured({("reads", "B"): (8.0, 0.0), ("reads", "A"): (9.0, 0.0)}, {"A": 1, "B": 1})
    # Both were served half of the work.
    assert situation.costs["reads"]["A"].seconds == pytest.approx(18.0)
    assert situation.costs["reads"]["A"].measured_on == "A"


def test_a_few_requests_on_a_class_are_no_measurement():
    profiler = Profiler()
    busy = TagUsage(num_requests=90, num_prompt_tokens=900, prefill_s=9.0)
    few = TagUsage(num_requests=10, num_prompt_tokens=100, prefill_s=500.0)
    profiler.take_usage("b", "B", {"reads": busy})
    profiler.take_usage("a", "A", {"reads": few})
    profiler.end_iteration()
    situation = Situation(profile=profiler.profile(), workers={"A": 1, "B": 1}, hardware=FIGURES)
    assert situation.costs["reads"]["A"].measured_on == "B"
    assert situation.costs["reads"]["A"].seconds == pytest.approx(10.0 / 4)


def test_what_was_measured_on_a_class_needs_no_figures_of_it():
    found = measured({("reads", "B"): (8.0, 0.0)}, {"A": 1, "B": 1})
    situation = Situation(profile=found.profile, workers=found.workers, hardware={"A": FIGURES["A"]})
    assert {name: cost.seconds for name, cost in situation.costs["reads"].items()} == {"B": pytest.approx(8.0)}


def test_what_a_tag_took_long_ago_on_a_class_is_scaled_to_the_work_of_now():
    profiler = Profiler()
    before = TagUsage(num_requests=50, num_prompt_tokens=100, num_new_tokens=100, prefill_s=1.0, decode_s=1.0)
    profiler.take_usage("a", "A", {"tag": before})
    profiler.end_iteration()
    usage = TagUsage()
    for _ in range(60):
        now = TagUsage(num_requests=50, num_prompt_tokens=200, num_new_tokens=300, prefill_s=9.0, decode_s=9.0)
        profiler.take_usage("b", "B", {"tag": (usage := usage.plus(now))})
        profiler.end_iteration()
    situation = Situation(profile=profiler.profile(), workers={"A": 1, "B": 1}, hardware={})
    assert situation.costs["tag"]["A"].seconds == pytest.approx(2.0 + 3.0, rel=1e-3)
    assert situation.costs["tag"]["B"].seconds == pytest.approx(18.0, rel=1e-3)


def test_computing_again_is_not_the_work_of_a_tag():
    assert measured({("reads", "A"): (1.0, 1.0)}, {"A": 1}).time_s({"reads": "A"}) == pytest.approx(2.0)


def test_of_mappings_that_take_as_long_the_one_with_less_work_is_taken():
    seconds: Measured = {("long", "A"): (8.0, 0.0), ("reads", "B"): (4.0, 0.0)}
    advice = advise(measured(seconds, {"A": 1, "B": 1, "C": 1}), {"long": "A", "reads": "B"})
    assert (advice.mapping, advice.gain) == ({"long": "A", "reads": "C"}, 0.0)


def test_of_mappings_that_are_equal_the_present_one_is_taken():
    equal = {name: HardwareClass(name=name, tflops=100, memory_gb_s=1000) for name in "AB"}
    found = measured({("x", "B"): (4.0, 0.0), ("y", "A"): (4.0, 0.0)}, {"A": 1, "B": 1})
    situation = Situation(profile=found.profile, workers=found.workers, hardware=equal)
    assert advise(situation, {"x": "B", "y": "A"}).mapping == {"x": "B", "y": "A"}


def test_nothing_goes_to_a_class_without_a_live_worker():
    assert advise(measured({("reads", "B"): (8.0, 0.0)}, {"B": 1}), {"reads": "B"}).mapping == {"reads": "B"}


def test_a_tag_whose_class_is_away_is_served_elsewhere_and_not_mapped_anew():
    seconds: Measured = {("reads", "A"): (8.0, 0.0), ("writes", "A"): (0.0, 8.0)}
    advice = advise(measured(seconds, {"A": 1, "C": 1}), {"reads": "B", "writes": "A"})
    assert advice.mapping == {"reads": "B", "writes": "C"}


def test_nothing_goes_where_nothing_can_be_said_of_it():
    found = measured({("reads", "B"): (8.0, 0.0)}, {"A": 9, "B": 1})
    unknown = Situation(profile=found.profile, workers=found.workers, hardware={"B": FIGURES["B"]})
    assert advise(unknown, {"reads": "B"}).mapping == {"reads": "B"}
    no_bandwidth = {**FIGURES, "A": HardwareClass(name="A", tflops=400)}
    half = Situation(profile=found.profile, workers=found.workers, hardware=no_bandwidth)
    assert advise(half, {"reads": "B"}).mapping == {"reads": "B"}


def test_a_tag_without_a_class_is_spread_so_that_all_are_done_at_once():
    situation = measured({("reads", "B"): (12.0, 0.0), ("writes", "A"): (0.0, 3.0)}, {"A": 1, "B": 1})
    # Alone 3 s on A or 12 s on B; 12/5 s on both.
    assert situation.loads({"writes": "A"}) == pytest.approx({"A": 2.4 + 3.0, "B": 2.4})


def test_the_declared_mapping_may_leave_a_tag_to_any_class():
    situation = measured({("reads", "B"): (12.0, 0.0)}, {"A": 1, "B": 1})
    assert advise(situation, {"reads": "B"}, declared={}).mapping == {}
    assert advise(situation, {"reads": "B"}).mapping == {"reads": "A"}


def test_a_mapping_that_is_excluded_is_not_advised():
    situation = measured({("reads", "B"): (8.0, 0.0)}, {"A": 1, "B": 1, "C": 1})
    assert advise(situation, {"reads": "B"}, excluded={key_of({"reads": "A"})}).mapping == {"reads": "C"}


def test_without_measurements_nothing_is_advised():
    empty = Situation(profile=Profiler().profile(), workers={"A": 1, "B": 1}, hardware=FIGURES)
    advice = advise(empty, {"reads": "B"})
    assert (advice.mapping, advice.gain) == ({"reads": "B"}, 0.0)


def test_an_advice_says_what_to_move_and_what_it_goes_by():
    situation = measured({("reads", "B"): (8.0, 0.0), ("writes", "B"): (0.0, 1.0)}, {"A": 1, "B": 1})
    current = {"reads": "B", "writes": "B"}
    advice = advise(situation, current)
    assert describe(advice, current) == "reads on A: generation 78% shorter"
    assert advice.why == "reads: 2 s on A (by what it took on B) instead of 8 s on B (measured)"
    assert describe(advise(situation, advice.mapping), advice.mapping) == "the mapping is the best one"


TAGS, CLASSES = "vwxyz", "ABC"
AMOUNT = st.floats(0.1, 10.0)


@given(
    st.fixed_dictionaries({tag: st.tuples(st.sampled_from(CLASSES), AMOUNT, AMOUNT) for tag in TAGS}),
    st.fixed_dictionaries({name: st.integers(1, 5) for name in CLASSES}),
    st.sampled_from([4096, 1]),
)
def test_no_mapping_is_better_than_the_advised_one(
    work: dict[str, tuple[str, float, float]], workers: dict[str, int], limit: int
):
    """Among all; with the local search, among those that one move or swap leads to."""
    situation = measured({(tag, where): seconds for tag, (where, *seconds) in work.items()}, workers)  # type: ignore[misc]
    current = {tag: where for tag, (where, _, _) in work.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advisor, "_ALL_OF_SO_MANY", limit)
        advice = advise(situation, current)
    assert situation.time_s(advice.mapping) == pytest.approx(situation.time_s(current) * (1 - advice.gain))
    if limit > 1:
        others = [dict(zip(TAGS, chosen, strict=True)) for chosen in itertools.product(CLASSES, repeat=len(TAGS))]
    else:
        others = [{**advice.mapping, tag: name} for tag in TAGS for name in CLASSES]
        for one, other in itertools.combinations(TAGS, 2):
            swapped = {one: advice.mapping[other], other: advice.mapping[one]}
            others.append({**advice.mapping, **swapped})
    assert min(map(situation.time_s, others)) >= situation.time_s(advice.mapping) * (1 - 1e-6)
