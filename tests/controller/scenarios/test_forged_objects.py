"""Forged objects of a user who may only create jobs and pods in a namespace do not change decisions.

The tests of forged memory run with tf-dist's CRD of TFJob and with Kubeflow's CRD.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.controller.foreign_api import Pruning
from tests.controller.harness import World, tfjob
from tf_dist.cluster.api import NAMESPACES, PODS, SERVICES, TFJOBS, Object
from tf_dist.controller.controller import Controller
from tf_dist.core.model import names
from tf_dist.core.model.status_codec import FIELD, MEMORY_CONDITION, stored_status

MEMORY: dict[str, Any] = {
    "phase": "Running",
    "reason": "JobRunning",
    "admission": {"at": "2027-01-15T08:00:00.000000Z", "placement": {"worker": {"n1": 8}}},
    "restarts": {"PodFailed": -1000},
    "attempts": {"job": 7},
}
STATUS: Object = {
    FIELD: MEMORY,
    "conditions": [{"type": MEMORY_CONDITION, "status": "Unknown", "message": json.dumps(MEMORY)}],
}


def world(*, ours: bool) -> World:
    """A cluster of 4 CPUs."""
    world = World(cpu="4")
    if not ours:
        world.cluster = Pruning(world.memory)  # type: ignore[assignment]
        world.controller = Controller(world.cluster, clock=world.clock, monotonic=world.clock)
    return world


def remembered(world: World, name: str = "mnist") -> dict[str, Any]:
    return dict(stored_status(world.job(name))[FIELD])


@pytest.fixture(params=[True, False], ids=["ours", "kubeflows"])
def small(request: pytest.FixtureRequest) -> World:
    return world(ours=request.param)


def waits(world: World) -> bool:
    found = remembered(world)
    return (found["reason"], "admission" in found, found.get("restarts"), found.get("attempts"), world.pods()) == (
        "NeverFits",
        False,
        None,
        {"job": 1},
        {},
    )


def test_memory_in_annotations_is_ignored(small: World) -> None:
    document = tfjob(workers=8, ps=0)
    del document["spec"]["tfReplicaSpecs"]["PS"]
    document["metadata"]["annotations"] = {"tf-dist.dev/memory": json.dumps(MEMORY)}
    small.submit(document)
    small.settle()
    assert waits(small), small.describe()


def test_memory_in_status_of_new_job_is_dropped(small: World) -> None:
    document = tfjob(workers=8)
    del document["spec"]["tfReplicaSpecs"]["PS"]
    small.submit({**document, "status": STATUS})
    small.settle()
    assert waits(small), small.describe()


def test_memory_in_edit_of_job_is_dropped(small: World) -> None:
    document = tfjob(workers=8)
    del document["spec"]["tfReplicaSpecs"]["PS"]
    small.submit(document)
    small.settle()
    small.memory.patch(TFJOBS, "default", "mnist", {"status": STATUS})
    small.memory.replace(TFJOBS, "default", "mnist", {**small.job(), "status": STATUS})
    small.settle()
    assert waits(small), small.describe()


# Objects with labels of a job that do not belong to the job


def pod_of(job: Object, name: str, namespace: str, index: str = "0") -> Object:
    """A pod with the labels of a worker. Only in the namespace of the job can it have the job as its owner."""
    owner = {key: job[key] for key in ("apiVersion", "kind")} | {key: job["metadata"][key] for key in ("name", "uid")}
    marks = {names.JOB_UID: job["metadata"]["uid"], names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: index}
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {**marks, names.ATTEMPT: "1.0.0"},
        "ownerReferences": [{**owner, "controller": True}] if namespace == "default" else [],
    }
    return {"metadata": metadata, "spec": {"containers": [{"name": "tensorflow", "image": "tf"}]}}


@pytest.fixture
def team_b() -> World:
    """A world with a running job, and another namespace."""
    world = World()
    world.memory.create(NAMESPACES, None, {"metadata": {"name": "team-b"}})
    world.run_job(tfjob(backoffLimit=1))
    return world


def test_failed_pod_of_other_namespace_causes_no_restart(team_b: World) -> None:
    forged = pod_of(team_b.job(), "aaa", "team-b", "1")
    for restarts in range(3):
        pod = team_b.memory.create(
            PODS, "team-b", {**forged, "metadata": {**forged["metadata"], "name": f"a{restarts}"}}
        )
        failed = {
            "phase": "Failed",
            "containerStatuses": [{"name": "tensorflow", "state": {"terminated": {"exitCode": 137}}}],
        }
        team_b.memory.replace(PODS, "team-b", f"a{restarts}", {**pod, "status": failed}, subresource="status")
        team_b.settle()
    assert team_b.status()["phase"] == "Running"
    assert "restarts" not in team_b.status()
    assert len(team_b.memory.list(PODS, "team-b").items) == 3


def test_pod_without_job_as_owner_is_ignored(team_b: World) -> None:
    forged = pod_of(team_b.job(), "aaa", "default", "1")
    del forged["metadata"]["ownerReferences"]
    pod = team_b.memory.create(PODS, "default", forged)
    team_b.memory.replace(PODS, "default", "aaa", {**pod, "status": {"phase": "Failed"}}, subresource="status")
    team_b.settle()
    assert team_b.status()["phase"] == "Running"
    assert "aaa" in team_b.pods()


def test_huge_index_of_forged_pod_does_not_affect_admission(team_b: World) -> None:
    for space, index in (("team-b", "3000000000"), ("default", "3000000000"), ("default", "9" * 60)):
        pod = pod_of(team_b.job(), f"aaa-{len(index)}", space, index)
        team_b.memory.create(PODS, space, pod)
        team_b.memory.bind(space, pod["metadata"]["name"], "n1")
    team_b.submit(tfjob("other"))
    team_b.settle()
    assert team_b.status("other")["reason"] == "Admitted"


def test_service_of_other_namespace_does_not_replace_service_of_job(team_b: World) -> None:
    theirs = team_b.memory.get(SERVICES, "default", "mnist-worker-0")
    metadata = {key: theirs["metadata"][key] for key in ("name", "labels")}
    team_b.memory.create(SERVICES, "team-b", {"metadata": metadata, "spec": {"ports": [{"port": 1}]}})
    team_b.memory.delete(SERVICES, "default", "mnist-worker-0")
    team_b.settle()
    assert team_b.memory.get(SERVICES, "default", "mnist-worker-0")["metadata"]["uid"] != theirs["metadata"]["uid"]
