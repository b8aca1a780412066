"""How many examples Hypothesis draws: ``make test`` is content with a part of them, ``make test-slow`` draws all."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

ALL: Final = os.environ.get("TF_DIST_TEST_EXAMPLES") == "all"
_FEWEST: Final = 10

Test = TypeVar("Test", bound=Callable[..., None])


def examples(count: int) -> int:
    """So many, or the part of them that is drawn here."""
    return count if ALL else max(count // 4, min(count, _FEWEST))


def thorough(count: int, **options: Any) -> Callable[[Test], Test]:
    """Give a property so many examples, and the marker that makes ``make test-slow`` run it again with all of them."""

    def apply(test: Test) -> Test:
        return pytest.mark.thorough(settings(max_examples=examples(count), **options)(test))

    return apply
