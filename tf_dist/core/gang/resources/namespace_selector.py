"""Namespace selectors of queues: the namespaces whose jobs a queue accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tf_dist.core.model.gang_queue import Queue
from tf_dist.core.model.names import Requirements, selector_text

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
        # By queue and namespace: what it was found from, and the answer.
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
        """Why the queue accepts no jobs from the namespace, "" if it does."""
        guarded = self._queues.get(queue)
        if guarded is None:
            return ""
        found = self._known.get((queue, namespace))
        if found is None:
            labels = self._labels_of(namespace)
            found = (guarded.namespace_selector, labels), namespace_mismatch(guarded, namespace, labels)
            self._known[queue, namespace] = found
        return found[1]
