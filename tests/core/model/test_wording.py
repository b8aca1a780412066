"""Numbers in sentences: nouns and verbs that agree with them."""

from __future__ import annotations

import pytest

from tests.core.builders import ON_FAILURE, replicas, v1_job, volcano_job
from tests.core.reconciler.scenarios import started
from tests.core.world import World
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.wording import counted, share_text, times_text


def test_counts_nouns() -> None:
    assert [counted(count, "worker") for count in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
    assert [counted(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]
    assert [times_text(count) for count in (0, 1, 2)] == ["0 times", "once", "2 times"]


@pytest.mark.parametrize(
    ("part", "total", "text"),
    [
        (0, 1, "0 of 1 replica is"),
        (1, 1, "1 of 1 replica is"),
        (0, 3, "0 of 3 replicas are"),
        (1, 3, "1 of 3 replicas is"),
        (3, 3, "3 of 3 replicas are"),
    ],
)
def test_counts_a_share_of_the_replicas(part: int, total: int, text: str) -> None:
    assert share_text(part, total) == text


@pytest.mark.parametrize(("count", "text"), [(1, "the replica is admitted"), (2, "all 2 replicas are admitted")])
def test_counts_the_replicas_that_are_admitted(count: int, text: str) -> None:
    world = World(v1_job(replicas("Worker", count, rules=ON_FAILURE)))
    world.verdict = Admit(placement={"worker": {"n1": count}})
    world.step()
    assert world.memory.message == text


def test_counts_the_replica_that_runs() -> None:
    assert started(v1_job(replicas("Worker", 1, rules=ON_FAILURE))).memory.message == "1 of 1 replica is running"
    assert started(volcano_job(replicas("worker", 1, rules=()))).memory.message == "1 of 1 replica is running"
