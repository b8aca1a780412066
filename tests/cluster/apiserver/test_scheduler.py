"""The embedded scheduler: its decisions as tables, and its thread in a running cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.support import node, pod, wait_for
from tf_dist.cluster.api import NODES, PODS, PRIORITY_CLASSES, Object, Resource
from tf_dist.cluster.api_errors import AdmissionDenied
from tf_dist.cluster.apiserver.scheduler import Scheduler, free_resources, schedule_pod
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.core.gang.resources.pod_requests import pod_requests


def asking(name: str, cpu: str = "1", *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    body = pod(name, **spec)
    body["metadata"]["labels"] = labels or {}
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return body


def required(key: str, operator: str, *values: str) -> Object:
    terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def chosen(body: Object, *nodes: Object) -> str:
    choice = schedule_pod(body, pod_requests(body["spec"]), nodes, free_resources(nodes, ()))
    return choice.node or choice.message


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("body", "nodes", "result"),
    [
        (asking("a"), [], "no nodes available to schedule pods"),
        (asking("a"), [node("n1")], "n1"),
        (asking("a", "8"), [node("n1"), node("n2")], "0/2 nodes are available: 2 Insufficient cpu."),
        (asking("a"), [node("n1", cpu="2"), node("n2", cpu="1")], "n1"),
        (asking("a"), [node("n1", pods="0")], "0/1 nodes are available: 1 Too many pods."),
        (asking("a"), [node("n1", unschedulable=True)], "0/1 nodes are available: 1 node(s) were unschedulable."),
        (asking("a"), [{**node("n1"), "status": {}}], "0/1 nodes are available: 1 node(s) were not ready."),
        (asking("a", nodeSelector={"zone": "x"}), [node("n1"), node("n2", labels={"zone": "x"})], "n2"),
        (asking("a", affinity=required("zone", "In", "x", "y")), [node("n1"), node("n2", labels={"zone": "y"})], "n2"),
        (asking("a", affinity=required("zone", "NotIn", "y")), [node("n1", labels={"zone": "y"}), node("n2")], "n2"),
        (asking("a", affinity=required("zone", "Exists")), [node("n1"), node("n2", labels={"zone": ""})], "n2"),
        (asking("a", affinity=required("z", "DoesNotExist")), [node("n1", labels={"z": "y"}), node("n2")], "n2"),
        (asking("a", affinity=required("gen", "Gt", "3")), [node("n1"), node("n2", labels={"gen": "4"})], "n2"),
        (
            asking("a", affinity=required("zone", "In", "x")),
            [node("n1")],
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        ),
        (
            asking("a"),
            [node("n1", taints=[TAINT])],
            "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}.",
        ),
        (asking("a", tolerations=[{"key": "gpu", "operator": "Exists"}]), [node("n1", taints=[TAINT])], "n1"),
        (asking("a", tolerations=[{"key": "gpu", "value": "yes"}]), [node("n1", taints=[TAINT])], "n1"),
        (asking("a", tolerations=[{"operator": "Exists"}]), [node("n1", taints=[TAINT])], "n1"),
        (
            asking("a", tolerations=[{"key": "gpu", "value": "no"}]),
            [node("n1", taints=[TAINT])],
            "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}.",
        ),
        (
            asking("a", "3"),
            [node("n1", cpu="2", memory="0"), node("n2", taints=[TAINT])],
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {gpu: yes}.",
        ),
    ],
)
def test_chosen_node_or_reason(body: Object, nodes: list[Object], result: str) -> None:
    assert chosen(body, *nodes) == result


def test_larger_init_container_determines_pod_request() -> None:
    body = asking("a", "1")
    body["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]
    found = pod_requests(body["spec"])
    assert (found["cpu"], found["memory"], found["pods"]) == (3, 1024**3, 1)


def bound(cluster: MemoryCluster) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["spec"].get("nodeName", "") for obj in cluster.list(PODS).items}


def test_node_is_not_overcommitted(memory: MemoryCluster) -> None:
    memory.create(NODES, None, node("n1", cpu="2"))
    for name in ("a", "b", "c"):
        memory.create(PODS, "default", asking(name))
    scheduler = Scheduler(memory)
    assert scheduler.step() == 2
    assert bound(memory) == {"a": "n1", "b": "n1", "c": ""}
    memory.patch(PODS, "default", "a", {"status": {"phase": "Succeeded"}}, subresource="status")
    assert scheduler.step() == 1
    assert bound(memory)["c"] == "n1"


def test_pod_with_higher_priority_is_bound_first(memory: MemoryCluster) -> None:
    memory.create(PRIORITY_CLASSES, None, {"metadata": {"name": "high"}, "value": 100})
    memory.create(NODES, None, node("n1", cpu="1"))
    memory.create(PODS, "default", asking("a"))
    memory.create(PODS, "default", asking("z", priorityClassName="high"))
    Scheduler(memory).step()
    assert bound(memory) == {"a": "", "z": "n1"}


def test_pod_without_class_gets_lowest_global_default(memory: MemoryCluster) -> None:
    for name, value in (("usual", 7), ("other", 9)):
        memory.create(PRIORITY_CLASSES, None, {"metadata": {"name": name}, "value": value, "globalDefault": True})
    made = memory.create(PODS, "default", asking("a"))
    assert (made["spec"]["priorityClassName"], made["spec"]["priority"]) == ("usual", 7)


def test_gated_pod_waits_for_its_gates(memory: MemoryCluster) -> None:
    memory.create(NODES, None, node("n1"))
    made = memory.create(PODS, "default", asking("a", schedulingGates=[{"name": "gang"}]))
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    assert Scheduler(memory).step() == 0
    memory.patch(PODS, "default", "a", {"spec": {"schedulingGates": None}})
    assert Scheduler(memory).step() == 1


def test_unschedulable_pod_is_reported_once(memory: MemoryCluster) -> None:
    memory.create(PODS, "default", asking("a"))
    scheduler = Scheduler(memory)
    scheduler.step()
    said = memory.get(PODS, "default", "a")
    assert said["status"]["conditions"][0] | {"lastTransitionTime": "", "lastProbeTime": None} == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no nodes available to schedule pods",
        "lastProbeTime": None,
        "lastTransitionTime": "",
    }
    scheduler.step()
    assert memory.get(PODS, "default", "a") is said


def test_thread_binds_pod_when_node_appears(memory: MemoryCluster) -> None:
    scheduler = Scheduler(memory)
    scheduler.start()
    try:
        memory.create(PODS, "default", asking("a"))
        wait_for(memory, PODS, "default", "a", lambda obj: bool(obj and obj["status"].get("conditions")))
        memory.create(NODES, None, node("n1"))
        wait_for(memory, PODS, "default", "a", lambda obj: bool(obj and obj["spec"].get("nodeName") == "n1"))
        conditions = memory.get(PODS, "default", "a")["status"]["conditions"]
        assert [(one["type"], one["status"]) for one in conditions] == [("PodScheduled", "True")]
    finally:
        scheduler.stop()


@pytest.mark.parametrize(
    "fields",
    [
        {"affinity": {"nodeAffinity": ["nonsense"]}},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [5]}}},
        {"priority": "high"},
        {"containers": [5]},
        {"containers": [{"name": "c", "resources": ["cpu"]}]},
        {"containers": [{"name": "c", "ports": [{"hostPort": "x"}]}]},
        {"tolerations": [5]},
        {"nodeSelector": ["gpu"]},
    ],
)
@pytest.mark.parametrize("on", ["", "n1"])
def test_malformed_stored_pod_does_not_block_others(memory: MemoryCluster, fields: Object, on: str) -> None:
    memory.create(NODES, None, node("n1", cpu="2"))
    stored = memory.create(PODS, "default", asking("a"))
    put_unchecked(memory, PODS, {**stored, "spec": {**stored["spec"], **fields, "nodeName": on}})
    memory.create(PODS, "default", asking("b"))
    Scheduler(memory).step()
    assert bound(memory)["b"] == "n1"


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": {"taints": [5]}},
        {"spec": {"taints": 5}},
        {"status": {"allocatable": ["cpu"]}},
        {"status": {"conditions": [5]}},
    ],
)
def test_malformed_stored_node_does_not_block_scheduling(memory: MemoryCluster, fields: Object) -> None:
    stored = memory.create(NODES, None, node("n0"))
    put_unchecked(memory, NODES, {**stored, **fields})
    memory.create(NODES, None, node("n1"))
    memory.create(PODS, "default", asking("a"))
    assert Scheduler(memory).step() == 1
    assert bound(memory) == {"a": "n1"}


def put_unchecked(memory: MemoryCluster, resource: Resource, obj: Object) -> None:
    """Store an object without checks, as an older server may have stored it in a state folder."""
    metadata = obj["metadata"]
    memory._store.put(Key(resource.plural, metadata.get("namespace", ""), metadata["name"]), obj)


def apart(topology: str, **fields: Any) -> Object:
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": "a"}}, **fields}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def using(port: int, **fields: Any) -> list[Object]:
    return [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": port, **fields}]}]


A = {"app": "a"}
HOSTNAME = "kubernetes.io/hostname"


@pytest.mark.parametrize(
    ("there", "body", "why"),
    [
        (asking("x", labels=A), asking("y", affinity=apart(HOSTNAME)), "didn't match pod anti-affinity rules"),
        (asking("x", affinity=apart(HOSTNAME)), asking("y", labels=A), "didn't satisfy existing pods anti-affinity"),
        (asking("x", labels={"app": "b"}), asking("y", affinity=apart(HOSTNAME)), ""),
        (asking("x", labels=A), asking("y", affinity=apart(HOSTNAME, namespaces=["other"])), ""),
        (asking("x", labels=A), asking("y", affinity=apart("zone")), ""),  # the node has no zone
        (asking("x", containers=using(1)), asking("y", containers=using(1)), "didn't have free ports"),
        (asking("x", containers=using(1)), asking("y", containers=using(1, protocol="UDP")), ""),
        (asking("x", containers=using(1, hostIP="10.0.0.1")), asking("y", containers=using(1, hostIP="10.0.0.2")), ""),
        (asking("x", containers=using(1, hostIP="10.0.0.1")), asking("y", containers=using(1)), "free ports"),
    ],
)
def test_pods_with_anti_affinity_or_same_host_port_do_not_share_node(
    memory: MemoryCluster, there: Object, body: Object, why: str
) -> None:
    memory.create(NODES, None, node("n1"))
    memory.create(PODS, "default", there)
    memory.create(PODS, "default", body)
    Scheduler(memory).step()
    found = memory.get(PODS, "default", "y")
    if not why:
        assert found["spec"]["nodeName"] == "n1"
    else:
        assert why in found["status"]["conditions"][0]["message"]


def test_anti_affinity_by_zone_allows_one_pod_per_zone(memory: MemoryCluster) -> None:
    for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        memory.create(NODES, None, node(name, labels={"zone": zone}))
    for name in ("x", "y", "z"):
        memory.create(PODS, "default", asking(name, labels=A, affinity=apart("zone")))
    assert Scheduler(memory).step() == 2
    assert sorted(bound(memory).values())[0] == ""
    assert "n3" in bound(memory).values()


def test_anti_affinity_and_host_ports_are_ignored_on_emulated_node(memory: MemoryCluster) -> None:
    memory.create(NODES, None, node("n1", labels={"tf-dist.dev/emulated": "true"}))
    for name in ("x", "y"):
        memory.create(PODS, "default", asking(name, labels=A, affinity=apart(HOSTNAME), containers=using(1)))
    assert Scheduler(memory).step() == 2


def test_host_network_pods_use_host_ports(memory: MemoryCluster) -> None:
    one = {"name": "c", "image": "i", "ports": [{"containerPort": 80}]}
    made = memory.create(PODS, "default", pod("x", hostNetwork=True, containers=[one]))
    assert made["spec"]["containers"][0]["ports"][0]["hostPort"] == 80


def test_unknown_priority_class_is_refused_unless_any_is_allowed() -> None:
    with MemoryCluster() as strict, pytest.raises(AdmissionDenied, match="no PriorityClass with name high"):
        strict.create(PODS, "default", asking("a", priorityClassName="high"))
    with MemoryCluster(any_priority_class=True) as lenient:
        lenient.create(PRIORITY_CLASSES, None, {"metadata": {"name": "low"}, "value": -5})
        made = [
            lenient.create(PODS, "default", asking(n, priorityClassName=n))["spec"]["priority"] for n in ("high", "low")
        ]
    assert made == [0, -5]
