"""Placeholders of template languages in the values of documents."""

from __future__ import annotations

import pytest

from tf_dist.core.dialects.placeholders import find_placeholder, find_template, find_ytt


@pytest.mark.parametrize("part", ["{{", "${a", "{%", "[[", "$(params.", "{{.Trial", "{{if ", "{{item ", "#@ if", "<a "])
def test_time_is_linear_in_the_length(part: str) -> None:
    """If the end of each bracket were searched up to the end of the text, this would take minutes."""
    text = part * (100_000 // len(part))
    assert [find(text) for find in (find_placeholder, find_template)] == [None, None]
    assert find_ytt(text) is None or part == "#@ if"
