"""Configuration of admission as stored in the cluster: queues, ResourceQuotas, priority and runtime classes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tf_dist.core.dialects.queue_resource import read_queue
from tf_dist.core.dialects.volcano_queue import served_queues
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas, read_resource_quota
from tf_dist.core.gang.types import AdmissionConfig, ContainerDefaults, PriorityClass, ResourceQuota, RuntimeClass
from tf_dist.core.model.fieldpath import mapping, mappings, number, texts
from tf_dist.core.model.job import Document
from tf_dist.errors import InvalidQueue


def admission_config(
    queues: Iterable[Document],
    priorities: Iterable[Document],
    runtime_classes: Iterable[Document] = (),
    limit_ranges: Iterable[Document] = (),
    volcano_queues: Iterable[Document] = (),
) -> AdmissionConfig:
    """The configuration of admission. An invalid queue is left out: its jobs wait, as for a missing queue.

    ``volcano_queues``: Volcano's queues. A Queue of tf-dist with the same name, valid or not, replaces them.
    """
    stored, found = list(queues), []
    for document in stored:
        with suppress(InvalidQueue):
            found.append(read_queue(document))
    foreign = served_queues(volcano_queues, {document["metadata"]["name"] for document in stored})
    listed = sorted([*found, *foreign], key=lambda queue: queue.name)
    classes = {str(one["metadata"]["name"]): one for one in priorities}
    values = {
        name: PriorityClass(number(one.get("value")) or 0, one.get("preemptionPolicy") != "Never")
        for name, one in classes.items()
    }
    # The class that the API server gives pods which name none; of several such the lowest.
    defaults = [name for name, one in classes.items() if one.get("globalDefault")]
    default = min(defaults, key=lambda name: values[name].value, default="")
    if default:
        values[""] = values[default]
    runtimes = {str(one["metadata"]["name"]): _runtime_class(one) for one in runtime_classes}
    return AdmissionConfig(
        queues=tuple(listed) if stored or foreign else None,
        priorities=values,
        default_class=default,
        runtime_classes={name: one for name, one in runtimes.items() if one != RuntimeClass()},
        container_defaults=container_defaults(limit_ranges),
    )


def _runtime_class(document: Document) -> RuntimeClass:
    scheduling = mapping(document.get("scheduling"))
    return RuntimeClass(
        overhead=mapping(mapping(document.get("overhead")).get("podFixed")),
        node_selector=texts(scheduling.get("nodeSelector")),
        tolerations=tuple(mappings(scheduling.get("tolerations"))),
    )


def resource_quotas(quotas: Iterable[Document]) -> ResourceQuotas:
    """The stored ResourceQuotas, by namespace and in the order of their names."""
    found: dict[str, list[ResourceQuota]] = {}
    for document in quotas:
        namespace = str(document["metadata"].get("namespace") or "")
        found.setdefault(namespace, []).append(read_resource_quota(document))
    return {name: tuple(sorted(listed, key=lambda quota: quota.name)) for name, listed in found.items()}


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
