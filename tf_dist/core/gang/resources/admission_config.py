"""Configuration of admission, read from stored objects.

It contains queues and the namespaces from which they accept jobs, ResourceQuotas, priority classes, runtime classes and
the defaults of LimitRanges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from tf_dist.core.dialects.queue_resource import read_queue
from tf_dist.core.dialects.volcano_queue import served_queues
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas, read_resource_quota
from tf_dist.core.gang.types import AdmissionConfig, ContainerDefaults, PriorityClass, ResourceQuota, RuntimeClass
from tf_dist.core.model.fieldpath import mapping, mappings, number, texts
from tf_dist.core.model.gang_queue import Queue
from tf_dist.core.model.job import Document
from tf_dist.core.model.names import Requirements, selector_text
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
    # The class that the API server assigns to pods without a class. Of several defaults, it is the lowest.
    defaults = [name for name, one in classes.items() if one.get("globalDefault")]
    default = min(defaults, key=lambda name: values[name].value, default="")
    if default:
        values[""] = values[default]
    runtimes = {}
    for one in runtime_classes:
        scheduling = mapping(one.get("scheduling"))
        runtimes[str(one["metadata"]["name"])] = RuntimeClass(
            overhead=mapping(mapping(one.get("overhead")).get("podFixed")),
            node_selector=texts(scheduling.get("nodeSelector")),
            tolerations=tuple(mappings(scheduling.get("tolerations"))),
        )
    return AdmissionConfig(
        queues=tuple(listed) if stored or foreign else None,
        priorities=values,
        default_class=default,
        runtime_classes={name: one for name, one in runtimes.items() if one != RuntimeClass()},
        container_defaults=container_defaults(limit_ranges),
    )


def resource_quotas(quotas: Iterable[Document]) -> ResourceQuotas:
    """The stored ResourceQuotas, by namespace and in the order of their names."""
    found: dict[str, list[ResourceQuota]] = {}
    for document in quotas:
        namespace = str(document["metadata"].get("namespace") or "")
        found.setdefault(namespace, []).append(read_resource_quota(document))
    return {name: tuple(sorted(listed, key=lambda quota: quota.name)) for name, listed in found.items()}


def container_defaults(limit_ranges: Iterable[Document]) -> dict[str, ContainerDefaults]:
    """The defaults of the stored LimitRanges, by namespace. Of several for a resource, the first by name counts.

    Without a default, a limit is ``max``, and a request is the default limit, or else ``min``.
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


# Every namespace has this label; the API server sets it.
_NAME: Final = "kubernetes.io/metadata.name"

Labels = Mapping[str, str]
LabelsOf = Callable[[str], Labels | None]
"""The labels of a namespace; None: unknown."""


def namespace_mismatch(queue: Queue, namespace: str, labels: Labels | None) -> str:
    """Why a queue accepts no jobs from a namespace; "" if it does. ``labels`` None: only the namespace's name is known.

    Unknown labels match no rule, not even DoesNotExist.
    """
    rules = queue.namespace_selector or ()
    known = {**(labels or {}), _NAME: namespace}
    unknown = labels is None and any(rule.key != _NAME for rule in rules)
    matches = all(rule.holds(known) for rule in rules if labels is not None or rule.key == _NAME)
    if matches and not unknown:
        return ""
    if any(rule.key == _NAME and rule.operator == "DoesNotExist" for rule in rules):
        return (
            f'queue "{queue.name}" is closed: it accepts no jobs; name another queue, or ask an administrator to '
            "open it"
        )
    selector = f"its namespaceSelector ({selector_text(rules)})"
    if matches:
        why = (
            f"{selector} needs labels that the controller may not read; allow it to list and watch namespaces, or "
            f"select by {_NAME}"
        )
    else:
        why = (
            f"{selector} does not match; name another queue, or ask an administrator to label the namespace or to "
            "open the queue to it"
        )
    return f'queue "{queue.name}" is not open to namespace "{namespace}": {why}'


class NamespaceMatcher:
    """Cache of ``namespace_mismatch`` for queues with a selector, valid while neither side changes."""

    def __init__(self, labels_of: LabelsOf) -> None:
        self._labels_of = labels_of
        self._queues: dict[str, Queue] = {}  # those with a selector
        # By queue and namespace: the selector and labels of an evaluation, and its result.
        self._known: dict[tuple[str, str], tuple[tuple[Requirements | None, Labels | None], str]] = {}

    def update(self, queues: Iterable[Queue]) -> bool:
        """Set the queues and the labels of known namespaces. Returns whether any result may have changed."""
        before = {name: queue.namespace_selector for name, queue in self._queues.items()}
        self._queues = {queue.name: queue for queue in queues if queue.namespace_selector is not None}
        changed = before != {name: queue.namespace_selector for name, queue in self._queues.items()}
        asked, self._known = self._known, {}
        for (queue, namespace), (seen, answer) in asked.items():
            if queue in self._queues:
                now = self._queues[queue].namespace_selector, self._labels_of(namespace)
                kept = answer if seen == now else namespace_mismatch(self._queues[queue], namespace, now[1])
                self._known[queue, namespace] = now, kept
                changed = changed or kept != answer
        return changed

    def mismatch(self, queue: str, namespace: str) -> str:
        """Why the queue accepts no jobs from the namespace; "" if it does."""
        guarded = self._queues.get(queue)
        if guarded is None:
            return ""
        found = self._known.get((queue, namespace))
        if found is None:
            labels = self._labels_of(namespace)
            found = (guarded.namespace_selector, labels), namespace_mismatch(guarded, namespace, labels)
            self._known[queue, namespace] = found
        return found[1]
