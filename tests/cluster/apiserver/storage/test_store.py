"""Properties of the embedded cluster that hold for any sequence of writes."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.support import config_map, job, owned_by
from tests.thorough import thorough
from tf_dist.cluster.api import CONFIG_MAPS, TFJOBS, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.patch import merge_patch, strategic_merge_patch
from tf_dist.errors import AlreadyExists, Gone, NotFound

NAMES = st.sampled_from(["a", "b", "c"])
WRITES = st.lists(
    st.tuples(st.sampled_from(["create", "patch", "label", "delete"]), NAMES, st.integers(0, 3)), max_size=40
)


def write(cluster: MemoryCluster, verb: str, name: str, value: int) -> None:
    try:
        if verb == "create":
            body = config_map(name, value=str(value))
            body["metadata"]["labels"] = {"value": str(value)}
            cluster.create(CONFIG_MAPS, "default", body)
        elif verb == "patch":
            cluster.patch(CONFIG_MAPS, "default", name, {"data": {"value": str(value)}})
        elif verb == "label":
            cluster.patch(CONFIG_MAPS, "default", name, {"metadata": {"labels": {"value": str(value)}}})
        else:
            cluster.delete(CONFIG_MAPS, "default", name)
    except (AlreadyExists, NotFound):
        pass


def replayed(state: dict[str, Object], events: Any) -> dict[str, Object]:
    for event in events:
        name = event.object["metadata"].get("name")
        if event.type == "DELETED":
            assert name in state
            del state[name]
        elif event.type != "BOOKMARK":
            assert (name in state) is (event.type == "MODIFIED")
            state[name] = event.object
    return state


def listed(cluster: MemoryCluster, labels: str = "") -> dict[str, Object]:
    return {obj["metadata"]["name"]: obj for obj in cluster.list(CONFIG_MAPS, "default", labels=labels).items}


@given(WRITES)
@thorough(50)
def test_versions_only_increase(writes: list[tuple[str, str, int]]) -> None:
    with MemoryCluster() as cluster:
        events = cluster.watch(CONFIG_MAPS, "default", timeout=0.001)
        before = int(cluster.list(CONFIG_MAPS).resource_version)
        for one in writes:
            write(cluster, *one)
            now = int(cluster.list(CONFIG_MAPS).resource_version)
            assert now >= before
            before = now
        seen = [int(event.object["metadata"]["resourceVersion"]) for event in events if event.type != "BOOKMARK"]
        assert seen == sorted(set(seen))


def test_watch_with_very_short_timeout_ends() -> None:
    ended = list[int]()
    with MemoryCluster() as cluster:

        def watch() -> None:
            for tenths in range(5000):
                ended.append(len(list(cluster.watch(CONFIG_MAPS, "default", timeout=tenths % 250 / 1e7))))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        thread.join(60)
    assert ended == [1] * 5000


@given(WRITES, st.integers(0, 40), st.sampled_from(["", "value=1", "value!=2", "value in (0,3)"]))
@thorough(100)
def test_list_and_watch_events_reproduce_next_list(writes: list[tuple[str, str, int]], cut: int, labels: str) -> None:
    with MemoryCluster() as cluster:
        for one in writes[:cut]:
            write(cluster, *one)
        since = cluster.list(CONFIG_MAPS, "default").resource_version
        state = listed(cluster, labels)
        live = cluster.watch(CONFIG_MAPS, "default", labels=labels, since=since, timeout=0.001)
        for one in writes[cut:]:
            write(cluster, *one)
        late = cluster.watch(CONFIG_MAPS, "default", labels=labels, since=since, timeout=0.001)
        assert replayed(dict(state), live) == listed(cluster, labels)
        assert replayed(dict(state), late) == listed(cluster, labels)


@given(WRITES, WRITES, st.integers(1, 3))
@thorough(100)
def test_pages_of_list_show_same_version(
    before: list[tuple[str, str, int]], during: list[tuple[str, str, int]], limit: int
) -> None:
    with MemoryCluster() as cluster:
        for one in before:
            write(cluster, *one)
        whole = cluster.list(CONFIG_MAPS, "default").items
        page = cluster.list(CONFIG_MAPS, "default", limit=limit)
        items, writes = list(page.items), iter(during)
        while page.continue_:
            for one in writes:
                write(cluster, *one)
                break
            page = cluster.list(CONFIG_MAPS, "default", limit=limit, continue_=page.continue_)
            items += page.items
        assert items == whole


@given(st.lists(st.sets(st.integers(0, 7), max_size=2), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
@thorough(100)
def test_objects_remain_only_without_owners_or_with_living_owner(owners: list[set[int]], deleted: set[int]) -> None:
    """Objects own each other in any acyclic way. Then some objects are deleted."""
    with MemoryCluster() as cluster:
        made: list[Object] = []
        for number, above in enumerate(owners):
            body = job(f"j{number}")
            for owner in sorted(above):
                if owner < number:
                    body = owned_by(made[owner], body)
            made.append(cluster.create(TFJOBS, "default", body))
        alive: set[int] = set(range(len(owners)))
        for number in sorted(deleted):
            if number in alive:
                cluster.delete(TFJOBS, "default", f"j{number}")
                alive = survivors(owners, alive - {number})
        found = {obj["metadata"]["name"] for obj in cluster.list(TFJOBS, "default").items}
        assert found == {f"j{number}" for number in alive}


def survivors(owners: list[set[int]], alive: set[int]) -> set[int]:
    # An owner has a lower number than its dependents, so one pass in ascending order is enough.
    left: set[int] = set()
    for number in sorted(alive):
        above = {owner for owner in owners[number] if owner < number}
        if not above or above & left:
            left.add(number)
    return left


def test_watches_and_pages_older_than_history_are_gone() -> None:
    with MemoryCluster(history=5) as cluster:
        since = cluster.list(CONFIG_MAPS).resource_version
        page = cluster.list(CONFIG_MAPS)
        assert page.continue_ == ""
        for number in range(5):
            cluster.create(CONFIG_MAPS, "default", config_map(f"c{number}"))
        cluster.watch(CONFIG_MAPS, since=since).close()
        page = cluster.list(CONFIG_MAPS, limit=1)
        for number in range(5, 12):
            cluster.create(CONFIG_MAPS, "default", config_map(f"c{number}"))
        for late in (
            lambda: cluster.watch(CONFIG_MAPS, since=since),
            lambda: cluster.list(CONFIG_MAPS, limit=1, continue_=page.continue_),
        ):
            try:
                late()
            except Gone:
                continue
            raise AssertionError("nothing is gone")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(OBJECTS, OBJECTS)
def test_patches_are_idempotent_and_leave_their_arguments(target: Object, patch: Object) -> None:
    kept = (repr(target), repr(patch))
    for change in (merge_patch, strategic_merge_patch):
        once = change(target, patch)
        assert change(once, patch) == once
    assert (repr(target), repr(patch)) == kept
