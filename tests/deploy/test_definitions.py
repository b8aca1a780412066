"""The definitions on a real API server: fields are preserved, invalid objects are refused, and kubectl has columns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.core.builders import written_status
from tests.deploy.conftest import is_served
from tests.waiting import until
from tf_dist.client.connection import VOLCANO_JOBS_DEFINITION
from tf_dist.cluster.api import QUEUES, TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_COMMANDS, Resource
from tf_dist.cluster.api import VOLCANO_JOBS as VOLCANO
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.dialects import read
from tf_dist.core.dialects.queue_resource import read_queue
from tf_dist.core.gang.quota import Quotas, queue_status, queue_usage
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.status import Counts, Phase, Status
from tf_dist.core.model.status_codec import load_status
from tf_dist.errors import AlreadyExists, Rejected
from tools.definitions.crds import volcano_commands, volcano_jobs

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "digits"
Kubectl = Callable[..., str]


def example(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((EXAMPLES / name).read_text())
    return next(one for one in documents if one["kind"] in ("TFJob", "Job"))


def odd_job(name: str = "odd") -> dict[str, Any]:
    """A job with an unknown field at each level."""
    container = {"name": "tensorflow", "image": "x", "newer": {"a": [1, {"b": None}]}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "newer": True}}
    worker = {"replicas": 2, "template": template, "newer": 1}
    policy = {"newer": 1, "schedulingPolicy": {"minAvailable": 1, "minResources": {"cpu": 0.5}, "newer": 1}}
    spec = {"tfReplicaSpecs": {"Worker": worker}, "runPolicy": policy, "newer": {"a": 1}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name}, "spec": spec, "newer": 1}


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def test_unknown_fields_are_preserved(admin: RestCluster, namespace: str) -> None:
    written = odd_job()
    admin.create(TFJOBS, namespace, written)
    stored = admin.get(TFJOBS, namespace, "odd")
    assert without_nulls(stored["spec"]) == without_nulls(written["spec"])
    assert stored["newer"] == 1


@pytest.mark.parametrize("name", ["tfjob.yaml", "tfjob-v1alpha1.yaml"])
def test_job_is_same_at_both_versions(admin: RestCluster, namespace: str, name: str) -> None:
    """There is no conversion. The server changes only the apiVersion, and the layout determines the dialect."""
    document = example(name)
    here, there = (TFJOBS, TFJOBS_V1ALPHA1) if name == "tfjob.yaml" else (TFJOBS_V1ALPHA1, TFJOBS)
    made = admin.create(here, namespace, document)
    assert made["apiVersion"] == document["apiVersion"]
    other = admin.get(there, namespace, made["metadata"]["name"])
    assert other["apiVersion"] == there.api_version
    assert other["spec"] == made["spec"] == document["spec"]
    assert read(made).dialect is read(other).dialect is Dialect(document["apiVersion"])


@pytest.mark.parametrize("name", ["tfjob.yaml", "tfjob-v1alpha1.yaml"])
def test_status_written_at_v1_is_kept_and_shown(
    admin: RestCluster, kubectl: Kubectl, namespace: str, name: str
) -> None:
    """The controller reads and writes jobs of all versions at v1."""
    document = example(name)
    admin.create(TFJOBS if name == "tfjob.yaml" else TFJOBS_V1ALPHA1, namespace, document)
    stored = admin.get(TFJOBS, namespace, document["metadata"]["name"])
    job = read(stored)
    counts = {"worker": Counts(running=1, ready=1, pending=1)}
    status = Status(phase=Phase.RUNNING, reason="Started", message="it runs", counts=counts, since=1.8e9)
    body = {**stored, "status": written_status(job, status, 1.8e9)}
    admin.replace(TFJOBS, namespace, job.key.name, body, subresource="status")
    again = admin.get(TFJOBS, namespace, job.key.name)
    assert again["status"] == body["status"]
    assert load_status(again["status"]) == status
    for kind in ("tfjobs", "tfjobs.v1alpha1.kubeflow.org"):
        titles, row = kubectl("get", kind, "-n", namespace).splitlines()
        assert titles.split() == ["NAME", "STATE", "READY", "REASON", "AGE"]
        assert row.split()[:4] == [job.key.name, "Running", body["status"]["tfDist"]["ready"], "Started"]


def test_kubectl_wait_works_for_v1alpha1_job(admin: RestCluster, kubectl: Kubectl, namespace: str) -> None:
    document = example("tfjob-v1alpha1.yaml")
    stored = admin.create(TFJOBS_V1ALPHA1, namespace, document)
    name = document["metadata"]["name"]
    status = written_status(read(stored), Status(phase=Phase.COMPLETED, reason="Done", since=1.8e9), 1.8e9)
    admin.replace(TFJOBS_V1ALPHA1, namespace, name, {**stored, "status": status}, subresource="status")
    kubectl("wait", f"tfjobs.v1alpha1.kubeflow.org/{name}", "--for=condition=Succeeded", "-n", namespace)


def test_status_is_a_subresource(admin: RestCluster, namespace: str) -> None:
    made = admin.create(TFJOBS, namespace, {**odd_job(), "status": {"conditions": []}})
    assert "status" not in made
    changed = {**made, "spec": {**made["spec"], "newer": 2}, "status": {"anything": {"at": ["all"]}}}
    written = admin.replace(TFJOBS, namespace, "odd", changed, subresource="status")
    assert written["status"] == {"anything": {"at": ["all"]}}
    assert written["spec"] == made["spec"]
    assert written["metadata"]["generation"] == 1


def test_kubectl_scale_changes_workers(admin: RestCluster, kubectl: Kubectl, namespace: str) -> None:
    made = admin.create(TFJOBS, namespace, odd_job())
    kubectl("scale", "tfjob", "odd", "--replicas=5", "-n", namespace)
    stored = admin.get(TFJOBS, namespace, "odd")
    assert stored["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 5
    status = written_status(read(made), Status(phase=Phase.RUNNING, counts={"worker": Counts(running=2)}), 1.8e9)
    admin.replace(TFJOBS, namespace, "odd", {**stored, "status": status}, subresource="status")
    scale = yaml.safe_load(kubectl("get", "--raw", f"{TFJOBS.path(namespace, 'odd', 'scale')}"))
    assert scale["spec"] == {"replicas": 5}
    assert scale["status"]["replicas"] == 2


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(odd_job("bad"))
    place, keys = document, path.split(".")
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = value
    return document


WORKER = "spec.tfReplicaSpecs.Worker"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (f"{WORKER}.replicas", -1, f"{WORKER}.replicas"),
        (f"{WORKER}.replicas", "two", f"{WORKER}.replicas"),
        (f"{WORKER}.replicas", 1.5, f"{WORKER}.replicas"),
        (f"{WORKER}.restartPolicy", "Sometimes", 'supported values: "Always", "OnFailure", "Never", "ExitCode"'),
        (f"{WORKER}.template", None, f"{WORKER}.template"),
        (f"{WORKER}.template.spec", ["a"], f"{WORKER}.template.spec"),
        ("spec.tfReplicaSpecs", ["a"], "spec.tfReplicaSpecs"),
        ("spec.runPolicy.cleanPodPolicy", "Some", 'supported values: "All", "Running", "None"'),
        ("spec.runPolicy.backoffLimit", -1, "spec.runPolicy.backoffLimit"),
        ("spec.runPolicy.suspend", "yes", "spec.runPolicy.suspend"),
        ("spec.runPolicy.schedulingPolicy.minAvailable", -1, "spec.runPolicy.schedulingPolicy.minAvailable"),
        ("spec.successPolicy", "Most", "spec.successPolicy"),
        ("spec", {}, "spec.tfReplicaSpecs: Required value"),
        ("spec", {"tfReplicaSpecs": {}, "replicaSpecs": []}, "must validate one and only one schema"),
        ("spec", {"replicaSpecs": [{"tfReplicaType": "CHIEF"}]}, 'supported values: "MASTER", "PS", "WORKER"'),
        ("spec", {"replicaSpecs": [{"tfPort": 70000}]}, "tfPort"),
        ("spec", None, "spec: Required value"),
    ],
)
@pytest.mark.parametrize("kind", [TFJOBS, TFJOBS_V1ALPHA1], ids=lambda kind: kind.version)
def test_invalid_job_is_refused_with_path(
    admin: RestCluster, namespace: str, kind: Resource, path: str, value: Any, told: str
) -> None:
    document = changed(path, value) | {"apiVersion": kind.api_version}
    with pytest.raises(Rejected) as refused:
        admin.create(kind, namespace, document if value is not None else without_nulls(document))
    assert told in str(refused.value)


def queue(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": QUEUES.api_version,
        "kind": QUEUES.kind,
        "metadata": {"name": "research"},
        "spec": spec,
    }


def test_queues(admin: RestCluster, kubectl: Kubectl, installed: str) -> None:
    quota = {"nominal": 8, "borrowingLimit": "4", "lendingLimit": "500m"}
    spec = {
        "parent": "all",
        "weight": 2,
        "quotas": {"nvidia.com/gpu": quota, "memory": {"nominal": "64Gi"}},
        "order": "BestEffortFIFO",
        "preemption": "LowerPriority",
        "defaultPriority": -5,
        "namespaceSelector": {
            "matchLabels": {"team": "vision"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["test"]}],
        },
    }
    negative, nothing = {"quotas": {"cpu": {"nominal": "-1"}}}, {"quotas": {"cpu": {}}}
    selector = {"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "Is"}]}}
    for wrong in ({"weight": 0}, {"order": "LIFO"}, {"preemption": "Any"}, negative, nothing, selector):
        with pytest.raises(Rejected, match=next(iter(wrong))):
            admin.create(QUEUES, None, queue(**wrong))
    for key, unknown in (
        ("quota", {"quota": spec["quotas"]}),
        ("nomnal", {"quotas": {"cpu": {"nominal": 1, "nomnal": 1}}}),
    ):
        said = kubectl("apply", "-f", "-", stdin=queue(**unknown), fails=True)
        assert "unknown field" in said
        assert key in said
    made = admin.create(QUEUES, None, queue(**spec))
    try:
        assert made["spec"] == spec
        queues = Quotas([read_queue(made)])
        queues.take("research", {"nvidia.com/gpu": Decimal(6), "memory": Decimal(1 << 30), "cpu": Decimal("1.5")})
        status = queue_status(queue_usage(queues, "research", pending=3, admitted=1))
        written = admin.replace(QUEUES, None, "research", {**made, "status": status}, subresource="status")
        assert written["status"] == status
        titles, row = kubectl("get", "queues.tf-dist.dev").splitlines()
        assert titles.split() == ["NAME", "PENDING", "ADMITTED", "USED", "SHARE", "PARENT", "AGE"]
        shown = "research 3 1 nvidia.com/gpu 6/8, cpu 1500m, memory 1Gi/64Gi 75% all"
        assert row.split()[:-1] == shown.split()
    finally:
        admin.delete(QUEUES, None, "research")


def test_volcano_commands_are_accepted_and_validated(admin: RestCluster, namespace: str) -> None:
    try:
        admin.create(CRDS, None, volcano_commands())
    except AlreadyExists:
        pytest.skip("this cluster has Volcano")
    try:
        until(lambda: is_served(admin, VOLCANO_COMMANDS), 60)
        target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "a", "uid": "u", "controller": True}
        body = {"metadata": {"name": "a-x"}, "action": "AbortJob", "target": target, "newer": 1}
        made = admin.create(VOLCANO_COMMANDS, namespace, body)
        assert (made["target"], made["action"], made["newer"]) == (target, "AbortJob", 1)
        with pytest.raises(Rejected, match=r"target\.uid"):
            admin.create(VOLCANO_COMMANDS, namespace, {**body, "target": {**target, "uid": None}})
    finally:
        admin.delete(CRDS, None, "commands.bus.volcano.sh")


def test_volcano_job_definition_validates_specs_and_shows_columns(
    admin: RestCluster, kubectl: Kubectl, namespace: str
) -> None:
    try:
        admin.create(CRDS, None, volcano_jobs())
    except AlreadyExists:
        pytest.skip("this cluster has Volcano")
    try:
        until(lambda: is_served(admin, VOLCANO), 60)
        document = example("volcano-job.yaml")
        document["spec"]["newer"] = document["spec"]["tasks"][0]["newer"] = {"a": 1}
        document["spec"]["plugins"] = {"env": [], "svc": None, "ssh": ["--a"]}
        made = admin.create(VOLCANO, namespace, document)
        assert without_nulls(made["spec"]) == without_nulls(document["spec"])
        assert read({**made, "spec": {**made["spec"], "plugins": {}}}).dialect is Dialect.VOLCANO
        document["spec"]["tasks"][0]["replicas"] = -1
        with pytest.raises(Rejected, match=r"spec\.tasks.*replicas"):
            admin.create(VOLCANO, namespace, {**document, "metadata": {"name": "other"}})
        status = {"state": {"phase": "Running"}, "running": 2, "minAvailable": 3}
        admin.replace(VOLCANO, namespace, made["metadata"]["name"], {**made, "status": status}, subresource="status")
        titles, row = kubectl("get", "vcjob", "-n", namespace).splitlines()
        assert titles.split() == ["NAME", "STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"]
        assert row.split()[1:4] == ["Running", "3", "2"]
    finally:
        admin.delete(CRDS, None, VOLCANO_JOBS_DEFINITION)
