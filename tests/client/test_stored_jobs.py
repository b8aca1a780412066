"""Messages about stored jobs, their leaders and their problems, and about missing jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import tfjob
from tests.core.builders import pod
from tests.leaderless import held_lease
from tf_dist.client.stored_jobs import (
    StoredJob,
    dns_problems,
    find_job,
    find_problems,
    job_cells,
    leader_problems,
    leaders_of,
    network_problems,
    now,
    pods_of,
    replica_of,
    start_events,
    summary,
)
from tf_dist.cluster.api import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    TFJOBS,
    TFJOBS_V1ALPHA1,
    VOLCANO_JOBS,
    Resource,
)
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.model import names
from tf_dist.core.model.reasons import Category
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import NotFound


def stored(cluster: MemoryCluster, name: str, **status: Any) -> StoredJob:
    """A job with the memory that its controller has written."""
    document = cluster.create(TFJOBS, "default", tfjob(name))
    return StoredJob(TFJOBS, {**document, "status": {"tfDist": {"version": 1, **status}} if status else {}})


@pytest.fixture
def cluster() -> MemoryCluster:
    """A cluster without a leader."""
    return MemoryCluster()


def test_missing_leader_suggests_install(cluster: MemoryCluster) -> None:
    (found,) = leader_problems(cluster, [stored(cluster, "a"), stored(cluster, "b")])
    assert found.category is Category.NO_LEADER
    assert found.summary == "no controller leads the job's namespace or the cluster: the job waits until one does"
    assert "tf-dist install" in found.resolution


@pytest.mark.parametrize("namespace", [None, "default"])
def test_expired_lease_is_named(cluster: MemoryCluster, namespace: str | None) -> None:
    ref = held_lease(cluster, now() - 3600, namespace=namespace)
    (found,) = leader_problems(cluster, [stored(cluster, "a")])
    scope = "namespace default" if namespace else "the cluster"
    assert found.summary.startswith(f"no controller leads {scope}: the last one renewed its Lease {ref} at ")


@pytest.mark.parametrize("namespace", [None, "default"])
def test_leader_is_reported_once_per_namespace(cluster: MemoryCluster, namespace: str | None) -> None:
    held_lease(cluster, now(), namespace=namespace)
    jobs = [stored(cluster, "a"), stored(cluster, "b")]
    scope = "namespace default (Lease default/" if namespace else "the cluster (Lease tf-dist-system/"
    assert [str(one) for one in leaders_of(cluster, jobs)] == [f"another leads {scope}tf-dist-controller)"]
    assert leader_problems(cluster, jobs) == ()


@pytest.mark.parametrize("resource", [TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS])
def test_new_job_of_every_format_has_leader(cluster: MemoryCluster, resource: Resource) -> None:
    kind = VOLCANO_JOBS if resource is VOLCANO_JOBS else TFJOBS
    held_lease(cluster, now(), kind=kind)
    job = StoredJob(resource, {**tfjob("a"), "apiVersion": resource.api_version, "kind": resource.kind})
    assert [one.holder for one in leaders_of(cluster, [job])] == ["another"]


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Aborted"])
def test_ended_or_suspended_job_needs_no_leader(cluster: MemoryCluster, phase: str) -> None:
    job = stored(cluster, "a", phase=phase)
    assert leaders_of(cluster, [job]) == ()
    assert leader_problems(cluster, [job]) == ()


COREFILE = ".:53 {\n kubernetes cluster.local {\n ttl 30\n }\n cache 30\n}\n"


def starting(cluster: MemoryCluster, **annotations: str) -> StoredJob:
    document = tfjob("a")
    document["metadata"]["annotations"] = annotations
    return StoredJob(TFJOBS, cluster.create(TFJOBS, "default", document))


def with_status(job: StoredJob, **status: Any) -> StoredJob:
    return StoredJob(TFJOBS, {**job.stored, "status": {"tfDist": {"version": 1, **status}}})


def test_job_with_headless_services_warns_about_dns_cache(cluster: MemoryCluster) -> None:
    job = starting(cluster, **{names.SERVICES: "per-job"})
    assert dns_problems(cluster, job) == ()
    corefile = cluster.create(
        CONFIG_MAPS, "kube-system", {"metadata": {"name": "coredns"}, "data": {"Corefile": COREFILE}}
    )
    (found,) = dns_problems(cluster, job)
    assert "caches for 30 s that a name does not exist" in found.summary
    assert "docs/troubleshooting.md, 'The first step takes 30 seconds'" in found.resolution
    since = format_time(now() - 60)
    assert dns_problems(cluster, with_status(job, phase="Running", since=since)) == ()
    assert dns_problems(cluster, with_status(job, phase="Pending", since=since)) == (found,)
    assert dns_problems(cluster, with_status(job, phase="Completed", since=since)) == ()
    corefile["data"] = {"Corefile": COREFILE.replace("ttl 30", "")}
    cluster.replace(CONFIG_MAPS, "kube-system", "coredns", corefile)
    assert dns_problems(cluster, job) == ()


def test_job_with_cluster_ips_gives_no_dns_warning(cluster: MemoryCluster) -> None:
    cluster.create(CONFIG_MAPS, "kube-system", {"metadata": {"name": "coredns"}, "data": {"Corefile": COREFILE}})
    assert dns_problems(cluster, starting(cluster)) == ()


def test_blocking_network_policy_is_reported_while_job_runs(cluster: MemoryCluster) -> None:
    job = starting(cluster)
    pods = [{"metadata": {"name": f"a-worker-{index}", "labels": {"app": "a"}}} for index in range(2)]
    assert network_problems(cluster, job, pods) == ()
    policy = {"metadata": {"name": "default-deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    cluster.create(NETWORK_POLICIES, "default", policy)
    (found,) = network_problems(cluster, job, pods)
    assert found.summary == "NetworkPolicy default-deny keeps a-worker-0 from reaching a-worker-1"
    assert network_problems(cluster, job, pods[:1]) == ()
    assert network_problems(cluster, with_status(job, phase="Completed"), pods) == ()


@pytest.mark.parametrize("memory", [None, "x", 1, True, [1], {"ready": 1}, {"ready": [1]}])
def test_job_with_odd_memory_is_listed(cluster: MemoryCluster, memory: object) -> None:
    """The definition of another operator accepts any value there."""
    stored = cluster.create(TFJOBS, "default", tfjob("a"))
    cells = job_cells(StoredJob(TFJOBS, {**stored, "status": {"tfDist": memory}}))
    assert (cells[0], [type(one) for one in cells]) == ("tfjob/a", [str] * len(cells))


def test_explain_and_get_name_other_manager(cluster: MemoryCluster) -> None:
    manager = "kueue.x-k8s.io/multikueue"
    job = StoredJob(TFJOBS, cluster.create(TFJOBS, "default", tfjob("a", managedBy=manager)))
    (found,) = find_problems(job, [])
    assert found.category is Category.MANAGED_ELSEWHERE
    assert found.summary == f"{manager} manages the job (spec.runPolicy.managedBy), so tf-dist does not run it"
    assert "submit it again without managedBy" in found.resolution
    assert job_cells(job)[-1] == f"managed by {manager}"
    assert job_cells(job, wide=True)[-1] == found.summary


def test_explain_and_get_name_finalizer_of_job_being_deleted(cluster: MemoryCluster) -> None:
    document = tfjob("a")
    document["metadata"]["finalizers"] = ["example.com/backup"]
    cluster.create(TFJOBS, "default", document)
    memory = {"phase": "Pending", "reason": "Admitted", "message": "all 2 replicas are admitted"}
    cluster.patch(TFJOBS, "default", "a", {"status": {"tfDist": memory}}, subresource="status")
    cluster.delete(TFJOBS, "default", "a")
    job = StoredJob(TFJOBS, cluster.get(TFJOBS, "default", "a"))
    (found,) = find_problems(job, [])
    assert found.category is Category.DELETING
    assert found.summary == "the job is being deleted; it is kept by example.com/backup (metadata.finalizers)"
    assert job_cells(job)[-1] == "Deleting"
    assert job_cells(job, wide=True)[-1] == found.summary


def test_explain_finds_missing_object_of_volume_in_events(cluster: MemoryCluster) -> None:
    cluster.create(TFJOBS, "default", tfjob("a", workers=1, ps=0))
    memory = {
        "phase": "Pending",
        "reason": "Admitted",
        "message": "admitted",
        "admission": {"at": format_time(now() - 60)},
    }
    cluster.patch(TFJOBS, "default", "a", {"status": {"tfDist": memory}}, subresource="status")
    job = StoredJob(TFJOBS, cluster.get(TFJOBS, "default", "a"))
    creating = {"name": "tensorflow", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    made = pod(job.job, "worker-0", {"phase": "Pending", "containerStatuses": [creating]})
    del made["metadata"]["uid"], made["metadata"]["creationTimestamp"]
    made["spec"]["nodeName"] = "n1"
    about = cluster.create(PODS, "default", made)["metadata"]
    message = 'MountVolume.SetUp failed for volume "c" : configmap "settings" not found'
    for number, reason in enumerate(("Scheduled", "FailedMount", "Pulled")):
        event = {
            "metadata": {"name": f"e{number}"},
            "involvedObject": {"kind": "Pod", "name": about["name"], "uid": about["uid"]},
            "reason": reason,
            "message": message if reason == "FailedMount" else "of no account",
            "lastTimestamp": f"2027-01-15T08:00:0{number}Z",
        }
        cluster.create(EVENTS, "default", event)
    pods = pods_of(cluster, job)
    pods[0]["metadata"]["creationTimestamp"] = format_time(now() - 60)
    (found,) = find_problems(job, pods, events=start_events(cluster, job, pods))
    assert (found.summary, found.detail) == ("worker-0 waits for a volume", message)
    assert "create the ConfigMap settings" in found.resolution
    running = cluster.patch(PODS, "default", about["name"], {"status": {"phase": "Running"}}, subresource="status")
    assert start_events(cluster, job, [running]) == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("mnits", "did you mean mnist?"),
        ("cifra", "tf-dist get -A lists every job"),
        ("cifar", "there is one in namespace team: add -n team"),
    ],
    ids=["a slip", "a slip for one of another namespace", "of another namespace"],
)
def test_missing_job_suggests_similar_name_or_namespace(text: str, hint: str) -> None:
    cluster = MemoryCluster()
    cluster.create(NAMESPACES, None, {"metadata": {"name": "team"}})
    for namespace, name in (("default", "mnist"), ("team", "cifar")):
        document = tfjob(name)
        document["metadata"]["namespace"] = namespace
        cluster.create(TFJOBS, namespace, document)
    with pytest.raises(NotFound, match=f"there is no job {text} in namespace default") as caught:
        find_job(cluster, text, "default")
    assert caught.value.hint == hint


def test_summary_of_listed_job_has_kind() -> None:
    """Kubernetes omits ``apiVersion`` and ``kind`` from the items of a list."""
    stored = {key: value for key, value in tfjob().items() if key not in ("apiVersion", "kind")}
    found = summary(StoredJob(TFJOBS, stored))
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v1", "TFJob")
    assert found["spec"] == stored["spec"]


@pytest.mark.parametrize("ready", [None, 5, [], {}, "1/3"])
@pytest.mark.parametrize("part", ["tfDist", "ready"])
def test_list_shows_job_whose_status_another_client_wrote(cluster: MemoryCluster, part: str, ready: Any) -> None:
    job = stored(cluster, "a", phase="Running", ready=ready)
    if part == "tfDist":
        job.stored["status"]["tfDist"] = ready
    _, _, shown, *others = job_cells(job, wide=True)
    assert shown == ("1/3" if (part, ready) == ("ready", "1/3") else "-")
    assert all(isinstance(one, str) for one in others)


@pytest.mark.parametrize("missing", [names.REPLICA_TYPE, names.REPLICA_INDEX, None])
def test_pod_without_label_of_its_replica_is_of_no_replica(cluster: MemoryCluster, missing: str | None) -> None:
    found = pod(stored(cluster, "a").job, "worker-1")
    found["metadata"]["labels"].pop(missing, None)
    assert str(replica_of(found)) == ("None" if missing else "worker-1")
