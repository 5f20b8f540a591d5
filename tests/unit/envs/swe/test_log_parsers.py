"""What test runners print is read as SWE-bench reads it."""

import pytest

from rollart_hpc.envs.swe.grading.log_parsers import LOG_PARSERS

CASES = {
    "parse_log_pytest": (
        "noise\nPASSED t.py::a\nFAILED t.py::b[x - y] - assert 1\nSKIPPED [2] t.py:3: no\nXFAIL t.py::c - why\n"
        "ERROR t.py::d\nPASSED\nPASSEDx y\n",
        [("t.py::a", "PASSED"), ("t.py::b[x", "FAILED"), ("t.py::c", "XFAIL"), ("t.py::d", "ERROR")],
    ),
    "parse_log_requests": (
        "PASSED t.py::a[/deep/path/x.txt]\nPASSED t.py::a[//x]\nPASSED t.py::a[b]\n",
        [("t.py::a[/x.txt]", "PASSED"), ("t.py::a[//x]", "PASSED"), ("t.py::a[b]", "PASSED")],
    ),
    "parse_log_sphinx": (
        "\x1b[32mPASSED\x1b[0m t.py::\x1b[1ma b\x1b[0m\nFAILED t.py::c - assert x - y\nt.py::old PASSED\n",
        [("t.py::a b", "PASSED"), ("t.py::c", "FAILED"), ("t.py::old", "PASSED")],
    ),
    "parse_log_matplotlib": ("PASSED t.py::a[MouseButton.LEFT]\n", [("t.py::a[1]", "PASSED")]),
    "parse_log_seaborn": (
        "t.py::a PASSED [ 10%]\nt.py::b FAILED [ 20%]\nFAILED t.py::b - x\n",
        [("t.py::a", "PASSED"), ("t.py::b", "FAILED")],
    ),
    "parse_log_django": (
        "test_a (m.T) ... ok\ntest_b (m.T) ... skipped 'no'\ntest_c (m.T) ... FAIL\ntest_d (m.T) ... ERROR\n"
        "test_e (m.T) ... printed this\nok\nFAIL: test_c (m.T)\n",
        [
            ("test_a (m.T)", "PASSED"),
            ("test_b (m.T)", "SKIPPED"),
            ("test_c (m.T)", "FAILED"),
            ("test_d (m.T)", "ERROR"),
            ("test_e (m.T)", "PASSED"),
            ("test_c", "FAILED"),
        ],
    ),
    "parse_log_sympy": (
        "test_a ok\ntest_b F\ntest_c E\n____ sympy/core/tests/test_x.py:test_b ____\n",
        [
            ("sympy/core/tests/test_x.py:test_b", "FAILED"),
            ("test_a", "PASSED"),
            ("test_b", "FAILED"),
            ("test_c", "ERROR"),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_log_is_read(name: str) -> None:
    log, expected = CASES[name]
    assert list(LOG_PARSERS[name](log)) == expected


@pytest.mark.parametrize("name", LOG_PARSERS)
def test_nonsense_names_no_test_and_breaks_nothing(name: str) -> None:
    assert list(LOG_PARSERS[name]("\n\x00\n[\n ... \n---\nPASSED\nFAIL:\nok\n" + "é" * 100)) == []
