"""The Node object: which fields the kubelet keeps up to date, and which it leaves to other clients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.waiting import until
from tf_dist.cluster.api import NODES, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.kubelet.node.node_settings import NodeSettings
from tf_dist.cluster.kubelet.node.registration import NodeRegistration, node_status


class World:
    """A cluster and a clock."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.now = 0.0

    def registration(self, node_informer: UidInformer | None = None, **changes: Any) -> NodeRegistration:
        settings = NodeSettings(name="n", ephemeral=False, **changes)
        return NodeRegistration(
            self.cluster,
            settings,
            "192.0.2.1",
            node_informer=node_informer,
            monotonic=lambda: self.now,
        )

    def registered(self, **changes: Any) -> NodeRegistration:
        made = self.registration(**changes)
        made.register("isolated", 0.0)
        return made

    def node(self) -> Object:
        return self.cluster.get(NODES, None, "n")

    def version(self) -> str:
        return str(self.node()["metadata"]["resourceVersion"])


@pytest.fixture
def world() -> Iterator[World]:
    with MemoryCluster() as cluster:
        yield World(cluster)


def test_node_reports_address_and_allocatable_resources(world: World) -> None:
    world.registered(capacity={"cpu": "7", "nvidia.com/gpu": "4"})
    node = world.node()
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n"
    assert (node["status"]["allocatable"]["cpu"], node["status"]["allocatable"]["nvidia.com/gpu"]) == ("7", "4")
    assert node["status"]["addresses"] == [{"type": "InternalIP", "address": "192.0.2.1"}]
    conditions = {item["type"]: item["status"] for item in node["status"]["conditions"]}
    assert conditions == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}


@pytest.mark.parametrize("watched", [True, False])
def test_deleted_node_is_recreated(world: World, watched: bool) -> None:
    """Also a node that was deleted before the informer watched it."""
    node_informer = UidInformer(world.cluster, NODES, lambda uid: None, fields="metadata.name=n")
    registration = world.registered(node_informer=node_informer)
    uid = world.node()["metadata"]["uid"]
    for step in (node_informer.start, partial(world.cluster.delete, NODES, None, "n"))[:: 1 if watched else -1]:
        step()
        registration.beat(0.0)
    try:
        until(lambda: node_informer.synced() and node_informer.by_uid(uid) is None, 60)
        registration.beat(0.0)
        assert world.node()["metadata"]["uid"] != uid
        version = world.version()
        registration.beat(0.0)
        assert world.version() == version
    finally:
        node_informer.stop()


def test_keeps_labels_and_taints_of_other_clients(world: World) -> None:
    world.registered()
    maintenance = {"key": "maintenance", "effect": "NoExecute"}
    change = {"metadata": {"labels": {"zone": "left"}}, "spec": {"unschedulable": True, "taints": [maintenance]}}
    world.cluster.patch(NODES, None, "n", change)
    world.registered()
    node = world.node()
    assert node["metadata"]["labels"]["zone"] == "left"
    assert node["spec"] == change["spec"]


def test_status_is_written_once_per_heartbeat(world: World) -> None:
    registration = world.registered(heartbeat=10.0)
    version = world.version()
    for _ in range(5):
        world.now += 1.9
        registration.beat(world.now)
    assert world.version() == version
    world.now += 1.0
    registration.beat(world.now)
    assert world.version() != version


def test_conditions_keep_last_transition_time() -> None:
    fixed: Object = {"offers": {}, "address": "", "info": {}, "description": "well"}
    foreign = {"type": "Custom", "status": "True"}
    unready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "1969-12-31T23:00:00Z"}
    first = node_status(**fixed, before={"conditions": [foreign, unready]}, now=0.0)
    second = node_status(**fixed, before=first, now=60.0)
    for status in (first, second):
        assert foreign in status["conditions"]
        ready = next(item for item in status["conditions"] if item["type"] == "Ready")
        assert ready["lastTransitionTime"] == "1970-01-01T00:00:00Z"
