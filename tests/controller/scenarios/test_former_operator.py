"""Pods and services that a training-operator left: tf-dist, which takes its place, goes on with them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, container, tfjob
from tf_dist.cluster.api import PODS, SERVICES, TFJOBS, TFJOBS_V1ALPHA1, Object, Resource
from tf_dist.core.api import names

SIZES = {"MASTER": 1, "WORKER": 3}
NAMES = ("mnist-ps-0", "mnist-worker-0", "mnist-worker-1")


def left_behind(world: World, job: Object, resource: Resource, name: str) -> Object:
    """What training-operator 1.9 makes for a replica: its own labels, and the job as the controller."""
    _, type_, index = name.split("-")
    labels = {"operator-name": "tfjob-controller", "job-name": "mnist", "replica-type": type_, "replica-index": index}
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": job["metadata"]["name"]}
    body: Object = {
        "apiVersion": "v1",
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "labels": {f"training.kubeflow.org/{key}": value for key, value in labels.items()},
            "ownerReferences": [{**owner, "uid": job["metadata"]["uid"], "controller": True}],
        },
        "spec": {"containers": [container()]} if resource == PODS else {"clusterIP": "None"},
    }
    return world.memory.create(resource, "default", body)


def replaced(world: World, **policy: Any) -> dict[str, str]:
    """A running job of the operator, whose place tf-dist takes; the uids of its pods."""
    job = world.submit(tfjob(**policy))
    for name in NAMES:
        left_behind(world, job, SERVICES, name)
        left_behind(world, job, PODS, name)
    world.run_pods()
    return uids(world)


def uids(world: World) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}


def conditions(world: World) -> set[str]:
    return {one["type"] for one in world.job()["status"]["conditions"] if one["status"] == "True"}


def test_a_job_that_runs_goes_on_with_its_pods() -> None:
    """Not one of them starts again."""
    world = World()
    before = replaced(world)
    world.settle()
    assert uids(world) == before
    assert {"Created", "Running"} <= conditions(world)
    assert world.job()["status"]["replicaStatuses"]["Worker"]["active"] == 2
    for resource in (PODS, SERVICES):
        stored = world.memory.list(resource, "default").items
        assert {one["metadata"]["labels"][names.JOB_NAME] for one in stored} == {"mnist"}
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    world.bury()
    world.settle()
    assert "Succeeded" in conditions(world)
    assert set(world.pods()) == {"mnist-worker-0"}


def said_to_run(world: World, **status: Any) -> None:
    """The operator's own status of a job that runs."""
    ran = {"type": "Running", "status": "True", "reason": "TFJobRunning", "message": "TFJob mnist is running."}
    stored = world.job()
    body = {**stored, "status": {"conditions": [ran], "startTime": "2027-01-15T07:00:00Z", **status}}
    world.memory.replace(TFJOBS, "default", "mnist", body, subresource="status")


@pytest.mark.parametrize("cpu", ["3", "4"])
def test_a_job_that_runs_does_not_wait_for_the_room_of_its_own_pods(cpu: str) -> None:
    """The cluster has room for it once; another one that wants the room waits until it has ended."""
    world = World(cpu=cpu)
    before = replaced(world)
    said_to_run(world)
    world.submit(tfjob("waits"))
    world.settle()
    assert uids(world) == before
    assert "Running" in conditions(world)
    assert world.job()["status"]["startTime"] == "2027-01-15T07:00:00Z"
    assert world.status("waits")["state"] == "Waiting"
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    world.bury()
    world.clock.now += 60
    world.settle()
    assert {name for name in world.pods() if name.startswith("waits")} == {
        "waits-ps-0",
        "waits-worker-0",
        "waits-worker-1",
    }


def test_the_time_limit_of_a_job_goes_on_from_where_the_former_began() -> None:
    world = World(cpu="3")
    replaced(world, activeDeadlineSeconds=7200)
    said_to_run(world)
    world.settle()
    assert "Running" in conditions(world)
    world.clock.now += 3600
    world.settle()
    assert "Failed" in conditions(world)


def test_a_job_that_only_was_created_waits_like_any_other() -> None:
    world = World(cpu="2")
    world.submit(tfjob())
    said_to_run(world, conditions=[{"type": "Created", "status": "True"}])
    world.settle()
    assert not world.pods()
    assert world.status()["state"] == "Waiting"


def test_a_job_of_v1alpha1_that_runs_waits_like_any_other() -> None:
    """Its operator's pods have names at random: none is taken over, and their room is not its."""
    world = World(cpu="2")
    template = {"spec": {"containers": [container()], "restartPolicy": "OnFailure"}}
    groups = [{"replicas": count, "tfReplicaType": name, "template": template} for name, count in SIZES.items()]
    spec = {"RuntimeId": "76no", "replicaSpecs": groups}
    job = {"apiVersion": "kubeflow.org/v1alpha1", "kind": "TFJob", "metadata": {"name": "mnist"}, "spec": spec}
    stored = world.submit(job, TFJOBS_V1ALPHA1)
    body = {**stored, "status": {"phase": "Running", "state": "Running"}}
    world.memory.replace(TFJOBS_V1ALPHA1, "default", "mnist", body, subresource="status")
    world.settle()
    assert not world.pods()
    assert world.status(resource=TFJOBS_V1ALPHA1)["phase"] == "Pending"


def test_a_pod_of_the_former_that_is_being_deleted_is_waited_for() -> None:
    world = World()
    before = replaced(world)
    world.memory.delete(PODS, "default", "mnist-worker-1")
    for _ in range(4):
        world.driver.step()
    assert names.JOB_UID not in world.pods()["mnist-worker-1"]["metadata"]["labels"]
    world.bury()
    world.clock.now += 60
    world.settle()
    after = uids(world)
    assert {name for name in NAMES if after[name] != before[name]} == {"mnist-worker-1"}


def test_a_pod_with_its_labels_that_another_controls_is_left_alone_and_not_counted() -> None:
    """Not even one that says it is ours: who controls it decides."""
    world = World()
    other = world.submit(tfjob("other", suspend=True))
    world.submit(tfjob())
    world.settle()
    mine = world.pods()["mnist-worker-0"]["metadata"]["labels"]
    body = left_behind(world, other, PODS, "stray-worker-0")
    world.memory.patch(PODS, "default", "stray-worker-0", {"metadata": {"labels": mine}})
    world.run_pods()
    world.settle()
    assert world.job()["status"]["replicaStatuses"]["Worker"]["active"] == 2
    world.end_pod("stray-worker-0", 1)
    world.settle()
    assert "Failed" not in conditions(world)
    world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": True}}})
    world.settle()
    assert world.pods()["stray-worker-0"]["metadata"]["uid"] == body["metadata"]["uid"]
    assert "deletionTimestamp" not in world.pods()["stray-worker-0"]["metadata"]
