"""Forged objects of a tenant do not affect jobs, and jobs do not delete objects that they do not own."""

from __future__ import annotations

import pytest

from tests.controller.harness import container
from tests.tenants.teams import FINALIZER, Team, forged_pod
from tf_dist.cluster.api import PODS, SERVICES, TFJOBS_V1ALPHA1, Object
from tf_dist.core.model import names
from tf_dist.errors import AlreadyExists, Rejected

pytestmark = pytest.mark.cluster


def labels_of(job: Object, index: str = "0") -> dict[str, str]:
    """The labels that the controller gives to the pod of a worker."""
    return {
        names.JOB_UID: job["metadata"]["uid"],
        names.JOB_NAME: job["metadata"]["name"],
        names.REPLICA_TYPE: "worker",
        names.REPLICA_INDEX: index,
        names.ATTEMPT: "1.0.0",
    }


def test_pod_owned_by_job_of_another_team_does_not_affect_that_job(team: Team, other: Team) -> None:
    theirs = other.submit("mnist")
    other.until_running()
    before = other.pods()
    marks = {**labels_of(theirs), names.QUEUE: other.queue}
    team.tenant.create(PODS, team.namespace, forged_pod("aaa", marks, owner=theirs, nodeName=team.nodes.name))
    # The garbage collector removes objects without an owner in their namespace. The job does not react.
    team.until(lambda: not team.pods())
    team.submit("mnist", workers=1)
    team.until_running()
    assert {name: pod["metadata"]["uid"] for name, pod in other.pods().items()} == {
        name: pod["metadata"]["uid"] for name, pod in before.items()
    }
    assert "restarts" not in other.memory()
    other.until(lambda: other.used() == "2")


def test_pod_with_labels_but_without_owner_does_not_affect_job(team: Team) -> None:
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


def test_pod_with_label_of_closed_queue_does_not_use_its_quota(team: Team, other: Team) -> None:
    marks = {names.JOB_UID: "forged", names.QUEUE: other.queue}
    body = forged_pod("forged", marks, nodeName=team.nodes.name, containers=[container(cpu="2")])
    team.tenant.create(PODS, team.namespace, body)
    other.submit()
    other.until_running()
    other.until(lambda: other.used() == "2")


def test_forged_pod_of_own_job_affects_neither_job_nor_other_queue(team: Team, other: Team) -> None:
    """A tenant may create such a pod. It then belongs only to that job."""
    job = team.submit("mnist", cpu="500m")
    team.until_running()
    made = labels_of(job, "9" * 60)
    forged = forged_pod("aaa", {**made, names.QUEUE: other.queue}, owner=job, nodeName=team.nodes.name)
    team.tenant.create(PODS, team.namespace, forged)
    other.submit()
    other.until_running()
    other.until(lambda: other.used() == "2")
    assert team.memory()["phase"] == "Running"


def test_jobs_do_not_replace_existing_pods_and_services(team: Team) -> None:
    """A job with objects of the same names waits, and does not change the existing objects."""
    spec = forged_pod("mnist-worker-0", {})
    pod = team.tenant.create(PODS, team.namespace, spec)
    body = {"metadata": {"name": "second-worker-0"}, "spec": {"ports": [{"port": 1}]}}
    service = team.tenant.create(SERVICES, team.namespace, body)
    team.submit("mnist", cpu="500m")
    team.submit("second", cpu="500m")
    for name in ("mnist", "second"):
        team.until_reason("NameConflict", name)
    # The waiting jobs hold no quota: another job of the team gets the whole quota.
    team.submit("third")
    team.until_running("third")
    assert team.pods()["mnist-worker-0"]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert team.services()["second-worker-0"]["metadata"]["uid"] == service["metadata"]["uid"]
    for name in ("mnist", "second"):
        team.delete(name)
        team.until_gone(name)
    assert team.pods()["mnist-worker-0"]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert team.services()["second-worker-0"]["metadata"]["uid"] == service["metadata"]["uid"]


def test_jobs_with_colliding_pod_names_do_not_share_pods(team: Team) -> None:
    """Names of v1alpha1 pods contain 40 characters of the job name, and the RuntimeId, which tenants can set."""

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


def test_job_name_too_long_for_pod_names_is_refused(team: Team) -> None:
    with pytest.raises(Rejected, match="the name is too long"):
        team.submit("a" * 63)


def test_replica_replaced_by_forged_pod_is_created_again(team: Team) -> None:
    """The tenant may create a pod of the same name before the controller does."""
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


def test_orphaned_pods_count_until_gone(team: Team) -> None:
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


def test_pod_with_finalizer_counts_until_gone(team: Team) -> None:
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


def test_job_owned_by_object_of_another_team_is_garbage_collected(team: Team, other: Team) -> None:
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
