"""Pods and services that a training-operator left: tf-dist, which takes its place, goes on with them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, container, disturbed, tfjob
from tf_dist.cluster.api import PODS, SERVICES, TFJOBS, TFJOBS_V1ALPHA1, Object, Resource
from tf_dist.controller.controller import Controller
from tf_dist.core.model import names

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
    world.remove_pods()
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


def v1alpha1(world: World, phase: str = "Running", state: str = "Running") -> Object:
    """A job of v1alpha1 as its operator leaves it in this phase, with a service for each replica, but without pods."""
    template = {"spec": {"containers": [container()], "restartPolicy": "OnFailure"}}
    groups = [{"replicas": count, "tfReplicaType": name, "template": template} for name, count in SIZES.items()]
    spec = {"RuntimeId": "76no", "replicaSpecs": groups}
    job = {"apiVersion": "kubeflow.org/v1alpha1", "kind": "TFJob", "metadata": {"name": "mnist"}, "spec": spec}
    stored = world.submit(job, TFJOBS_V1ALPHA1)
    body = {**stored, "status": {"phase": phase, "state": state}}
    stored = world.memory.replace(TFJOBS_V1ALPHA1, "default", "mnist", body, subresource="status")
    for kind, count in SIZES.items():
        for index in range(count):
            of_v1alpha1(world, stored, kind, index, SERVICES)
    return stored


def of_v1alpha1(world: World, job: Object, kind: str, index: int, resource: Resource = PODS, suffix: str = "") -> None:
    """What an operator of v1alpha1 makes for a replica; a pod's name has a suffix at random."""
    labels = {"kubeflow.org": "", "job_type": kind, "runtime_id": "76no", "tf_job_name": "mnist"}
    labels["task_index"] = str(index)
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": "mnist", "uid": job["metadata"]["uid"]}
    name = f"mnist-{kind.lower()}-76no-{index}{suffix}"
    metadata = {"name": name, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
    spec = {"containers": [container()]} if resource == PODS else {"clusterIP": "None", "selector": labels}
    body: Object = {"apiVersion": "v1", "kind": resource.kind, "metadata": metadata, "spec": spec}
    world.memory.create(resource, "default", body)


def all_of_v1alpha1(world: World, job: Object) -> dict[str, str]:
    """The uids of its pods, which run."""
    for kind, count in SIZES.items():
        for index in range(count):
            of_v1alpha1(world, job, kind, index, suffix=f"-{kind.lower()[:3]}x{index}")
    world.run_pods()
    return uids(world)


@pytest.mark.parametrize("cpu", ["4", "32"])
def test_a_job_of_v1alpha1_that_runs_goes_on_with_its_pods(cpu: str) -> None:
    """Their names are at random: they are known by their labels. Not one starts again, and not one is there twice."""
    world = World(cpu=cpu)
    before = all_of_v1alpha1(world, v1alpha1(world))
    world.settle()
    assert uids(world) == before
    assert world.status(resource=TFJOBS_V1ALPHA1)["phase"] == "Running"
    for resource in (PODS, SERVICES):
        stored = world.memory.list(resource, "default").items
        assert {one["metadata"]["labels"].get(names.JOB_NAME) for one in stored} == {"mnist"}
    world.end_pod("mnist-master-76no-0-masx0", 0)
    world.remove_pods()
    assert world.status(resource=TFJOBS_V1ALPHA1)["phase"] == "Completed"
    assert set(world.pods()) == {"mnist-master-76no-0-masx0"}


@pytest.mark.parametrize("pods_are_there", [True, False])
def test_the_pods_of_a_job_of_v1alpha1_are_looked_for_once_and_not_once_for_each_replica(pods_are_there: bool) -> None:
    world = World(cpu="32")
    job = v1alpha1(world)
    if pods_are_there:
        all_of_v1alpha1(world, job)
    selectors: list[str] = []

    def count(verb: str, resource: Resource, *_: Any, labels: str = "", **__: Any) -> None:
        if (verb, resource) == ("list", PODS) and "runtime_id" in labels:
            selectors.append(labels)

    world.controller = Controller(disturbed(world.memory, count), clock=world.clock, monotonic=world.clock)
    world.settle()
    assert len(world.pods()) == sum(SIZES.values())
    assert selectors == ["tf_job_name=mnist,runtime_id=76no"]


def test_only_the_living_pod_of_a_replica_is_taken_over() -> None:
    """An operator of v1alpha1 leaves pods that have failed; what another controls has nothing to do with it."""
    world = World()
    job = v1alpha1(world)
    of_v1alpha1(world, job, "WORKER", 1, suffix="-older")
    before = all_of_v1alpha1(world, job)
    world.end_pod("mnist-worker-76no-1-older", 1)
    other = {**job, "metadata": {**job["metadata"], "uid": "another"}}
    of_v1alpha1(world, other, "WORKER", 2, suffix="-stray")
    world.memory.delete(PODS, "default", "mnist-worker-76no-2-worx2")
    world.bury()
    world.settle()
    labelled = {name for name, pod in world.pods().items() if names.JOB_UID in pod["metadata"]["labels"]}
    made = labelled - before.keys()
    assert before.keys() & labelled == before.keys() - {"mnist-worker-76no-1-older", "mnist-worker-76no-2-worx2"}
    assert [name.startswith("mnist-worker-76no-2-") for name in made] == [True]


def test_a_pod_of_v1alpha1_that_is_being_deleted_is_waited_for() -> None:
    world = World()
    before = all_of_v1alpha1(world, v1alpha1(world))
    world.memory.delete(PODS, "default", "mnist-worker-76no-1-worx1")
    for _ in range(4):
        world.controller.step()
    assert uids(world).keys() == before.keys()
    world.bury()
    world.clock.now += 60
    world.settle()
    assert len(world.pods()) == len(before)
    assert before.keys() - uids(world).keys() == {"mnist-worker-76no-1-worx1"}


@pytest.mark.parametrize(("phase", "state"), [("Creating", "Running"), ("", "")])
def test_a_job_of_v1alpha1_that_has_never_run_waits_like_any_other(phase: str, state: str) -> None:
    """Its operator says Running of the state from the beginning."""
    world = World(cpu="2")
    v1alpha1(world, phase, state)
    world.settle()
    assert not world.pods()
    assert world.status(resource=TFJOBS_V1ALPHA1)["phase"] == "Pending"


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_a_job_of_v1alpha1_that_is_over_is_left_alone(state: str) -> None:
    world = World()
    job = v1alpha1(world, "Done", state)
    before = all_of_v1alpha1(world, job)
    world.settle()
    assert uids(world) == before
    assert world.job(resource=TFJOBS_V1ALPHA1)["status"] == {"phase": "Done", "state": state}


def test_a_pod_of_the_former_that_is_being_deleted_is_waited_for() -> None:
    world = World()
    before = replaced(world)
    world.memory.delete(PODS, "default", "mnist-worker-1")
    for _ in range(4):
        world.controller.step()
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
