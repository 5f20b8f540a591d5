"""What the profiler makes of counters and trajectories, one iteration after the other."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollart_hpc.errors import ConfigError
from rollart_hpc.resource_plane.profile import Profile, Profiler, Speed, TagPace, read_profile, write_profile
from rollart_hpc.types import TagUsage


def used(requests: int, seconds: float = 0.0) -> TagUsage:
    """As much for each request; of prompts a quarter is cached."""
    return TagUsage(
        num_requests=requests,
        num_prompt_tokens=100 * requests,
        num_cached_tokens=25 * requests,
        num_new_tokens=10 * requests,
        prefill_s=seconds or 2.0 * requests,
        decode_s=1.0 * requests,
        recompute_s=0.5 * requests,
    )


def speed(profiler: Profiler, hardware: str = "H20") -> Speed:
    (found,) = [one for one in profiler.profile().speeds if one.hardware == hardware]
    return found


def test_counters_of_all_workers_of_a_class_are_added_up():
    profiler = Profiler()
    profiler.take_usage("a", "H20", {"lake": used(4)})
    profiler.take_usage("b", "H20", {"lake": used(6)})
    profiler.take_usage("c", "H800", {"lake": used(2)})
    assert profiler.end_iteration()
    amounts = speed(profiler).amounts
    assert (amounts.requests, amounts.prompt_tokens, amounts.cached_tokens, amounts.new_tokens) == (10, 1000, 250, 100)
    assert (amounts.prefill_s, amounts.decode_s, amounts.recompute_s) == (20.0, 10.0, 5.0)
    assert (amounts.computed_tokens, amounts.seconds) == (750, 30.0)
    assert (speed(profiler).num_requests, speed(profiler, "H800").num_requests) == (10, 2)
    assert profiler.profile().work("lake").requests == 12


def test_an_iteration_is_what_came_since_the_last_one():
    profiler = Profiler()
    for requests in (4, 10):
        profiler.take_usage("a", "H20", {"lake": used(requests)})
        profiler.end_iteration()
    assert speed(profiler).amounts.requests == pytest.approx((4 + 6) / 2)


def test_a_process_that_was_started_again_counts_from_its_start():
    profiler = Profiler()
    profiler.take_usage("a", "H20", {"lake": used(10)})
    profiler.end_iteration()
    profiler.take_usage("a, again", "H20", {"lake": used(2)})
    profiler.end_iteration()
    assert speed(profiler).amounts.requests == pytest.approx((10 + 2) / 2)


def test_a_counter_that_fell_is_that_of_a_process_that_took_over():
    profiler = Profiler()
    profiler.take_usage("a", "H20", {"lake": used(10)})
    profiler.take_usage("a", "H20", {"lake": used(3)})
    profiler.end_iteration()
    assert speed(profiler).amounts.requests == 13


def test_a_worker_that_did_not_answer_is_made_up_for():
    profiler = Profiler()
    profiler.take_usage("a", "H20", {"lake": used(4)})
    profiler.take_usage("b", "H20", {"lake": used(4)})
    profiler.end_iteration()
    profiler.take_usage("a", "H20", {"lake": used(8)})
    profiler.end_iteration()
    profiler.take_usage("a", "H20", {"lake": used(12)})
    profiler.take_usage("b", "H20", {"lake": used(12)})
    profiler.end_iteration()
    assert speed(profiler).amounts.requests == pytest.approx(24 / 3)


def test_an_iteration_without_generation_is_none():
    profiler = Profiler()
    profiler.take_usage("a", "H20", {"lake": used(4)})
    profiler.end_iteration()
    profiler.take_usage("a", "H20", {"lake": used(4)})
    assert not profiler.end_iteration()
    assert (profiler.profile().num_iterations, speed(profiler).amounts.requests) == (1, 4)


def test_what_a_tag_took_on_a_class_stays_known_when_it_leaves():
    profiler = Profiler()
    profiler.take_usage("a", "H20", {"lake": used(10)})
    profiler.end_iteration()
    for iteration in range(1, 30):
        profiler.take_usage("b", "H800", {"lake": used(10 * iteration)})
        profiler.end_iteration()
    left = speed(profiler)
    assert left.amounts.requests < 0.1
    assert (left.when_there.requests, left.when_there.prefill_s, left.num_iterations) == (10, 20.0, 1)
    assert profiler.profile().work("lake").requests == pytest.approx(10)


def test_the_newest_iteration_weighs_a_fifth_in_the_long_run():
    profiler, total = Profiler(), 0
    for requests in [10] * 10 + [20]:
        total += requests
        profiler.take_usage("a", "H20", {"lake": used(total)})
        profiler.end_iteration()
    assert speed(profiler).amounts.requests == pytest.approx(0.8 * 10 + 0.2 * 20)


def test_trajectories_are_means_of_their_tag():
    profiler = Profiler()
    profiler.take_trajectory("lake", num_turns=4, environment_s=1.0, reward_s=0.5)
    profiler.take_trajectory("lake", num_turns=8, environment_s=3.0, reward_s=0.0)
    profiler.take_trajectory("sums", num_turns=1, environment_s=0.0, reward_s=2.0)
    profiler.take_usage("a", "H20", {"lake": used(12), "sums": used(1)})
    profiler.end_iteration()
    lake, sums = profiler.profile().paces
    assert lake == TagPace(tag="lake", trajectories=2, turns=6, environment_s=2.0, reward_s=0.25)
    assert (sums.turns, sums.reward_s) == (1, 2.0)


def test_a_later_attempt_goes_on_from_the_profile_on_disk(tmp_path: Path):
    unbroken = Profiler()
    for requests in (5, 11, 20):
        unbroken.take_usage("a", "H20", {"lake": used(requests, seconds=requests)})
        unbroken.take_trajectory("lake", num_turns=requests, environment_s=1.0, reward_s=0.0)
        unbroken.end_iteration()
        if requests == 11:
            write_profile(tmp_path, unbroken.profile())
    later = Profiler(read_profile(tmp_path))
    later.take_usage("b", "H20", {"lake": used(9, seconds=9)})
    later.take_trajectory("lake", num_turns=20, environment_s=1.0, reward_s=0.0)
    later.end_iteration()
    assert later.profile() == unbroken.profile()


def test_a_run_without_a_profile_has_none(tmp_path: Path):
    assert read_profile(tmp_path) is None


def test_a_file_that_is_no_profile_is_named(tmp_path: Path):
    (tmp_path / "profile.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"profile\.json: not the profile of a run"):
        read_profile(tmp_path)


@given(st.lists(st.lists(st.integers(0, 50), min_size=2, max_size=2), min_size=1, max_size=30))
def test_no_mean_is_outside_of_what_was_measured(iterations: list[list[int]]):
    profiler, totals = Profiler(), [0, 0]
    for amounts in iterations:
        totals = [total + amount for total, amount in zip(totals, amounts, strict=True)]
        for worker, total in enumerate(totals):
            profiler.take_usage(str(worker), "H20", {"lake": used(total)})
        profiler.end_iteration()
    sums = [sum(amounts) for amounts in iterations if any(amounts)]
    if not sums:
        assert profiler.profile() == Profile()
        return
    found = speed(profiler)
    assert min(sums) - 1e-6 <= found.amounts.requests <= max(sums) + 1e-6
    assert found.when_there.prefill_s == pytest.approx(2.0 * found.when_there.requests)
    assert found.num_requests == sum(sums)
