"""The list of changes that no test can notice speaks of code that is there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LISTED = tomllib.loads((HERE / "equivalents.toml").read_text())["equivalent"]


@pytest.mark.parametrize("one", LISTED, ids=lambda one: f"{one['file']}: {one['new'][:40]}")
def test_its_line_is_in_the_code(one: dict[str, str]) -> None:
    lines = [line.strip() for line in (HERE.parents[1] / one["file"]).read_text().splitlines()]
    wanted = one["old"].strip().splitlines()

    assert any(lines[at : at + len(wanted)] == wanted for at in range(len(lines))), "remove it, or look at it again"
    assert one["new"].strip() != one["old"].strip()
    assert one["reason"].strip()
