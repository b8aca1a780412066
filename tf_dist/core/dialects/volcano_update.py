"""What may change in a stored Volcano Job: the rules of its webhook for updates.

The minimum, the replicas of tasks and their minimums, and the priority class; nothing else, and no task more or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tf_dist.core.api.fieldpath import list_items, mapping
from tf_dist.core.api.job import Dialect, Document
from tf_dist.core.dialects import volcano
from tf_dist.errors import Problem

_FREE: Final = frozenset({"minAvailable", "priorityClassName"})
_FREE_OF_TASK: Final = frozenset({"replicas", "minAvailable"})
_KEEP: Final = "undo the change, or delete the job and submit it anew"
_MAY_CHANGE: Final = "minAvailable, priorityClassName, and a task's replicas and minAvailable"


def update_problems(old: Document, new: Document) -> tuple[Problem, ...]:
    """What an update of a job changes that it may not, path by path; the defaults count as written.

    Jobs of other formats have no such rules here.
    """
    if new.get("apiVersion") != Dialect.VOLCANO:
        return ()
    before, after = (mapping(volcano.defaulted(document).get("spec")) for document in (old, new))
    return tuple(_problems(before, after))


def _problems(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[Problem]:
    for key in _changed(before, after, _FREE | {"tasks"}):
        yield _immutable(f"spec.{key}")
    tasks = list_items(before.get("tasks")), list_items(after.get("tasks"))
    if len(tasks[0]) != len(tasks[1]):
        message = f"job updates may not add or remove tasks: there were {len(tasks[0])}, and now {len(tasks[1])}"
        yield Problem("spec.tasks", message, _KEEP)
        return
    for index, (one, other) in enumerate(zip(*tasks, strict=True)):
        for key in _changed(mapping(one), mapping(other), _FREE_OF_TASK):
            yield _immutable(f"spec.tasks[{index}].{key}")


def _changed(before: Mapping[str, object], after: Mapping[str, object], free: frozenset[str]) -> list[str]:
    keys = dict.fromkeys((*before, *after))
    return [key for key in keys if key not in free and (before.get(key) or None) != (after.get(key) or None)]


def _immutable(path: str) -> Problem:
    return Problem(path, f"cannot be changed once the job is there; what may change: {_MAY_CHANGE}", _KEEP)
