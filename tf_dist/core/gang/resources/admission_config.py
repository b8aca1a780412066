"""Configuration of admission as stored in the cluster: queues, ResourceQuotas, priority and runtime classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tf_dist.core.api.fieldpath import mapping, mappings, number
from tf_dist.core.api.job import Document
from tf_dist.core.gang.resources.queue_resource import read_queue
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas, quotas_by_namespace, read_resource_quota
from tf_dist.core.gang.resources.volcano_queue import served_queues
from tf_dist.core.gang.types import AdmissionConfig, ContainerDefaults, PriorityClass, Queue
from tf_dist.errors import InvalidQueue


def admission_config(
    queues: Iterable[Document],
    priorities: Iterable[Document],
    runtime_classes: Iterable[Document] = (),
    limit_ranges: Iterable[Document] = (),
    volcano_queues: Iterable[Document] = (),
) -> AdmissionConfig:
    """The configuration of admission. An invalid queue is left out: its jobs wait, as for a missing queue.

    ``volcano_queues``: those of Volcano's; ours of the same name, readable or not, replace them.
    """
    stored, classes = list(queues), list(priorities)
    foreign = served_queues(volcano_queues, {document["metadata"]["name"] for document in stored})
    found = [*_queues(stored), *foreign]
    listed = tuple(sorted(found, key=lambda queue: queue.name)) if stored or foreign else None
    default, values = _default_class(classes), dict(_priorities(classes))
    if default:
        values[""] = values[default]
    return AdmissionConfig(
        queues=listed,
        priorities=values,
        default_class=default,
        overheads=dict(_overheads(runtime_classes)),
        container_defaults=container_defaults(limit_ranges),
    )


def resource_quotas(quotas: Iterable[Document]) -> ResourceQuotas:
    """The stored ResourceQuotas, by namespace."""
    return quotas_by_namespace(
        (str(document["metadata"].get("namespace") or ""), read_resource_quota(document)) for document in quotas
    )


def container_defaults(limit_ranges: Iterable[Document]) -> dict[str, ContainerDefaults]:
    """The defaults of the stored LimitRanges, by namespace; of several for one resource, the first by name counts.

    A limit that has no default is ``max``; a request that has none is the default limit, or ``min``.
    """
    found: dict[str, ContainerDefaults] = {}
    for document in sorted(limit_ranges, key=lambda one: str(one["metadata"]["name"])):
        namespace = str(document["metadata"].get("namespace") or "")
        for rule in mappings(mapping(document.get("spec")).get("limits")):
            if rule.get("type") != "Container":
                continue
            before = found.get(namespace, ContainerDefaults())
            limits = {**mapping(rule.get("max")), **mapping(rule.get("default"))}
            requests = {**mapping(rule.get("min")), **limits, **mapping(rule.get("defaultRequest"))}
            found[namespace] = ContainerDefaults(
                limits={**limits, **before.limits}, requests={**requests, **before.requests}
            )
    return found


def _default_class(stored: Iterable[Document]) -> str:
    """The class that the API server gives pods which name none; of several such the lowest."""
    defaults = [one for one in stored if one.get("globalDefault")]
    lowest = min(defaults, key=lambda one: number(one.get("value")) or 0, default=None)
    return str(lowest["metadata"]["name"]) if lowest is not None else ""


def _overheads(stored: Iterable[Document]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for document in stored:
        overhead = document.get("overhead")
        fixed = overhead.get("podFixed") if isinstance(overhead, Mapping) else None
        if isinstance(fixed, Mapping) and fixed:
            yield str(document["metadata"]["name"]), fixed


def _queues(stored: Iterable[Document]) -> Iterator[Queue]:
    for document in stored:
        try:
            yield read_queue(document)
        except InvalidQueue:
            continue


def _priorities(stored: Iterable[Document]) -> Iterator[tuple[str, PriorityClass]]:
    for document in stored:
        value = number(document.get("value")) or 0
        yield str(document["metadata"]["name"]), PriorityClass(value, document.get("preemptionPolicy") != "Never")
