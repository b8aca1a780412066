"""Conversion of Volcano's Queue (``scheduling.volcano.sh/v1beta1``) to a queue of tf-dist.

Volcano defines the meaning of its fields in ``pkg/scheduler/plugins/capacity`` and ``proportion`` (volcano-sh/volcano).
``capability`` is the maximum that a queue may use. ``deserved`` is its own quota, which it lends while idle and takes
back. ``guarantee`` is never lent.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tf_dist.core.dialects.common_schema import INT32_MAX
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors, check_quantity, describe_value
from tf_dist.core.dialects.queue_resource import API_VERSION, KIND, read_queue
from tf_dist.core.model.fieldpath import mapping, text, value_at
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE, Queue
from tf_dist.core.model.job import Document
from tf_dist.errors import InvalidQueue, Problem

GROUP: Final = "scheduling.volcano.sh"
ROOT: Final = "root"
"""The parent of all queues that name no parent."""

# A selector that matches no namespace, because every namespace has this label.
_CLOSED: Final = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}]}
_STRICT: Final = {"fifo": "StrictFIFO", "traverse": "BestEffortFIFO"}
_NOTHING: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class ConvertedQueue:
    """A Queue of Volcano as a Queue of tf-dist."""

    document: dict[str, Any]
    """The Queue of tf-dist."""
    lost: tuple[Problem, ...] = ()
    """The parts of the original that the converted queue lacks, by path."""


@dataclass(frozen=True, slots=True)
class _Amounts:
    """The amounts of a Queue of Volcano, by resource."""

    capability: Mapping[str, Decimal]
    """The maximum that the queue may use."""
    deserved: Mapping[str, Decimal]
    """The queue's own quota, which it lends while idle and takes back."""
    guarantee: Mapping[str, Decimal]
    """The quota that it never lends."""

    def own(self, resource: str) -> Decimal:
        """The queue's own quota: the deserved amount, or else the guarantee."""
        return self.deserved.get(resource, self.guarantee.get(resource, _NOTHING))


def is_volcano_queue(document: object) -> bool:
    """Whether a document is a Queue of Volcano."""
    group = text(mapping(document).get("apiVersion")).rpartition("/")[0]
    return mapping(document).get("kind") == KIND and group == GROUP


def convert_queues(documents: Iterable[Document]) -> list[ConvertedQueue]:
    """The Queues of tf-dist for Queues of Volcano, in order.

    The quota of a parent depends on its child queues. Raises InvalidQueue with all errors of the first invalid queue.
    """
    listed = list(documents)
    amounts = [_amounts(document) for document in listed]
    by_name = {value_at(one, "metadata", "name"): one for one in listed}
    below: dict[str, list[_Amounts]] = {}
    for document, own in zip(listed, amounts, strict=True):
        below.setdefault(_parent(document), []).append(own)
    return [_converted(document, own, by_name, below) for document, own in zip(listed, amounts, strict=True)]


def served_queues(stored: Iterable[Document], taken: Container[str] = ()) -> list[Queue]:
    """The queues of Volcano's Queues in a cluster, except names that are ``taken``.

    An invalid queue is omitted, together with its share of the parent's quota, and its jobs wait. If the cluster has
    only the two queues that Volcano creates, and both are unchanged, they are omitted.
    """
    found = []
    for document in served_documents(stored, taken):
        with suppress(InvalidQueue):
            found.append(read_queue(document))
    return found


def served_documents(stored: Iterable[Document], taken: Container[str] = ()) -> list[Document]:
    """``served_queues`` as documents of tf-dist."""
    readable, touched = [], False
    for document in stored:
        with suppress(InvalidQueue):
            _amounts(document)
            readable.append(document)
            limits = any(value_at(document, "spec", key) for key in ("capability", "deserved", "guarantee"))
            mine = value_at(document, "metadata", "name") not in (ROOT, DEFAULT_QUEUE)
            touched = touched or limits or mine or _closed(document)
    documents = (one.document for one in convert_queues(readable)) if touched else ()
    return [document for document in documents if document["metadata"]["name"] not in taken]


def _closed(document: Document) -> bool:
    """Whether the queue accepts no more jobs: by its status, or by its spec, as before Volcano 1.3."""
    return any(value_at(document, part, "state") in ("Closed", "Closing") for part in ("status", "spec"))


def _amounts(document: Document) -> _Amounts:
    out = FieldErrors()
    if not isinstance(value_at(document, "metadata", "name"), str):
        out.error(("metadata", "name"), MISSING, "jobs name their queue by it")
    places = (("spec", "capability"), ("spec", "deserved"), ("spec", "guarantee", "resource"))
    found = _Amounts(*(dict(_read(document, place, out)) for place in places))
    # Guarantee ≤ deserved ≤ capability, as Volcano's webhook requires (``validateResourceQuantityOfQueue``). Unlike
    # Volcano's latest release, tf-dist accepts a guarantee without a deserved amount, because older queues have it.
    levels = (("guarantee.resource", found.guarantee), ("deserved", found.deserved), ("capability", found.capability))
    for (low, below), (high, above) in itertools.combinations(levels, 2):
        for resource in below:
            if resource in above and below[resource] > above[resource]:
                message = f"is {_written(above[resource])}, less than spec.{low}, {_written(below[resource])}"
                out.error(("spec", *high.split("."), resource), message, f"write {_written(below[resource])} or more")
    bounds = (("weight", 0, 65535, "from 1 to 65535"), ("priority", -INT32_MAX, INT32_MAX, "of 32 bits"))
    for key, least, most, which in bounds:
        said = value_at(document, "spec", key)
        if said is not None and (type(said) is not int or not least <= said <= most):
            out.error(("spec", key), f"must be a whole number {which}, not {describe_value(said)}")
    if out.errors:
        raise InvalidQueue(out.errors)
    return found


def _read(document: Document, place: tuple[str, ...], out: FieldErrors) -> Iterator[tuple[str, Decimal]]:
    for resource, said in mapping(value_at(document, *place)).items():
        if (amount := check_quantity(said, (*place, str(resource)), out)) is not None:
            yield str(resource), amount


def _parent(document: Document) -> str:
    name = value_at(document, "metadata", "name")
    return "" if name == ROOT else text(value_at(document, "spec", "parent")) or ROOT


def _converted(
    document: Document, own: _Amounts, by_name: Mapping[Any, Document], below_each: Mapping[str, list[_Amounts]]
) -> ConvertedQueue:
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    name = metadata["name"]
    below = below_each.get(name, [])
    # A queue without a deserved amount and a parent shares nothing: it has no parent in tf-dist, its capability is a
    # limit, and weights decide the order of queues.
    shares = bool(own.deserved) or _parent(document) not in ("", ROOT)
    found: dict[str, Any] = {"parent": _parent(document)} if shares else {}
    if weight := spec.get("weight"):
        found["weight"] = weight
    quotas = dict(_quotas(own, below, shares=shares, above=name == ROOT or bool(below)))
    if quotas:
        found["quotas"] = quotas
    if priority := spec.get("priority"):
        found["priority"] = priority
    if spec.get("reclaimable") is False:
        found["reclaimable"] = False
    if order := _STRICT.get(text(spec.get("dequeueStrategy"))):
        found["order"] = order
    line = [document]  # a closed queue closes its child queues (``closeHierarchicalQueue``)
    while (above := by_name.get(_parent(line[-1]))) is not None and above not in line:
        line.append(above)
    if any(map(_closed, line)):
        found["namespaceSelector"] = _CLOSED
    kept = {key: metadata[key] for key in ("name", "labels") if metadata.get(key)}
    result = {"apiVersion": API_VERSION, "kind": KIND, "metadata": kept, "spec": found}
    return ConvertedQueue(result, tuple(_lost(document, own, quotas, shares=shares)))


def _quotas(own: _Amounts, below: list[_Amounts], *, shares: bool, above: bool) -> Iterator[tuple[str, dict[str, str]]]:
    for resource in dict.fromkeys([*own.capability, *own.deserved, *(own.guarantee if shares else ())]):
        most = own.capability.get(resource)
        wanted = own.own(resource) if shares else own.deserved.get(resource, most or _NOTHING)
        if above and most is not None and resource not in own.deserved:
            wanted = most  # the child queues share the parent's maximum
        nominal = wanted if most is None else min(wanted, most)
        # Quotas of a tree add up, so the quotas of child queues are not part of the parent's quota.
        quota = {"nominal": _written(max(_NOTHING, nominal - sum(one.own(resource) for one in below)))}
        if shares and most is not None:
            quota["borrowingLimit"] = _written(most - nominal)
        if shares and own.guarantee.get(resource):
            quota["lendingLimit"] = _written(max(_NOTHING, nominal - own.guarantee[resource]))
        yield resource, quota


def _written(value: Decimal) -> str:
    """The exact value, in whole numbers or thousandths."""
    if value == value.to_integral_value():
        return f"{int(value)}"
    return f"{int((value * 1000).to_integral_value())}m"


def _lost(document: Document, own: _Amounts, quotas: Mapping[str, Any], *, shares: bool) -> Iterator[Problem]:
    spec, annotations = mapping(document.get("spec")), mapping(value_at(document, "metadata", "annotations"))
    if own.guarantee and not shares:
        message = "is left out: nothing is kept free for a queue that shares nothing"
        yield Problem("spec.guarantee", message, "write deserved, which others only borrow")
    left_out = {
        "affinity": ("nodes are not chosen by queue", "write a nodeSelector into jobs"),
        "extendClusters": ("jobs stay in their cluster", ""),
        "type": ("queues have no types", ""),
    }
    for key, (what, hint) in left_out.items():
        if spec.get(key):
            yield Problem(f"spec.{key}", f"is left out: {what}", hint)
    for key in annotations:
        if key in ("volcano.sh/hierarchy", "volcano.sh/hierarchy-weights"):
            hint = "write spec.parent and spec.weight, and queues for the levels"
            yield Problem(f'metadata.annotations["{key}"]', "is left out: it describes a tree as text", hint)
    if shares and not own.deserved.keys().isdisjoint(quotas):
        capacity = "the cluster's capacity minus what its queues deserve"
        hint = f"give the queue {_parent(document)} a nominal quota of {capacity}"
        yield Problem("spec.deserved", "the queues of a tree together cannot use more than their quotas", hint)
