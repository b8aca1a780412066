"""A job with invalid or extreme numbers reports its own error and does not stop other jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.controller.harness import World, tfjob
from tf_dist.cluster.api import TFJOBS, Object
from tf_dist.core.model import names
from tf_dist.core.model.reasons import Reason

Change = Callable[[Object], object]


def container(key: str, value: Any) -> Change:
    def change(document: Object) -> None:
        pod(document)["containers"][0][key] = value

    return change


def pod_spec(key: str, value: Any) -> Change:
    return lambda document: pod(document).update({key: value})


def policy(key: str, value: Any) -> Change:
    return lambda document: document["spec"]["runPolicy"].update({key: value})


def annotation(key: str, value: Any) -> Change:
    return lambda document: document["metadata"].update({"annotations": {key: value}})


def pod(document: Object) -> Object:
    found: Object = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    return found


def workers(count: int) -> Change:
    return lambda document: document["spec"]["tfReplicaSpecs"]["Worker"].update({"replicas": count})


def requests(**amounts: Any) -> Change:
    return container("resources", {"requests": amounts})


# Changes that are refused, with the path in the message.
REFUSED: dict[str, tuple[Change, str]] = {
    "resources-text": (container("resources", "none"), "containers[0].resources"),
    "limits-list": (container("resources", {"limits": ["cpu"]}), "containers[0].resources.limits"),
    "requests-text": (container("resources", {"requests": "cpu"}), "containers[0].resources.requests"),
    "amount-mapping": (requests(cpu={}), "requests.cpu"),
    "amount-1e40": (requests(memory="1e40"), "requests.memory"),
    "amount-number": (requests(memory=10**40), "requests.memory"),
    "amount-digits": (requests(memory="9" * 5000), "requests.memory"),
    "amount-negative": (requests(cpu="-1"), "requests.cpu"),
    "amount-nonsense": (requests(cpu="lots"), "requests.cpu"),
    "init": (pod_spec("initContainers", [{"name": "i", "resources": 7}]), "initContainers[0].resources"),
    "overhead": (pod_spec("overhead", "much"), "overhead"),
    "pod-resources": (pod_spec("resources", ["cpu"]), "spec.resources"),
    "priority-class": (pod_spec("priorityClassName", ["high"]), "priorityClassName"),
    "deadline": (policy("activeDeadlineSeconds", 2**63), "runPolicy.activeDeadlineSeconds"),
    "ttl": (policy("ttlSecondsAfterFinished", 10**15), "runPolicy.ttlSecondsAfterFinished"),
    "schedule-timeout": (policy("schedulingPolicy", {"scheduleTimeoutSeconds": 10**12}), "scheduleTimeoutSeconds"),
    "replicas": (workers(2**31 - 1), "tfReplicaSpecs.Worker.replicas"),
    "max-workers": (annotation(names.MAX_WORKERS, "2147483647"), "max-workers"),
}

# Changes that are accepted: they are harmless, or fail only in admission.
TAKEN: dict[str, Change] = {
    "deadline": policy("activeDeadlineSeconds", 999_999_999_999),
    "deadline-int64": policy("activeDeadlineSeconds", 2**63 - 1),
    "selector-text": pod_spec("nodeSelector", "gpu"),
    "tolerations-number": pod_spec("tolerations", 7),
    "affinity-list": pod_spec("affinity", ["x"]),
    "affinity-deep": pod_spec("affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": 5}}),
    "duration-digits": annotation(names.EXPECTED_DURATION, "9" * 500),
    "duration-hours": annotation(names.EXPECTED_DURATION, "9" * 40 + "h"),
    "topology": annotation(names.TOPOLOGY, "x" * 5000),
    "labels": lambda document: document["spec"]["tfReplicaSpecs"]["Worker"]["template"].update(
        {"metadata": {"labels": {"a": {"b": 1}}}}
    ),
    "env": container("env", [{"name": {"a": 1}, "value": []}]),
    "ports": container("ports", [{"containerPort": "x", "name": 5}]),
    "volumes": pod_spec("volumes", [7, None, "x"]),
    "huge-amount": requests(memory="8E", **{"example.com/x": 2**62}),
}


def restarting(world: World) -> None:
    """A job with a failed worker that restarts after a delay."""
    world.run_job(tfjob("due", ps=0, workers=2))
    for _ in range(2):  # the first restart has no delay
        world.end_pod("due-worker-1", 137)
        world.remove_pods()
        if "due-worker-1" in world.pods():
            world.run_pods()
            world.settle()
    assert "due-worker-1" not in world.pods()


def start_again(world: World) -> None:
    """Run the restarted worker. If its pod had no node, the gang would give up its admission."""
    if "due-worker-1" in world.pods():
        world.run_pods("due-worker-1")


def beside(change: Change) -> World:
    """A world with the changed job, a healthy job, and a job with a restart that is due."""
    world = World(cpu="32")
    restarting(world)
    document = tfjob("bad", ps=0, workers=1)
    change(document)
    world.submit(document)
    world.submit(tfjob("healthy"))
    for _ in range(20):
        world.controller.step()
        start_again(world)
        world.clock.now += 30
    return world


def others_go_on(world: World) -> None:
    there = world.phases()
    assert {"healthy-ps-0", "healthy-worker-0", "healthy-worker-1", "due-worker-1"} <= set(there), there


@pytest.mark.parametrize("name", REFUSED)
def test_refused_job_reports_invalid_spec_and_other_jobs_continue(name: str) -> None:
    change, path = REFUSED[name]
    world = beside(change)
    others_go_on(world)
    assert not any(pod.startswith("bad-") for pod in world.phases())
    [refusal] = [
        condition for condition in world.job("bad")["status"]["conditions"] if condition["type"] == "SpecAccepted"
    ]
    assert path in refusal["message"]
    assert any(reason == "InvalidSpec" and path in text for reason, text in world.events())


@pytest.mark.parametrize("name", TAKEN)
def test_accepted_nonsense_does_not_stop_other_jobs(name: str) -> None:
    others_go_on(beside(TAKEN[name]))


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_edit_of_running_job_does_not_stop_other_jobs(name: str) -> None:
    world = World(cpu="32")
    world.submit(tfjob("bad", ps=0, workers=1))
    restarting(world)
    document = tfjob("bad", ps=0, workers=1)
    REFUSED[name][0](document)
    changed = {"spec": document["spec"], "metadata": {"annotations": document["metadata"].get("annotations")}}
    world.memory.patch(TFJOBS, "default", "bad", changed)
    world.submit(tfjob("healthy"))
    for _ in range(20):
        world.controller.step()
        start_again(world)
        world.clock.now += 30
    others_go_on(world)


def of_workers(name: str, workers: int, **policy: Any) -> Object:
    document = tfjob(name, workers=workers, **policy)
    del document["spec"]["tfReplicaSpecs"]["PS"]
    return document


def test_estimated_start_beyond_year_9999_does_not_fail() -> None:
    """The wait message contains the estimated start, and Python does not support the year 33715."""
    world = World(cpu="4")
    world.run_job(of_workers("long", 3, activeDeadlineSeconds=999_999_999_999))
    world.submit(of_workers("waits", 4))
    world.submit(of_workers("small", 1))
    for _ in range(30):
        world.controller.step()
        world.clock.now += 60
    assert "starts when default/long ends" in world.status("waits")["message"]
    assert not [text for reason, text in world.events() if reason == Reason.RECONCILE_FAILED]
