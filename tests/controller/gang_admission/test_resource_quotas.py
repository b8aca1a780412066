"""A ResourceQuota limits gangs: a gang starts with all of its pods, or waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, container, disturbed, replica, tfjob
from tf_dist.cluster.api import (
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    TFJOBS,
    Object,
    Resource,
)
from tf_dist.controller.controller import Controller
from tf_dist.errors import Forbidden


def quota(name: str = "team-quota", /, **fields: Any) -> Object:
    return {"metadata": {"name": name}, "spec": fields}


def workers(name: str, count: int, **spec: Any) -> Object:
    job = tfjob(name)
    template = {"spec": {"containers": [container()], **spec}}
    job["spec"]["tfReplicaSpecs"] = {"Worker": {**replica(count), "template": template}}
    return job


def limited(hard: dict[str, str], **fields: Any) -> World:
    world = World(cpu="32")
    world.memory.create(RESOURCE_QUOTAS, "default", quota(hard=hard, **fields))
    return world


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        ({"pods": "4"}, "pods 2 of 4 used, needs 3"),
        ({"count/pods": "4"}, "count/pods 2 of 4 used, needs 3"),
        ({"requests.cpu": "4"}, "requests.cpu 2 of 4 used, needs 3"),
        ({"cpu": "4500m"}, "cpu 2 of 4500m used, needs 3"),
        ({"services": "4"}, "services 2 of 4 used, needs 3"),
    ],
)
def test_gang_that_exceeds_resource_quota_waits_as_whole(hard: dict[str, str], said: str) -> None:
    world = limited(hard)
    world.submit(workers("first", 2))
    world.settle()
    world.submit(workers("second", 3))
    world.settle()
    assert sorted(world.pods()) == ["first-worker-0", "first-worker-1"]
    status = world.status("second")
    assert (status["reason"], status["message"]) == (
        "ResourceQuotaExceeded",
        f"waits for ResourceQuota team-quota: {said}",
    )


@pytest.mark.parametrize(
    "kind", [LIMIT_RANGES, RESOURCE_QUOTAS, RUNTIME_CLASSES, NAMESPACES], ids=lambda kind: kind.plural
)
def test_controller_starts_jobs_without_permission_to_list_kind(kind: Resource) -> None:
    def before(verb: str, resource: Any, *_: Any, **__: Any) -> None:
        if verb in ("list", "watch") and resource == kind:
            raise Forbidden(f"may not list {kind.plural}")

    world = World()
    world.controller = Controller(disturbed(world.memory, before), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    world.settle()
    assert len(world.pods()) == 3


def test_waiting_gang_starts_when_quota_usage_falls() -> None:
    world = limited({"pods": "4"})
    world.submit(workers("first", 2))
    world.submit(workers("second", 3))
    world.settle()
    world.run_pods()
    for name in ("first-worker-0", "first-worker-1"):
        world.end_pod(name, 0)
    world.settle()
    assert sum(name.startswith("second") for name in world.pods()) == 3


def test_waiting_gang_starts_when_quota_is_raised() -> None:
    world = limited({"pods": "2"})
    world.submit(workers("mnist", 3))
    world.settle()
    assert (world.pods(), world.status()["reason"]) == ({}, "NeverFits")
    assert world.status()["message"] == "needs pods 3, and ResourceQuota team-quota allows no more than 2"
    world.memory.patch(RESOURCE_QUOTAS, "default", "team-quota", {"spec": {"hard": {"pods": "3"}}})
    world.settle()
    assert len(world.pods()) == 3


def test_admitted_gangs_count_in_quota_before_pods_exist() -> None:
    world = limited({"pods": "5"})
    for number in range(4):
        world.submit(workers(f"job-{number}", 2))
    world.settle()
    assert len(world.pods()) == 4
    assert [world.status(f"job-{number}")["reason"] for number in range(4)].count("ResourceQuotaExceeded") == 2


def test_pods_of_other_owners_count_in_quota() -> None:
    world = limited({"pods": "3"})
    world.memory.create(PODS, "default", {"metadata": {"name": "x"}, "spec": {"containers": [container()]}})
    world.submit(workers("mnist", 3))
    world.settle()
    assert world.status()["message"] == "waits for ResourceQuota team-quota: pods 1 of 3 used, needs 3"


def test_quota_does_not_limit_other_namespaces() -> None:
    world = limited({"pods": "1"})
    world.submit(workers("mnist", 3))
    world.memory.create(PODS, "kube-system", {"metadata": {"name": "x"}, "spec": {"containers": [container()]}})
    other = workers("other", 3)
    other["metadata"]["namespace"] = "kube-system"
    world.memory.create(TFJOBS, "kube-system", other)
    world.settle()
    assert world.pods() == {}
    assert len(world.memory.list(PODS, "kube-system").items) == 4


@pytest.mark.parametrize(
    ("scopes", "spec", "waits"),
    [
        ({"scopes": ["Terminating"]}, {}, False),
        ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 60}, True),
        ({"scopes": ["NotTerminating"]}, {}, True),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, {}, True),
        ({"scopes": ["NotTerminating", "BestEffort"]}, {}, False),
        ({"scopes": ["BestEffort"]}, {"containers": [{"name": "tensorflow", "image": "tf"}]}, True),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}, {}, False),
    ],
)
def test_quota_counts_only_pods_in_its_scopes(scopes: dict[str, Any], spec: dict[str, Any], waits: bool) -> None:
    world = limited({"pods": "1"}, **scopes)
    world.submit(workers("mnist", 2, **spec))
    world.settle()
    assert (world.pods() == {}) is waits


def test_pods_without_priority_class_are_in_scope_of_global_default() -> None:
    usual = {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True}
    rule = {"scopeName": "PriorityClass", "operator": "In", "values": ["usual"]}
    world = limited({"pods": "1"}, scopeSelector={"matchExpressions": [rule]})
    world.memory.create(PRIORITY_CLASSES, None, usual)
    world.submit(workers("mnist", 2))
    world.settle()
    assert (world.pods(), world.status()["reason"]) == ({}, "NeverFits")


def test_embedded_cluster_rejects_pods_over_quota() -> None:
    world = limited({"pods": "1", "requests.cpu": "4"})
    one = {"spec": {"containers": [container()]}}
    world.memory.create(PODS, "default", {"metadata": {"name": "a"}, **one})
    with pytest.raises(Forbidden) as refused:
        world.memory.create(PODS, "default", {"metadata": {"name": "b"}, **one})
    said = "exceeded quota: team-quota, requested: pods=1, used: pods=1, limited: pods=1"
    assert said in str(refused.value)
    status = world.memory.get(RESOURCE_QUOTAS, "default", "team-quota")["status"]
    assert status == {"hard": {"pods": "1", "requests.cpu": "4"}, "used": {"pods": "1", "requests.cpu": "1"}}
    world.memory.delete(PODS, "default", "a")
    status = world.memory.get(RESOURCE_QUOTAS, "default", "team-quota")["status"]
    assert status["used"] == {"pods": "0", "requests.cpu": "0"}


def test_runtime_class_overhead_counts_as_request() -> None:
    world = World(cpu="4")
    sandbox = {"metadata": {"name": "sandbox"}, "handler": "s", "overhead": {"podFixed": {"cpu": "1500m"}}}
    world.memory.create(RUNTIME_CLASSES, None, sandbox)
    world.submit(workers("mnist", 2, runtimeClassName="sandbox"))
    world.settle()
    assert (world.pods(), world.status()["reason"]) == ({}, "NeverFits")


def test_jobs_are_admitted_only_to_nodes_of_runtime_class() -> None:
    world = World(cpu="4")
    taint = {"key": "sandbox", "effect": "NoSchedule"}
    scheduling = {"nodeSelector": {"runtime": "gvisor"}, "tolerations": [{"key": "sandbox", "operator": "Exists"}]}
    sandbox = {"metadata": {"name": "sandbox"}, "handler": "s", "scheduling": scheduling}
    world.memory.create(RUNTIME_CLASSES, None, sandbox)
    world.submit(workers("mnist", 2, runtimeClassName="sandbox"))
    world.settle()
    assert (world.pods(), world.status()["reason"]) == ({}, "NeverFits")
    amounts = {"cpu": "4", "memory": "64Gi", "pods": "110"}
    metadata = {"name": "n2", "labels": {"runtime": "gvisor"}}
    world.memory.create(NODES, None, {"metadata": metadata, "spec": {"taints": [taint]}})
    world.memory.patch(NODES, None, "n2", {"status": {"allocatable": amounts}}, subresource="status")
    world.settle()
    assert world.status()["admission"]["placement"] == {"worker": {"n2": 2}}
    assert set(world.pods()) == {"mnist-worker-0", "mnist-worker-1"}


# Defaults from a LimitRange


def limit_range(world: World, **rules: Any) -> None:
    body = {"metadata": {"name": "defaults"}, "spec": {"limits": [{"type": "Container", **rules}]}}
    world.memory.create(LIMIT_RANGES, "default", body)


def silent(name: str, count: int) -> Object:
    """Workers without resource requests."""
    return workers(name, count, containers=[{"name": "tensorflow", "image": "tf"}])


@pytest.mark.parametrize(
    "rules",
    [
        {"defaultRequest": {"cpu": "1"}},
        {"default": {"cpu": "1"}},
        {"max": {"cpu": "1"}},
        {"min": {"cpu": "1"}},
        {"default": {"cpu": "4"}, "defaultRequest": {"cpu": "1"}, "max": {"cpu": "8"}, "min": {"cpu": "500m"}},
    ],
)
def test_defaults_of_limit_range_count_in_quota(rules: dict[str, Any]) -> None:
    world = limited({"requests.cpu": "3"})
    limit_range(world, **rules)
    world.submit(silent("first", 2))
    world.submit(silent("second", 2))
    world.settle()
    assert sorted(world.pods()) == ["first-worker-0", "first-worker-1"]
    assert world.status("second")["message"].endswith("requests.cpu 2 of 3 used, needs 2")


def test_defaults_of_limit_range_count_on_nodes() -> None:
    world = World(cpu="3")
    limit_range(world, defaultRequest={"cpu": "1"})
    world.submit(silent("first", 2))
    world.submit(silent("second", 2))
    world.settle()
    assert sorted(world.pods()) == ["first-worker-0", "first-worker-1"]
    assert world.status("second")["reason"] == "WaitingForCapacity"


def test_container_limit_overrides_default_request() -> None:
    world = limited({"requests.cpu": "3"})
    limit_range(world, defaultRequest={"cpu": "100m"})
    own = {"name": "tensorflow", "image": "tf", "resources": {"limits": {"cpu": "2"}}}
    world.submit(workers("first", 2, containers=[own]))
    world.settle()
    assert "needs requests.cpu 4" in world.status("first")["message"]


def test_gang_is_recounted_when_limit_range_is_created() -> None:
    world = limited({"requests.cpu": "1"})
    world.submit({**silent("first", 2), "spec": {**silent("first", 2)["spec"], "runPolicy": {"suspend": True}}})
    world.settle()
    limit_range(world, defaultRequest={"cpu": "1"})
    world.memory.patch(TFJOBS, "default", "first", {"spec": {"runPolicy": {"suspend": False}}})
    world.settle()
    assert world.status("first")["reason"] == "NeverFits"
    assert world.pods() == {}


def test_succeeded_replica_no_longer_counts_in_quota() -> None:
    world = limited({"pods": "4"})
    document = workers("first", 3)
    document["spec"]["successPolicy"] = "AllWorkers"
    world.run_job(document)
    world.end_pod("first-worker-2", 0)
    world.settle()
    world.clock.now += 10  # by then the status reports that the replica has succeeded
    world.settle()
    world.submit(workers("second", 2))
    world.settle()
    assert world.status("second")["reason"] == "Admitted"
    assert len(world.pods()) == 5
