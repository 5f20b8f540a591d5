"""Time limits; what Slurm makes of each text is what Slurm 22.05 says about a held job with it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.config.slurm import ComponentOptions
from rollart_hpc.config.time_limit import UNLIMITED, parse_time_limit, time_limit_s

HOUR_S, DAY_S = 3600, 86400


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (30, "00:30:00"),
        ("30", "00:30:00"),
        (1440, "1-00:00:00"),
        ("1:30:00", "01:30:00"),
        (" 01:30:30 ", "01:30:30"),
        ("1:5:5", "01:05:05"),
        ("0:0:30", "00:00:30"),
        ("90:00:00", "3-18:00:00"),
        ("1-2", "1-02:00:00"),
        ("1-2:3", "1-02:03:00"),
        ("1-2:3:4", "1-02:03:04"),
        ("3-00:00", "3-00:00:00"),
        ("1-25", "2-01:00:00"),
        ("unlimited", UNLIMITED),
        ("INFINITE", UNLIMITED),
    ],
    ids=str,
)
def test_what_slurm_reads_as_people_do_is_taken_and_written_in_one_way(given: int | str, limit: str):
    assert parse_time_limit(given) == limit


@pytest.mark.parametrize(
    ("text", "to_slurm", "instead"),
    [
        ("1:30", "1 min 30 s", ["00:01:30", "01:30:00"]),
        ("4:00", "4 min 0 s", ["00:04:00", "04:00:00"]),
        ("90:00", "90 min 0 s", ["01:30:00", "3-18:00:00"]),
    ],
)
def test_two_numbers_are_minutes_and_seconds_to_slurm_and_therefore_refused(
    text: str, to_slurm: str, instead: list[str]
):
    with pytest.raises(ValueError, match=f"'{text}' is {to_slurm} to Slurm") as caught:
        parse_time_limit(text)
    advice = re.findall(r"(?:\d+-)?\d+:\d+:\d+", str(caught.value))
    assert advice == instead
    assert [parse_time_limit(limit) for limit in advice] == instead


@pytest.mark.parametrize("given", [0, "0", "0:00", "00:00:00", "0-0", "0-00:00:00"])
def test_nothing_is_no_limit_at_all_to_slurm_and_therefore_refused(given: int | str):
    with pytest.raises(ValueError, match="write UNLIMITED for that"):
        parse_time_limit(given)


@pytest.mark.parametrize(
    "given",
    [
        "1d",
        "1h",
        "",
        "-1",
        -1,
        "+5",
        "5.5",
        "1-",
        "-1:00:00",
        "1-2:3:4:5",
        "1:2:3:4",
        "1:60:00",
        "10:75",
        "1 h",
        "1-1-1",
    ],
)
def test_what_slurm_refuses_or_reads_in_its_own_way_is_refused_with_the_forms_that_are_right(given: int | str):
    with pytest.raises(ValueError, match=r"expected HH:MM:SS, D-HH:MM:SS, whole minutes as a number, or UNLIMITED"):
        parse_time_limit(given)


@given(st.integers(1, 400 * DAY_S))
def test_every_limit_survives_being_written_and_read(seconds: int):
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    forms = [f"{hours}:{minute}:{second}", f"{days}-{hour:02}:{minute:02}:{second:02}"]
    for text in forms:
        limit = parse_time_limit(text)
        assert re.fullmatch(r"([1-9]\d*-)?[0-2]\d:[0-5]\d:[0-5]\d", limit)
        assert time_limit_s(limit) == seconds
        assert parse_time_limit(limit) == limit


@given(st.integers(1, 10**6))
def test_a_number_is_minutes_as_text_too(minutes: int):
    assert time_limit_s(parse_time_limit(minutes)) == time_limit_s(parse_time_limit(str(minutes))) == minutes * 60


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("02:00", 120),
        ("1-02", DAY_S + 2 * HOUR_S),
        ("1-02:03", DAY_S + 2 * HOUR_S + 180),
        ("3-18:00:00", 3 * DAY_S + 18 * HOUR_S),
        *((word, None) for word in ("UNLIMITED", "infinite", "NONE", "n/a", "NOT_SET")),
    ],
)
def test_what_slurm_prints_is_read(text: str, seconds: int | None):
    assert time_limit_s(text) == seconds


@pytest.mark.parametrize(("value", "said"), [(True, "whole minutes"), (1.5, "whole minutes"), ("1:30", "to Slurm")])
def test_a_limit_in_a_config_is_refused_there(value: object, said: str):
    with pytest.raises(ValueError, match=said):
        ComponentOptions.model_validate({"time": value})
