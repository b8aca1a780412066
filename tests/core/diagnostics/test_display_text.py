"""Times and numbers as users read them."""

from __future__ import annotations

import math

import pytest

from tf_dist.core.diagnostics.display_text import format_age, format_duration, format_hours, format_number, visible_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0, "0.0s"),
        (4.21, "4.2s"),
        (10, "10s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (65, "1m05s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (11_520, "3h12m"),
        (86_399, "23h59m"),
        (86_400, "1d0h"),
        (442_800, "5d3h"),
    ],
)
def test_formats_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("since", "now", "text"), [(None, 5.0, "-"), (5.0, 9.9, "4s"), (9.0, 5.0, "0s"), (0.0, 70.0, "1m10s")]
)
def test_formats_ages(since: float | None, now: float, text: str) -> None:
    assert format_age(since, now) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (3.0, "3"),
        (-12.0, "-12"),
        (0.98765, "0.9877"),
        (0.00012345, "0.0001234"),
        (12345.678, "1.235e+04"),
        (1e15, "1e+15"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_formats_numbers(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(900, "0.25"), (45_000, "12.5"), (4_500_000, "1250")])
def test_formats_hours(seconds: float, text: str) -> None:
    assert format_hours(seconds) == text


@pytest.mark.parametrize(
    ("line", "text"),
    [("1/9\r2/9", "2/9"), ("done\r", "done"), ("\x1b[31mred\x1b[0m", None), ("a\x07b", "ab"), ("", "")],
)
def test_visible_text_of_terminal_line(line: str, text: str | None) -> None:
    assert visible_text(line) == (line if text is None else text)


@pytest.mark.parametrize(
    ("sequence", "rest"),
    [
        ("\x1b[2J", ""),  # erases the screen
        ("\x1b[?25l", ""),
        ("\x1b[>4;2m", ""),
        ("\x1b[!p", ""),
        ("\x1b[1;5 q", ""),
        ("\x1b]0;title\x07", ""),
        ("\x1b]8;id=1;https://example.com\x1b\\", ""),  # a link, of rich
        ("\x1bP1;2|x\x1b\\", ""),
        ("\x1b(0", ""),
        ("\x1bc", ""),
        ("\x1b\x1b[H", ""),
        ("\x9b2J", "2J"),
        ("\x9d0;title\x9c", "0;title"),
        ("\x00\x08\x7f", ""),
        # Unfinished.
        ("\x1b", ""),
        ("\x1b[", ""),
        ("\x1b[31", ""),
        ("\x1b]0;title", ""),
    ],
)
def test_visible_text_has_no_control_sequence_but_colours(sequence: str, rest: str) -> None:
    assert visible_text(sequence) == rest
    assert visible_text(f"\x1b[38:5:1mloss\x1b[0m{sequence}") == f"\x1b[38:5:1mloss\x1b[0m{rest}"
