"""Watches of the embedded cluster under load and over time."""

from __future__ import annotations

import itertools
import threading

from tests.cluster.support import config_map
from tf_dist.cluster.api import CONFIG_MAPS, TFJOBS, WatchEvent
from tf_dist.cluster.memory import MemoryCluster


def test_bookmarks_come_between_the_changes() -> None:
    with MemoryCluster(bookmark_every=0.01) as cluster, cluster.watch(TFJOBS, timeout=30) as events:
        cluster.create(CONFIG_MAPS, "default", config_map("other"))
        first = next(events)
    assert first.type == "BOOKMARK"
    assert first.object["kind"] == "TFJob"
    assert int(first.object["metadata"]["resourceVersion"]) > 0


def test_a_watch_from_a_bookmark_misses_nothing() -> None:
    with MemoryCluster(bookmark_every=0.001) as cluster:
        stop = threading.Event()

        def write() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                cluster.create(CONFIG_MAPS, "default", config_map(f"c{number:06}"))

        writer = threading.Thread(target=write)
        since = cluster.list(CONFIG_MAPS).resource_version
        seen: list[str] = []
        writer.start()
        while len(seen) < 500:
            with cluster.watch(CONFIG_MAPS, since=since, timeout=0.01) as events:
                for event in events:
                    since = event.object["metadata"]["resourceVersion"]
                    if event.type == "BOOKMARK":
                        break
                    seen.append(event.object["metadata"]["name"])
        stop.set()
        writer.join()
        assert seen == [f"c{number:06}" for number in range(len(seen))]


def test_a_busy_watch_ends_in_time() -> None:
    with MemoryCluster() as cluster:
        stop = threading.Event()

        def write() -> None:
            cluster.create(CONFIG_MAPS, "default", config_map("a"))
            for number in itertools.count():
                if stop.is_set():
                    return
                cluster.patch(CONFIG_MAPS, "default", "a", {"data": {"n": str(number)}})

        writer = threading.Thread(target=write)
        writer.start()
        last: WatchEvent | None = None
        for event in cluster.watch(CONFIG_MAPS, timeout=0.2):
            last = event
        stop.set()
        writer.join()
        assert last is not None


def test_closing_the_cluster_ends_its_watches() -> None:
    cluster = MemoryCluster()
    events = cluster.watch(TFJOBS, timeout=100)
    ended = threading.Event()

    def read() -> None:
        list(events)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    cluster.close()
    assert ended.wait(30)
