"""Disruptions are not failures of the program: a drain uses no restarts, and disruptions have their own limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.controller.harness import World, container, disturbed, replica, running, tfjob
from tf_dist.cluster.api import (
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    TFJOBS,
    TFJOBS_V1ALPHA1,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings, JobRef
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.dialects import read
from tf_dist.core.model.pods import pod_view
from tf_dist.core.model.reasons import Category, OutcomeKind
from tf_dist.core.model.status import outcome_kind
from tf_dist.core.model.status_codec import load_status
from tf_dist.core.model.timestamps import format_time, parse_time
from tf_dist.errors import Unavailable

N2 = "n2"
LIMIT = "tf-dist.dev/max-disruptions"


def v1(policy: str, **annotations: str) -> Object:
    job = tfjob("drained", workers=3, ps=0, backoffLimit=2)
    job["spec"]["tfReplicaSpecs"] = {"Chief": replica(1), "Worker": replica(3, policy)}
    job["metadata"]["annotations"] = annotations
    return job


def v1alpha1() -> Object:
    def group(type_: str, count: int) -> Object:
        template = {"spec": {"containers": [container()], "restartPolicy": "OnFailure"}}
        return {"replicas": count, "tfReplicaType": type_, "template": template}

    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": {"name": "drained", "namespace": "default"},
        "spec": {"RuntimeId": "76no", "replicaSpecs": [group("MASTER", 1), group("WORKER", 3)]},
    }


def volcano(*policies: Object) -> Object:
    def task(name: str, count: int) -> Object:
        template = {"spec": {"containers": [container()], "restartPolicy": "Never"}}
        return {"name": name, "replicas": count, "template": template, "policies": list(policies)}

    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "drained", "namespace": "default"},
        "spec": {"minAvailable": 4, "maxRetry": 3, "tasks": [task("chief", 1), task("worker", 3)]},
    }


def on(event: str, action: str) -> Object:
    return {"event": event, "action": action}


JOBS: dict[str, tuple[Resource, Object]] = {
    **{f"v1-{policy}": (TFJOBS, v1(policy)) for policy in ("Never", "OnFailure", "Always", "ExitCode")},
    "v1alpha1": (TFJOBS_V1ALPHA1, v1alpha1()),
    "volcano": (VOLCANO_JOBS, volcano()),
    **{
        f"volcano-{event}-{action}": (VOLCANO_JOBS, volcano(on(event, action)))
        for event in ("PodEvicted", "PodFailed")
        for action in ("RestartPod", "RestartTask", "RestartJob")
    },
}


def two_nodes() -> World:
    world = World()
    add_node(world)
    return world


def add_node(world: World) -> None:
    node = {"metadata": {"name": N2}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}}
    stored = world.memory.create(NODES, None, node)
    world.memory.replace(NODES, None, N2, {**stored, **node, "metadata": stored["metadata"]}, subresource="status")


def place(world: World) -> None:
    """The scheduler binds pods to their required node or to n1, and the kubelets start them."""
    for name, pod in world.pods().items():
        if not pod["spec"].get("nodeName"):
            terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
            required = terms.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
            node = required[0]["matchFields"][0]["values"][0] if required else "n1"
            world.memory.bind("default", name, node)
        if pod["status"].get("phase", "Pending") == "Pending" and not pod["metadata"].get("deletionTimestamp"):
            world.set_status(name, running())


def recover(world: World, rounds: int = 6) -> None:
    for _ in range(rounds):
        world.remove_pods()
        place(world)
        world.clock.now += 400
        world.settle()
        place(world)
    world.settle()


def begun(resource: Resource, document: Object) -> World:
    world = two_nodes()
    world.submit(document, resource)
    world.settle()
    place(world)
    world.settle()
    assert world.status("drained", resource)["phase"] == "Running", world.describe()
    return world


def killed(pod: Object, code: int) -> dict[str, Any]:
    """The status of a pod whose container was ended by a signal of the kubelet."""
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2027-01-15T08:10:00Z"}}
    containers = [{"name": "tensorflow", "state": state, "restartCount": 0}]
    return {**pod["status"], "phase": "Failed", "containerStatuses": containers}


@pytest.mark.parametrize("gone", ["stopping", "killed", "vanished"])
@pytest.mark.parametrize("name", JOBS)
def test_drain_of_three_replicas_uses_no_restarts(name: str, gone: str) -> None:
    resource, document = JOBS[name]
    world = begun(resource, document)
    workers = sorted(name for name in world.pods() if "worker" in name)
    assert len(workers) == 3
    for pod in workers:
        if pod not in world.pods():
            continue  # the job itself stopped this pod
        world.memory.evict("default", pod)
        if gone == "killed":
            world.set_status(pod, killed(world.pods()[pod], 143))
        if gone == "vanished":
            world.evict(pod)
        world.settle()
    recover(world)
    status = world.status("drained", resource)
    assert status["phase"] == "Running", world.describe()
    assert not status.get("restarts"), status
    # If a pod vanishes before a pass reads it, the cause is unknown. This is not a failure either.
    assert set(status["disruptions"]) == {"Deleted" if gone == "vanished" else "EvictionByEvictionAPI"}
    assert 1 <= sum(status["disruptions"].values()) <= 3
    assert len(world.pods()) == 4


def end(world: World, resource: Resource = TFJOBS) -> Any:
    stored = world.job("drained", resource)
    return read(stored), load_status(stored["status"])


def test_job_fails_at_disruption_limit_and_message_names_cause_and_node() -> None:
    world = begun(TFJOBS, v1("OnFailure", **{LIMIT: "2"}))
    for _ in range(3):
        world.memory.evict("default", "drained-worker-1")
        recover(world, 1)
    job, status = end(world)
    assert (status.phase.value, status.reason) == ("Failed", "MaxDisruptionsExceeded")
    assert dict(status.restarts) == {}
    assert dict(status.disruptions) == {"EvictionByEvictionAPI": 2}
    for words in ("worker-1", "n1", "Eviction API", LIMIT):
        assert words in status.message, status.message
    assert status.failure.node == "n1"
    (found,) = diagnose(job, status, (), world.clock.now)
    assert found.category is Category.EVICTION
    assert "log of the replica" not in found.resolution
    assert LIMIT in found.resolution
    assert outcome_kind(status) is OutcomeKind.EVICTED


def test_running_pods_are_stopped_when_disruption_limit_is_exceeded() -> None:
    job = v1("OnFailure", **{LIMIT: "0"})
    job["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
    world = begun(TFJOBS, job)
    world.memory.evict("default", "drained-worker-1")
    world.settle()
    assert world.status("drained")["phase"] == "Failed"
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods().values())


def test_manual_pod_deletions_count_as_disruptions_up_to_limit() -> None:
    world = begun(TFJOBS, v1("OnFailure", **{LIMIT: "3"}))
    for count in range(4):
        world.memory.delete(PODS, "default", "drained-worker-1", **({"grace_period": 0} if count % 2 else {}))
        recover(world, 1)
    _, status = end(world)
    assert (status.reason, dict(status.restarts), dict(status.disruptions)) == (
        "MaxDisruptionsExceeded",
        {},
        {"Deleted": 3},
    )
    assert "was deleted" in status.message
    assert "n1" in status.message


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, "Evicted"),
        ({"phase": "Failed", "reason": "NodeShutdown"}, "NodeShutdown"),
        ({"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated: node shutdown"}, "Terminated"),
        ({"phase": "Failed", "reason": "Preempting"}, "Preempting"),
        ({"phase": "Failed", "reason": "NodeAffinity", "message": "Pod was rejected"}, "NodeAffinity"),
        ({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}, "OutOfcpu"),
        ({"phase": "Failed", "reason": "OutOf{0}{node"}, "OutOf{0}{node"),
        ({"phase": "Unknown", "reason": "NodeLost"}, "NodeLost"),
        *(
            ({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": r}]}, r)
            for r in ("PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_disruptions_are_counted_by_cause(status: Object, cause: str) -> None:
    world = begun(TFJOBS, v1("Never"))
    for _ in range(4):
        world.set_status("drained-worker-1", status)
        recover(world, 1)
    found = world.status("drained")
    assert (found["phase"], found["disruptions"]) == ("Running", {cause: 4}), world.describe()


def test_counts_by_cause_are_limited_in_length_and_number() -> None:
    """Nodes name resources in these reasons."""
    world = begun(TFJOBS, v1("Never"))
    for number in range(25):
        world.set_status("drained-worker-1", {"phase": "Failed", "reason": f"OutOf{number}{'x' * 300}"})
        recover(world, 1)
    world.set_status("drained-worker-1", {"phase": "Failed", "reason": "Evicted"})
    recover(world, 1)
    found = world.status("drained")["disruptions"]
    assert max(map(len, found)) == 100
    assert len(found) == 22
    assert (found["DisruptionTarget"], found["Evicted"], sum(found.values())) == (5, 1, 26)


def disrupted(at: str, **terminated: Any) -> Object:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "lastTransitionTime": at,
    }
    state = {"terminated": {"finishedAt": "2027-01-15T08:10:00Z", **terminated}}
    containers = [{"name": "tensorflow", "state": state, "restartCount": 0}]
    return {"phase": "Failed", "conditions": [condition], "containerStatuses": containers}


BEFORE, AFTER = "2027-01-15T08:09:59Z", "2027-01-15T08:15:00Z"


@pytest.mark.parametrize(
    "status",
    [
        disrupted(BEFORE, exitCode=137, reason="OOMKilled"),
        disrupted(AFTER, exitCode=1, reason="Error"),
        disrupted(AFTER, exitCode=139, reason="Error"),
        {"phase": "Failed", "reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total ..."},
        {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "d" exceeds the limit "1Gi". '},
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": 'Container tensorflow exceeded its local ephemeral storage limit "1Gi". ',
        },
    ],
    ids=["out-of-memory", "failed-before", "crashed-before", "own-storage", "own-volume", "own-container-storage"],
)
def test_failure_of_program_counts_as_failure_despite_disruption(status: Object) -> None:
    world = begun(TFJOBS, v1("OnFailure"))
    for _ in range(3):
        world.set_status("drained-worker-1", status)
        recover(world, 1)
    found = world.status("drained")
    assert (found["phase"], found["reason"]) == ("Failed", "BackoffLimitExceeded"), world.describe()
    assert "disruptions" not in found


@pytest.mark.parametrize(("code", "at"), [(137, AFTER), (143, AFTER), (143, BEFORE), (1, BEFORE), (139, BEFORE)])
def test_exit_code_is_ignored_when_disruption_ended_container(code: int, at: str) -> None:
    world = begun(TFJOBS, v1("Never"))
    world.set_status("drained-worker-1", disrupted(at, exitCode=code, reason="Error"))
    recover(world, 1)
    found = world.status("drained")
    assert (found["phase"], found["disruptions"]) == ("Running", {"EvictionByEvictionAPI": 1}), world.describe()


@pytest.mark.parametrize(("ended", "phase"), [(0, "Running"), (-60, "Failed")])
def test_kubelet_clock_behind_is_corrected_when_judging_disruption(ended: int, phase: str) -> None:
    world = begun(TFJOBS, v1("Never"))
    created = world.memory.get(PODS, "default", "drained-worker-1")["metadata"]["creationTimestamp"]
    now = parse_time(created)
    assert now is not None
    status = disrupted(format_time(now + 300), exitCode=1, finishedAt=format_time(now + 300 + ended - 90))
    world.set_status("drained-worker-1", {**status, "startTime": format_time(now - 90)})
    recover(world, 1)
    assert world.status("drained")["phase"] == phase, world.describe()


def test_kubelet_clock_ahead_does_not_delay_restart() -> None:
    world = begun(TFJOBS, v1("OnFailure"))
    state = {"terminated": {"exitCode": 1, "finishedAt": "2027-01-15T09:00:00Z"}}
    containers = [{"name": "tensorflow", "state": state, "restartCount": 0}]
    world.set_status("drained-worker-1", {"phase": "Failed", "containerStatuses": containers})
    world.settle()
    assert world.status("drained")["restarts"] == {"PodFailed": 1}


def test_disruption_condition_of_running_pod_is_not_counted() -> None:
    """The Eviction API sets the condition first. The deletion can be refused afterwards."""
    world = begun(TFJOBS, v1("Never"))
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    world.set_status("drained-worker-1", {**running(), "conditions": [condition]})
    recover(world, 1)
    assert "disruptions" not in world.status("drained")


def test_pod_deleted_right_after_disruption_condition_keeps_cause() -> None:
    """The pod garbage collector does this when a node is gone, possibly between two passes."""
    world = begun(TFJOBS, v1("Never"))
    world.controller.informers.start()
    try:
        assert world.controller.informers.wait_synced(30)
        world.settle()
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
        world.set_status("drained-worker-1", {**running(), "conditions": [condition]})
        world.evict("drained-worker-1")
        world.step_until(lambda: bool(world.status("drained").get("disruptions")), most=2000)
    finally:
        world.controller.informers.stop()
    found = world.status("drained")
    assert (found["disruptions"], found["failure"]["node"]) == ({"DeletionByPodGC": 1}, "n1")


def mark_and_delete(world: World, *pods: str) -> None:
    """Act as the pod garbage collector. The controller has seen the conditions, but not the deletions."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    for pod in pods:
        world.set_status(pod, {**running(), "conditions": [condition]})
    world.settle()
    for pod in pods:
        world.evict(pod)


def test_pass_during_list_sees_all_deleted_pods() -> None:
    """After an interrupted watch, a list shows several deleted pods. The informer reports them one after the other."""
    world, due = begun(TFJOBS, v1("Never")), list[Callable[[], int]]()

    def on_change(_: JobRef) -> None:
        if due:
            due.pop()()

    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock, on_change=on_change)
    mark_and_delete(world, "drained-worker-0", "drained-worker-1", "drained-worker-2")
    due.append(world.controller.step)
    world.controller.informers.refresh()
    assert not due
    found = world.status("drained")
    assert (found["disruptions"], found["failure"].get("node")) == ({"DeletionByPodGC": 3}, "n1")


def test_status_of_stalled_job_includes_disruptions() -> None:
    """The report can be the first status that the server accepts, so it must contain the disruption."""
    world, left = begun(TFJOBS, v1("Never")), [3]

    def refuse(verb: str, resource: Resource, *_: Any, **how: Any) -> None:
        if (verb, resource, how.get("subresource")) == ("replace", TFJOBS, "status") and left[0]:
            left[0] -= 1
            raise Unavailable("the server is down")

    world.controller = Controller(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock)
    mark_and_delete(world, "drained-worker-1")
    assert left == [3], "what is only meant to happen to a pod is worth no status"
    for _ in range(3):
        world.controller.step()
        world.clock.now += 20
    found = world.status("drained")
    assert left == [0]
    assert (found["disruptions"], found["failure"].get("node")) == ({"DeletionByPodGC": 1}, "n1")


def test_event_counts_disruptions_separately_from_restarts() -> None:
    world = begun(TFJOBS, v1("OnFailure"))
    world.memory.evict("default", "drained-worker-1")
    world.settle()
    messages = [message for reason, message in world.events() if reason == "PodEvicted"]
    assert len(messages) == 1
    for words in ("worker-1", "n1", "Eviction API", "disruption 1 of 100"):
        assert words in messages[0]
    assert "restart 0" not in messages[0]


def test_eviction_in_embedded_cluster_sets_disruption_condition() -> None:
    world = begun(TFJOBS, v1("Never"))
    world.memory.evict("default", "drained-worker-1")
    view = pod_view(world.pods()["drained-worker-1"])
    assert view is not None
    assert view.deleting
    assert view.disruption is not None
    assert view.disruption.reason == "EvictionByEvictionAPI"


@pytest.mark.parametrize("asked", [False, True])
def test_v1alpha1_gang_has_disruption_budget_when_enabled(asked: bool) -> None:
    """The job owns the budget, which exists from the admission of the gang until the end of the job."""
    world = World(cpu="2")
    settings = ControllerSettings(disruption_budgets=asked)
    world.controller = Controller(world.memory, settings=settings, clock=world.clock, monotonic=world.clock)

    def budgets() -> list[Object]:
        return world.memory.list(POD_DISRUPTION_BUDGETS, "default").items

    stored = world.submit(v1alpha1(), TFJOBS_V1ALPHA1)
    world.settle()
    assert not budgets(), "it has no room yet"
    add_node(world)
    world.settle()
    found = [(one["metadata"]["name"], one["spec"]["minAvailable"]) for one in budgets()]
    assert found == ([("tf-job-pdb-drained", 4)] if asked else [])
    assert all(one["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"] for one in budgets())
    world.run_pods()
    world.settle()
    world.end_pod(next(name for name in world.pods() if "master" in name), 0)
    world.remove_pods()
    assert world.job("drained", TFJOBS_V1ALPHA1)["status"]["phase"] == "Done"
    assert not budgets()
