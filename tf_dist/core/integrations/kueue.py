"""Kueue: a Workload of ``kueue.x-k8s.io`` that is admitted before any pod exists, as for a suspended job.

A WorkloadPriorityClass decides the order in the queue and does not affect the scheduling of pods. Sources:
kubernetes-sigs/kueue, its documentation "Workload Priority Class", and ``pkg/controller/jobframework`` for the
precedence of the two kinds of priority classes.

Kueue grants quota of *flavors*, which are kinds of nodes. A pod must run on a node of its flavor, so it gets the
flavor's labels as a node selector, and the flavor's tolerations. Source: kubernetes-sigs/kueue, ``pkg/podset``.

Kueue admits any kind of job for which a controller creates a Workload (its documentation, "Custom Workloads"). Such a
controller has the duties of Kueue's own job controllers: stop the job when the Workload is evicted, then release the
quota, and report when all pods are ready. With a group of plain pods instead, all pods would be created, gated, while
the job waits. Sources: kubernetes-sigs/kueue, ``apis/kueue/v1beta2`` and ``pkg/controller/jobframework``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core.integrations import interface
from tf_dist.core.integrations.interface import Body
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Preempt, Verdict, Wait, replica_bounds
from tf_dist.core.model.context import ApiResource, Integration, ReconcileContext, ServedApis, Update
from tf_dist.core.model.fieldpath import mapping, mappings, number, text, texts
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import MAX_REPLICAS, Document, Job, ReplicaId, ReplicaSpec, Role, priority_class
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.podbuilder import replica_pod

PRIORITY: Final = ApiResource(
    group="kueue.x-k8s.io",
    kind="WorkloadPriorityClass",
    plural="workloadpriorityclasses",
    versions=("v1beta2", "v1beta1"),
    namespaced=False,
)

# The label with which jobs of Kueue's own integrations name their class.
_LABEL: Final = "kueue.x-k8s.io/priority-class"


def workload_priority(job: Job, served: ServedApis, version: str) -> Body:
    """The priority fields of the Workload; none for a missing class, because Kueue requires its value."""
    name = job.labels.get(_LABEL, "")
    if name:
        there = served.shared.get((PRIORITY.key, name))
        value = None if there is None else number(there.get("value")) or 0
        return _fields(PRIORITY.group, PRIORITY.kind, name, value, version)
    name = priority_class(job)
    return _fields("scheduling.k8s.io", "PriorityClass", name, served.priorities.get(name), version)


def _fields(group: str, kind: str, name: str, value: int | None, version: str) -> Body:
    if value is None:
        return {}
    if version == "v1beta1":
        return {"priorityClassName": name, "priorityClassSource": f"{group}/{kind.lower()}", "priority": value}
    return {"priorityClassRef": {"group": group, "kind": kind, "name": name}, "priority": value}


FLAVOR: Final = ApiResource(
    group="kueue.x-k8s.io",
    kind="ResourceFlavor",
    plural="resourceflavors",
    versions=("v1beta2", "v1beta1"),
    namespaced=False,
)

_POD_SET: Final = "kueue.x-k8s.io/podset"
_WORKLOAD: Final = "kueue.x-k8s.io/workload"
# Annotations with which pods request racks and zones, the strictest first.
_LEVELS: Final = {
    "required": "kueue.x-k8s.io/podset-required-topology",
    "preferred": "kueue.x-k8s.io/podset-preferred-topology",
}
_GROUP: Final = "kueue.x-k8s.io/podset-group-name"
_UNCONSTRAINED: Final = "kueue.x-k8s.io/podset-unconstrained-topology"
_TRUE: Final = frozenset({"1", "t", "true"})  # as in Go
_TOPOLOGY_GATE: Final = "kueue.x-k8s.io/topology"

# The fields of a pod that decide about quota and flavors.
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
    """The pod sets of the Workload. Kueue allows only one pod set to start smaller: the workers, if possible."""
    limits = replica_bounds(job)
    shrinkable = [spec for spec in job.replica_specs if 0 < limits[spec.type][0] < spec.replicas]
    elastic = min(shrinkable, key=lambda spec: spec.role is not Role.WORKER, default=None)
    specs = (spec for spec in job.replica_specs if spec.replicas)
    return [_pod_set(job, spec, limits[spec.type][0] if spec is elastic else 0) for spec in specs]


def _pod_set(job: Job, spec: ReplicaSpec, least: int) -> Body:
    pod = replica_pod.build_pod(job, ReplicaId(spec.type, 0), "")
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
    """The topology request in the pods' annotations for Kueue. As in Kueue, the strictest of several counts."""
    asked: Mapping[str, str] = (spec.template.get("metadata") or {}).get("annotations") or {}
    ranked = {"podIndexLabel": names.REPLICA_INDEX}
    # Pod sets of the same group, such as workers and their parameter server, go to the same topology domain.
    together = {"podSetGroupName": asked[_GROUP]} if asked.get(_GROUP) else {}
    for key, annotation in _LEVELS.items():
        if asked.get(annotation):
            return {key: asked[annotation], **ranked, **together}
    return {"unconstrained": True, **ranked} if asked.get(_UNCONSTRAINED, "").lower() in _TRUE else {}


def pod_set_counts(spec: Document) -> dict[str, int]:
    """The number of pods of each type in a Workload's spec."""
    return {text(one.get("name")): _count(one.get("count", 1)) or 0 for one in mappings(spec.get("podSets"))}


def _count(value: object) -> int | None:
    found = number(value)
    return None if found is None else max(0, min(found, MAX_REPLICAS))


def _assignments(workload: Document) -> list[Mapping[str, Any]]:
    return mappings(mapping(mapping(workload.get("status")).get("admission")).get("podSetAssignments"))


def admitted_sizes(workload: Document) -> dict[str, int]:
    """The number of admitted pods of each type. Kueue before 0.3 had no counts, and admitted all pods."""
    asked = pod_set_counts(mapping(workload.get("spec")))
    granted = {text(one.get("name")): _count(one.get("count")) for one in _assignments(workload)}
    return {**asked, **{name: count for name, count in granted.items() if count is not None}}


def _flavors(assignment: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(texts(assignment.get("flavors")).values()))


def missing_flavors(workload: Document, served: ServedApis) -> list[str]:
    """The granted flavors that do not exist, so that their nodes are unknown."""
    granted = dict.fromkeys(name for one in _assignments(workload) for name in _flavors(one))
    return [name for name in granted if (FLAVOR.key, name) not in served.shared]


def decorate_pod(workload: Document, served: ServedApis, replica: ReplicaId, pod: Body) -> None:
    """Send a pod to the nodes of its flavors, with the changes of admission checks."""
    assignment = next((one for one in _assignments(workload) if one.get("name") == replica.type), {})
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["labels"][_POD_SET] = replica.type
    for name in _flavors(assignment):
        flavor = mapping(mapping(served.shared.get((FLAVOR.key, name))).get("spec"))
        _place(spec, texts(flavor.get("nodeLabels")), mappings(flavor.get("tolerations")))
    checks = mappings(mapping(workload.get("status")).get("admissionChecks"))
    changes = (one for check in checks for one in mappings(check.get("podSetUpdates")))
    for update in (one for one in changes if one.get("name") == replica.type):
        _place(spec, texts(update.get("nodeSelector")), mappings(update.get("tolerations")))
        # As in Kueue, a check adds labels but changes none: those of tf-dist identify the pod.
        metadata["labels"] = {**texts(update.get("labels")), **metadata["labels"]}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **texts(update.get("annotations"))}
    if assignment.get("topologyAssignment"):
        _gate(workload, metadata, spec)


def _place(spec: Body, labels: Mapping[str, str], tolerations: Any) -> None:
    if labels:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **labels}
    there = list(spec.get("tolerations") or ())
    added = [one for one in tolerations if one not in there]
    if added:
        spec["tolerations"] = [*there, *added]


def _gate(workload: Document, metadata: Body, spec: Body) -> None:
    """Add the scheduling gate for topology. Kueue removes the gate after it has set the pod's topology."""
    annotations = {**(metadata.get("annotations") or {}), _WORKLOAD: workload["metadata"]["name"]}
    if not annotations.keys() & _LEVELS.values():
        annotations[_UNCONSTRAINED] = "true"
    metadata["annotations"] = annotations
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": _TOPOLOGY_GATE}]


Condition = dict[str, Any]

# After these evictions a Workload is queued again at once; after others Kueue decides when.
_IMMEDIATE_REASONS: Final = frozenset({"Preempted", "NodeFailures"})


def workload_status_update(workload: Document, s: ReconcileContext) -> Iterator[Update]:
    """The status update that Kueue needs now; none if it is already written."""
    status = mapping(workload.get("status"))
    changed: list[Condition] = []
    fields: dict[str, Any] = {}
    if interface.condition_is_true(workload, "Evicted"):
        gone = all(pod.finished for pod in (*s.facts.stale, *s.facts.current.values()))
        if s.status.admission is None and gone and interface.condition_is_true(workload, "QuotaReserved"):
            changed, fields = _given_back(workload), {"admission": None}
    elif s.status.admission is not None and _ready(s) and not interface.condition_is_true(workload, "PodsReady"):
        changed = [_condition("PodsReady", True, "Started", "all pods of the job are ready or have succeeded")]
    if changed:
        stored = mappings(status.get("conditions"))
        listed = {text(one.get("type")): dict(one) for one in stored}
        generation = workload["metadata"].get("generation")
        for one in changed:
            before = listed.get(one["type"], {})
            since = before.get("lastTransitionTime") if before.get("status") == one["status"] else None
            extra = {} if generation is None else {"observedGeneration": generation}
            listed[one["type"]] = {**one, "lastTransitionTime": since or format_time(s.now), **extra}
        conditions = list(listed.values())
        # The resource version prevents that a change by Kueue in the meantime is overwritten.
        metadata = {"resourceVersion": workload["metadata"]["resourceVersion"]}
        patch = {"metadata": metadata, "status": {"conditions": conditions, **fields}}
        yield Update(WORKLOAD.key, workload["metadata"]["name"], patch, "status")


def _ready(s: ReconcileContext) -> bool:
    total = s.facts.total()
    return total.ready + total.succeeded >= len(s.job.replicas) > 0


def _given_back(workload: Document) -> list[Condition]:
    """The conditions of a Workload without remaining pods: its quota is free, and it may be queued again."""
    evicted = interface.find_condition(workload, "Evicted")
    message, reason = str(evicted.get("message") or ""), str(evicted.get("reason") or "Pending")
    again = _condition("Requeued", reason in _IMMEDIATE_REASONS, reason, message)
    reserved = _condition("QuotaReserved", False, "Pending", message)
    return [again, reserved, _condition("Admitted", False, "NoReservation", "The workload has no reservation")]


def _condition(type_: str, value: bool, reason: str, message: str) -> Condition:
    return {"type": type_, "status": "True" if value else "False", "reason": reason, "message": message}


WORKLOAD: Final = ApiResource(
    group="kueue.x-k8s.io", kind="Workload", plural="workloads", versions=("v1beta2", "v1beta1")
)

# The queue of jobs that name no queue, as in Kueue's own defaults.
_QUEUE: Final = "default"
_JOB_UID: Final = "kueue.x-k8s.io/job-uid"

# The reasons of tf-dist for Kueue's reasons of a wait. Other reasons mean that the job waits in the queue.
_REASONS: Final = {
    "NoMatchingFlavor": Reason.NEVER_FITS,
    "ExceedsMaxQuota": Reason.NEVER_FITS,
    "Misconfigured": Reason.QUEUE_REFUSED,
    "Inadmissible": Reason.QUEUE_REFUSED,
    "Suspended": Reason.QUEUE_REFUSED,
}


def _queue(job: Job) -> str:
    return job.scheduling.queue or _QUEUE


def _workload(s: ReconcileContext) -> Document | None:
    return interface.find_object(s, WORKLOAD, interface.object_name(s.job))


def _wanted(s: ReconcileContext, served: ServedApis) -> Iterator[Body]:
    if _lacks_class(s, served):
        return
    spec: Body = {"queueName": _queue(s.job), "podSets": pod_sets(s.job)}
    spec |= workload_priority(s.job, served, served.versions[WORKLOAD.key])
    workload = interface.integration_object(s.job, served, WORKLOAD, interface.object_name(s.job), spec)
    workload["metadata"]["labels"][_JOB_UID] = s.job.uid
    yield workload


def _lacks_class(s: ReconcileContext, served: ServedApis) -> str:
    """The missing priority class that prevents queueing ("": none). An existing Workload keeps its priority."""
    name = s.job.labels.get(_LABEL, "")
    seen = served.assume_served or (PRIORITY.key, name) in served.shared
    return "" if seen or s.status.admission is not None or _workload(s) is not None else name


def _updates(s: ReconcileContext, served: ServedApis, there: Document, wanted: Body) -> Iterator[Update]:
    """Updates of the Workload. While it waits, it follows the job; after admission, only its status changes."""
    if not interface.condition_is_true(there, "QuotaReserved"):
        spec = mapping(there.get("spec"))
        new = {"queueName": wanted["spec"]["queueName"]}
        # Only sizes are compared, because the server completes pod templates and drops minimums without their feature.
        if pod_set_counts(spec) != pod_set_counts(wanted["spec"]):
            new["podSets"] = wanted["spec"]["podSets"]
        if "podSets" in new or spec.get("queueName") != new["queueName"]:
            yield Update(WORKLOAD.key, there["metadata"]["name"], {"spec": new})
    yield from workload_status_update(there, s)


def _verdict(s: ReconcileContext, served: ServedApis) -> Verdict | None:
    there = _workload(s)
    if s.status.admission is not None:
        return _taken_back(there)
    queue = f"Kueue's queue {_queue(s.job)}"
    if name := _lacks_class(s, served):
        text = f"its {PRIORITY.kind} {name} does not exist, or tf-dist may not read it"
        return Wait(reason=Reason.QUEUE_REFUSED, message=f"waits to get into {queue}: {text}")
    if there is None or (
        interface.condition_is_true(there, "Evicted") and interface.condition_is_true(there, "QuotaReserved")
    ):
        return None  # no verdict yet: its pods must stop first
    if interface.condition_is_true(there, "Admitted"):
        lacking = missing_flavors(there, served)
        if not lacking:
            return Admit(sizes=admitted_sizes(there))
        text = f"it is admitted, but its resource flavor {', '.join(lacking)} is not there"
        return Wait(reason=Reason.QUEUE_REFUSED, message=f"waits in {queue}: {text}")
    return _wait(there, queue)


def _taken_back(there: Document | None) -> Preempt | None:
    if there is None:
        return Preempt(by=None, message="its Workload in Kueue was deleted")
    if interface.condition_is_true(there, "Evicted"):
        return Preempt(by=None, message=f"Kueue evicted it: {_message(interface.find_condition(there, 'Evicted'))}")
    if not interface.condition_is_true(there, "Admitted"):
        return Preempt(by=None, message="Kueue withdrew its admission")
    return None


def _wait(there: Document, queue: str) -> Wait:
    spec, status = mapping(there.get("spec")), mapping(there.get("status"))
    if spec.get("active") is False:
        text = "its Workload is deactivated (spec.active is false)"
        return Wait(reason=Reason.DEACTIVATED, message=f"waits in {queue}: {text}")
    reserved = interface.find_condition(there, "QuotaReserved")
    if interface.condition_is_true(there, "QuotaReserved"):
        checks = [one for one in mappings(status.get("admissionChecks")) if one.get("state") != "Ready"]
        text = "its quota is reserved; " + ("; ".join(map(_check, checks)) or "it is about to be admitted")
        return Wait(reason=Reason.WAITING_IN_QUEUE, message=f"waits in {queue}: {text}")
    text = _message(reserved) or "Kueue has not processed its Workload yet (is it running?)"
    if at := mapping(status.get("requeueState")).get("requeueAt"):
        text += f"; it is queued again at {at}"
    reason = _REASONS.get(str(reserved.get("reason")), Reason.WAITING_IN_QUEUE)
    return Wait(reason=reason, message=f"waits in {queue}: {text}")


def _check(check: Document) -> str:
    message = f" ({check['message']})" if check.get("message") else ""
    return f"waits for admission check {check.get('name')}{message}"


def _message(condition: Any) -> str:
    return str(condition.get("message") or condition.get("reason") or "")


def _takes_pods(s: ReconcileContext, served: ServedApis) -> bool:
    there = _workload(s)
    if s.status.admission is None or there is None or _taken_back(there) is not None:
        return False
    return not missing_flavors(there, served)


KUEUE: Final = Integration(
    name=GangScheduler.KUEUE,
    # Kueue before 0.5 has no WorkloadPriorityClass, and older roles of tf-dist have no right to read them.
    apis=((WORKLOAD, FLAVOR, PRIORITY), (WORKLOAD, FLAVOR)),
    pods_first=False,
    wanted=_wanted,
    updates=_updates,
    verdict=_verdict,
    takes_pods=_takes_pods,
    decorate=lambda s, served, replica, pod: decorate_pod(_workload(s) or {}, served, replica, pod),
)
