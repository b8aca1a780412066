"""The calls that each shipped role allows and refuses, without a cluster and on a real API server.

``test_roles`` checks that the roles suffice for the calls of tf-dist. This module checks their limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.deploy.manifests import rendered, shipped
from tests.deploy.rbac import Call, Object, Subject, allowed
from tf_dist.cli.commands.argo_workflows import documents

SYSTEM, TEAM, OTHER = "tf-dist-system", "team", "other"
_RBAC = "rbac.authorization.k8s.io"
LEASES = "leases.coordination.k8s.io"

# Calls that no subject may make.
NEVER = f"""
    patch {LEASES} kube-node-lease/n1
    create {LEASES} kube-node-lease/
    update {LEASES} kube-node-lease/n1
    delete {LEASES} kube-node-lease/n1
    create {LEASES} kube-system/kube-scheduler
    update {LEASES} kube-system/kube-scheduler
    patch {LEASES} kube-system/kube-controller-manager
    delete {LEASES} kube-system/kube-scheduler
    create {LEASES} {SYSTEM}/
    patch {LEASES} {SYSTEM}/tf-dist-controller
    delete {LEASES} {SYSTEM}/tf-dist-controller
    get {LEASES} {SYSTEM}/another-operator
    update {LEASES} {SYSTEM}/another-operator
    get {LEASES} kube-system/kube-scheduler
    watch {LEASES}
    watch {LEASES} {SYSTEM}/
    update {LEASES} {OTHER}/another-operator
    delete {LEASES} {OTHER}/another-operator
    deletecollection {LEASES} {TEAM}/
    deletecollection {LEASES} kube-system/
    list secrets
    list secrets {TEAM}/
    watch secrets {TEAM}/
    update secrets kube-system/
    create pods/exec {TEAM}/p
    get pods/exec {TEAM}/p
    create pods/attach {TEAM}/p
    create pods/portforward {TEAM}/p
    get pods/proxy {TEAM}/p
    create pods/eviction {TEAM}/p
    create pods/binding {TEAM}/p
    update pods {TEAM}/p
    patch pods {TEAM}/p
    patch pods/ephemeralcontainers {TEAM}/p
    deletecollection pods {TEAM}/
    deletecollection services {TEAM}/
    update nodes /n1
    create nodes/proxy /n1
    get nodes/proxy /n1
    deletecollection nodes
    create namespaces
    delete namespaces /{TEAM}
    patch namespaces /{TEAM}
    create serviceaccounts {TEAM}/
    create serviceaccounts/token {SYSTEM}/tf-dist-controller
    impersonate users /admin
    impersonate serviceaccounts kube-system/
    impersonate groups /system:masters
    create roles.{_RBAC} {TEAM}/
    escalate roles.{_RBAC} {TEAM}/tf-dist-driver
    bind roles.{_RBAC} {TEAM}/tf-dist-driver
    create rolebindings.{_RBAC} {TEAM}/
    update clusterroles.{_RBAC} /tf-dist-controller
    bind clusterroles.{_RBAC} /cluster-admin
    escalate clusterroles.{_RBAC} /tf-dist-controller
    create clusterrolebindings.{_RBAC}
    create customresourcedefinitions.apiextensions.k8s.io
    update customresourcedefinitions.apiextensions.k8s.io /tfjobs.kubeflow.org
    delete customresourcedefinitions.apiextensions.k8s.io /tfjobs.kubeflow.org
    create validatingwebhookconfigurations.admissionregistration.k8s.io
    create mutatingwebhookconfigurations.admissionregistration.k8s.io
    create certificatesigningrequests.certificates.k8s.io
    create deployments.apps {TEAM}/
    patch deployments.apps {SYSTEM}/tf-dist-controller
    create daemonsets.apps kube-system/
    create jobs.batch {TEAM}/
    create cronjobs.batch {TEAM}/
    create persistentvolumes
    create resourcequotas {TEAM}/
    update resourcequotas {TEAM}/
    create priorityclasses.scheduling.k8s.io
    create runtimeclasses.node.k8s.io
    create networkpolicies.networking.k8s.io {TEAM}/
    create ingresses.networking.k8s.io {TEAM}/
    create queues.tf-dist.dev
    update queues.tf-dist.dev /q
    delete queues.tf-dist.dev /q
    create jobs.batch.volcano.sh {TEAM}/
    create podgroups.scheduling.volcano.sh {TEAM}/
    create workloads.kueue.x-k8s.io {TEAM}/
    create whatever.example.com {TEAM}/
    create tokenreviews.authentication.k8s.io {TEAM}/
    update configmaps kube-system/extension-apiserver-authentication
"""

# Calls that only the subjects with the call in ``Who.may`` may make.
ELSE = f"""
    get {LEASES} {SYSTEM}/tf-dist-controller
    watch {LEASES} {SYSTEM}/tf-dist-controller
    list {LEASES} {SYSTEM}/tf-dist-controller
    get {LEASES} {SYSTEM}/tf-dist-controller-volcano
    watch {LEASES} {SYSTEM}/tf-dist-controller-volcano
    list {LEASES} {SYSTEM}/tf-dist-controller-volcano
    update {LEASES} {SYSTEM}/tf-dist-controller
    update {LEASES} {SYSTEM}/tf-dist-controller-volcano
    list {LEASES}
    list {LEASES} {SYSTEM}/
    list {LEASES} {TEAM}/
    watch {LEASES} {TEAM}/tf-dist-controller
    list {LEASES} {TEAM}/tf-dist-controller
    get {LEASES} {TEAM}/tf-dist-controller
    update {LEASES} {TEAM}/tf-dist-controller
    delete {LEASES} {TEAM}/tf-dist-controller
    create {LEASES} {TEAM}/
    create {LEASES} {OTHER}/
    get secrets {TEAM}/s
    create secrets {TEAM}/
    patch secrets {TEAM}/s
    get secrets {OTHER}/s
    patch secrets kube-system/s
    get configmaps {TEAM}/settings
    get configmaps kube-system/extension-apiserver-authentication
    create configmaps {TEAM}/
    patch configmaps {TEAM}/settings
    create configmaps {OTHER}/
    get persistentvolumeclaims {TEAM}/models
    create persistentvolumeclaims {TEAM}/
    patch persistentvolumeclaims {TEAM}/models
    patch services {TEAM}/s
    create pods {TEAM}/
    create pods {OTHER}/
    create pods kube-system/
    delete pods {TEAM}/p
    delete pods {OTHER}/p
    list pods
    list pods {OTHER}/
    patch pods/status {TEAM}/p
    get pods/log {TEAM}/p
    get pods/log {OTHER}/p
    create services {TEAM}/
    create services {OTHER}/
    list nodes
    create nodes
    patch nodes/status /n1
    delete nodes /n1
    create tfjobs.kubeflow.org {TEAM}/
    create tfjobs.kubeflow.org {OTHER}/
    update tfjobs.kubeflow.org {TEAM}/mnist
    patch tfjobs.kubeflow.org {OTHER}/mnist
    delete tfjobs.kubeflow.org {TEAM}/mnist
    deletecollection tfjobs.kubeflow.org {TEAM}/
    list tfjobs.kubeflow.org
    list tfjobs.kubeflow.org {OTHER}/
    update tfjobs/status.kubeflow.org {TEAM}/mnist
    update tfjobs/status.kubeflow.org {OTHER}/mnist
    patch tfjobs/scale.kubeflow.org {TEAM}/mnist
    update queues/status.tf-dist.dev /q
    list queues.tf-dist.dev
    list priorityclasses.scheduling.k8s.io
    create subjectaccessreviews.authorization.k8s.io
    list namespaces
    watch namespaces
    get namespaces /kube-system
    get workflows.argoproj.io {TEAM}/
    patch workflows.argoproj.io {TEAM}/
    create workflowtaskresults.argoproj.io {TEAM}/
"""

# Calls of all users. They read these Leases by name, to find out whether a controller leads the cluster.
ALL_USERS = f"""
    get {LEASES} {SYSTEM}/tf-dist-controller
    watch {LEASES} {SYSTEM}/tf-dist-controller
    list {LEASES} {SYSTEM}/tf-dist-controller
    get {LEASES} {SYSTEM}/tf-dist-controller-volcano
    watch {LEASES} {SYSTEM}/tf-dist-controller-volcano
    list {LEASES} {SYSTEM}/tf-dist-controller-volcano
"""
LEADS_TEAM = f"""
    list {LEASES} {TEAM}/
    watch {LEASES} {TEAM}/tf-dist-controller
    list {LEASES} {TEAM}/tf-dist-controller
    get {LEASES} {TEAM}/tf-dist-controller
    create {LEASES} {TEAM}/
    update {LEASES} {TEAM}/tf-dist-controller
    delete {LEASES} {TEAM}/tf-dist-controller
"""
DRIVES_TEAM = f"""
    create pods {TEAM}/
    delete pods {TEAM}/p
    create services {TEAM}/
    delete tfjobs.kubeflow.org {TEAM}/mnist
    update tfjobs/status.kubeflow.org {TEAM}/mnist
"""
DRIVER = f"""{DRIVES_TEAM}{LEADS_TEAM}
    get pods/log {TEAM}/p
    create tfjobs.kubeflow.org {TEAM}/
    get configmaps {TEAM}/settings
    create configmaps {TEAM}/
    patch configmaps {TEAM}/settings
    get secrets {TEAM}/s
    create secrets {TEAM}/
    patch secrets {TEAM}/s
    get persistentvolumeclaims {TEAM}/models
    create persistentvolumeclaims {TEAM}/
    patch persistentvolumeclaims {TEAM}/models
    patch services {TEAM}/s
    list queues.tf-dist.dev
    list priorityclasses.scheduling.k8s.io
"""


def calls(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@dataclass(frozen=True)
class Who:
    """A subject, its bindings, and the calls of ``ELSE`` that it may make in addition to ``ALL_USERS``."""

    subject: Subject
    may: str = ""
    home: str = ""  # the namespace of a namespaced controller
    bound: tuple[tuple[str, str, str], ...] = ()  # kind of role, name of role, namespace of binding

    @property
    def expected(self) -> set[str]:
        return {*calls(self.may), *calls("" if self.home else ALL_USERS)}

    def objects(self) -> list[Object]:
        home = self.home
        installed = rendered(f"namespaces={{{home}}}", namespace=home) if home else rendered(f"drivers={{{TEAM}}}")
        return [*installed, *steps(), *self.bindings()]

    def bindings(self) -> Iterator[Object]:
        for number, (kind, role, namespace) in enumerate(self.bound):
            named = {"name": f"bound-{self.subject.name}-{number}"}
            yield {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
                "metadata": named | ({"namespace": namespace} if namespace else {}),
                "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
                "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": self.subject.user}],
            }


def steps() -> list[Object]:
    """The accounts and bindings of Argo steps."""
    return [*documents("rbac.yaml", TEAM), *documents("rbac-driver.yaml", TEAM)]


EVERYWHERE = f"""{DRIVES_TEAM}
    list namespaces
    watch namespaces
    update {LEASES} {SYSTEM}/tf-dist-controller
    list {LEASES}
    list {LEASES} {SYSTEM}/
    list {LEASES} {TEAM}/
    list {LEASES} {TEAM}/tf-dist-controller
    create pods {OTHER}/
    create pods kube-system/
    delete pods {OTHER}/p
    list pods
    list pods {OTHER}/
    create services {OTHER}/
    list nodes
    patch tfjobs.kubeflow.org {OTHER}/mnist
    list tfjobs.kubeflow.org
    list tfjobs.kubeflow.org {OTHER}/
    update tfjobs/status.kubeflow.org {OTHER}/mnist
    update queues/status.tf-dist.dev /q
    list queues.tf-dist.dev
    list priorityclasses.scheduling.k8s.io
"""
EDIT = f"""
    create tfjobs.kubeflow.org {TEAM}/
    update tfjobs.kubeflow.org {TEAM}/mnist
    delete tfjobs.kubeflow.org {TEAM}/mnist
    deletecollection tfjobs.kubeflow.org {TEAM}/
    patch tfjobs/scale.kubeflow.org {TEAM}/mnist
"""
# Reads the leader Lease of the namespace.
VIEW = f"""
    get {LEASES} {TEAM}/tf-dist-controller
    list {LEASES} {TEAM}/tf-dist-controller
    watch {LEASES} {TEAM}/tf-dist-controller
"""
QUEUES = "list queues.tf-dist.dev\n list priorityclasses.scheduling.k8s.io"

ROLES = {
    "controller": Who(Subject("tf-dist-controller", SYSTEM), EVERYWHERE),
    "controller of a namespace": Who(Subject("tf-dist-controller", TEAM), f"{DRIVES_TEAM}{LEADS_TEAM}", home=TEAM),
    "driver, Airflow": Who(Subject("tf-dist-driver", TEAM), DRIVER),
    "launcher of Argo": Who(
        Subject("tf-dist-argo", TEAM),
        f"{DRIVER}\n get workflows.argoproj.io {TEAM}/\n create workflowtaskresults.argoproj.io {TEAM}/",
    ),
    "edit": Who(Subject("ed"), EDIT, bound=(("ClusterRole", "tf-dist-edit", TEAM),)),
    "view": Who(Subject("vi"), VIEW, bound=(("ClusterRole", "tf-dist-view", TEAM),)),
    "queues": Who(Subject("quinn"), QUEUES, bound=(("ClusterRole", "tf-dist-queues", ""),)),
    "no role": Who(Subject("stranger")),
}


@pytest.mark.parametrize("role", ROLES)
def test_role_allows_exactly_expected_calls(role: str) -> None:
    who = ROLES[role]
    objects = who.objects()
    tried = {*calls(NEVER), *calls(ELSE)}
    granted = {text for text in tried if allowed(objects, who.subject, Call.parse(text))}
    assert granted == who.expected


def test_expected_calls_are_tried_for_every_role() -> None:
    for who in ROLES.values():
        assert who.expected <= set(calls(ELSE))


def test_rules_for_leases_without_names_are_read_only() -> None:
    """The role for single namespaces is the exception, because a role cannot restrict creations to a name."""
    objects = ROLES["controller"].objects()
    bound = {one["kind"] for one in objects if one.get("roleRef", {}).get("name") == "tf-dist-driver"}
    assert bound == {"RoleBinding"}
    for one in objects:
        if one["kind"] not in ("Role", "ClusterRole") or one["metadata"]["name"] == "tf-dist-driver":
            continue
        for rule in one["rules"]:
            if "leases" in rule["resources"] and not rule.get("resourceNames"):
                assert set(rule["verbs"]) <= {"get", "list"}, one["metadata"]


@pytest.fixture(scope="module")
def team(kubectl: Callable[..., str], installed: str) -> Iterator[None]:
    """The objects of the table's installations that the default installation does not have."""
    kubectl("create", "namespace", TEAM)
    shared = {(one["kind"], one["metadata"]["name"]) for one in shipped()}
    more = [one for one in rendered(f"drivers={{{TEAM}}}") if (one["kind"], one["metadata"]["name"]) not in shared]
    accounts = yaml.safe_dump_all([*more, *steps()])
    kubectl("apply", "-f", "-", stdin=accounts)
    yield
    kubectl("delete", "-f", "-", stdin=accounts)
    kubectl("delete", "namespace", TEAM)


@pytest.mark.cluster
@pytest.mark.parametrize("role", [role for role in ROLES if not ROLES[role].home])
def test_api_server_allows_exactly_expected_calls(kubectl: Callable[..., str], team: None, role: str) -> None:
    who = ROLES[role]
    for one in who.bindings():
        kubectl("apply", "-f", "-", stdin=one)
    try:
        tried = {*calls(NEVER), *calls(ELSE)}
        assert _granted(kubectl, who.subject, sorted(tried)) == who.expected
    finally:
        for one in who.bindings():
            kubectl("delete", "-f", "-", stdin=one)


def _granted(kubectl: Callable[..., str], subject: Subject, tried: list[str]) -> set[str]:
    reviews = [_review(subject, Call.parse(text)) for text in tried]
    said = kubectl("create", "--validate=false", "-f", "-", "-o", "json", stdin=yaml.safe_dump_all(reviews))
    decoder, answers = json.JSONDecoder(), []
    while said := said.strip():
        answer, end = decoder.raw_decode(said)
        answers += answer["items"] if answer["kind"] == "List" else [answer]
        said = said[end:]
    assert len(answers) == len(tried)
    return {text for text, answer in zip(tried, answers, strict=True) if answer["status"]["allowed"]}


def _review(subject: Subject, call: Call) -> Object:
    resource, _, subresource = call.resource.partition("/")
    asked = {
        "verb": call.verb,
        "group": call.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": call.namespace,
        "name": call.name,
    }
    spec = {"user": subject.user, "groups": list(subject.groups), "resourceAttributes": asked}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
