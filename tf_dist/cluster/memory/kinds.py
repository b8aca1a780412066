"""The rules of single kinds: what the server fills in, and what it refuses.

Rules change the object in place (it is a private copy) and raise Invalid; completions add what only new objects get.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping

from tf_dist.cluster.api import Object
from tf_dist.cluster.memory import pods
from tf_dist.cluster.memory.context import Context, refuse, subject
from tf_dist.cluster.memory.resources import PRIORITY_CLASSES, Kind, custom_kind
from tf_dist.cluster.memory.store import Key
from tf_dist.cluster.refusals import Disallowed, Invalid
from tf_dist.errors import Problem

_CLASSES = f"{PRIORITY_CLASSES.plural}.{PRIORITY_CLASSES.group}"
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def default_labels(kind: Kind, metadata: Object) -> None:
    """The label that every namespace has, whatever is written."""
    labels = metadata.get("labels") or {}
    if kind.key == "namespaces" and isinstance(labels, dict) and metadata.get("name"):
        metadata["labels"] = {**labels, "kubernetes.io/metadata.name": metadata["name"]}


def _pod_rules(kind: Kind, pod: Object, old: Object | None) -> None:
    refuse(kind, pod, pods.shape_problems(pod))
    pods.default_pod(pod)
    refuse(kind, pod, pods.pod_problems(pod))
    if old:
        refuse(kind, pod, pods.update_problems(old, pod))


def _service_rules(kind: Kind, service: Object, old: Object | None) -> None:
    spec = service.setdefault("spec", {})
    refuse(kind, service, _service_problems(spec))
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if old and old["spec"].get("clusterIP"):
        spec.setdefault("clusterIP", old["spec"]["clusterIP"])


def _service_problems(spec: Object) -> Iterator[Problem]:
    ports = spec.get("ports") or []
    if not isinstance(ports, list) or not all(isinstance(port, dict) for port in ports):
        yield Problem("spec.ports", "Invalid value: must be a list of objects")
        return
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield Problem("spec.ports", "Required value")
    for at, port in enumerate(ports):
        if not isinstance(port.get("port"), int) or not 0 < port["port"] < 65536:
            yield Problem(f"spec.ports[{at}].port", "Invalid value: must be between 1 and 65535, inclusive")
        if len(ports) > 1 and not port.get("name"):
            yield Problem(f"spec.ports[{at}].name", "Required value")


def _secret_rules(kind: Kind, secret: Object, old: Object | None) -> None:
    secret.setdefault("type", "Opaque")
    if plain := secret.pop("stringData", None):
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def _crd_rules(kind: Kind, crd: Object, old: Object | None) -> None:
    try:
        custom = custom_kind(crd["spec"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        problem = Problem("spec", f"Required value: group, names.kind, names.plural and a served version ({error})")
        raise Invalid(subject(kind, crd), [problem]) from error
    if crd["metadata"]["name"] != custom.key:
        problem = Problem("metadata.name", 'Invalid value: must be spec.names.plural+"."+spec.group')
        raise Invalid(subject(kind, crd), [problem])


RULES: Mapping[str, Callable[[Kind, Object, Object | None], None]] = {
    "pods": _pod_rules,
    "services": _service_rules,
    "secrets": _secret_rules,
    "customresourcedefinitions.apiextensions.k8s.io": _crd_rules,
}


# What only new objects get.


def _new_pod(context: Context, pod: Object) -> None:
    spec = pod["spec"]
    if not spec.get("priorityClassName") and (default := _default_class(context)):
        spec["priorityClassName"] = default
    if name := spec.get("priorityClassName"):
        spec["priority"] = _priority(context, name)
    spec.setdefault("priority", 0)
    pod["status"] = pods.initial_status(pod)


def _default_class(context: Context) -> str:
    """The class of pods that name none: of several such the lowest."""
    classes = context.store.by_age(_CLASSES, "").items()
    defaults = [(int(one.get("value", 0)), name) for name, one in classes if one.get("globalDefault")]
    return min(defaults)[1] if defaults else ""


def _priority(context: Context, name: str) -> int:
    if name in _SYSTEM_PRIORITIES:
        return _SYSTEM_PRIORITIES[name]
    found = context.store.get(Key(_CLASSES, "", name))
    if found is None:
        raise Disallowed(f"no PriorityClass with name {name} was found")
    return int(found.get("value", 0))


def _new_service(context: Context, service: Object) -> None:
    spec = service["spec"]
    if spec["type"] != "ExternalName" and not spec.get("clusterIP"):
        # Nothing routes to it; it only has to be one address per service, as clients expect.
        high, low = divmod(context.store.version % 64_000, 250)
        spec["clusterIP"] = f"10.96.{high}.{low + 2}"
    if spec.get("clusterIP"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    service["status"] = {"loadBalancer": {}}


def _new_namespace(context: Context, namespace: Object) -> None:
    namespace.setdefault("spec", {})["finalizers"] = ["kubernetes"]
    namespace["status"] = {"phase": "Active"}


def _new_claim(context: Context, claim: Object) -> None:
    claim["status"] = {"phase": "Pending"}


def _new_crd(context: Context, crd: Object) -> None:
    names_ = {"listKind": f"{crd['spec']['names']['kind']}List", **crd["spec"]["names"]}
    at = crd["metadata"]["creationTimestamp"]
    crd["status"] = {
        "acceptedNames": names_,
        "storedVersions": [version["name"] for version in crd["spec"]["versions"] if version.get("storage")],
        "conditions": [
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "lastTransitionTime": at},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "lastTransitionTime": at},
        ],
    }


COMPLETIONS: Mapping[str, Callable[[Context, Object], None]] = {
    "pods": _new_pod,
    "services": _new_service,
    "namespaces": _new_namespace,
    "persistentvolumeclaims": _new_claim,
    "customresourcedefinitions.apiextensions.k8s.io": _new_crd,
}
