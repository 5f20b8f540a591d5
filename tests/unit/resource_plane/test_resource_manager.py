"""Placement of workers on devices, for any devices and any order of placing and releasing."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.errors import WorkerDeclarationError
from rollart_hpc.resource_plane.hardware import HardwareClass
from rollart_hpc.resource_plane.resource_manager import Placement, ResourceManager
from rollart_hpc.types import Role

CLASSES = ("H800", "H20", "cpu")
sizes = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 5), min_size=1)
wishes = st.tuples(
    st.sampled_from(Role), st.integers(1, 4), st.none() | st.sampled_from([*CLASSES, "absent"]), st.integers(1, 3)
)


def paper() -> ResourceManager:
    return ResourceManager({"H800": list(range(8))}, {"H20": list(range(8, 32))})


def manager_of(numbers: dict[str, int]) -> ResourceManager:
    begin, groups = 0, []
    for name, number in numbers.items():
        groups.append({name: list(range(begin, begin + number))})
        begin += number
    return ResourceManager(*groups)


def test_the_manager_of_the_paper_s_listing_has_both_groups():
    manager = paper()
    assert manager.classes == {"H800": tuple(range(8)), "H20": tuple(range(8, 32))}
    assert manager.free == manager.classes


@pytest.mark.parametrize(
    ("role", "expected"),
    [(Role.ACTOR_TRAIN, "H800"), (Role.ACTOR_GEN, "H20"), (Role.ENVIRONMENT, "cpu"), (Role.REWARD, "H20")],
)
def test_a_role_has_a_default_class_by_the_figures(role: Role, expected: str):
    manager = ResourceManager({"H20": [4, 5], "H800": [0, 1]}, {"cpu": [8]})
    (placed,) = manager.place(role)
    assert (placed.hardware, placed.reason) == (expected, f"{expected} is the default of {role}")


def test_a_class_with_figures_of_its_own_takes_part_in_the_defaults():
    fast = HardwareClass(name="new", tflops=5000, memory_gb_s=8000)
    manager = ResourceManager({"H800": [0]}, {"new": [1]}, figures={"new": fast})
    assert manager.place(Role.ACTOR_TRAIN)[0].hardware == "new"


def test_a_preferred_class_that_is_full_is_replaced_at_once_and_used_again_when_it_has_room():
    manager = ResourceManager({"H800": [0]}, {"H20": [1, 2]})
    first, second = manager.place(Role.ACTOR_GEN, 2, "H800")
    assert (first.hardware, first.reason) == ("H800", "H800 was asked for")
    assert (second.hardware, second.reason) == ("H20", "H800 is full; H20 serves")
    manager.release(first)
    assert manager.place(Role.ACTOR_GEN, preferred="H800")[0].device_ids == (0,)


def test_a_preferred_class_that_was_not_declared_is_absent_and_no_error():
    (placed,) = paper().place(Role.ACTOR_TRAIN, preferred="H100")
    assert (placed.hardware, placed.reason) == ("H800", "H100 was not declared; H800 serves")


def test_models_run_on_the_cpu_where_there_is_no_gpu_only():
    assert ResourceManager({"cpu": [0]}).place(Role.ACTOR_TRAIN)[0].hardware == "cpu"
    manager = ResourceManager({"cpu": [0, 1], "H800": [2]})
    with pytest.raises(WorkerDeclarationError) as caught:
        manager.place(Role.ACTOR_GEN, 2)
    assert str(caught.value) == (
        "2 actor_gen workers with 1 of the devices each: there is room for 1; actor_gen runs on H800; "
        "free devices: cpu 2 of 2, H800 1 of 1; declare more, or release some"
    )
    assert manager.free == manager.classes


def test_the_devices_of_one_worker_are_of_one_class():
    manager = ResourceManager({"H800": [0, 1, 2]}, {"H20": [3, 4, 5]})
    placed = manager.place(Role.ACTOR_GEN, 2, "H800", devices_each=2)
    assert [(one.hardware, one.device_ids) for one in placed] == [("H800", (0, 1)), ("H20", (3, 4))]
    with pytest.raises(WorkerDeclarationError, match="room for 0"):
        manager.place(Role.ACTOR_GEN, devices_each=2)


def test_devices_are_given_back_once():
    manager = paper()
    (placed,) = manager.place(Role.REWARD)
    manager.release(placed)
    for wrong in (placed, Placement(role=Role.REWARD, hardware="H800", device_ids=(3, 4), reason="")):
        with pytest.raises(WorkerDeclarationError, match="no worker is placed on these devices"):
            manager.release(wrong)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ((), "no devices; give them by class"),
        (({},), "no devices"),
        (({"H800": []},), "'H800': expected device ids, whole numbers from 0 on and at least one, got []"),
        (({"H800": [0]}, {"H800": [1]}), "the class 'H800' is there twice"),
        (({"H800": [0, 0]},), "device 0 is of 'H800' and again of 'H800'"),
        (({"H800": [0, 1]}, {"H20": [1]}), "device 1 is of 'H800' and again of 'H20'"),
        (({"H800": [-1]},), "whole numbers from 0 on"),
        (({"H800": [True]},), "whole numbers from 0 on"),
        (({"H800": ["0"]},), "whole numbers from 0 on"),
        (({"H800": 8},), "'H800': expected a list of device ids, got 8"),
        (({"H800": "01"},), "expected a list of device ids"),
        (({"": [0]},), "expected the name of a hardware class"),
        (({3: [0]},), "expected the name of a hardware class, got 3"),
        (([0, 1],), "expected a mapping such as"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_devices_are_refused_with_what_to_change(groups, said: str):
    with pytest.raises(WorkerDeclarationError, match=re.escape(said)):
        ResourceManager(*groups)


@pytest.mark.parametrize(("count", "each"), [(0, 1), (1, 0), (-1, 1)])
def test_less_than_one_worker_or_device_is_refused(count: int, each: int):
    with pytest.raises(WorkerDeclarationError, match="expected 1 or more"):
        paper().place(Role.ACTOR_GEN, count, devices_each=each)


@given(sizes, st.lists(st.tuples(wishes, st.booleans()), max_size=12))
def test_every_device_is_free_or_of_one_worker(numbers, steps):
    manager, placed = manager_of(numbers), []
    for (role, count, preferred, each), releases in steps:
        free = manager.free
        try:
            found = manager.place(role, count, preferred, devices_each=each)
        except WorkerDeclarationError:
            assert manager.free == free
            continue
        assert [len(one.device_ids) for one in found] == [each] * count
        has_room = len(free.get(preferred, ())) // each
        assert Counter(one.hardware for one in found)[preferred] == min(count, has_room)
        placed += found
        if releases:
            manager.release(placed.pop(0))
        held = [(one.hardware, device) for one in placed for device in one.device_ids]
        left = [(name, device) for name, ids in manager.free.items() for device in ids]
        assert sorted(held + left) == sorted((name, device) for name, ids in manager.classes.items() for device in ids)


@given(sizes, wishes)
def test_models_are_placed_on_a_gpu_unless_the_cpu_is_asked_for_or_alone(numbers, wish):
    role, count, preferred, each = wish
    manager = manager_of(numbers)
    try:
        found = manager.place(role, count, preferred, devices_each=each)
    except WorkerDeclarationError:
        return
    if role in (Role.ACTOR_TRAIN, Role.ACTOR_GEN) and preferred != "cpu" and set(numbers) != {"cpu"}:
        assert "cpu" not in {one.hardware for one in found}
