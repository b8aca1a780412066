"""Namespace selectors of queues: which namespaces a queue takes jobs from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tf_dist.core.model.gang_queue import Queue
from tf_dist.core.model.names import Requirements, selector_text

# Every namespace has this label; the API server sets it.
_NAME: Final = "kubernetes.io/metadata.name"

Labels = Mapping[str, str]
LabelsOf = Callable[[str], Labels | None]
"""The labels of a namespace; None: they are not known."""


def namespace_mismatch(queue: Queue, namespace: str, labels: Labels | None) -> str:
    """Why a queue takes no jobs from a namespace; "" if it does. ``labels`` None: of those only its name is known.

    What is not known matches nothing, not even a rule that a label be absent.
    """
    rules = queue.namespace_selector or ()
    known = {**(labels or {}), _NAME: namespace}
    unknown = labels is None and any(rule.key != _NAME for rule in rules)
    matches = all(rule.holds(known) for rule in rules if labels is not None or rule.key == _NAME)
    if matches and not unknown:
        return ""
    if any(rule.key == _NAME and rule.operator == "DoesNotExist" for rule in rules):
        return f'queue "{queue.name}" is closed: it takes no jobs; name another queue, or have it opened'
    selector = f"its namespaceSelector ({selector_text(rules)})"
    if matches:
        why = (
            f"{selector} asks for labels that are not known here; grant the controller to list and watch namespaces, "
            f"or select by {_NAME}"
        )
    else:
        why = f"{selector} does not match; name another queue, or have the namespace labelled or the queue opened to it"
    return f'queue "{queue.name}" is not open to namespace "{namespace}": {why}'


class NamespaceMatcher:
    """Cache of ``namespace_mismatch`` for the queues with a selector, as long as neither side changes."""

    def __init__(self, labels_of: LabelsOf) -> None:
        self._labels_of = labels_of
        self._queues: dict[str, Queue] = {}  # those with a selector
        # By queue and namespace: what it was found from, and the answer.
        self._known: dict[tuple[str, str], tuple[tuple[Requirements | None, Labels | None], str]] = {}

    def update(self, queues: Iterable[Queue]) -> bool:
        """Take over the queues and the labels of known namespaces; whether any answer may have changed."""
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
        """Why the queue takes no jobs from the namespace, "" if it does."""
        guarded = self._queues.get(queue)
        if guarded is None:
            return ""
        found = self._known.get((queue, namespace))
        if found is None:
            labels = self._labels_of(namespace)
            found = (guarded.namespace_selector, labels), namespace_mismatch(guarded, namespace, labels)
            self._known[queue, namespace] = found
        return found[1]
