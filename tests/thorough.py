"""The number of examples that Hypothesis draws: all of them in ``make test-slow``, and a part in ``make test``."""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import settings

ALL: Final = os.environ.get("TF_DIST_TEST_EXAMPLES") == "all"
_FEWEST: Final = 10


def examples(count: int) -> int:
    """The number of examples of this run if ``make test-slow`` draws ``count``."""
    return count if ALL else max(count // 8, min(count, _FEWEST))


def thorough(count: int, **options: Any) -> settings:
    """The settings of a property for which ``make test-slow`` draws ``count`` examples."""
    return settings(max_examples=examples(count), **options)
