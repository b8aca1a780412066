"""RBAC of Argo's steps: what they need with a controller, and what more where they drive their jobs themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tf_dist.cli.install.install_options import QUEUES, Manifest, metadata
from tf_dist.cli.install.rbac import ARGO_ACCOUNT, companion_rules, inline_driver_rules

EVENTS_ACCOUNT: Final = f"{ARGO_ACCOUNT}-events"
DRIVING: Final = f"{ARGO_ACCOUNT}-driver"
_API: Final = "rbac.authorization.k8s.io"
_GROUP: Final = "argoproj.io"


def _rule(group: str, resources: str, *verbs: str) -> Manifest:
    return {"apiGroups": [group], "resources": [resources], "verbs": list(verbs)}


_EVENT_RULES: Final = (
    _rule(_GROUP, "workflows", "create"),
    _rule(_GROUP, "workfloweventbindings", "list"),
    _rule(_GROUP, "workflowtemplates", "get"),
)


def step_rules(*, volcano: bool = False) -> list[Manifest]:
    """What a step needs where a controller drives its job, and Argo's executor beside it.

    No more than an administrator of the namespace has where tf-dist and Argo are installed, who may thus give it.
    ``workflows``: to distinguish a stopped workflow from a drained pod, and to see that one is suspended.
    """
    kinds = [("kubeflow.org", "tfjobs"), *([("batch.volcano.sh", "jobs")] if volcano else [])]
    return [
        *(_rule(group, plural, "get", "list", "watch", "create", "patch", "delete") for group, plural in kinds),
        *companion_rules(),
        _rule("", "pods", "get", "list", "watch"),
        _rule("", "pods/log", "get"),
        _rule("", "events", "list", "watch"),
        _rule(_GROUP, "workflowtaskresults", "create", "patch"),
        _rule(_GROUP, "workflows", "get"),
    ]


def step_roles(namespace: str, *, volcano: bool = False) -> list[Manifest]:
    """The account of steps with its role; and that of events: a Sensor, or who sends one to Argo's server, which then
    reads bindings and templates and creates workflows with the rights of the sender.
    """
    return [
        _account(ARGO_ACCOUNT, namespace),
        _role(ARGO_ACCOUNT, step_rules(volcano=volcano), namespace),
        _bound("Role", metadata(ARGO_ACCOUNT, namespace), ARGO_ACCOUNT, ARGO_ACCOUNT, namespace),
        _account(EVENTS_ACCOUNT, namespace),
        _role(EVENTS_ACCOUNT, _EVENT_RULES, namespace),
        _bound("Role", metadata(EVENTS_ACCOUNT, namespace), EVENTS_ACCOUNT, EVENTS_ACCOUNT, namespace),
    ]


def driving_step_roles(namespace: str, *, volcano: bool = False) -> list[Manifest]:
    """What steps need besides to drive jobs themselves, and to see queues. For an administrator of the cluster to give:
    to write the status of a job is to say what it was admitted to.
    """
    return [
        _role(DRIVING, inline_driver_rules(volcano=volcano), namespace),
        _bound("Role", metadata(DRIVING, namespace), DRIVING, ARGO_ACCOUNT, namespace),
        _bound("ClusterRole", metadata(f"{ARGO_ACCOUNT}-{namespace}"), QUEUES, ARGO_ACCOUNT, namespace),
    ]


def _account(name: str, namespace: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, namespace)}


def _role(name: str, rules: Sequence[Manifest], namespace: str) -> Manifest:
    named = metadata(name, namespace)
    return {"apiVersion": f"{_API}/v1", "kind": "Role", "metadata": named, "rules": list(rules)}


def _bound(kind: str, named: Manifest, role: str, account: str, namespace: str) -> Manifest:
    reference = {"apiGroup": _API, "kind": kind, "name": role}
    return {"apiVersion": f"{_API}/v1", "kind": f"{kind}Binding", "metadata": named, "roleRef": reference} | {
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
    }
