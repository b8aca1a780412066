"""What a tenant forges by hand belongs to no job, takes nothing from one, and is never deleted for one."""

from __future__ import annotations

import pytest

from tests.controller.harness import container
from tests.tenants.teams import FINALIZER, Team, forged_pod
from tf_dist.cluster.api import PODS, SERVICES, TFJOBS_V1ALPHA1, Object
from tf_dist.core.model import names
from tf_dist.errors import AlreadyExists, Rejected

pytestmark = pytest.mark.cluster


def labels_of(job: Object, index: str = "0") -> dict[str, str]:
    """Those that the controller gives the pod of a worker."""
    return {
        names.JOB_UID: job["metadata"]["uid"],
        names.JOB_NAME: job["metadata"]["name"],
        names.REPLICA_TYPE: "worker",
        names.REPLICA_INDEX: index,
        names.ATTEMPT: "1.0.0",
    }


def test_pod_whose_owner_is_job_of_another_team_does_not_count_for_it(team: Team, other: Team) -> None:
    theirs = other.submit("mnist")
    other.until_running()
    before = other.pods()
    marks = {**labels_of(theirs), names.QUEUE: other.queue}
    team.tenant.create(PODS, team.namespace, forged_pod("aaa", marks, owner=theirs, nodeName=team.nodes.name))
    # The garbage collector removes what has no owner in its namespace; the job does not react.
    team.until(lambda: not team.pods())
    team.submit("mnist", workers=1)
    team.until_running()
    assert {name: pod["metadata"]["uid"] for name, pod in other.pods().items()} == {
        name: pod["metadata"]["uid"] for name, pod in before.items()
    }
    assert "restarts" not in other.memory()
    other.until(lambda: other.used() == "2")


def test_pod_with_labels_of_a_job_is_not_one_of_its_pods(team: Team) -> None:
    job = team.submit("mnist", cpu="500m")
    team.until_running()
    pod = team.tenant.create(PODS, team.namespace, forged_pod("aaa", labels_of(job), nodeName=team.nodes.name))
    team.until(lambda: team.pods()["aaa"]["status"].get("phase") == "Running")
    team.nodes.end(pod, 1)
    team.submit("probe", workers=1)
    team.until_running("probe")
    assert "aaa" in team.pods()
    assert "restarts" not in team.memory()
    team.delete("mnist")
    team.until(lambda: set(team.pods("mnist")) == {"aaa"})


def test_pod_that_names_a_closed_queue_does_not_use_its_quota(team: Team, other: Team) -> None:
    marks = {names.JOB_UID: "forged", names.QUEUE: other.queue}
    body = forged_pod("forged", marks, nodeName=team.nodes.name, containers=[container(cpu="2")])
    team.tenant.create(PODS, team.namespace, body)
    other.submit()
    other.until_running()
    other.until(lambda: other.used() == "2")


def test_pod_that_names_its_own_job_as_owner_is_removed_without_harm(team: Team, other: Team) -> None:
    """The tenant may say so: then it is a pod of that job, and nobody else's."""
    job = team.submit("mnist", cpu="500m")
    team.until_running()
    made = labels_of(job, "9" * 60)
    forged = forged_pod("aaa", {**made, names.QUEUE: other.queue}, owner=job, nodeName=team.nodes.name)
    team.tenant.create(PODS, team.namespace, forged)
    other.submit()
    other.until_running()
    other.until(lambda: other.used() == "2")
    assert team.memory()["phase"] == "Running"


def test_pods_and_services_of_others_keep_their_names(team: Team) -> None:
    """A job whose objects would have these names waits, and touches neither."""
    spec = forged_pod("mnist-worker-0", {})
    pod = team.tenant.create(PODS, team.namespace, spec)
    body = {"metadata": {"name": "second-worker-0"}, "spec": {"ports": [{"port": 1}]}}
    service = team.tenant.create(SERVICES, team.namespace, body)
    team.submit("mnist", cpu="500m")
    team.submit("second", cpu="500m")
    for name in ("mnist", "second"):
        team.until_reason("NameConflict", name)
    # They hold nothing: another job of the team has the whole quota.
    team.submit("third")
    team.until_running("third")
    assert team.pods()["mnist-worker-0"]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert team.services()["second-worker-0"]["metadata"]["uid"] == service["metadata"]["uid"]
    for name in ("mnist", "second"):
        team.delete(name)
        team.until_gone(name)
    assert team.pods()["mnist-worker-0"]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert team.services()["second-worker-0"]["metadata"]["uid"] == service["metadata"]["uid"]


def test_jobs_whose_long_names_collide_do_not_share_pods(team: Team) -> None:
    """Pods of v1alpha1 jobs have 40 characters of the name, and the RuntimeId, which the tenant may write."""

    def job(name: str) -> Object:
        found = team.job(name, cpu="500m")
        worker = found["spec"]["tfReplicaSpecs"]["Worker"]
        chief = {"chief": {"replicaName": "WORKER", "replicaIndex": 0}}
        spec = {
            "RuntimeId": "same",
            "replicaSpecs": [{"tfReplicaType": "WORKER", **worker}],
            "terminationPolicy": chief,
        }
        del spec["replicaSpecs"][0]["restartPolicy"]
        labels = {names.QUEUE: team.queue}
        return {
            "apiVersion": "kubeflow.org/v1alpha1",
            "kind": "TFJob",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }

    long = "a" * 40
    for name in (f"{long}-{'b' * 22}", f"{long}-{'c' * 22}"):
        team.tenant.create(TFJOBS_V1ALPHA1, team.namespace, job(name))
        team.until(lambda name=name: bool(team.memory(name).get("reason")), name)
    first, second = f"{long}-{'b' * 22}", f"{long}-{'c' * 22}"
    team.until_running(first)
    mine = team.pods(first)
    team.until(lambda: team.reason(second) in ("NameConflict", "JobRunning"), second)
    team.delete(second)
    team.until_gone(second)
    assert team.pods(first).keys() == mine.keys()
    assert team.memory(first)["phase"] == "Running"


def test_name_that_leaves_no_room_for_names_of_pods_is_refused(team: Team) -> None:
    with pytest.raises(Rejected, match="the name is too long"):
        team.submit("a" * 63)


def test_replica_that_tenant_deletes_and_forges_is_made_again(team: Team) -> None:
    """By hand a pod of the same name is there sooner than the controller's."""
    team.submit("mnist", cpu="500m")
    team.until_running()
    forged = forged_pod("mnist-worker-0", {"app": "web"})
    team.tenant.delete(PODS, team.namespace, "mnist-worker-0", grace_period=0)
    try:
        mine = team.tenant.create(PODS, team.namespace, forged)
    except AlreadyExists:
        mine = None  # the controller was faster
    team.submit("probe", workers=1)
    team.until_running("probe")
    if mine is not None:
        assert team.pods()["mnist-worker-0"]["metadata"]["uid"] == mine["metadata"]["uid"]
        team.tenant.delete(PODS, team.namespace, "mnist-worker-0", grace_period=0)
    team.until(
        lambda: names.JOB_UID in team.pods().get("mnist-worker-0", {"metadata": {}})["metadata"].get("labels", {})
    )
    team.until_running()


def test_orphaned_pods_count_until_they_are_gone(team: Team) -> None:
    team.submit("first")
    team.until_running("first")
    team.delete("first", propagation="Orphan")
    team.until(lambda: not any(pod["metadata"].get("ownerReferences") for pod in team.pods().values()))
    assert len(team.pods("first")) == 2
    team.submit("next")
    team.until_reason("QuotaExceeded", "next")
    for name in team.pods("first"):
        team.tenant.delete(PODS, team.namespace, name)
    team.until_running("next")


def test_job_being_deleted_holds_no_quota(team: Team) -> None:
    team.submit("first")
    team.until_running("first")
    goes = team.job("goes")
    goes["metadata"]["finalizers"] = [FINALIZER]
    team.submit(goes)
    team.until_reason("QuotaExceeded", "goes")
    team.delete("goes")
    team.submit("next")
    team.until_reason("QuotaExceeded", "next")
    team.delete("first")
    team.until_running("next")
    assert "deletionTimestamp" in team.stored("goes")["metadata"]
    assert "admission" not in team.memory("goes")


def test_pod_with_finalizer_counts_until_it_is_gone(team: Team) -> None:
    team.submit("first")
    team.until_running("first")
    mark = {"metadata": {"finalizers": [FINALIZER]}}
    team.tenant.patch(PODS, team.namespace, "first-worker-0", mark)
    team.delete("first")
    team.until(lambda: set(team.pods("first")) == {"first-worker-0"})
    team.submit("next")
    team.until_reason("QuotaExceeded", "next")
    team.tenant.patch(PODS, team.namespace, "first-worker-0", {"metadata": {"finalizers": None}})
    team.until_running("next")


def test_job_owned_by_object_of_another_team_is_garbage_of_its_own_namespace(team: Team, other: Team) -> None:
    theirs = other.submit("mnist")
    other.until_running()
    job = team.job("mnist")
    whose = {key: theirs["metadata"][key] for key in ("name", "uid")}
    kind = {key: theirs[key] for key in ("apiVersion", "kind")}
    job["metadata"]["ownerReferences"] = [{**kind, **whose, "controller": True, "blockOwnerDeletion": False}]
    team.submit(job)
    team.until_gone("mnist")
    other.submit("probe", workers=1, cpu="1m")
    assert other.memory()["phase"] == "Running"
    assert len(other.pods("mnist")) == 2
