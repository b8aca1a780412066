"""The pods of a Kueue Workload: what Kueue is told about them, and what its admission says they must carry.

Kueue grants quota of *flavors*, which are kinds of nodes: a pod must go to a node of the flavor it was granted, and so
gets its labels as node selector, and its tolerations. Source: kubernetes-sigs/kueue, ``pkg/podset``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core import names, render
from tf_dist.core.model import MOST_REPLICAS, Document, Job, ReplicaId, ReplicaSpec, Role
from tf_dist.core.schedulers.model import Body
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.core.sizes import bounds
from tf_dist.core.untyped import mapping, mappings, number, text, texts

FLAVOR: Final = Api(
    group="kueue.x-k8s.io",
    kind="ResourceFlavor",
    plural="resourceflavors",
    versions=("v1beta2", "v1beta1"),
    namespaced=False,
)

_POD_SET: Final = "kueue.x-k8s.io/podset"
_WORKLOAD: Final = "kueue.x-k8s.io/workload"
# How pods ask for racks and zones, the strictest first.
_LEVELS: Final = {
    "required": "kueue.x-k8s.io/podset-required-topology",
    "preferred": "kueue.x-k8s.io/podset-preferred-topology",
}
_GROUP: Final = "kueue.x-k8s.io/podset-group-name"
_UNCONSTRAINED: Final = "kueue.x-k8s.io/podset-unconstrained-topology"
_TRUE: Final = frozenset({"1", "t", "true"})  # as Go reads it
_TOPOLOGY_GATE: Final = "kueue.x-k8s.io/topology"

# What of a pod decides about quota and flavors.
_POD: Final = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "overhead",
    "resources",
    "priorityClassName",
    "runtimeClassName",
)
_CONTAINER: Final = ("name", "image", "resources", "restartPolicy")


def pod_sets(job: Job) -> list[Body]:
    """The gang as Kueue sees it: for each type how many pods, and with how many it may begin.

    Kueue lets one set of a Workload begin smaller; the workers, if they can.
    """
    limits = bounds(job)
    shrinkable = [spec for spec in job.replica_specs if 0 < limits[spec.type][0] < spec.replicas]
    elastic = min(shrinkable, key=lambda spec: spec.role is not Role.WORKER, default=None)
    specs = (spec for spec in job.replica_specs if spec.replicas)
    return [_pod_set(job, spec, limits[spec.type][0] if spec is elastic else 0) for spec in specs]


def _pod_set(job: Job, spec: ReplicaSpec, least: int) -> Body:
    pod = render.pod(job, ReplicaId(spec.type, 0), "")
    whole = pod["spec"]
    kept = {key: whole[key] for key in _POD if key in whole}
    for key in ("containers", "initContainers"):
        if key in whole:
            kept[key] = [{name: one[name] for name in _CONTAINER if name in one} for one in whole[key]]
    labels = (spec.template.get("metadata") or {}).get("labels") or {}
    template: Body = {"spec": kept} | ({"metadata": {"labels": dict(labels)}} if labels else {})
    size = {"count": spec.replicas} | ({"minCount": least} if least else {})
    topology = _topology(spec)
    return {"name": spec.type, "template": template, **size, **({"topologyRequest": topology} if topology else {})}


def _topology(spec: ReplicaSpec) -> Body:
    """What the pods' own annotations ask of Kueue about racks and zones; of several the strictest, as Kueue has it."""
    asked: Mapping[str, str] = (spec.template.get("metadata") or {}).get("annotations") or {}
    ranked = {"podIndexLabel": names.REPLICA_INDEX}
    # Pod sets of one group go to the same place, as workers and their parameter server.
    together = {"podSetGroupName": asked[_GROUP]} if asked.get(_GROUP) else {}
    for key, annotation in _LEVELS.items():
        if asked.get(annotation):
            return {key: asked[annotation], **ranked, **together}
    return {"unconstrained": True, **ranked} if asked.get(_UNCONSTRAINED, "").lower() in _TRUE else {}


def counts(spec: Document) -> dict[str, int]:
    """How many pods of each type a Workload's spec asks for."""
    return {text(one.get("name")): _count(one.get("count", 1)) or 0 for one in mappings(spec.get("podSets"))}


def _count(value: object) -> int | None:
    found = number(value)
    return None if found is None else max(0, min(found, MOST_REPLICAS))


def _assignments(workload: Document) -> list[Mapping[str, Any]]:
    return mappings(mapping(mapping(workload.get("status")).get("admission")).get("podSetAssignments"))


def admitted_sizes(workload: Document) -> dict[str, int]:
    """How many pods of each type were admitted; Kueue before 0.3 did not say, and admitted all."""
    asked = counts(mapping(workload.get("spec")))
    granted = {text(one.get("name")): _count(one.get("count")) for one in _assignments(workload)}
    return {**asked, **{name: count for name, count in granted.items() if count is not None}}


def _flavors(assignment: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(texts(assignment.get("flavors")).values()))


def missing_flavors(workload: Document, served: Served) -> list[str]:
    """The flavors that were granted and are not there: without them nobody knows which nodes they stand for."""
    granted = dict.fromkeys(name for one in _assignments(workload) for name in _flavors(one))
    return [name for name in granted if (FLAVOR.key, name) not in served.shared]


def decorate(workload: Document, served: Served, replica: ReplicaId, pod: Body) -> None:
    """Have a pod go where it was admitted, and look as the admission checks ask for."""
    assignment = next((one for one in _assignments(workload) if one.get("name") == replica.type), {})
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["labels"][_POD_SET] = replica.type
    for name in _flavors(assignment):
        flavor = mapping(mapping(served.shared.get((FLAVOR.key, name))).get("spec"))
        _place(spec, texts(flavor.get("nodeLabels")), mappings(flavor.get("tolerations")))
    for update in _checked(workload, replica.type):
        _place(spec, texts(update.get("nodeSelector")), mappings(update.get("tolerations")))
        metadata["labels"] |= texts(update.get("labels"))
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **texts(update.get("annotations"))}
    if assignment.get("topologyAssignment"):
        _gate(workload, metadata, spec)


def _checked(workload: Document, type_: str) -> Iterator[Mapping[str, Any]]:
    """What admission checks want of the pods of a type."""
    for check in mappings(mapping(workload.get("status")).get("admissionChecks")):
        yield from (one for one in mappings(check.get("podSetUpdates")) if one.get("name") == type_)


def _place(spec: Body, labels: Mapping[str, str], tolerations: Any) -> None:
    if labels:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **labels}
    there = list(spec.get("tolerations") or ())
    added = [one for one in tolerations if one not in there]
    if added:
        spec["tolerations"] = [*there, *added]


def _gate(workload: Document, metadata: Body, spec: Body) -> None:
    """Kueue has chosen racks or nodes: it opens this gate when it has told the pod which."""
    annotations = {**(metadata.get("annotations") or {}), _WORKLOAD: workload["metadata"]["name"]}
    if not annotations.keys() & _LEVELS.values():
        annotations[_UNCONSTRAINED] = "true"
    metadata["annotations"] = annotations
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": _TOPOLOGY_GATE}]
