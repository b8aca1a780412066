"""Parsing and formatting of times, and of durations in annotations and in Go's format."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tf_dist.core.model.timestamps import (
    format_go_duration,
    format_micro_time,
    format_time,
    parse_duration,
    parse_go_duration,
    parse_time,
    round_time,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("10s", 10), ("1h30m", 5400), ("1.5s", 1.5), ("100ms", 0.1), ("0", 0), ("+0", 0), ("2m0.5s", 120.5)),
        *((".5h", 1800), ("1.s", 1), ("+1m", 60), ("5us", 5e-6), ("5µs", 5e-6), ("5ns", 5e-9)),
        ("2562047h", 2562047 * 3600),
        ("0" * 61 + "90s", 90),  # the longest text that is accepted
    ],
)
def test_parses_go_durations(text: str, value: float):
    assert parse_go_duration(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "+", "10", "s", ".s", "1 h", "-1s", "1d", "1h 2m", "2562048h", "9" * 400 + "h", "0" * 64 + "s"]
)
def test_refuses_invalid_go_durations(text: str):
    assert parse_go_duration(text) is None


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("0", 0), ("0s", 0), ("10m", 600), ("1.5h", 5400)])
def test_parses_durations_of_annotations(text: str, value: float):
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", " 90", "+1m", ".5h", "1.s", "5us", "1.5", "-1", "1h30", "٣s", "9" * 65])
def test_refuses_invalid_durations_of_annotations(text: str):
    assert parse_duration(text) is None


def test_duration_is_bounded():
    assert parse_duration("9" * 30 + "h") == parse_duration("9" * 25) == 2**31 - 1


@given(st.integers(min_value=0, max_value=2**31 - 1))
def test_durations_survive_writing_and_reading(seconds: int):
    text = format_go_duration(seconds + 0.4)
    assert parse_go_duration(text) == parse_duration(text) == seconds


def test_negative_duration_is_written_as_zero():
    assert (format_go_duration(-3.0), format_go_duration(3605), format_go_duration(60)) == ("0s", "1h0m5s", "1m0s")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2027-01-15T08:00:00Z", 1_800_000_000.0),
        ("2027-01-15T08:00:00.123456Z", 1_800_000_000.123456),
        ("2027-01-15T10:00:00+02:00", 1_800_000_000.0),
        ("2027-01-15T08:00:00", 1_800_000_000.0),
        ("0001-01-01T00:00:00Z", -62135596800.0),
        (f"2027-01-15T08:00:00.{'0' * 43}Z", 1_800_000_000.0),  # the longest text that is accepted
        (f"2027-01-15T08:00:00.{'0' * 44}Z", None),
        ("", None),
        (None, None),
        ("soon", None),
    ],
)
def test_parses_times_of_api(text: str | None, seconds: float | None) -> None:
    assert parse_time(text) == seconds


@given(st.floats(0, 1e10))
@example(1.2345678)
def test_rounded_time_survives_writing_and_reading(seconds: float) -> None:
    moment = round_time(seconds)
    assert parse_time(format_micro_time(moment)) == moment
    assert round_time(moment) == moment
    assert 0 <= moment - (parse_time(format_time(moment)) or 0.0) < 1
