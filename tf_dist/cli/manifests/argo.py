"""What the steps of an Argo workflow may do: a driver's rights in a namespace, and what Argo's own executor needs."""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests import rules
from tf_dist.cli.manifests.names import QUEUES, Object, metadata

ARGO: Final = "tf-dist-argo"
_API: Final = "rbac.authorization.k8s.io"
_GROUP: Final = "argoproj.io"


def for_argo(namespace: str) -> list[Object]:
    """An account for workflows of a namespace, with its role, and the right to see the queues of the cluster."""
    subject = {"kind": "ServiceAccount", "name": ARGO, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(ARGO, namespace)},
        {"apiVersion": f"{_API}/v1", "kind": "Role", "metadata": metadata(ARGO, namespace), "rules": launching()},
        _bound("Role", metadata(ARGO, namespace), ARGO, subject),
        _bound("ClusterRole", metadata(f"{ARGO}-{namespace}"), QUEUES, subject),
    ]


def launching() -> list[Object]:
    """What a step needs. ``workflows``: to tell a workflow that is stopped from a pod that is drained."""
    return [
        *rules.inline(),
        {"apiGroups": [_GROUP], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]},
        {"apiGroups": [_GROUP], "resources": ["workflows"], "verbs": ["get"]},
    ]


def _bound(kind: str, named: Object, role: str, subject: Object) -> Object:
    reference = {"apiGroup": _API, "kind": kind, "name": role}
    return {"apiVersion": f"{_API}/v1", "kind": f"{kind}Binding", "metadata": named, "roleRef": reference} | {
        "subjects": [subject]
    }
