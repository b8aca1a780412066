"""A tenant cannot hold the quota or nodes of others, or use more than the quota of its own queue."""

from __future__ import annotations

import sys
from typing import Any

from tests.controller.gang_admission.test_queues import queue, queued
from tests.controller.harness import World, disturbed, tfjob
from tf_dist.cluster.api import NAMESPACES, PODS, QUEUES, TFJOBS
from tf_dist.controller.controller import Controller
from tf_dist.core.model import names
from tf_dist.errors import Rejected

FINALIZER = "example.com/other"


def with_finalizer(name: str, **fields: Any) -> dict[str, Any]:
    document = tfjob(name, **fields)
    document["metadata"]["finalizers"] = [FINALIZER]
    return document


def used(world: World, name: str) -> Any:
    """The used CPUs in the status of a queue."""
    world.clock.now += 10
    world.settle()
    return world.memory.get(QUEUES, None, name)["status"].get("used", {}).get("cpu")


# A job that is being deleted


def test_job_being_deleted_is_not_admitted() -> None:
    world = World(cpu="3")
    world.submit(tfjob("first"))
    world.settle()
    world.run_pods()
    world.submit(with_finalizer("goes"))
    world.submit(tfjob("next"))
    world.settle()
    world.memory.delete(TFJOBS, "default", "goes")
    world.settle()
    world.memory.delete(TFJOBS, "default", "first")
    for name in list(world.pods()):
        world.evict(name)
    world.settle()
    assert "deletionTimestamp" in world.job("goes")["metadata"]
    assert world.status("goes").get("admission") is None
    assert world.status("next")["reason"] == "Admitted"
    assert len(world.pods()) == 3


def test_admitted_job_being_deleted_counts_until_pods_are_gone() -> None:
    """Background deletion with a finalizer keeps the pods until the job is gone. The controller creates no new pods."""
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "3"))
    stays = queued("goes", "research")
    stays["metadata"]["finalizers"] = [FINALIZER]
    world.run_job(stays)
    world.submit(queued("next", "research"))
    world.memory.delete(TFJOBS, "default", "goes")
    world.settle()
    assert world.status("next")["reason"] == "QuotaExceeded"
    assert used(world, "research") == "3"
    for name in list(world.pods()):
        world.evict(name)
    world.settle()
    assert "deletionTimestamp" in world.job("goes")["metadata"]
    assert world.status("next")["reason"] == "Admitted"


def test_admitted_job_being_deleted_without_pods_frees_capacity() -> None:
    world = World(cpu="3")
    world.submit(with_finalizer("goes"))
    world.step_until(lambda: world.status("goes").get("admission") is not None)
    world.memory.delete(TFJOBS, "default", "goes")
    for name in list(world.pods()):
        world.evict(name)
    world.submit(tfjob("next"))
    world.settle()
    assert world.status("next")["reason"] == "Admitted"


def test_cost_of_editing_waiting_job_is_independent_of_replicas() -> None:
    """A tenant can edit a job of 10,000 replicas 50 times a second. Such an edit once cost 12 times as much."""

    def calls(workers: int) -> int:
        """The number of function calls for an edit."""
        world, found = World(cpu="1"), [0]
        job = tfjob(workers=workers)
        job["spec"]["enableDynamicWorker"] = True  # else its TF_CONFIG would be too long
        del job["spec"]["tfReplicaSpecs"]["PS"]
        world.submit(job)
        world.settle()
        assert world.status()["reason"] == "NeverFits"
        world.memory.patch(TFJOBS, "default", "mnist", {"metadata": {"labels": {"a": "b"}}})
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, _: found.__setitem__(0, found[0] + (event == "call")))
        try:
            world.settle()
        finally:
            sys.setprofile(before)
        return found[0]

    calls(4)  # fills the caches
    assert calls(10_000) < 1.5 * calls(4)


# Pods without a job


def orphaned(world: World, name: str) -> None:
    """``kubectl delete --cascade=orphan`` deletes the job and removes the owner of its pods."""
    uid = world.job(name)["metadata"]["uid"]
    world.memory.delete(TFJOBS, "default", name, propagation="Orphan")
    for pod in world.pods().values():
        if pod["metadata"]["labels"].get(names.JOB_UID) == uid:
            kept = {**pod["metadata"], "ownerReferences": []}
            world.memory.replace(PODS, "default", pod["metadata"]["name"], {**pod, "metadata": kept})


def test_orphaned_pods_count_in_queue_until_gone() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "3"))
    world.run_job(queued("first", "research"))
    orphaned(world, "first")
    world.submit(queued("second", "research"))
    world.settle()
    assert world.status("second")["reason"] == "QuotaExceeded"
    assert used(world, "research") == "3"
    for name in list(world.pods()):
        world.evict(name)
    world.settle()
    assert world.status("second")["reason"] == "Admitted"


def test_pods_of_suspended_job_count_until_gone() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "3"))
    world.run_job(queued("first", "research"))
    world.memory.patch(TFJOBS, "default", "first", {"spec": {"runPolicy": {"suspend": True}}})
    world.submit(queued("second", "research"))
    world.settle()
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods().values())
    assert world.status("second")["reason"] == "QuotaExceeded"
    world.bury()
    world.settle()
    assert world.status("second")["reason"] == "Admitted"


def test_remaining_pods_of_finished_job_count_until_gone() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "3"))
    first = queued("first", "research")
    first["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
    world.run_job(first)
    world.end_pod("first-worker-0", 0)
    world.end_pod("first-worker-1", 0)
    world.settle()
    assert world.status("first")["phase"] == "Completed"
    assert used(world, "research") == "1"  # the parameter server still runs
    world.submit(queued("second", "research"))
    world.settle()
    assert world.status("second")["reason"] == "QuotaExceeded"
    world.evict("first-ps-0")
    world.settle()
    assert world.status("second")["reason"] == "Admitted"


def test_pods_of_other_namespace_do_not_count_in_closed_queue() -> None:
    """Users can write any label on their own pods."""
    world = World(cpu="8")
    world.memory.create(NAMESPACES, None, {"metadata": {"name": "team-b"}})
    only = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    world.memory.create(QUEUES, None, queue("research", "3", namespaceSelector=only))
    labels = {names.JOB_UID: "forged", names.QUEUE: "research"}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}
    pod = {"metadata": {"name": "forged", "labels": labels}, "spec": {"nodeName": "n1", "containers": [container]}}
    world.memory.create(PODS, "team-b", pod)
    world.submit(queued("first", "research"))
    world.settle()
    assert world.status("first")["reason"] == "Admitted"


def test_template_label_does_not_override_queue() -> None:
    world = World(cpu="8")
    document = queued("first", "research")
    for spec in document["spec"]["tfReplicaSpecs"].values():
        spec["template"]["metadata"] = {"labels": {names.QUEUE: "victim"}}
    world.memory.create(QUEUES, None, queue("research", "3"))
    world.submit(document)
    world.settle()
    assert {pod["metadata"]["labels"][names.QUEUE] for pod in world.pods().values()} == {"research"}


# A job whose admission cannot be written


def test_job_with_unwritable_status_holds_no_capacity() -> None:
    """A document just below the size limit of the API server leaves no space for a status."""
    refuses = [True]

    def too_large(verb: str, kind: Any, *args: Any, **_: Any) -> None:
        if refuses[0] and (verb, kind) == ("replace", TFJOBS) and "large" in args:
            raise Rejected("Request entity too large: limit is 3145728")

    world = World(cpu="3")
    world.cluster = disturbed(world.memory, too_large)
    world.controller = Controller(world.cluster, clock=world.clock, monotonic=world.clock)
    world.submit(tfjob("large"))
    world.clock.now += 1
    world.submit(tfjob("next"))

    def admitted(name: str) -> bool:
        world.clock.now += 5
        return world.status(name).get("admission") is not None

    world.step_until(lambda: admitted("next"))
    world.controller.step()
    assert len(world.pods()) == 3
    refuses[0] = False
    world.memory.delete(TFJOBS, "default", "next")
    for name in list(world.pods()):
        world.evict(name)
    world.step_until(lambda: admitted("large"))
