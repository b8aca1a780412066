"""The end of a log in a job's status: bounded, and without credentials."""

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
        ("login with password=hunter2 failed", "login with password=*** failed"),
        ("AWS_SECRET_ACCESS_KEY: abc/def", "AWS_SECRET_ACCESS_KEY: ***"),
        ('{"token": "a b c", "step": 3}', '{"token": ***, "step": 3}'),
        ("Authorization: Bearer abcdefgh12", "Authorization: Bearer ***"),
        ("cannot reach postgres://me:pw@db/x", "cannot reach postgres://***@db/x"),
        ("key AKIAABCDEFGHIJKLMNOP", "key ***"),
        ("got eyJhbGciOiJI.eyJzdWIi.abc_-1", "got ***"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nbye", "***\nbye"),
        ("-----BEGIN PRIVATE KEY-----\nMII", "***"),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
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
