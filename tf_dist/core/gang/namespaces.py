"""Which namespaces a queue takes jobs from, by its ``namespaceSelector``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tf_dist.core.gang.model import Queue
from tf_dist.core.labels import Requirements, selector_text

# Every namespace has this label; the API server sets it.
_NAME: Final = "kubernetes.io/metadata.name"

Labels = Mapping[str, str]
LabelsOf = Callable[[str], Labels | None]
"""The labels of a namespace; None: they are not known."""

_Judged = tuple[tuple[Requirements | None, Labels | None], str]


def shut(queue: Queue, namespace: str, labels: Labels | None) -> str:
    """Why a queue takes no jobs from a namespace; "" if it does. ``labels`` None: of those only its name is known.

    What is not known matches nothing, not even a rule that a label be absent.
    """
    rules = queue.namespace_selector or ()
    known = {**(labels or {}), _NAME: namespace}
    unknown = labels is None and any(rule.key != _NAME for rule in rules)
    matches = all(rule.holds(known) for rule in rules if labels is not None or rule.key == _NAME)
    if matches and not unknown:
        return ""
    selector = f"its namespaceSelector ({selector_text(rules)})"
    if matches:
        why = (
            f"{selector} asks for labels that are not known here; grant the controller to list and watch namespaces, "
            f"or select by {_NAME}"
        )
    else:
        why = f"{selector} does not match; name another queue, or have the namespace labelled or the queue opened to it"
    return f'queue "{queue.name}" is not open to namespace "{namespace}": {why}'


class Doors:
    """Remembers what ``shut`` says of the queues that have a selector, as long as neither side changes."""

    def __init__(self) -> None:
        self._guarded: dict[str, Queue] = {}
        self._before: dict[tuple[str, str], _Judged] = {}
        self._now: dict[tuple[str, str], _Judged] = {}

    def turn(self, queues: Iterable[Queue]) -> bool:
        """Begin a pass over all jobs; whether any of these queues has a selector."""
        self._guarded = {queue.name: queue for queue in queues if queue.namespace_selector is not None}
        self._before, self._now = self._now, {}
        return bool(self._guarded)

    def shut(self, queue: str, namespace: str, labels_of: LabelsOf) -> str:
        """Why the queue takes no jobs from the namespace, "" if it does."""
        guarded = self._guarded.get(queue)
        if guarded is None:
            return ""
        key = queue, namespace
        found = self._now.get(key)
        if found is None:
            seen = guarded.namespace_selector, labels_of(namespace)
            found = self._before.get(key)
            if found is None or found[0] != seen:
                found = seen, shut(guarded, namespace, seen[1])
            self._now[key] = found
        return found[1]
