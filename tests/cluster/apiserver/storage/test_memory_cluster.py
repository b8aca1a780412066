"""Behaviour of the embedded cluster only: its clock, expiry of events, garbage collection, and watches under load."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.cluster.support import config_map, names, owned_by, pod
from tf_dist.cluster.api import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, TFJOBS, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.errors import NotFound


def event(name: str, **fields: str) -> dict:
    return {"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p"}, **fields}


def test_time_and_identity_are_injected() -> None:
    uids = (f"00000000-0000-0000-0000-{number:012}" for number in itertools.count())
    with MemoryCluster(clock=lambda: 1_600_000_000.9, uids=lambda: next(uids)) as cluster:
        metadata = cluster.create(CONFIG_MAPS, "default", config_map("a"))["metadata"]
    assert metadata["creationTimestamp"] == "2020-09-13T12:26:40Z"
    assert metadata["uid"] == "00000000-0000-0000-0000-000000000003"


def test_events_expire_after_an_hour() -> None:
    now = 1_600_000_000.0
    with MemoryCluster(clock=lambda: now) as cluster:
        cluster.create(EVENTS, "default", event("old"))
        cluster.create(EVENTS, "default", event("again"))
        now += 3000
        cluster.patch(EVENTS, "default", "again", {"lastTimestamp": "2020-09-13T13:16:40Z"})
        now += 700
        cluster.create(EVENTS, "default", event("new"))
        assert names(cluster, EVENTS, "default") == ["again", "new"]


def test_namespace_always_has_its_name_as_label(memory: MemoryCluster) -> None:
    """The label cannot be removed or changed, as in Kubernetes since 1.21."""
    namespace = "default"
    name = "kubernetes.io/metadata.name"
    stored = memory.get(NAMESPACES, None, namespace)
    assert stored["metadata"]["labels"][name] == namespace
    for written in ({name: None}, {name: "another"}, {name: "another", "team": "vision"}):
        memory.patch(NAMESPACES, None, namespace, {"metadata": {"labels": written}})
        stored = memory.get(NAMESPACES, None, namespace)
        assert stored["metadata"]["labels"][name] == namespace
    assert stored["metadata"]["labels"]["team"] == "vision"
    bare = {**stored, "metadata": {key: value for key, value in stored["metadata"].items() if key != "labels"}}
    assert memory.replace(NAMESPACES, None, namespace, bare)["metadata"]["labels"] == {name: namespace}


def test_object_with_owner_of_unknown_kind_is_kept(memory: MemoryCluster) -> None:
    owner = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "u"}}
    memory.create(CONFIG_MAPS, "default", owned_by(owner, config_map("a")))
    assert names(memory, CONFIG_MAPS, "default") == ["a"]


def test_deleted_owner_of_two_is_removed_from_references(memory: MemoryCluster) -> None:
    first, second = (memory.create(CONFIG_MAPS, "default", config_map(name)) for name in ("first", "second"))
    memory.create(CONFIG_MAPS, "default", owned_by(second, owned_by(first, config_map("mine"))))
    memory.delete(CONFIG_MAPS, "default", "first")
    owners = memory.get(CONFIG_MAPS, "default", "mine")["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["second"]


def test_foreground_deletion_waits_for_blocking_dependents(memory: MemoryCluster) -> None:
    owner = memory.create(CONFIG_MAPS, "default", config_map("owner"))
    memory.create(PODS, "default", owned_by(owner, pod("p", nodeName="n"), block=True))
    memory.delete(CONFIG_MAPS, "default", "owner", propagation="Foreground")
    left = memory.get(CONFIG_MAPS, "default", "owner")["metadata"]
    assert (left["finalizers"], "deletionTimestamp" in left) == (["foregroundDeletion"], True)
    memory.delete(PODS, "default", "p", grace_period=0)
    assert names(memory, CONFIG_MAPS, "default") == []


def test_deletion_of_deep_owner_chain_does_not_recurse(memory: MemoryCluster) -> None:
    above = memory.create(CONFIG_MAPS, "default", config_map("c0"))
    for number in range(1, 3000):
        above = memory.create(CONFIG_MAPS, "default", owned_by(above, config_map(f"c{number}")))
    memory.delete(CONFIG_MAPS, "default", "c0")
    assert names(memory, CONFIG_MAPS, "default") == []


Write = Callable[[MemoryCluster], object]


@contextmanager
def writing(cluster: MemoryCluster, writes: Iterator[Write]) -> Iterator[None]:
    """A thread that writes until the block ends."""
    stop = threading.Event()

    def write() -> None:
        for one in writes:
            if stop.is_set():
                return
            one(cluster)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def _config_maps(most: int) -> Iterator[Write]:
    """At most as many writes as the history keeps, because a reader that falls further behind gets an error."""
    for number in range(most):
        yield partial(
            lambda cluster, name: cluster.create(CONFIG_MAPS, "default", config_map(name)), name=f"c{number:06}"
        )


def _patches() -> Iterator[Write]:
    for number in itertools.count():
        patch = {"data": {"n": str(number)}}
        yield partial(lambda cluster, patch: cluster.patch(CONFIG_MAPS, "default", "a", patch), patch=patch)


def test_quiet_watch_gets_bookmarks() -> None:
    with MemoryCluster(bookmark_every=0.01) as cluster, cluster.watch(TFJOBS, timeout=30) as events:
        cluster.create(CONFIG_MAPS, "default", config_map("other"))
        first = next(events)
    assert first.type == "BOOKMARK"
    assert first.object["kind"] == "TFJob"
    assert int(first.object["metadata"]["resourceVersion"]) > 0


def test_watch_from_bookmark_misses_nothing() -> None:
    with MemoryCluster(bookmark_every=0.001) as cluster, writing(cluster, _config_maps(5000)):
        since = "0"
        seen: list[str] = []
        while len(seen) < 500:
            with cluster.watch(CONFIG_MAPS, since=since, timeout=0.01) as events:
                for event in events:
                    since = event.object["metadata"]["resourceVersion"]
                    if event.type == "BOOKMARK":
                        break
                    seen.append(event.object["metadata"]["name"])
    assert seen == [f"c{number:06}" for number in range(len(seen))]


def test_late_reader_receives_all_events_before_the_timeout() -> None:
    with MemoryCluster() as cluster:
        events = cluster.watch(CONFIG_MAPS, since=cluster.list(CONFIG_MAPS).resource_version, timeout=0)
        cluster.create(CONFIG_MAPS, "default", config_map("a"))
        cluster.create(CONFIG_MAPS, "default", config_map("b"))
        cluster.delete(CONFIG_MAPS, "default", "a")
        seen = list(events)
        now = cluster.list(CONFIG_MAPS).resource_version
    told = [(event.type, event.object["metadata"]["name"]) for event in seen[:-1]]
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert (seen[-1].type, seen[-1].object["metadata"]["resourceVersion"]) == ("BOOKMARK", now)


def test_busy_watch_ends_at_timeout() -> None:
    with MemoryCluster() as cluster:
        cluster.create(CONFIG_MAPS, "default", config_map("a"))
        told: list[str] = []
        with writing(cluster, _patches()):
            while "MODIFIED" not in told:  # the writer may not have run during a short watch
                told = [event.type for event in cluster.watch(CONFIG_MAPS, timeout=0.2)]
        assert (told[0], told[-1]) == ("ADDED", "BOOKMARK")


def test_closing_the_cluster_ends_its_watches() -> None:
    cluster = MemoryCluster()
    events = cluster.watch(TFJOBS, timeout=100)
    ended = threading.Event()

    def read() -> None:
        list(events)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    cluster.close()
    assert ended.wait(60)


def test_watch_ends_when_its_kind_is_deleted() -> None:
    things = Resource("example.com", "v1", "Thing", "things")
    version = {"name": "v1", "served": True, "storage": True}
    spec = {"group": "example.com", "names": {"kind": "Thing", "plural": "things"}, "versions": [version]}
    with MemoryCluster() as cluster:
        cluster.create(CRDS, None, {"metadata": {"name": "things.example.com"}, "spec": spec})
        with cluster.watch(things, timeout=300) as events:
            cluster.create(things, "default", {"metadata": {"name": "a"}})
            cluster.delete(CRDS, None, "things.example.com")
            assert [event.type for event in events] == ["ADDED", "DELETED"]
        with pytest.raises(NotFound):
            cluster.watch(things)
