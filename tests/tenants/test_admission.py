"""A job cannot use quota, priorities or queues that the team does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.controller.harness import container
from tests.tenants.teams import Team
from tf_dist.cluster.api import (
    LIMIT_RANGES,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_QUOTAS,
    Object,
    Resource,
)
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.model import names
from tf_dist.errors import ClusterError, NotFound, Rejected

pytestmark = pytest.mark.cluster
POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False
)
BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    namespaced=False,
)


@pytest.fixture
def urgent(admin: RestCluster, team: Team) -> Iterator[str]:
    """A priority class that no queue of a team lists."""
    name = f"urgent-{team.namespace}"
    admin.create(PRIORITY_CLASSES, None, {"metadata": {"name": name}, "value": 1000})
    yield name
    admin.delete(PRIORITY_CLASSES, None, name)


def annotated(job: Object, **annotations: object) -> Object:
    job["metadata"]["annotations"] = {
        f"tf-dist.dev/{key.replace('_', '-')}": value if isinstance(value, str) else json.dumps(value)
        for key, value in annotations.items()
    }
    return job


# Priority


@pytest.mark.parametrize("where", ["job", "template"])
def test_unlisted_priority_class_is_refused_and_does_not_preempt(team: Team, urgent: str, where: str) -> None:
    team.set_queue("2", priorityClasses=[])
    team.submit("first")
    team.until_running("first")
    job = team.job("high")
    if where == "job":
        job["spec"]["runPolicy"]["schedulingPolicy"]["priorityClass"] = urgent
    else:
        job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["priorityClassName"] = urgent
    team.submit(job)
    team.until_reason("PriorityClassRefused", "high")
    assert team.memory("first")["phase"] == "Running"
    assert not team.pods("high")


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical"])
def test_system_class_is_refused_in_edit_of_waiting_job(team: Team, name: str) -> None:
    team.submit("first")
    team.until_running("first")
    team.submit("high")
    team.patch("high", {"spec": {"runPolicy": {"schedulingPolicy": {"priorityClass": name}}}})
    team.until_reason("PriorityClassRefused", "high")
    assert team.memory("first")["phase"] == "Running"


def test_quota_of_priority_class_counts_before_pods_exist(team: Team, urgent: str) -> None:
    scope = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [urgent]}]}
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}, "scopeSelector": scope}}
    team.admin.create(RESOURCE_QUOTAS, team.namespace, quota)
    job = team.job("high")
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["priorityClassName"] = urgent
    team.submit(job)
    team.until_reason("NeverFits", "high")
    assert not team.pods("high")


# Queues


def test_job_in_closed_queue_of_another_team_waits(team: Team, other: Team) -> None:
    team.submit(team.job("mnist", schedulingPolicy={"queue": other.queue}))
    team.until_reason("NamespaceMismatch")
    other.submit()
    other.until_running()
    assert not team.pods()


def test_fallback_to_closed_queue_of_another_team_is_refused(team: Team, other: Team) -> None:
    team.submit("first")
    team.until_running("first")
    entries = [{"queue_name": other.queue}, {"queue_name": other.queue, "workers": 1}]
    team.submit(annotated(team.job("next"), admission_timeout="1s", fallback=entries))
    team.until_reason("QuotaExceeded", "next")
    other.submit()
    other.until_running()
    team.until(lambda: "fallback" in team.memory("next").get("message", ""), "next")
    assert not team.pods("next")


@pytest.fixture
def closed_default(admin: RestCluster) -> Iterator[None]:
    """The queue that docs/queue-recipes.md shows."""
    nobody = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}]}
    body = {"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "default"}}
    admin.create(QUEUES, None, {**body, "spec": {"namespaceSelector": nobody}})
    yield
    admin.delete(QUEUES, None, "default")


def test_closed_default_queue_does_not_bypass_quota(team: Team, closed_default: None) -> None:
    team.submit("first")
    team.until_running("first")
    team.submit(team.job("none", schedulingPolicy={}))
    team.submit(team.job("named", schedulingPolicy={"queue": "default"}))
    back = annotated(team.job("back"), admission_timeout="1s", fallback=[{"queue_name": "default"}])
    team.submit(back)
    for name in ("none", "named"):
        team.until_reason("NamespaceMismatch", name)
    team.until(lambda: "fallback" in team.memory("back").get("message", ""), "back")
    assert set(team.pods()) == set(team.pods("first"))


def test_queue_label_of_template_is_replaced(team: Team, other: Team) -> None:
    job = team.job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"] = {
        "labels": {names.QUEUE: other.queue, names.JOB_UID: "forged", names.JOB_NAME: "forged"}
    }
    uid = team.submit(job)["metadata"]["uid"]
    team.until_running()
    for pod in team.pods("mnist").values():
        assert pod["metadata"]["labels"][names.QUEUE] == team.queue
        assert pod["metadata"]["labels"][names.JOB_UID] == uid
    other.submit()
    other.until_running()


def test_other_gang_scheduler_does_not_bypass_quota(team: Team) -> None:
    """Without the value gangSchedulers, the controller uses no other gang scheduler, and such a job does not start."""
    for scheduler in ("volcano", "coscheduling", "kueue", "workload"):
        team.submit(annotated(team.job(scheduler, workers=8), gang_scheduler=scheduler))
        team.until(lambda name=scheduler: bool(team.memory(name).get("message")), scheduler)
    team.submit("probe")
    team.until_running("probe")
    assert set(team.pods()) == set(team.pods("probe"))


def test_scaling_up_does_not_exceed_quota(team: Team) -> None:
    team.submit("mnist")
    team.until_running()
    team.patch("mnist", {"spec": {"replicas": 40}}, subresource="scale")
    team.submit("probe", workers=1)
    team.until(lambda: bool(team.reason("probe")), "probe")
    assert len(team.pods()) <= 2


@pytest.mark.parametrize("place", ["requests", "overhead"])
def test_invalid_requests_do_not_bypass_quota(team: Team, other: Team, place: str) -> None:
    """The CRD does not check quantities in pod templates."""
    other.submit("first")
    other.until_running("first")
    for n, cpu in enumerate(("-4", "1e999999999", "9" * 5000, "0x10", "1e-999999999")):
        job = team.job(f"wrong-{n}")
        spec = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
        if place == "requests":
            spec["containers"][0]["resources"]["requests"]["cpu"] = cpu
        else:
            spec["overhead"] = {"cpu": cpu}
        try:
            team.submit(job)
        except Rejected:
            continue
        team.until(lambda name=f"wrong-{n}": bool(team.memory(name)), f"wrong-{n}")
    other.submit("second", workers=1)
    other.until_reason("QuotaExceeded", "second")
    team.submit("probe")
    team.until_running("probe")
    assert set(team.pods()) == set(team.pods("probe"))


# Rules of the namespace for pods


def test_limit_range_counts_before_pods_exist(team: Team) -> None:
    rules = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
    team.admin.create(LIMIT_RANGES, team.namespace, {"metadata": {"name": "defaults"}, "spec": rules})
    quota = {"metadata": {"name": "quota"}, "spec": {"hard": {"requests.cpu": "1"}}}
    team.admin.create(RESOURCE_QUOTAS, team.namespace, quota)
    job = team.job("first")
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] = [{"name": "tensorflow", "image": "tf"}]
    team.submit(job)
    team.until_reason("NeverFits", "first")
    assert not team.pods()


def test_quota_used_by_other_pods_delays_whole_gang(team: Team) -> None:
    """The quota allows three pods, of which two were created by hand."""
    team.set_queue("4")
    team.admin.create(RESOURCE_QUOTAS, team.namespace, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}})
    team.until(lambda: bool(team.admin.get(RESOURCE_QUOTAS, team.namespace, "few").get("status", {}).get("hard")))
    for n in range(2):
        body = {"containers": [container(cpu="1m")], "terminationGracePeriodSeconds": 0}
        team.tenant.create(PODS, team.namespace, {"metadata": {"name": f"hand-{n}"}, "spec": body})
    team.until(lambda: team.admin.get(RESOURCE_QUOTAS, team.namespace, "few")["status"]["used"].get("pods") == "2")
    team.submit("mnist")
    team.until(lambda: "waits for ResourceQuota few" in team.memory().get("message", ""))
    assert set(team.pods()) == {"hand-0", "hand-1"}
    team.tenant.delete(PODS, team.namespace, "hand-0")
    team.until_running()


def test_pod_security_of_namespace_applies_to_pods_of_jobs(team: Team, other: Team) -> None:
    enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    team.admin.patch(NAMESPACES, None, team.namespace, enforce)
    job = team.job("privileged")
    spec = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["securityContext"] = {"privileged": True}
    team.submit(job)
    team.until_reason("PodsRejected", "privileged")
    assert not team.pods()
    team.submit("next")
    team.until_running("next")


@pytest.fixture
def policy(admin: RestCluster, team: Team) -> Iterator[str]:
    """An admission policy of the cluster that forbids host networking in pods of the team."""
    name = f"no-host-network-{team.namespace}"
    match = {
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    }
    rule = {"expression": "!has(object.spec.hostNetwork) || !object.spec.hostNetwork", "message": "no host network"}
    try:
        admin.create(
            POLICIES, None, {"metadata": {"name": name}, "spec": {"matchConstraints": match, "validations": [rule]}}
        )
    except NotFound:
        pytest.skip("the API server has no ValidatingAdmissionPolicy: Kubernetes has it since 1.30")
    space = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}}}
    spec = {"policyName": name, "validationActions": ["Deny"], "matchResources": space}
    admin.create(BINDINGS, None, {"metadata": {"name": name}, "spec": spec})
    yield name
    admin.delete(BINDINGS, None, name)
    admin.delete(POLICIES, None, name)


def test_admission_policy_applies_to_pods_of_jobs(team: Team, other: Team, policy: str) -> None:
    def enforced() -> bool:
        body = {"hostNetwork": True, "containers": [{"name": "c", "image": "i"}]}
        try:
            team.tenant.create(PODS, team.namespace, {"metadata": {"name": "by-hand"}, "spec": body})
        except ClusterError as error:
            return "no host network" in str(error)
        team.tenant.delete(PODS, team.namespace, "by-hand", grace_period=0)
        return False

    job = team.job("host", workers=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["hostNetwork"] = True
    team.until(enforced)
    team.submit(job)
    team.until_reason("PodsRejected", "host")
    assert "no host network" in json.dumps(team.stored("host")["status"])
    assert not team.pods()
    team.submit("next")
    team.until_running("next")
