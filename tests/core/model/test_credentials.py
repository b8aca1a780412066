"""Credentials in messages of containers, kubelets and webhooks."""

from __future__ import annotations

import pytest

from tf_dist.core.model.credentials import hide_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("PermissionError: [Errno 13] '/data/x'", "PermissionError: [Errno 13] '/data/x'"),
        ("login with password=hunter2 failed", "login with password=*** failed"),
        ("AWS_SECRET_ACCESS_KEY: abc/def", "AWS_SECRET_ACCESS_KEY: ***"),
        ('{"token": "a b c", "step": 3}', '{"token": ***, "step": 3}'),
        ("Authorization: Bearer abcdefgh12", "Authorization: Bearer ***"),
        ("cannot reach postgres://me:pw@db/x", "cannot reach postgres://***@db/x"),
        ("key AKIAABCDEFGHIJKLMNOP", "key ***"),
        ("got eyJhbGciOiJI.eyJzdWIi.abc_-1", "got ***"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nbye", "***\nbye"),
        ("-----BEGIN PRIVATE KEY-----\nMII", "***"),
        ("AwEHoUQDQgAE9ZwT\nMIIabcd=\n-----END EC PRIVATE KEY-----\nbye", "***\nbye"),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
    assert hide_credentials(text) == shown


@pytest.mark.parametrize("part", ["a", "-", "=", ":", "@", "/", "'", '"', " ", ".", "\n", "eyJ-", "token ", "://"])
def test_time_is_linear_in_the_length(part: str) -> None:
    """A quadratic pattern would take minutes for this text, which its author may choose."""
    assert hide_credentials(part * (200_000 // len(part)))
