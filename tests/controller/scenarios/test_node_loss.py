"""A gang that lost a node permanently does not wait forever, does not block others, and never runs twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, running, tfjob
from tf_dist.cluster.api import NODES, PODS, QUEUES, Object
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.dialects import read
from tf_dist.core.model import names
from tf_dist.core.model.status_codec import load_status
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import NotFound

DAY = 86_400.0


def put_node(world: World, name: str, cpu: int, ready: str = "True") -> None:
    """Create or update a node. Its Ready condition changes now."""
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": format_time(world.clock.now)}
    status = {"allocatable": {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}, "conditions": [condition]}
    try:
        stored = world.memory.get(NODES, None, name)
    except NotFound:
        stored = world.memory.create(NODES, None, {"metadata": {"name": name}})
    world.memory.replace(NODES, None, name, {**stored, "status": status}, subresource="status")


def nodes(**cpus: int) -> World:
    world = World(cpu=str(cpus.pop("n1")))
    for name, cpu in cpus.items():
        put_node(world, name, cpu)
    return world


def schedule(world: World) -> None:
    """Act as scheduler and kubelets: start each pod on its required node, or on any node with free capacity."""
    found = world.memory.list(NODES).items
    ready = {node["metadata"]["name"]: node for node in found if _is_ready(node)}
    free = {name: int(node["status"]["allocatable"]["cpu"]) for name, node in ready.items()}
    pods = world.memory.list(PODS).items
    for pod in pods:
        over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if not over and pod["spec"].get("nodeName") in free:
            free[pod["spec"]["nodeName"]] -= 1
    for pod in pods:
        name, metadata = pod["metadata"]["name"], pod["metadata"]
        if metadata.get("deletionTimestamp") or (pod.get("status") or {}).get("phase", "Pending") != "Pending":
            continue
        if not pod["spec"].get("nodeName"):
            wanted = _pinned(pod)
            node = next((one for one in sorted(free) if free[one] > 0 and wanted in ("", one)), "")
            if not node:
                condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
                world.memory.patch(PODS, "default", name, {"status": {"conditions": [condition]}}, subresource="status")
                continue
            world.memory.bind("default", name, node)
            free[node] -= 1
        world.set_status(name, running())


def _is_ready(node: Object) -> bool:
    conditions = node["status"].get("conditions") or ()
    return all(one["status"] == "True" for one in conditions if one["type"] == "Ready")


def _pinned(pod: Object) -> str:
    terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = terms.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    return required[0]["matchFields"][0]["values"][0] if required else ""


def bury(world: World) -> None:
    """Kubelets of ready nodes stop the pods that are being deleted."""
    ready = {node["metadata"]["name"] for node in world.memory.list(NODES).items if _is_ready(node)}
    for name, pod in world.pods().items():
        if "deletionTimestamp" in pod["metadata"] and pod["spec"].get("nodeName") in ready:
            world.memory.delete(PODS, "default", name, grace_period=0)


def live(world: World, seconds: float, step: float = 20.0) -> None:
    """Let time pass."""
    end = world.clock.now + seconds
    while True:
        for _ in range(3):
            world.settle()
            bury(world)
            schedule(world)
        world.settle()
        overlap(world)
        if world.clock.now >= end:
            return
        world.clock.now = min(end, world.clock.now + step)


def overlap(world: World) -> None:
    """Check that no job has pods of two attempts."""
    attempts: dict[str, set[str]] = {}
    for pod in world.pods().values():
        labels = pod["metadata"]["labels"]
        attempts.setdefault(labels[names.JOB_NAME], set()).add(labels[names.ATTEMPT].split(".")[0])
    assert all(len(found) == 1 for found in attempts.values()), attempts


def delete_node(world: World, name: str) -> None:
    """Delete a node. The pod garbage collector deletes the pods of the node."""
    world.memory.delete(NODES, None, name)
    for pod in list(world.pods().values()):
        if pod["spec"].get("nodeName") == name:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
            world.set_status(pod["metadata"]["name"], {**pod["status"], "phase": "Failed", "conditions": [condition]})
    world.settle()
    for pod in list(world.pods().values()):
        if pod["spec"].get("nodeName") == name:
            world.memory.delete(PODS, "default", pod["metadata"]["name"], grace_period=0)


def on(world: World, job: str) -> dict[str, str]:
    """The nodes of the pods of a job."""
    pods = world.pods().items()
    return {name: pod["spec"].get("nodeName", "") for name, pod in pods if name.startswith(f"{job}-")}


def gang(name: str, workers: int, **annotations: str) -> Object:
    job = tfjob(name, workers=workers, ps=0, backoffLimit=0)
    del job["spec"]["tfReplicaSpecs"]["PS"]
    job["metadata"]["annotations"] = {
        f"tf-dist.dev/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return job


def submitted(world: World, *jobs: Object) -> World:
    for job in jobs:
        world.submit(job)
        live(world, 1)
        assert world.status(job["metadata"]["name"])["phase"] == "Running", world.describe()
    return world


def test_gang_with_lost_node_gives_up_admission_and_names_node() -> None:
    world = submitted(nodes(n1=2, n2=1), gang("mnist", 3))
    delete_node(world, "n2")
    live(world, 290)
    assert len(on(world, "mnist")) == 3
    live(world, 100)
    status = world.status()
    assert (on(world, "mnist"), status["phase"], status.get("admission")) == ({}, "Pending", None), world.describe()
    assert (status["restarts"], status["failure"]["event"], status["failure"]["node"]) == (
        {"RecoveryTimeout": 1},
        "RecoveryTimeout",
        "n2",
    )
    told = [message for reason, message in world.events() if reason == "RecoveryTimeout"]
    assert told
    assert "300 s" in told[0]
    live(world, 7 * DAY, step=3600)
    assert on(world, "mnist") == {}
    put_node(world, "n3", 1)
    live(world, 60)
    assert world.status()["phase"] == "Running", world.describe()
    assert sorted(on(world, "mnist").values()) == ["n1", "n1", "n3"]


def test_two_gangs_with_same_lost_node_do_not_block_each_other() -> None:
    world = nodes(n1=2, n2=2, n3=2)
    submitted(world, gang("older", 3))
    world.clock.now += 60
    submitted(world, gang("younger", 3))
    shared = set(on(world, "older").values()) & set(on(world, "younger").values())
    assert len(shared) == 1
    delete_node(world, shared.pop())
    live(world, 600)
    assert world.status("older")["phase"] == "Running", world.describe()
    assert len(on(world, "older")) == 3
    assert all(on(world, "older").values())
    assert on(world, "younger") == {}
    for number in range(3):
        world.end_pod(f"older-worker-{number}", 0)
    live(world, 120)
    assert world.status("older")["phase"] == "Completed", world.describe()
    assert world.status("younger")["phase"] == "Running", world.describe()


@pytest.mark.parametrize("dynamic", [True, False], ids=["live", "all start again"])
def test_elastic_gang_shrinks_after_node_loss_and_grows_again(dynamic: bool) -> None:
    job = gang("mnist", 3, min_workers="2")
    job["spec"]["enableDynamicWorker"] = dynamic
    world = submitted(nodes(n1=2, n2=1), job)
    before = {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}
    lost = next(name for name, node in on(world, "mnist").items() if node == "n2")
    delete_node(world, "n2")
    live(world, 400)
    status = world.status()
    assert (status["phase"], status["admission"]["sizes"]) == ("Running", {"worker": 2}), world.describe()
    assert on(world, "mnist") == {"mnist-worker-0": "n1", "mnist-worker-1": "n1"}
    stayed = [name for name, pod in world.pods().items() if pod["metadata"]["uid"] == before[name] and name != lost]
    assert len(stayed) == (2 if dynamic else 0)
    assert any("from 3 to 2 worker" in message for _, message in world.events())
    put_node(world, "n3", 1)
    live(world, 300)
    assert world.status()["admission"]["sizes"] == {"worker": 3}, world.describe()
    assert world.status()["phase"] == "Running"


def test_gang_does_not_shrink_below_min_workers() -> None:
    world = submitted(nodes(n1=1, n2=2), gang("mnist", 3, min_workers="2"))
    delete_node(world, "n2")
    live(world, 400)
    assert on(world, "mnist") == {}
    status = world.status()
    assert (status["phase"], status["failure"]["event"]) == ("Pending", "RecoveryTimeout"), world.describe()


@pytest.mark.parametrize("where", ["job", "queue", "job before queue"])
def test_recovery_timeout_of_job_overrides_queue(where: str) -> None:
    world = nodes(n1=2, n2=1)
    if "queue" in where:
        timeout = "1h" if where.startswith("job") else "30s"
        spec = {"recoveryTimeout": timeout}
        world.memory.create(
            QUEUES,
            None,
            {"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "default"}, "spec": spec},
        )
    job = gang("mnist", 3, **({"recovery_timeout": "30s"} if "job" in where else {}))
    submitted(world, job)
    delete_node(world, "n2")
    live(world, 80)
    assert on(world, "mnist") == {}, world.describe()


# -- nodes that do not answer -------------------------------------------------------------------------------------


def silent(world: World, name: str, cpu: int) -> None:
    put_node(world, name, cpu, ready="Unknown")


def evict_by_taint(world: World, node: str) -> None:
    """The taint manager deletes pods whose toleration has expired. No kubelet confirms the deletion."""
    for name, pod in world.pods().items():
        if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            world.set_status(name, {**pod["status"], "conditions": [condition]})
            world.memory.delete(PODS, "default", name)


@pytest.mark.parametrize("manager", [True, False], ids=["taint manager", "none"])
def test_gang_does_not_restart_while_pod_may_run_on_unresponsive_node(manager: bool) -> None:
    world = submitted(nodes(n1=2, n2=1, n3=0), gang("mnist", 3))
    at = world.clock.now
    silent(world, "n2", 1)
    live(world, 290)
    assert "disruptions" not in world.status()
    live(world, 15)
    if manager:
        evict_by_taint(world, "n2")
    live(world, 60)
    status = world.status()
    assert status["disruptions"] == {"DeletionByTaintManager" if manager else "NodeLost": 1}, world.describe()
    assert any("n2" in message for _, message in world.events())
    put_node(world, "n3", 8)
    live(world, 500)
    status = world.status()
    assert (status["phase"], status["reason"], status.get("admission")) == ("Pending", "RecoveryTimeout", None), status
    (left,) = on(world, "mnist").items()
    assert left[1] == "n2"
    for words in (left[0], "node n2", f"not been ready since {format_time(at)}", "out-of-service"):
        assert words in status["message"], status["message"]
    job = world.job()
    found = diagnose(read(job), load_status(job["status"]), (), world.clock.now)
    assert "node n2" in found[0].summary
    live(world, DAY, step=3600)
    assert len(on(world, "mnist")) == 1
    delete_node(world, "n2")
    live(world, 60)
    assert world.status()["phase"] == "Running", world.describe()
    assert "n2" not in on(world, "mnist").values()
    assert len(on(world, "mnist")) == 3


def test_other_gang_is_admitted_while_gang_waits_for_lost_node() -> None:
    world = submitted(nodes(n1=2, n2=1), gang("mnist", 3))
    silent(world, "n2", 1)
    live(world, 320)
    evict_by_taint(world, "n2")
    world.submit(gang("other", 2))
    live(world, 500)
    assert world.status("other")["phase"] == "Running", world.describe()
    put_node(world, "n2", 1)
    live(world, 60)
    assert world.status()["reason"] != "WaitingForLostNode", world.describe()
    for number in range(2):
        world.end_pod(f"other-worker-{number}", 0)
    live(world, 100)
    assert world.status()["phase"] == "Running", world.describe()


def test_node_that_recovers_in_time_causes_no_restart() -> None:
    world = submitted(nodes(n1=2, n2=1), gang("mnist", 3))
    uids = {pod["metadata"]["uid"] for pod in world.pods().values()}
    silent(world, "n2", 1)
    live(world, 250)
    put_node(world, "n2", 1)
    live(world, 2000)
    assert {pod["metadata"]["uid"] for pod in world.pods().values()} == uids
    assert world.status()["phase"] == "Running"


@pytest.mark.parametrize(("seconds", "lost"), [(10, True), (None, False)])
def test_toleration_of_pod_decides_when_pod_is_lost(seconds: int | None, lost: bool) -> None:
    job = gang("mnist", 3)
    toleration: dict[str, Any] = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    if seconds is not None:
        toleration["tolerationSeconds"] = seconds
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["tolerations"] = [toleration]
    world = submitted(nodes(n1=2, n2=1), job)
    silent(world, "n2", 1)
    live(world, 60 if lost else DAY, step=10 if lost else 3600)
    assert ("disruptions" in world.status()) is lost


def test_gang_waits_for_pod_with_long_grace_period() -> None:
    job = gang("mnist", 3)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3000
    world = submitted(nodes(n1=2, n2=1), job)
    world.memory.evict("default", "mnist-worker-1")
    for _ in range(30):
        world.settle()
        world.clock.now += 100
    world.settle()
    assert world.status()["admission"] is not None
    assert len(on(world, "mnist")) == 3
    live(world, 60)
    assert world.status()["phase"] == "Running"


def evicted_from(spec: Any, **pod_spec: Any) -> tuple[World, Object, str]:
    """Change the node of a worker, evict the worker, and return the world, the new pod and the old node."""
    world = nodes(n1=2, n2=2)
    job = tfjob(workers=1, ps=0)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"] |= pod_spec
    world.submit(job)
    world.settle()
    schedule(world)
    world.settle()
    [pod] = world.pods().values()
    left = pod["spec"]["nodeName"]
    world.memory.patch(NODES, None, left, {"spec": spec})
    world.evict(pod["metadata"]["name"])
    world.settle()
    bury(world)
    world.settle()
    [new] = world.pods().values()
    assert new["metadata"]["uid"] != pod["metadata"]["uid"]
    return world, new, left


MAINTENANCE = {"key": "maintenance", "value": "today"}


@pytest.mark.parametrize(
    "spec",
    [
        {"unschedulable": True},
        {"taints": [MAINTENANCE | {"effect": "NoExecute"}]},
        {"taints": [MAINTENANCE | {"effect": "NoSchedule"}]},
    ],
    ids=["cordoned", "no-execute", "no-schedule"],
)
def test_pods_of_drained_node_start_on_other_node_immediately(spec: Any) -> None:
    """They were once pinned to the closed node again, where the scheduler rejected them for 30 s."""
    world, new, left = evicted_from(spec)
    assert _pinned(new) != left
    schedule(world)
    world.settle()
    assert world.status()["phase"] == "Running"


@pytest.mark.parametrize(
    ("effect", "pod_spec"),
    [
        ("PreferNoSchedule", {}),
        ("NoSchedule", {"tolerations": [{"key": "maintenance", "operator": "Exists"}]}),
    ],
)
def test_pods_return_to_node_with_tolerated_taint(effect: str, pod_spec: Any) -> None:
    _, new, left = evicted_from({"taints": [MAINTENANCE | {"effect": effect}]}, **pod_spec)
    assert _pinned(new) == left
