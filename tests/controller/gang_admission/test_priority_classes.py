"""Priority classes: which classes a job may name, their quotas, and the default queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.gang_admission.test_queues import priority, queue, queued
from tests.controller.harness import World, tfjob
from tf_dist.cluster.api import PRIORITY_CLASSES, QUEUES, RESOURCE_QUOTAS, TFJOBS, Object


def in_template(name: str, priority_class: str) -> Object:
    document = tfjob(name)
    for spec in document["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"]["priorityClassName"] = priority_class
    return document


def running(world: World, document: Object) -> None:
    world.run_job(document)
    world.clock.now += 60


@pytest.mark.parametrize(
    "document",
    [queued("high", priority_class="system-node-critical"), in_template("high", "system-node-critical")],
    ids=["job", "template"],
)
def test_job_with_system_priority_class_is_refused_and_does_not_preempt(document: Object) -> None:
    world = World(cpu="4")
    world.memory.create(PRIORITY_CLASSES, None, priority("system-node-critical", 2_000_001_000))
    running(world, queued("low"))
    world.submit(document)
    world.settle()
    assert world.status("low")["phase"] == "Running"
    status = world.status("high")
    assert status["reason"] == "PriorityClassRefused"
    assert status["message"].startswith('priority class "system-node-critical" is for components of the cluster')


def test_queue_accepts_only_listed_priority_classes() -> None:
    world = World(cpu="4")
    for name, value in (("gold", 1000), ("silver", 10)):
        world.memory.create(PRIORITY_CLASSES, None, priority(name, value))
    world.memory.create(QUEUES, None, queue("research", "4", priorityClasses=["silver"]))
    running(world, queued("low", "research"))
    world.submit(queued("high", "research", priority_class="gold"))
    world.settle()
    assert world.status("low")["phase"] == "Running"
    assert world.status("high")["message"].startswith(
        'queue "research" does not accept priority class "gold" (its priorityClasses: silver)'
    )
    world.memory.patch(QUEUES, None, "research", {"spec": {"priorityClasses": ["silver", "gold"]}})
    world.remove_pods()
    assert world.status("high")["reason"] == "Admitted"


def scoped(world: World, operator: str, *values: str) -> None:
    rule: dict[str, Any] = {"scopeName": "PriorityClass", "operator": operator}
    spec = {
        "hard": {"pods": "4"},
        "scopeSelector": {"matchExpressions": [rule | ({"values": list(values)} if values else {})]},
    }
    world.memory.create(RESOURCE_QUOTAS, "default", {"metadata": {"name": "scoped"}, "spec": spec})


@pytest.mark.parametrize(("operator", "values"), [("In", ["gold"]), ("Exists", [])])
def test_priority_class_of_job_counts_in_scoped_quota(operator: str, values: list[str]) -> None:
    """The pods do not have the class of the job, so the API server does not count them."""
    world = World(cpu="32")
    world.memory.create(PRIORITY_CLASSES, None, priority("gold", 1000))
    scoped(world, operator, *values)
    for name in ("first", "second"):
        world.submit(queued(name, priority_class="gold"))
        world.settle()
    assert world.status("first")["reason"] == "Admitted"
    assert world.status("second")["reason"] == "ResourceQuotaExceeded"
    world.run_pods()
    world.settle()
    assert world.status("second")["message"].endswith("scoped: pods 3 of 4 used, needs 3")


def test_job_class_counts_in_addition_to_pods_in_scoped_quota() -> None:
    world = World(cpu="32")
    world.memory.create(PRIORITY_CLASSES, None, priority("gold", 1000))
    scoped(world, "In", "gold")
    world.submit(in_template("first", "gold"))
    world.settle()
    world.submit(queued("second", priority_class="gold"))
    world.settle()
    assert world.status("second")["message"].endswith("scoped: pods 3 of 4 used, needs 3")


# The default queue


@pytest.mark.parametrize("named", ["", "default"])
def test_job_without_queue_uses_default_queue(named: str) -> None:
    world = World(cpu="32")
    world.memory.create(QUEUES, None, queue("shared", "3", default=True))
    world.memory.create(QUEUES, None, queue("research", "8"))
    for name in ("first", "second"):
        world.submit(queued(name, named))
        world.settle()
    assert world.status("first")["reason"] == "Admitted"
    assert world.status("second")["reason"] == "QuotaExceeded"
    assert "queue shared" in world.status("second")["message"]
    world.run_pods()
    world.settle()
    world.memory.delete(TFJOBS, "default", "first")  # its pods count until their grace period ends
    world.settle()
    assert world.status("second")["reason"] == "QuotaExceeded"


def test_fallback_queue_named_default_means_default_queue() -> None:
    world = World(cpu="32")
    world.memory.create(QUEUES, None, queue("shared", "2", default=True))
    world.memory.create(QUEUES, None, queue("research", "2"))
    document = queued("first", "research")
    document["metadata"]["annotations"] = {
        "tf-dist.dev/fallback": '[{"queue_name": "default"}]',
        "tf-dist.dev/admission-timeout": "1s",
    }
    world.submit(document)
    world.settle()
    world.clock.now += 20
    world.settle()
    assert world.status("first").get("admission") is None
    assert "queue shared can never have more than 2" in world.status("first")["message"]


def test_closed_default_queue_refuses_jobs_without_queue() -> None:
    world = World(cpu="32")
    closed = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}]}
    world.memory.create(QUEUES, None, queue("default", "0", namespaceSelector=closed))
    world.submit(tfjob("first"))
    world.settle()
    assert world.status("first")["message"].startswith('queue "default" is closed')
    assert world.pods() == {}
