"""The Node object: what the agent keeps true, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.cluster.support import exists
from tests.waiting import until
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.kubelet.node.node_lease import LEASE_NAMESPACE
from tf_dist.cluster.kubelet.node.node_settings import NodeSettings
from tf_dist.cluster.kubelet.node.registration import PROCESSES_TAINT, NodeRegistration, merge_taints, node_status
from tf_dist.errors import Unavailable

OTHERS = {"key": "maintenance", "effect": "NoExecute"}


class World:
    """A cluster, whose other nodes come and go, and a clock."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.only_tf_dist_nodes = True
        self.now = 0.0

    def registration(self, node_informer: UidInformer | None = None, **changes: Any) -> NodeRegistration:
        settings = NodeSettings(name="n", ephemeral=False, **{"taints": None, **changes})
        return NodeRegistration(
            self.cluster,
            settings,
            "192.0.2.1",
            identity="me",
            node_informer=node_informer,
            only_tf_dist_nodes=lambda: self.only_tf_dist_nodes,
            monotonic=lambda: self.now,
        )

    def registered(self, **changes: Any) -> NodeRegistration:
        made = self.registration(**changes)
        made.register("isolated", 0.0)
        return made

    def node(self) -> Object:
        return self.cluster.get(NODES, None, "n")

    def taints(self) -> list[Object]:
        return self.node()["spec"].get("taints") or []

    def ready(self) -> str:
        return next(item["status"] for item in self.node()["status"]["conditions"] if item["type"] == "Ready")

    def version(self) -> str:
        return str(self.node()["metadata"]["resourceVersion"])


@pytest.fixture
def world() -> Iterator[World]:
    with MemoryCluster() as cluster:
        cluster.create(NAMESPACES, None, {"metadata": {"name": LEASE_NAMESPACE}})
        yield World(cluster)


def test_a_node_says_where_it_is_and_what_it_offers(world: World) -> None:
    world.registered(labels={"zone": "left"}, log_port=4711, capacity={"cpu": "7"})
    node = world.node()
    assert node["metadata"]["labels"]["zone"] == "left"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n"
    assert node["status"]["allocatable"]["cpu"] == "7"
    assert node["status"]["addresses"] == [{"type": "InternalIP", "address": "192.0.2.1"}]
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 4711}}
    lease = world.cluster.get(LEASES, LEASE_NAMESPACE, "n")
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


def test_among_processes_there_is_no_taint(world: World) -> None:
    registration = world.registered()
    assert world.taints() == []
    world.only_tf_dist_nodes = False
    registration.beat(0.0)
    assert world.taints() == [PROCESSES_TAINT]
    world.only_tf_dist_nodes = True
    registration.beat(0.0)
    assert world.taints() == []


def test_taints_of_others_stay(world: World) -> None:
    registration = world.registered()
    world.cluster.patch(NODES, None, "n", {"spec": {"taints": [OTHERS]}})
    world.only_tf_dist_nodes = False
    registration.beat(0.0)
    assert world.taints() == [OTHERS, PROCESSES_TAINT]


@pytest.mark.parametrize("asked", [(), ({"key": "mine", "effect": "NoSchedule"},)])
def test_taints_that_were_asked_for_are_the_only_ones(world: World, asked: tuple[Object, ...]) -> None:
    world.only_tf_dist_nodes = False
    world.registered()
    world.registered(taints=asked)
    assert world.taints() == list(asked)


def test_merging_taints_twice_is_merging_them_once() -> None:
    once = merge_taints([PROCESSES_TAINT, OTHERS], [PROCESSES_TAINT])
    assert once == [OTHERS, PROCESSES_TAINT]
    assert merge_taints(once, [PROCESSES_TAINT]) == once


def test_the_node_of_a_kubelet_is_left_alone(world: World) -> None:
    world.cluster.create(NODES, None, {"metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}}})
    before = world.version()
    with pytest.raises(Unavailable, match="none of tf-dist's"):
        world.registered()
    assert world.version() == before
    assert not exists(world.cluster, LEASES, LEASE_NAMESPACE, "n")


def test_leaving_closes_the_node_and_coming_back_opens_it(world: World) -> None:
    registration = world.registered()
    registration.leave(0.0)
    assert world.node()["spec"]["unschedulable"]
    assert world.ready() == "False"
    registration.retire(keep_node=True)
    assert not exists(world.cluster, LEASES, LEASE_NAMESPACE, "n")
    world.registered()
    assert not world.node()["spec"].get("unschedulable")
    assert world.ready() == "True"


def test_what_an_administrator_closed_stays_closed(world: World) -> None:
    registration = world.registered()
    world.cluster.patch(NODES, None, "n", {"spec": {"unschedulable": True}})
    registration.leave(0.0)
    registration.retire(keep_node=True)
    world.registered()
    assert world.node()["spec"]["unschedulable"]


def test_the_end_takes_node_and_lease_away(world: World) -> None:
    registration = world.registered()
    registration.leave(0.0)
    registration.retire(keep_node=False)
    assert not exists(world.cluster, NODES, None, "n")
    assert not exists(world.cluster, LEASES, LEASE_NAMESPACE, "n")


def test_a_node_of_the_same_name_that_came_later_is_not_taken_away(world: World) -> None:
    registration = world.registered()
    world.cluster.delete(NODES, None, "n")
    world.cluster.create(NODES, None, {"metadata": {"name": "n"}})
    registration.retire(keep_node=False)
    assert exists(world.cluster, NODES, None, "n")


@pytest.mark.parametrize("watched", [True, False])
def test_a_deleted_node_is_made_again(world: World, watched: bool) -> None:
    """Also one that was not watched when it was deleted."""
    node_informer = UidInformer(world.cluster, NODES, lambda uid: None, fields="metadata.name=n")
    registration = world.registered(node_informer=node_informer)
    uid = world.node()["metadata"]["uid"]
    for step in (node_informer.start, partial(world.cluster.delete, NODES, None, "n"))[:: 1 if watched else -1]:
        step()
        registration.beat(0.0)
    try:
        until(lambda: node_informer.synced() and node_informer.get(uid) is None, 60)
        registration.beat(0.0)
        assert world.node()["metadata"]["uid"] != uid
        version = world.version()
        registration.beat(0.0)
        assert world.version() == version
    finally:
        node_informer.stop()


def test_nothing_is_written_between_heartbeats(world: World) -> None:
    registration = world.registered()
    lease = world.cluster.get(LEASES, LEASE_NAMESPACE, "n")["metadata"]["resourceVersion"]
    node = world.version()
    for _ in range(5):
        world.now += 1.9
        registration.beat(world.now)
    assert world.cluster.get(LEASES, LEASE_NAMESPACE, "n")["metadata"]["resourceVersion"] == lease
    world.now += 1.0
    registration.beat(world.now)
    assert world.cluster.get(LEASES, LEASE_NAMESPACE, "n")["metadata"]["resourceVersion"] != lease
    assert world.version() == node


def test_conditions_keep_the_time_of_their_last_change() -> None:
    fixed: Object = {"offers": {}, "address": "", "log_port": 0, "info": {}, "description": "well"}
    foreign = {"type": "Custom", "status": "True"}
    first = node_status(**fixed, leaving=False, before={"conditions": [foreign]}, now=0.0)
    second = node_status(**fixed, leaving=False, before=first, now=60.0)
    third = node_status(**fixed, leaving=True, before=second, now=120.0)
    assert foreign in third["conditions"]
    changes = [
        next(item["lastTransitionTime"] for item in status["conditions"] if item["type"] == "Ready")
        for status in (first, second, third)
    ]
    assert changes == ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:02:00Z"]
