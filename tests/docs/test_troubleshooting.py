"""docs/troubleshooting.md shows the exact output: the test simulates each situation and compares the text.

``TF_DIST_REGENERATE=1`` updates the page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.controller.harness import World
from tests.docs.situations import SITUATIONS, explained

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
_MARK = r"<!-- situation: {} -->\n"
_SHOWN = r"(?:\n```console\n(?P<shown>.*?)```\n)?"


def _played(name: str) -> str:
    """The command of a situation and its output."""
    world = World()
    SITUATIONS[name](world)
    if name == "quota_alone":
        return f"$ kubectl get tfjob mnist -o jsonpath='{{.status.tfDist.message}}'\n{world.status()['message']}\n"
    return f"$ tf-dist explain mnist\n{explained(world, 'mnist')}\n"


@pytest.mark.parametrize("name", SITUATIONS)
def test_page_shows_real_output(name: str) -> None:
    played, text = _played(name), PAGE.read_text()
    pattern = re.compile(_MARK.format(name) + _SHOWN, re.DOTALL)
    if os.environ.get("TF_DIST_REGENERATE"):
        block = f"<!-- situation: {name} -->\n\n```console\n{played}```\n"
        text = pattern.sub(lambda _: block, text, count=1)
        PAGE.write_text(text)
    found = pattern.search(text)
    assert found is not None, f"no <!-- situation: {name} --> in the page"
    assert found["shown"] == played


def test_page_and_table_have_same_situations() -> None:
    assert set(re.findall(r"<!-- situation: (\w+) -->", PAGE.read_text())) == set(SITUATIONS)
