"""Which worker takes a request, for any set of workers and loads."""

from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.bus.membership import Member
from rollart_hpc.data_plane.routing import PrefixAffinity, Route, WorkerLoad, candidates, is_full, least_tried
from rollart_hpc.resource_plane.affinity import preferred_hardware
from rollart_hpc.types import Role

CLASSES = ("H800", "H20", "cpu")
names = st.sampled_from([f"actor_gen-{number}" for number in range(6)])
workers = st.dictionaries(names, st.tuples(st.sampled_from(CLASSES), st.integers(0, 2)), max_size=6).map(
    lambda hardware: [
        Member(member_id=name, role=Role.ACTOR_GEN, hardware=kind, node="n", pid=1, capacity=capacity)
        for name, (kind, capacity) in hardware.items()
    ]
)
hardware_classes = st.none() | st.sampled_from([*CLASSES, "absent"])
loads = st.dictionaries(names, st.builds(WorkerLoad, requests=st.integers(0, 2), tokens=st.integers(0, 3)))


def choose(members, hardware=None, sticky=None, load=None, tried=()):
    route = Route(hardware=hardware, sticky=sticky, tried=tried)
    return PrefixAffinity().choose(route, members, load or {})


@given(workers, hardware_classes, st.none() | names, loads, st.lists(names, max_size=5))
def test_there_is_a_choice_exactly_when_there_is_a_worker(members, hardware, sticky, load, tried):
    chosen = choose(members, hardware, sticky, load, tried)
    assert (chosen is None) == (not members)
    assert chosen is None or chosen in members


@given(workers, st.sampled_from(CLASSES), st.none() | names, loads)
def test_the_preferred_class_is_left_only_when_it_has_no_worker_or_is_full(members, hardware, sticky, load):
    chosen = choose(members, hardware, sticky, load)
    preferred = [member for member in members if member.hardware == hardware]
    if any(not is_full(member, load) for member in preferred):
        assert chosen in preferred
    elif chosen is not None and chosen not in preferred:
        assert not is_full(chosen, load) or not preferred


@given(workers, hardware_classes, names, loads)
def test_a_trajectory_stays_with_its_worker_whatever_the_load(members, hardware, sticky, load):
    able = {member.member_id for member in candidates(members, hardware, load)}
    chosen = choose(members, hardware, sticky, load)
    if sticky in able:
        assert chosen is not None
        assert chosen.member_id == sticky
    else:
        assert chosen == choose(members, hardware, None, load)


@given(workers, hardware_classes, loads)
def test_else_the_worker_with_the_fewest_outstanding_tokens_is_taken(members, hardware, load):
    chosen = choose(members, hardware, None, load)
    able = candidates(members, hardware, load)
    least = min((load.get(member.member_id, WorkerLoad()).tokens for member in able), default=None)
    assert least == (None if chosen is None else load.get(chosen.member_id, WorkerLoad()).tokens)


@given(workers, hardware_classes, loads)
def test_the_choice_does_not_depend_on_the_order_of_the_workers(members, hardware, load):
    assert choose(members, hardware, None, load) == choose(members[::-1], hardware, None, load)


@given(workers, st.lists(names, max_size=5))
def test_a_request_that_failed_goes_where_it_was_tried_least(members, tried):
    able = least_tried(members, tried)
    assert bool(able) == bool(members)
    assert all(tried.count(one.member_id) <= tried.count(other.member_id) for one in able for other in members)


def test_a_full_class_overflows_to_another_and_takes_its_trajectories_back():
    first, second = (
        Member(member_id=name, role=Role.ACTOR_GEN, hardware=kind, node="n", pid=1, capacity=2)
        for name, kind in (("actor_gen-0", "H800"), ("actor_gen-1", "H20"))
    )
    busy = {"actor_gen-0": WorkerLoad(2, 9)}
    assert choose([first, second], "H800", "actor_gen-0", busy) == second
    assert choose([first, second], "H800", "actor_gen-1", {"actor_gen-0": WorkerLoad(1, 9)}) == first
    assert choose([first, second], "H800", None, {**busy, "actor_gen-1": WorkerLoad(2, 1)}) == first


def test_a_tag_without_an_entry_gets_the_default_s_hardware():
    affinity = {"FrozenLake": "H800", "default": "H20"}
    assert [preferred_hardware(affinity, tag) for tag in ("FrozenLake", "sums")] == ["H800", "H20"]
    assert preferred_hardware({"FrozenLake": "H800"}, "sums") is None
    assert preferred_hardware({}, "default") is None
