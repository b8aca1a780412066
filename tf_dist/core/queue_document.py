"""Documents of queues (``tf-dist.dev/v1alpha1 Queue``) and the queues they mean.

``parse_queue`` is for files: strict, every problem at once, warnings for what most likely was not meant.
``read_queue`` is for objects of a cluster, which may have keys that we do not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from pydantic import ValidationError

from tf_dist.core.dialects.limits import duration
from tf_dist.core.dialects.names import check_label
from tf_dist.core.dialects.problems import MISSING, Findings, Loc, described, nearest, report, suggest
from tf_dist.core.dialects.selector import SelectorShape, check_selector
from tf_dist.core.dialects.shape import INT32_MAX, Envelope, Positive, Shape
from tf_dist.core.gang.model import Order, Preemption, Queue, Quota
from tf_dist.core.gang.queue_tree import circular
from tf_dist.core.labels import requirements
from tf_dist.core.model import Document
from tf_dist.core.quantity import parse_quantity
from tf_dist.core.untyped import at, mapping
from tf_dist.errors import InvalidQueue, Problem

API_VERSION: Final = "tf-dist.dev/v1alpha1"
KIND: Final = "Queue"

_BARE: Final = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {}}
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage", "pods")
_DEVICES: Final = {"gpu": "nvidia.com/gpu", "gpus": "nvidia.com/gpu", "tpu": "google.com/tpu"}


class QuotaShape(Shape):
    """One entry of ``quotas``; the amounts are read by ``_amount``."""

    nominal: Any = None
    borrowing_limit: Any = None
    lending_limit: Any = None


class SpecShape(Shape):
    """The rules of a queue."""

    parent: str | None = None
    weight: Positive | None = None
    quotas: dict[str, QuotaShape] | None = None
    order: Literal["StrictFIFO", "BestEffortFIFO"] | None = None
    preemption: Literal["Never", "LowerPriority", "Reclaim"] | None = None
    default_priority: int | None = None
    recovery_timeout: str | None = None
    namespace_selector: SelectorShape | None = None


class QueueShape(Envelope):
    """A document of a queue."""

    spec: SpecShape


@dataclass(frozen=True, slots=True)
class ParsedQueue:
    """A document that was read: the queue, and what to tell whoever wrote it."""

    queue: Queue
    warnings: tuple[Problem, ...] = ()


def is_queue(document: object) -> bool:
    """Whether a document is meant as one of our queues: by its kind, unless it is another system's."""
    version = str(mapping(document).get("apiVersion") or "")
    return mapping(document).get("kind") == KIND and not version.startswith("scheduling.")


def parse_queue(document: Document) -> ParsedQueue:
    """Read a user's document; InvalidQueue holds everything that is wrong with it."""
    return _read(document, Findings(), strict=True)


def read_queue(stored: Document) -> Queue:
    """The queue that an object of a cluster means; InvalidQueue if it means none. Unknown keys are passed over."""
    return _read(stored, Findings(advice=False), strict=False).queue


def check_together(queues: Sequence[Queue]) -> Iterator[tuple[int, Problem, bool]]:
    """What is wrong with queues as a whole: with which of them, the problem, and whether it is only a warning."""
    parents = {queue.name: queue.parent for queue in queues}
    around = set(circular(parents))
    for position, queue in enumerate(queues):
        if queue.name in around:
            message = f"the parents of {queue.name} lead back to itself"
            yield position, Problem("spec.parent", message, "one of them must have no parent"), False
        elif queue.parent and queue.parent not in parents:
            message = f"{queue.parent} is not in these files; if the cluster has none either, it has no quotas"
            near = nearest(queue.parent, parents)
            hint = f"did you mean {near}?" if near else f"define it: kind: Queue, metadata.name: {queue.parent}"
            yield position, Problem("spec.parent", message, hint), True


def _read(document: Document, out: Findings, *, strict: bool) -> ParsedQueue:
    _check_kind(document, out)
    shape = _shaped(document, out, strict=strict)
    selector = at(document, "spec", "namespaceSelector")
    if selector is not None and not strict:  # a key of it that we do not know would let in who is kept out
        _shaped({**_BARE, "spec": {"namespaceSelector": selector}}, out, strict=True)
    check_selector(selector, ("spec", "namespaceSelector"), out)
    quotas = dict(_quotas(at(document, "spec", "quotas"), out, strict=strict))
    if shape is not None:
        _check(shape, quotas, out, strict=strict)
    if shape is None or out.errors:
        raise InvalidQueue(out.errors)
    return ParsedQueue(_built(shape, quotas, selector), out.warnings)


def _shaped(document: Document, out: Findings, *, strict: bool) -> QueueShape | None:
    try:
        return QueueShape.model_validate(dict(document), extra="forbid" if strict else "ignore")
    except ValidationError as error:
        report(error, QueueShape, out)
        return None


def _check_kind(document: Document, out: Findings) -> None:
    version = document.get("apiVersion")
    if version is not None and version != API_VERSION:
        out.error(("apiVersion",), f"a queue is of apiVersion {API_VERSION}, not {version!r}")
    if document.get("kind") not in (None, KIND):
        out.error(("kind",), f"a queue is of kind {KIND}, not {document['kind']!r}")


def _check(shape: QueueShape, quotas: Mapping[str, Quota], out: Findings, *, strict: bool) -> None:
    name, spec = shape.metadata.name, shape.spec
    if not name:
        out.error(("metadata", "name"), MISSING, "jobs name their queue by it")
    elif strict:  # the server took the other ones, and takes some that we would not advise
        check_label(name, ("metadata", "name"), out)
    if shape.metadata.namespace:
        out.warn(("metadata", "namespace"), "queues belong to no namespace: it is passed over", "leave it out")
    if spec.parent and spec.parent == name:
        out.error(("spec", "parent"), "a queue cannot be its own parent", "name the queue above it, or leave it out")
    elif spec.parent and strict:
        check_label(spec.parent, ("spec", "parent"), out)
    if spec.default_priority is not None and abs(spec.default_priority) > INT32_MAX:
        out.error(("spec", "defaultPriority"), f"must be between -{INT32_MAX} and {INT32_MAX}")
    if spec.recovery_timeout is not None and duration(spec.recovery_timeout) is None:
        message = f"{described(spec.recovery_timeout)} is no duration"
        out.error(("spec", "recoveryTimeout"), message, "such as 90s, 10m or 1h30m")
    for resource, quota in quotas.items():
        _advise(resource, quota, bool(spec.parent), out)


def _advise(resource: str, quota: Quota, shared: bool, out: Findings) -> None:
    """Limits that change nothing."""
    loc = ("spec", "quotas", resource)
    if quota.lending_limit is not None and quota.lending_limit > quota.nominal:
        out.warn((*loc, "lendingLimit"), "is more than nominal, so that all of it is lent", "leave it out")
    for key, limit in (("borrowingLimit", quota.borrowing_limit), ("lendingLimit", quota.lending_limit)):
        if limit is not None and not shared:
            message = "has no effect: a queue without a parent borrows from nobody and lends only to those below it"
            out.warn((*loc, key), message, "name a parent, or leave it out")


def _quotas(found: object, out: Findings, *, strict: bool) -> Iterator[tuple[str, Quota]]:
    """The quotas that can be read; what cannot is noted. (What is no mapping the shape has noted.)"""
    for resource, entry in mapping(found).items():
        loc: Loc = ("spec", "quotas", resource)
        if not isinstance(resource, str) or not isinstance(entry, Mapping):
            continue
        if strict:
            _check_resource(resource, out)
        if entry.get("nominal") is None:
            out.error((*loc, "nominal"), MISSING, "0: it has none of its own and may only borrow")
        nominal = _amount(entry, "nominal", loc, out)
        borrowing, lending = (_amount(entry, key, loc, out) for key in ("borrowingLimit", "lendingLimit"))
        if nominal is not None:
            yield resource, Quota(nominal=nominal, borrowing_limit=borrowing, lending_limit=lending)


def _amount(entry: Mapping[str, Any], key: str, loc: Loc, out: Findings) -> Decimal | None:
    found = entry.get(key)
    if found is None:
        return None
    try:
        amount = parse_quantity(found)
    except ValueError:
        out.error((*loc, key), f"is no amount: {described(found)}", "write a number and a suffix: 4, 500m, 64Gi")
        return None
    if amount < 0:
        out.error((*loc, key), f"must not be negative: {found}")
        return None
    return amount


def _check_resource(resource: str, out: Findings) -> None:
    """A resource no pod can request limits nothing, which nobody wants who wrote it."""
    short = resource.removeprefix("requests.").removeprefix("limits.")  # as a ResourceQuota has them
    if short == resource and ("/" in resource or resource in _NATIVE or resource.startswith("hugepages-")):
        return
    meant = _DEVICES.get(short.casefold(), short if short != resource else "")
    hint = f"did you mean {meant}?" if meant else suggest(resource, (*_NATIVE, "nvidia.com/gpu"))
    message = "is no resource that a pod can request: devices have a domain, as in nvidia.com/gpu"
    out.error(("spec", "quotas", resource), message, hint)


def _built(shape: QueueShape, quotas: Mapping[str, Quota], selector: object) -> Queue:
    spec = shape.spec
    return Queue(
        name=shape.metadata.name or "",
        parent=spec.parent or "",
        weight=spec.weight or 1,
        quotas=quotas,
        order=Order(spec.order or Order.BEST_EFFORT_FIFO),
        preemption=Preemption(spec.preemption or Preemption.RECLAIM),
        default_priority=spec.default_priority or 0,
        recovery_timeout=duration(spec.recovery_timeout or ""),
        namespace_selector=requirements(selector) if selector is not None else None,
    )
