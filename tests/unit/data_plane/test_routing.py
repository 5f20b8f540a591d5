"""Which worker takes a request, for any set of workers and loads."""

from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.bus.membership import Member
from rollart_hpc.data_plane.routing import candidates, choose, least_tried, preferred_hardware
from rollart_hpc.types import Role

CLASSES = ("H800", "H20", "cpu")
names = st.sampled_from([f"actor_gen-{number}" for number in range(6)])
workers = st.dictionaries(names, st.sampled_from(CLASSES), max_size=6).map(
    lambda hardware: [
        Member(member_id=name, role=Role.ACTOR_GEN, hardware=kind, node="n", pid=1) for name, kind in hardware.items()
    ]
)
hardware_classes = st.none() | st.sampled_from([*CLASSES, "absent"])
loads = st.dictionaries(names, st.integers(0, 3))


@given(workers, hardware_classes, st.none() | names, loads)
def test_there_is_a_choice_exactly_when_there_is_a_worker(members, hardware, sticky, load):
    chosen = choose(members, hardware, sticky, load)
    assert (chosen is None) == (not members)
    assert chosen is None or chosen in members


@given(workers, hardware_classes, st.none() | names, loads)
def test_the_preferred_class_is_left_only_when_it_has_no_worker(members, hardware, sticky, load):
    chosen = choose(members, hardware, sticky, load)
    if any(member.hardware == hardware for member in members):
        assert chosen is not None
        assert chosen.hardware == hardware


@given(workers, hardware_classes, names, loads)
def test_a_trajectory_stays_with_its_worker_whatever_the_load(members, hardware, sticky, load):
    able = {member.member_id for member in candidates(members, hardware)}
    chosen = choose(members, hardware, sticky, load)
    if sticky in able:
        assert chosen is not None
        assert chosen.member_id == sticky
    else:
        assert chosen == choose(members, hardware, None, load)


@given(workers, hardware_classes, loads)
def test_else_the_worker_with_the_fewest_outstanding_tokens_is_taken(members, hardware, load):
    chosen = choose(members, hardware, None, load)
    least = min((load.get(member.member_id, 0) for member in candidates(members, hardware)), default=None)
    assert least == (None if chosen is None else load.get(chosen.member_id, 0))


@given(workers, hardware_classes, loads)
def test_the_choice_does_not_depend_on_the_order_of_the_workers(members, hardware, load):
    assert choose(members, hardware, None, load) == choose(members[::-1], hardware, None, load)


@given(workers, st.lists(names, max_size=5))
def test_a_request_that_failed_goes_where_it_was_tried_least(members, tried):
    able = least_tried(members, tried)
    assert bool(able) == bool(members)
    assert all(tried.count(one.member_id) <= tried.count(other.member_id) for one in able for other in members)


def test_a_tag_without_an_entry_gets_the_default_s_hardware():
    affinity = {"FrozenLake": "H800", "default": "H20"}
    assert [preferred_hardware(affinity, tag) for tag in ("FrozenLake", "sums")] == ["H800", "H20"]
    assert preferred_hardware({"FrozenLake": "H800"}, "sums") is None
    assert preferred_hardware({}, "default") is None
