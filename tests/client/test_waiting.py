"""Waiting for jobs: where each is, what ends the wait, and how often the cluster is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controller.harness import disturbed, tfjob
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.wait import GoalNotReached, wait_for
from tf_dist.cluster.api import TFJOBS, Cluster
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.errors import Gone, JobFailed, NotFound, Unavailable


def stored(memory: MemoryCluster, phase: str) -> StoredJob:
    """A job in that phase; "": it is gone."""
    job = memory.create(TFJOBS, "default", tfjob("a"))
    if phase:
        status = {"tfDist": {"phase": phase, "message": "exit code 3"}}
        memory.patch(TFJOBS, "default", "a", {"status": status}, subresource="status")
    else:
        memory.delete(TFJOBS, "default", "a")
    return StoredJob(TFJOBS, job)


@pytest.mark.parametrize(
    ("phase", "goal", "told", "error"),
    [
        ("Completed", "finished", "tfjob/a Succeeded", None),
        ("Failed", "finished", "tfjob/a Failed", JobFailed("tfjob/a failed: exit code 3")),
        ("Failed", "failed", "tfjob/a Failed", None),
        ("Failed", "succeeded", "", JobFailed("tfjob/a failed: exit code 3")),
        ("Completed", "running", "", JobFailed("tfjob/a is Succeeded and will never be running")),
        ("Running", "finished", "", GoalNotReached("tfjob/a is not finished yet, it is Running")),
        (
            "Aborted",
            "finished",
            "tfjob/a is Aborted (exit code 3): it goes on once it is resumed",
            GoalNotReached("tfjob/a is not finished yet, it is Aborted"),
        ),
        ("Aborted", "suspended", "tfjob/a Aborted", None),
        ("", "deleted", "tfjob/a deleted", None),
        ("", "running", "", NotFound("tfjob/a has been deleted, so it will never be running")),
    ],
)
def test_what_comes_of_it(phase: str, goal: str, told: str, error: Exception | None) -> None:
    lines: list[str] = []
    with MemoryCluster() as memory:
        job = stored(memory, phase)
        if error is None:
            wait_for(memory, [job], goal, 0.0, lines.append)
        else:
            with pytest.raises(type(error)) as caught:
                wait_for(memory, [job], goal, 0.0, lines.append, check=goal == "finished")
            assert str(caught.value) == str(error)
    assert lines == [told] * bool(told)


def interrupted(memory: MemoryCluster, watches: Iterator[bool]) -> Cluster:
    """One whose watches bring a change (True), or are over before they begin; after the last, the job is gone."""

    def before(verb: str, *_: Any, **__: Any) -> None:
        if verb == "watch":
            fruitful = next(watches, None)
            if fruitful is None:
                memory.delete(TFJOBS, "default", "a")
            if not fruitful:
                raise Gone("too old")
            memory.patch(TFJOBS, "default", "a", {"metadata": {"labels": {"changed": "true"}}})

    return disturbed(memory, before)


def test_after_a_watch_that_brought_something_pauses_are_short_again() -> None:
    backoffs: list[float] = []
    with MemoryCluster() as memory:
        job = stored(memory, "Running")
        cluster = interrupted(memory, iter([*[False] * 6, True, False]))
        wait_for(cluster, [job], "deleted", None, print, sleep=backoffs.append)
    assert len(backoffs) == 8
    assert max(backoffs[:6]) > 0.2 >= backoffs[6]


def test_a_cluster_that_is_away_is_asked_ever_more_seldom() -> None:
    backoffs: list[float] = []

    def before(verb: str, *_: Any, **__: Any) -> None:
        if len(backoffs) < 6:
            raise Unavailable("away")

    with MemoryCluster() as memory:
        job = stored(memory, "Completed")
        wait_for(disturbed(memory, before), [job], "succeeded", None, print, sleep=backoffs.append)
    assert max(backoffs) > 10 * backoffs[0] > 0
