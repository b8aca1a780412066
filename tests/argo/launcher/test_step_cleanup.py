"""The clean-up step deletes a workflow's jobs and no others. Job definitions of Volcano are detected."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, disturbed, tfjob
from tf_dist import errors
from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.step_cleanup import delete_workflow_jobs
from tf_dist.client import connection
from tf_dist.client.wait import GoalNotReached
from tf_dist.cluster.api import JOB_KINDS, TFJOBS, Cluster, Object, Resource
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster

OURS, OTHERS = "workflow-uid", "another-uid"


def made(world: World, name: str, workflow: str = OURS, phase: str = "", **metadata: Any) -> Object:
    """Create a job of a workflow."""
    document = tfjob(name)
    document["metadata"] |= {"labels": {contract.WORKFLOW_UID: workflow}, **metadata}
    stored = world.submit(document)
    if phase:
        status = {"status": {"tfDist": {"phase": phase}}}
        stored = world.memory.patch(TFJOBS, "default", name, status, subresource="status")
    return stored


def left(world: World) -> list[str]:
    return [job["metadata"]["name"] for job in world.memory.list(TFJOBS).items]


def cleaned(cluster: Cluster, *, all_jobs: bool = False, timeout: float = 60.0) -> tuple[int, list[str]]:
    """The number of deleted jobs and the messages."""
    said: list[str] = []
    return delete_workflow_jobs(cluster, "default", OURS, said.append, all_jobs=all_jobs, timeout=timeout), said


@pytest.mark.parametrize(("all_jobs", "count"), [(False, 2), (True, 4)])
def test_deletes_running_or_all_jobs_of_workflow(all_jobs: bool, count: int) -> None:
    world = World()
    for name, phase in (("done", "Completed"), ("failed", "Failed"), ("new", ""), ("runs", "Running")):
        made(world, name, phase=phase)
    made(world, "other", OTHERS, "Running")
    found, said = cleaned(world.memory, all_jobs=all_jobs)
    assert (found, len(said)) == (count, count)
    assert left(world) == (["other"] if all_jobs else ["done", "failed", "other"])


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another in its place"])
def test_job_deleted_meanwhile_does_not_stop_cleanup(again: bool) -> None:
    """The deletion has the uid as its precondition, so it does not delete a new job with the same name."""
    world = World()
    made(world, "a")
    made(world, "b")

    def before(verb: str, _: Resource, namespace: str, *rest: Any, **__: Any) -> None:
        if (verb, *rest[:1]) == ("delete", "a"):
            world.memory.delete(TFJOBS, namespace, "a")
            if again:
                made(world, "a", OTHERS)

    assert cleaned(disturbed(world.memory, before))[0] == 2
    assert left(world) == (["a"] if again else [])


def test_job_with_finalizer_does_not_stop_cleanup() -> None:
    world = World()
    made(world, "a", finalizers=["example.com/keep"])
    made(world, "b")
    with pytest.raises(GoalNotReached):
        cleaned(world.memory, timeout=0.0)
    (stays,) = world.memory.list(TFJOBS).items
    assert stays["metadata"]["name"] == "a"
    assert "deletionTimestamp" in stays["metadata"]


def test_cleanup_succeeds_without_job_definitions() -> None:
    server = ApiServer(World(lacks=JOB_KINDS).memory)
    with server as api, RestCluster(api.app.url, token=api.token) as client:
        assert cleaned(client)[0] == 0


@pytest.mark.parametrize("may", JOB_KINDS, ids=str)
def test_forbidden_kind_is_skipped_unless_all_are_forbidden(may: Resource) -> None:
    world, seen = World(), {may}
    made(world, "a")

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if verb == "list" and resource not in seen:
            raise errors.Forbidden(f"list {resource.plural}")

    assert cleaned(disturbed(world.memory, before))[0] == (may is TFJOBS)
    seen.clear()
    with pytest.raises(errors.Forbidden):
        cleaned(disturbed(world.memory, before))


@pytest.mark.parametrize(
    ("labels", "refused"),
    [({connection.PART_OF: connection.TF_DIST}, False), ({connection.PART_OF: "volcano"}, True), (None, True)],
    ids=["ours", "theirs", "without owner"],
)
def test_volcano_jobs_are_rejected_if_volcano_is_installed(labels: dict[str, str] | None, refused: bool) -> None:
    memory = World(lacks=JOB_KINDS).memory
    connection.refuse_beside_volcano(memory, "a")
    group = {"group": "batch.volcano.sh", "names": {"kind": "Job", "plural": "jobs"}, "scope": "Namespaced"}
    versions = [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {}}}]
    metadata = {"name": connection.VOLCANO_JOBS_DEFINITION, "labels": labels}
    memory.create(CRDS, None, {"metadata": metadata, "spec": {**group, "versions": versions}})
    if refused:
        with pytest.raises(errors.Rejected, match="Job a is for Volcano's controller"):
            connection.refuse_beside_volcano(memory, "a")
    else:
        connection.refuse_beside_volcano(memory, "a")
