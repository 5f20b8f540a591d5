"""Global random states of instances that share a process."""

import random

import numpy as np
import pytest

from rollart_hpc.data_plane.random_states import RandomStates


@pytest.fixture(autouse=True)
def _as_before():
    before, numpy_before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before)
    np.random.set_state(numpy_before)


def draws() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def test_each_instance_goes_on_where_it_was_whatever_others_draw():
    random.seed(7)
    np.random.seed(7)
    alone = [draws() for _ in range(6)]
    states, seen = RandomStates(), []
    states.install(1)
    random.seed(7)
    np.random.seed(7)
    for other in (2, 3, 2, 3, 2, 3):
        states.install(1)
        seen.append(draws())
        states.install(other)
        random.seed(other)
        draws()
    assert seen == alone


def test_a_new_instance_does_not_begin_where_another_one_was_seeded():
    states = RandomStates()
    firsts = []
    for instance in (1, 2):
        states.install(instance)
        firsts.append(draws())
        random.seed(0)
        np.random.seed(0)
    states.forget(1)
    states.install(1)
    firsts.append(draws())
    assert len({python for python, _ in firsts}) == len({numpy for _, numpy in firsts}) == 3
