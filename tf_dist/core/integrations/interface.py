"""Shared parts of the integrations: names and minimums of gangs, objects, conditions, verdicts.

Verdicts are derived from pods, because the object's status may describe the previous attempt, or be a second late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from tf_dist.core.gang.resources.pod_requests import add_resources, pod_priorities, pod_requests
from tf_dist.core.gang.types import PriorityClass
from tf_dist.core.model import names
from tf_dist.core.model.assignment import (
    Admit,
    Resize,
    Wait,
    minimum_met,
    replica_change_text,
    replica_counts,
    start_counts,
)
from tf_dist.core.model.context import ApiResource, ReconcileContext, ServedApis, Update
from tf_dist.core.model.fieldpath import mapping, mappings
from tf_dist.core.model.job import Document, Job
from tf_dist.core.model.quantity import format_quantity
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.wording import are, counted, join_names

Body = dict[str, Any]


# The name of a gang is also the value of a label, which has at most 63 characters. The hash has six of them.
_LONGEST: Final = 57


def object_name(job: Job, *run: object) -> str:
    """The name of a gang's object, which is unique to the job. ``run``: identifies a run that has its own object."""
    return f"{job.key.name[:_LONGEST].rstrip('-.')}-{names.short_hash(job.uid, *run)}"


def integration_object(
    job: Job, served: ServedApis, api: ApiResource, name: str, spec: Body, annotations: Mapping[str, str] | None = None
) -> Body:
    """An object of the job in the served version, deleted with the job."""
    metadata = names.object_metadata(job, name, names.job_labels(job))
    if annotations:
        metadata["annotations"] = dict(annotations)
    version = served.versions[api.key]
    return {"apiVersion": f"{api.group}/{version}", "kind": api.kind, "metadata": metadata, "spec": spec}


def find_object(s: ReconcileContext, api: ApiResource, name: str) -> Document | None:
    """An object of the job, unless it is being deleted."""
    there = s.observed.objects.get((api.key, name))
    return there if there is not None and "deletionTimestamp" not in there["metadata"] else None


def spec_updates(s: ReconcileContext, served: ServedApis, there: Document, wanted: Body) -> Iterator[Update]:
    """The update of an object whose spec differs from the desired spec. Fields of other clients are not changed."""
    spec, group = mapping(there.get("spec")), wanted["apiVersion"].partition("/")[0]
    changed = {key: value for key, value in wanted["spec"].items() if not _says(spec.get(key), value)}
    if changed:
        yield Update(f"{wanted['kind']}.{group}", there["metadata"]["name"], {"spec": changed})


def _says(there: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        return all(_says(there.get(key), value) for key, value in wanted.items())
    return bool(there == wanted)


def min_counts(job: Job, classes: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """The minimum number of pods of each type at the start of the gang, as in tf-dist's own admission.

    Tasks that wait for other tasks (Volcano's ``dependsOn``) are omitted, because a gang that waited for their pods
    would wait forever. ``classes``: the values of PriorityClasses (``ServedApis.priorities``).
    """
    start = start_counts(job, pod_priorities(job, {name: PriorityClass(value) for name, value in classes.items()}))
    return {spec.type: start[spec.type] for spec in job.replica_specs if spec.depends is None}


def min_member(job: Job, classes: Mapping[str, int] = MappingProxyType({})) -> int:
    """The number of pods that must be scheduled together, at least 1."""
    return max(1, sum(min_counts(job, classes).values()))


def min_resources(job: Job, classes: Mapping[str, int]) -> dict[str, str]:
    """The sum of the requests of these pods, as quantities."""
    needed = min_counts(job, classes)
    asked = {spec.type: pod_requests(spec.pod_spec) for spec in job.replica_specs if spec.type in needed}
    total = add_resources({r: value * needed[type_] for r, value in one.items()} for type_, one in asked.items())
    return {r: format_quantity(value) for r, value in sorted(total.items()) if r != "pods" and value > Decimal(0)}


def find_condition(there: Document, type_: str) -> Mapping[str, Any]:
    """The condition of a type; empty if the object does not have the condition."""
    listed = mappings(mapping(there.get("status")).get("conditions"))
    return next((one for one in listed if one.get("type") == type_), {})


def condition_is_true(there: Document, type_: str) -> bool:
    """Whether the condition of a type is true."""
    return find_condition(there, type_).get("status") == "True"


def bound_verdict(s: ReconcileContext) -> Admit | None:
    """The admission of a gang when enough pods are bound to nodes; None before."""
    have, needed = s.facts.with_node, min_counts(s.job)
    # Tasks that start later count as bound.
    have.update({type_: count for type_, count in start_counts(s.job).items() if type_ not in needed})
    enough = bool(needed) and minimum_met(s.job, have)
    return Admit(sizes=replica_counts(s.requested_job)) if enough else None


def resize_verdict(s: ReconcileContext) -> Resize | None:
    """The resize of an admitted gang to the numbers of its document. The scheduler finds nodes for the new pods."""
    before, after = replica_counts(s.job), replica_counts(s.requested_job)
    if before == after:
        return None
    message = f"{replica_change_text(before, after)}, as the job now requests"
    return Resize(sizes=after, placement={}, message=message)


def wait_verdict(s: ReconcileContext, queue: str, said: str) -> Wait:
    """Why a gang with an existing object waits. ``queue``: the queue in words. ``said``: the scheduler's message."""
    pods = s.facts.current
    lacking = sorted(replica for replica in s.facts.without_node(s.job) if replica in pods)
    words = said or next((pods[replica].unschedulable for replica in lacking if pods[replica].unschedulable), "")
    if not pods:
        text = words or "its pods are being created"
    elif not lacking:
        bound = f"{counted(len(pods), 'pod')} of the gang {are(len(pods), 'has its node', 'have their nodes')}"
        text = words or f"{bound}, and the others are still to be created"
    else:
        whole = counted(len(s.job.replicas), "pod")
        text = f"{join_names(lacking)} of {whole} {are(len(lacking), 'has', 'have')} no node"
        text += f": {words}" if words else " yet"
    return Wait(reason=Reason.WAITING_FOR_CAPACITY, message=f"waits in {queue}: {text}")
