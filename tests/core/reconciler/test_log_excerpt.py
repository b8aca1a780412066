"""The end of a log in a job's status: bounded, and without control characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dist.core.reconciler.restarts import MAX_LENGTH, MAX_LINES, log_excerpt


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("PermissionError: [Errno 13] '/data/x'", "PermissionError: [Errno 13] '/data/x'"),
        ("\x1b[31mred\x1b[0m\n\n  ", "red"),
        ("10%\r20%", "10%\n20%"),
    ],
)
def test_control_characters_are_removed(text: str, shown: str) -> None:
    assert log_excerpt(text) == shown


def test_keeps_last_lines() -> None:
    lines = log_excerpt("\n".join(f"line {n}" for n in range(100))).splitlines()
    assert (len(lines), lines[-1]) == (MAX_LINES, "line 99")


@given(st.text(max_size=3_000))
def test_log_excerpt_is_bounded(text: str) -> None:
    assert len(log_excerpt(text)) <= MAX_LENGTH


def test_accepts_long_runs_of_one_character() -> None:
    for character in "a-=:@/'\" .\n":
        assert len(log_excerpt(character * 100_000)) <= MAX_LENGTH
