"""The scheduler's cache of gangs."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tests.core.gang.gangs import gang, running, workers
from tf_dist.core.gang.cache import SchedulerCache
from tf_dist.core.gang.types import Gang

RUNNING = running("a", {"n": 2}, at=3)
assert RUNNING.assigned is not None
RESIZED = replace(RUNNING, assigned=replace(RUNNING.assigned, resized=5.0))


@pytest.mark.parametrize(("one", "moved"), [(gang("a", workers(2)), -inf), (RUNNING, 3.0), (RESIZED, 5.0)])
def test_change_time_is_admission_or_last_resize(one: Gang, moved: float) -> None:
    assert SchedulerCache().put(one).changed_at == moved
