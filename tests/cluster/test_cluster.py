"""What the embedded cluster does on its own: an injected clock, old events, quick ends."""

from __future__ import annotations

import itertools

from tests.cluster.support import config_map, names, owned_by, pod
from tf_dist.cluster.api import CONFIG_MAPS, EVENTS, NAMESPACES, PODS
from tf_dist.cluster.memory import DeleteOptions, MemoryCluster


def event(name: str, **fields: str) -> dict:
    return {"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p"}, **fields}


def test_time_and_identity_are_injected() -> None:
    uids = (f"00000000-0000-0000-0000-{number:012}" for number in itertools.count())
    with MemoryCluster(clock=lambda: 1_600_000_000.9, uids=lambda: next(uids)) as cluster:
        metadata = cluster.create(CONFIG_MAPS, "default", config_map("a"))["metadata"]
    assert metadata["creationTimestamp"] == "2020-09-13T12:26:40Z"
    assert metadata["uid"] == "00000000-0000-0000-0000-000000000003"


def test_events_are_forgotten_after_an_hour() -> None:
    now = 1_600_000_000.0
    with MemoryCluster(clock=lambda: now) as cluster:
        cluster.create(EVENTS, "default", event("old"))
        cluster.create(EVENTS, "default", event("again"))
        now += 3000
        cluster.patch(EVENTS, "default", "again", {"lastTimestamp": "2020-09-13T13:16:40Z"})
        now += 700
        cluster.create(EVENTS, "default", event("new"))
        assert names(cluster, EVENTS, "default") == ["again", "new"]


def test_a_namespace_always_has_its_name_as_a_label(memory: MemoryCluster) -> None:
    """Also one that tries to go without, or by the name of another; as API servers do from 1.21 on."""
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


def test_an_unknown_owner_kind_keeps_its_object(memory: MemoryCluster) -> None:
    owner = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "u"}}
    memory.create(CONFIG_MAPS, "default", owned_by(owner, config_map("a")))
    assert names(memory, CONFIG_MAPS, "default") == ["a"]


def test_one_dead_owner_of_two_is_only_crossed_out(memory: MemoryCluster) -> None:
    first, second = (memory.create(CONFIG_MAPS, "default", config_map(name)) for name in ("first", "second"))
    memory.create(CONFIG_MAPS, "default", owned_by(second, owned_by(first, config_map("mine"))))
    memory.delete(CONFIG_MAPS, "default", "first")
    owners = memory.get(CONFIG_MAPS, "default", "mine")["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["second"]


def test_foreground_waits_for_what_blocks(memory: MemoryCluster) -> None:
    owner = memory.create(CONFIG_MAPS, "default", config_map("owner"))
    memory.create(PODS, "default", owned_by(owner, pod("p", nodeName="n"), block=True))
    memory.delete(CONFIG_MAPS, "default", "owner", propagation="Foreground")
    left = memory.get(CONFIG_MAPS, "default", "owner")["metadata"]
    assert (left["finalizers"], "deletionTimestamp" in left) == (["foregroundDeletion"], True)
    memory.delete(PODS, "default", "p", grace_period=0)
    assert names(memory, CONFIG_MAPS, "default") == []


def test_a_deep_tree_needs_no_deep_stack(memory: MemoryCluster) -> None:
    above = memory.create(CONFIG_MAPS, "default", config_map("c0"))
    for number in range(1, 3000):
        above = memory.create(CONFIG_MAPS, "default", owned_by(above, config_map(f"c{number}")))
    memory.delete(CONFIG_MAPS, "default", "c0")
    assert names(memory, CONFIG_MAPS, "default") == []


def test_a_collection_is_deleted_by_selector(memory: MemoryCluster) -> None:
    for name in ("a", "b"):
        memory.create(CONFIG_MAPS, "default", config_map(name))
    memory.delete_collection(CONFIG_MAPS, "default", DeleteOptions(), fields="metadata.name=a")
    assert names(memory, CONFIG_MAPS, "default") == ["b"]
