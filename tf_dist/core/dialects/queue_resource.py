"""The Queue resource (``tf-dist.dev/v1alpha1``): schema, validation, and conversion to a queue.

``parse_queue`` is for files: strict, with all problems at once and warnings about probable mistakes. ``read_queue`` is
for objects of a cluster, which may have unknown keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from tf_dist.core.dialects.common_schema import Envelope, Int32, Positive, SchemaModel, check_label
from tf_dist.core.dialects.field_errors import (
    MISSING,
    FieldErrors,
    check_quantity,
    describe_value,
    report_schema_errors,
)
from tf_dist.core.dialects.pod_rules import check_rules
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, suggestion, value_at
from tf_dist.core.model.gang_queue import PreemptionPolicy, Queue, QueueingStrategy, Quota, circular_parents
from tf_dist.core.model.job import Document
from tf_dist.core.model.names import requirements
from tf_dist.core.model.timestamps import parse_duration
from tf_dist.errors import InvalidQueue, Problem

MAX_SELECTOR_RULES: Final = 64
"""The maximum number of expressions of a selector. The API server estimates the cost of a rule from the maximum."""


class RuleShape(SchemaModel):
    """A rule about one label."""

    key: str
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value is compared."""
    values: list[str] | None = None
    """The values for In and NotIn; Exists and DoesNotExist have none."""


class SelectorShape(SchemaModel):
    """A metav1.LabelSelector."""

    match_labels: dict[str, str] | None = None
    """Labels that a namespace must have."""
    match_expressions: list[RuleShape] | None = None
    """Rules that a namespace's labels must satisfy."""


def check_selector(stated: object, loc: FieldPath, out: FieldErrors) -> None:
    """Check the keys and values of a selector, and the number of its rules."""
    check_rules(stated, "LabelSelector", loc, out)
    rules = list_items(value_at(stated, "matchExpressions"))
    if len(rules) > MAX_SELECTOR_RULES:
        out.error((*loc, "matchExpressions"), f"has {len(rules)} entries; {MAX_SELECTOR_RULES} are allowed")


API_VERSION: Final = "tf-dist.dev/v1alpha1"
KIND: Final = "Queue"

_BARE: Final = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {}}
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage", "pods")
_DEVICES: Final = {"gpu": "nvidia.com/gpu", "gpus": "nvidia.com/gpu", "tpu": "google.com/tpu"}


class QuotaShape(SchemaModel):
    """The quota of a resource."""

    nominal: Any = None
    """The queue's own quota."""
    borrowing_limit: Any = None
    """The maximum that the queue may borrow from idle quota of others; default: no limit."""
    lending_limit: Any = None
    """The maximum of its own idle quota that the queue lends to others; default: all of it."""


class SpecShape(SchemaModel):
    """The queue's quotas and rules."""

    parent: str | None = None
    """The parent queue. Queues with the same parent lend each other idle quota."""
    weight: Positive | None = None
    """The weight in fair sharing, relative to the other queues with the same parent; default: 1."""
    quotas: dict[str, QuotaShape] | None = None
    """Quotas by resource: cpu, memory, nvidia.com/gpu, pods."""
    order: Literal["StrictFIFO", "BestEffortFIFO"] | None = None
    """StrictFIFO: no job starts before the first job of the queue. BestEffortFIFO, the default: a job that fits
    may start earlier, unless that delays a job with a reservation.
    """
    preemption: Literal["Never", "LowerPriority", "Reclaim"] | None = None
    """What its gangs may preempt. LowerPriority: gangs of lower priority in this queue. Reclaim, the default:
    also gangs of other queues that have borrowed this queue's quota.
    """
    default_priority: Int32 | None = None
    """The priority of jobs without a priority class; default: 0."""
    priority: Int32 | None = None
    """Queues of a higher priority are served first; default: 0."""
    reclaimable: bool | None = None
    """Whether gangs of other queues may take back the quota that the queue borrowed; default: true."""
    recovery_timeout: str | None = None
    """How long a complete gang may lack lost nodes before it continues with fewer replicas or waits again,
    such as 90s or 10m; default: 5m.
    """
    namespace_selector: SelectorShape | None = None
    """The namespaces of its jobs, by their labels; default, and for an empty selector: all."""
    priority_classes: list[str] | None = None
    """The priority classes that its jobs may name; default: any except system-*."""
    default: bool | None = None
    """Whether jobs that name no queue use this queue. Of several such queues, the first by name is used."""


class QueueShape(Envelope):
    """A document of a queue."""

    spec: SpecShape
    """The queue's quotas and rules."""


@dataclass(frozen=True, slots=True)
class ParsedQueue:
    """A parsed document."""

    queue: Queue
    """The queue."""
    warnings: tuple[Problem, ...] = ()
    """Warnings for the author."""


def is_queue(document: object) -> bool:
    """Whether a document is a Queue of tf-dist, by its kind, unless the apiVersion is another system's."""
    version = str(mapping(document).get("apiVersion") or "")
    return mapping(document).get("kind") == KIND and not version.startswith("scheduling.")


def parse_queue(document: Document) -> ParsedQueue:
    """Parse a user's document. Raises InvalidQueue with all errors."""
    return _read(document, FieldErrors(), strict=True)


def read_queue(stored: Document) -> Queue:
    """The queue of an object of a cluster; InvalidQueue if it is invalid. Unknown keys are ignored."""
    return _read(stored, FieldErrors(advice=False), strict=False).queue


def check_together(queues: Sequence[Queue]) -> Iterator[tuple[int, Problem, bool]]:
    """Problems of relations between queues: the position of the queue, the problem, and whether it is a warning."""
    parents = {queue.name: queue.parent for queue in queues}
    around = set(circular_parents(parents))
    for position, queue in enumerate(queues):
        if queue.name in around:
            message = f"the parents of {queue.name} form a cycle"
            yield position, Problem("spec.parent", message, "one of them must have no parent"), False
        elif queue.parent and queue.parent not in parents:
            message = f"{queue.parent} is not in these files; if the cluster has none either, it has no quotas"
            hint = suggestion(queue.parent, parents, f"define it: kind: Queue, metadata.name: {queue.parent}")
            yield position, Problem("spec.parent", message, hint), True


def _read(document: Document, out: FieldErrors, *, strict: bool) -> ParsedQueue:
    version = document.get("apiVersion")
    if version is not None and version != API_VERSION:
        out.error(("apiVersion",), f"a queue is of apiVersion {API_VERSION}, not {version!r}")
    if document.get("kind") not in (None, KIND):
        out.error(("kind",), f"a queue is of kind {KIND}, not {document['kind']!r}")
    shape = _shaped(document, out, strict=strict)
    selector = value_at(document, "spec", "namespaceSelector")
    if selector is not None and not strict:  # without an unknown key, the selector could match more namespaces
        _shaped({**_BARE, "spec": {"namespaceSelector": selector}}, out, strict=True)
    check_selector(selector, ("spec", "namespaceSelector"), out)
    quotas = dict(_quotas(value_at(document, "spec", "quotas"), out, strict=strict))
    if shape is not None:
        _check(shape, quotas, out, strict=strict)
    if shape is None or out.errors:
        raise InvalidQueue(out.errors)
    return ParsedQueue(_built(shape, quotas, selector), out.warnings)


def _shaped(document: Document, out: FieldErrors, *, strict: bool) -> QueueShape | None:
    try:
        return QueueShape.model_validate(dict(document), extra="forbid" if strict else "ignore")
    except ValidationError as error:
        report_schema_errors(error, QueueShape, out)
        return None


def _check(shape: QueueShape, quotas: Mapping[str, Quota], out: FieldErrors, *, strict: bool) -> None:
    name, spec = shape.metadata.name, shape.spec
    if not name:
        out.error(("metadata", "name"), MISSING, "jobs name their queue by it")
    elif strict:  # stored names are valid for the API server, which accepts more names than tf-dist advises
        check_label(name, ("metadata", "name"), out)
    if shape.metadata.namespace:
        out.warn(("metadata", "namespace"), "queues are not namespaced: it is ignored", "leave it out")
    if spec.parent and spec.parent == name:
        out.error(("spec", "parent"), "a queue cannot be its own parent", "name the queue above it, or leave it out")
    elif spec.parent and strict:
        check_label(spec.parent, ("spec", "parent"), out)
    if spec.recovery_timeout is not None and parse_duration(spec.recovery_timeout) is None:
        message = f"{describe_value(spec.recovery_timeout)} is not a duration"
        out.error(("spec", "recoveryTimeout"), message, "such as 90s, 10m or 1h30m")
    for resource, quota in quotas.items():  # limits without an effect
        loc = ("spec", "quotas", resource)
        if quota.lending_limit is not None and quota.lending_limit > quota.nominal:
            out.warn((*loc, "lendingLimit"), "is more than nominal: the whole quota is lent", "leave it out")
        for key, limit in (("borrowingLimit", quota.borrowing_limit), ("lendingLimit", quota.lending_limit)):
            if limit is not None and not spec.parent:
                message = "has no effect: a queue without a parent borrows from none, and lends only to those below it"
                out.warn((*loc, key), message, "name a parent, or leave it out")


def _quotas(found: object, out: FieldErrors, *, strict: bool) -> Iterator[tuple[str, Quota]]:
    """The valid quotas. Adds errors for invalid quotas. (The schema has reported values that are not mappings.)"""
    for resource, entry in mapping(found).items():
        loc: FieldPath = ("spec", "quotas", resource)
        if not isinstance(resource, str) or not isinstance(entry, Mapping):
            continue
        if strict:
            _check_resource(resource, out)
        if entry.get("nominal") is None:
            out.error((*loc, "nominal"), MISSING, "0: the queue can only borrow")
        nominal, borrowing, lending = (
            None if entry.get(key) is None else check_quantity(entry[key], (*loc, key), out)
            for key in ("nominal", "borrowingLimit", "lendingLimit")
        )
        if nominal is not None:
            yield resource, Quota(nominal=nominal, borrowing_limit=borrowing, lending_limit=lending)


def _check_resource(resource: str, out: FieldErrors) -> None:
    """Add an error for a resource that no pod can request, because its quota would limit nothing."""
    short = resource.removeprefix("requests.").removeprefix("limits.")  # prefixes of names in a ResourceQuota
    if short == resource and ("/" in resource or resource in _NATIVE or resource.startswith("hugepages-")):
        return
    meant = _DEVICES.get(short.casefold(), short if short != resource else "")
    hint = f"did you mean {meant}?" if meant else suggestion(resource, (*_NATIVE, "nvidia.com/gpu"))
    message = "is not a resource that a pod can request: devices have a domain, as in nvidia.com/gpu"
    out.error(("spec", "quotas", resource), message, hint)


def _built(shape: QueueShape, quotas: Mapping[str, Quota], selector: object) -> Queue:
    spec = shape.spec
    return Queue(
        name=shape.metadata.name or "",
        parent=spec.parent or "",
        weight=spec.weight or 1,
        quotas=quotas,
        order=QueueingStrategy(spec.order or QueueingStrategy.BEST_EFFORT_FIFO),
        preemption=PreemptionPolicy(spec.preemption or PreemptionPolicy.RECLAIM),
        default_priority=spec.default_priority or 0,
        recovery_timeout=parse_duration(spec.recovery_timeout or ""),
        namespace_selector=requirements(selector) if selector is not None else None,
        priority=spec.priority or 0,
        reclaimable=spec.reclaimable is not False,
        priority_classes=None if spec.priority_classes is None else tuple(spec.priority_classes),
        default=spec.default is True,
    )
