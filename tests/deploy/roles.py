"""The expected rights of the shipped roles, the actual rights on a real API server, and the life of a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.cluster.support import exists
from tests.deploy.kubelet import Kubelet
from tests.waiting import until
from tf_dist.cluster.api import (
    Object,
    Resource,
)
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller

Kubectl = Callable[..., str]
Account = Callable[[str, str], RestCluster]
Grants = set[tuple[str, str, str]]
"""Group, resource (with the object's name if the right is restricted to it), and verb."""


def table(text: str) -> Grants:
    """The rights in lines of ``resource[.group]: verb verb``."""
    found = set()
    for line in filter(None, (line.strip() for line in text.splitlines())):
        place, _, verbs = line.partition(":")
        resource, _, group = place.partition(".")
        found |= {(group, resource, verb) for verb in verbs.split()}
    return found


RECONCILING = """
    tfjobs.kubeflow.org: get list watch patch delete
    tfjobs/status.kubeflow.org: update
    tfjobs/finalizers.kubeflow.org: update
    pods: get list watch create delete
    services: get list watch create delete
    events: create patch
    resourcequotas: list watch
    limitranges: list watch
"""


QUEUES = table(
    "queues.tf-dist.dev: get list watch\n priorityclasses.scheduling.k8s.io: get list watch\n"
    "runtimeclasses.node.k8s.io: get list watch"
)


VOLCANO_QUEUES = table("queues.scheduling.volcano.sh: get list watch")


ADMITTING = table(
    "nodes: list watch\n queues.tf-dist.dev: list watch\n queues/status.tf-dist.dev: update\n"
    "priorityclasses.scheduling.k8s.io: list watch\n runtimeclasses.node.k8s.io: list watch\n"
    "namespaces: list watch"
)


CONTROLLER = table(RECONCILING + "leases.coordination.k8s.io: list") | ADMITTING


LEADING_NAMESPACE = table("leases.coordination.k8s.io: get list watch create update delete")


DRIVER = LEADING_NAMESPACE | table(
    RECONCILING
    + """
    tfjobs.kubeflow.org: create
    pods/log: get
    events: list watch
    configmaps: get create patch
    secrets: get create patch
    persistentvolumeclaims: get create patch
    services: patch
    """
)


def granted(kubectl: Kubectl, account: str, home: str, namespace: str) -> Grants:
    """The rights of an account in a namespace, in addition to those of every authenticated account."""
    return _rules(kubectl, account, home, namespace) - _rules(kubectl, "stranger", home, namespace)


def _rules(kubectl: Kubectl, account: str, home: str, namespace: str) -> Grants:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated")
    who = [f"--as=system:serviceaccount:{home}:{account}", *(f"--as-group={group}" for group in groups)]
    answer = json.loads(kubectl("create", "--validate=false", "-f", "-", "-o", "json", *who, stdin=review))
    return {
        (group, f"{resource}/{name}" if name else resource, verb)
        for rule in answer["status"]["resourceRules"]
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for name in rule.get("resourceNames") or ("",)
        for verb in rule["verbs"]
    }


class Life:
    """A job that is reconciled by a controller with the rights of an account. The test acts as the kubelet."""

    def __init__(
        self, admin: RestCluster, controller: Controller, kubelet: Kubelet, resource: Resource, stored: Object
    ) -> None:
        self._admin = admin
        self._controller = controller
        self._kubelet = kubelet
        self._resource = resource
        self._metadata = stored["metadata"]

    @property
    def _where(self) -> tuple[Resource, str, str]:
        return self._resource, self._metadata["namespace"], self._metadata["name"]

    def memory(self) -> Object:
        return dict((self._admin.get(*self._where).get("status") or {}).get("tfDist") or {})

    def holds(self, condition: str) -> bool:
        """Whether a condition of the job's status is true."""
        conditions = (self._admin.get(*self._where).get("status") or {}).get("conditions") or ()
        return any(one["type"] == condition and one["status"] == "True" for one in conditions)

    def until(self, condition: Callable[[], bool], **ends: int) -> None:
        left = {name.replace("_", "-"): code for name, code in ends.items()}

        def step() -> bool:
            self._controller.step()
            self._kubelet.step(left)
            return not left and condition()

        until(step, 60)

    def gone(self) -> bool:
        return not exists(self._admin, *self._where)


def short(document: Object, **policy: Any) -> Object:
    """The document without its namespace."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
    return {**document, "metadata": metadata}
