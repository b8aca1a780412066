"""tf-dist replaces a training-operator and continues with its pods and Services."""

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
    """Create an object of training-operator 1.9 for a replica, with its labels and the job as the owner."""
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
    """Create a running job of the replaced operator, and return the uids of its pods."""
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


def test_running_job_keeps_pods_of_former_operator() -> None:
    """None of the pods restarts."""
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
    """Write the operator's status of a running job."""
    ran = {"type": "Running", "status": "True", "reason": "TFJobRunning", "message": "TFJob mnist is running."}
    stored = world.job()
    body = {**stored, "status": {"conditions": [ran], "startTime": "2027-01-15T07:00:00Z", **status}}
    world.memory.replace(TFJOBS, "default", "mnist", body, subresource="status")


@pytest.mark.parametrize("cpu", ["3", "4"])
def test_running_job_does_not_wait_for_capacity_of_its_own_pods(cpu: str) -> None:
    """The cluster has capacity for only one of the jobs. The other job waits until this job has ended."""
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


def test_active_deadline_counts_from_start_time_of_former_operator() -> None:
    world = World(cpu="3")
    replaced(world, activeDeadlineSeconds=7200)
    said_to_run(world)
    world.settle()
    assert "Running" in conditions(world)
    world.clock.now += 3600
    world.settle()
    assert "Failed" in conditions(world)


def test_job_that_was_only_created_waits_for_admission() -> None:
    world = World(cpu="2")
    world.submit(tfjob())
    said_to_run(world, conditions=[{"type": "Created", "status": "True"}])
    world.settle()
    assert not world.pods()
    assert world.status()["state"] == "Waiting"


def v1alpha1(world: World, phase: str = "Running", state: str = "Running") -> Object:
    """A v1alpha1 job as its operator leaves it in this phase, with a Service for each replica but without pods."""
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
    """Create an object of a v1alpha1 operator for a replica. The name of a pod has a random suffix."""
    labels = {"kubeflow.org": "", "job_type": kind, "runtime_id": "76no", "tf_job_name": "mnist"}
    labels["task_index"] = str(index)
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": "mnist", "uid": job["metadata"]["uid"]}
    name = f"mnist-{kind.lower()}-76no-{index}{suffix}"
    metadata = {"name": name, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
    spec = {"containers": [container()]} if resource == PODS else {"clusterIP": "None", "selector": labels}
    body: Object = {"apiVersion": "v1", "kind": resource.kind, "metadata": metadata, "spec": spec}
    world.memory.create(resource, "default", body)


def all_of_v1alpha1(world: World, job: Object) -> dict[str, str]:
    """Create running pods for all replicas, and return their uids."""
    for kind, count in SIZES.items():
        for index in range(count):
            of_v1alpha1(world, job, kind, index, suffix=f"-{kind.lower()[:3]}x{index}")
    world.run_pods()
    return uids(world)


@pytest.mark.parametrize("cpu", ["4", "32"])
def test_running_v1alpha1_job_keeps_pods_of_former_operator(cpu: str) -> None:
    """The pods have random names, and their labels identify them. No pod restarts or exists twice."""
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
def test_pods_of_v1alpha1_job_are_listed_only_once(pods_are_there: bool) -> None:
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


def test_only_live_pod_of_replica_is_adopted() -> None:
    """v1alpha1 operators leave failed pods behind. Pods of other owners are ignored."""
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


def test_v1alpha1_pod_being_deleted_delays_replacement() -> None:
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
def test_v1alpha1_job_that_never_ran_waits_for_admission(phase: str, state: str) -> None:
    """The operator sets the state to Running from the beginning."""
    world = World(cpu="2")
    v1alpha1(world, phase, state)
    world.settle()
    assert not world.pods()
    assert world.status(resource=TFJOBS_V1ALPHA1)["phase"] == "Pending"


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_finished_v1alpha1_job_is_not_changed(state: str) -> None:
    world = World()
    job = v1alpha1(world, "Done", state)
    before = all_of_v1alpha1(world, job)
    world.settle()
    assert uids(world) == before
    assert world.job(resource=TFJOBS_V1ALPHA1)["status"] == {"phase": "Done", "state": state}


def test_pod_of_former_operator_being_deleted_delays_replacement() -> None:
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


def test_pod_with_labels_of_job_but_other_owner_is_ignored() -> None:
    """The owner of a pod decides, not its labels."""
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
