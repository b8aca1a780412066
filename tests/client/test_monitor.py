"""Informers and waits back off when watches end immediately, so that a broken proxy causes no list storm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.controller.harness import tfjob
from tests.waiting import until
from tf_dist.client.connection import backoff_seconds as patience
from tf_dist.client.monitor import ObjectWatcher
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.wait import GoalNotReached, wait_for
from tf_dist.cluster.api import TFJOBS, Cluster, Resource, WatchEvent
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.informer import Informer, jittered_backoff
from tf_dist.errors import Gone, NotFound

# The tests wait for this number of requests. The pauses between them are at least half of the back-off tables.
COUNT = 5
SECONDS = 60.0


class Ended:
    """A watch that ends immediately."""

    def __init__(self, *said: WatchEvent, gone: bool) -> None:
        self._said, self._gone = iter(said), gone

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        for event in self._said:
            return event
        if self._gone:
            raise Gone("too old, says the proxy")
        raise StopIteration

    def close(self) -> None: ...

    def __enter__(self) -> Ended:
        return self

    def __exit__(self, *_: object) -> None: ...


class Broken:
    """A cluster behind a proxy that ends every watch immediately, with ``news`` after one event."""

    def __init__(self, *, gone: bool, news: bool) -> None:
        self.memory = MemoryCluster()
        self.job = self.memory.create(TFJOBS, "default", tfjob())
        self._gone, self._news = gone, news
        self.over = False
        self.asked: dict[str, list[float]] = {"list": [], "watch": []}

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.memory, verb)

    def list(self, *args: Any, **how: Any) -> Any:
        self.asked["list"].append(time.monotonic())
        return self.memory.list(*args, **how)

    def watch(self, resource: Resource, *_: Any, **__: Any) -> Ended:
        self.asked["watch"].append(time.monotonic())
        if self.over:
            raise NotFound("the cluster is gone")
        if not self._news:
            return Ended(gone=self._gone)
        labels = {"count": str(len(self.asked["watch"]))}
        job = self.memory.patch(resource, "default", "mnist", {"metadata": {"labels": labels}})
        return Ended(WatchEvent("MODIFIED", job), gone=self._gone)


def least(table: Callable[[int], float], count: int) -> float:
    """The shortest time for ``count`` requests. Each request except the first two follows a pause of the table."""
    return sum(min(table(failures) for _ in range(50)) / 2 for failures in range(count - 2))


def spread(moments: list[float]) -> float:
    return moments[COUNT - 1] - moments[0]


@pytest.fixture(params=["410", "end", "event-410"])
def broken(request: pytest.FixtureRequest) -> Broken:
    return Broken(gone=request.param != "end", news=request.param == "event-410")


def test_informer_backs_off(broken: Broken) -> None:
    informer = Informer(cast(Cluster, broken), TFJOBS, changed=lambda *_: None)
    informer.start()
    try:
        until(lambda: len(broken.asked["watch"]) >= COUNT, SECONDS)
        assert spread(broken.asked["watch"]) >= least(jittered_backoff, COUNT)
    finally:
        informer.stop()


def test_object_watcher_backs_off(broken: Broken) -> None:
    watcher = ObjectWatcher(cast(Cluster, broken), TFJOBS, "default", lambda _: None)
    try:
        until(lambda: len(broken.asked["watch"]) >= COUNT, SECONDS)
        assert spread(broken.asked["watch"]) >= least(patience, COUNT)
        assert len(broken.asked["list"]) <= len(broken.asked["watch"]) + 1
    finally:
        watcher.close()


def test_wait_for_backs_off() -> None:
    for gone in (True, False):
        broken = Broken(gone=gone, news=False)
        seconds = least(patience, COUNT)
        with pytest.raises(GoalNotReached):
            wait_for(cast(Cluster, broken), [StoredJob(TFJOBS, broken.job)], "finished", seconds, print)
        assert len(broken.asked["list"]) <= COUNT + 2
