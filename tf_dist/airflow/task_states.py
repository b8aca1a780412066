"""What the database says of a task: whether a user has ended it, or somebody goes on with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

ENDED: Final = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
"""Nobody goes on with the task: a user (or a policy of its run) has ended it, or it has."""
AT_WORK: Final = frozenset({"running", "deferred"})
"""Some process works for the task, or will in any case."""

Ask = Callable[..., Any]
"""``get_task_states`` of a task instance."""


def state_of(instance: Any, ask: Ask) -> str | None:
    """The state of a task instance at this moment, None while it has none."""
    index = -1 if instance.map_index is None else int(instance.map_index)
    asked = {"map_index": index} if index >= 0 else {}
    found = ask(dag_id=instance.dag_id, task_ids=[instance.task_id], run_ids=[instance.run_id], **asked)
    state = (found.get(instance.run_id) or {}).get(key_of(instance.task_id, index))
    return None if state is None else str(state)


def key_of(task_id: str, map_index: int) -> str:
    """How Airflow names a task instance among those of its run."""
    return task_id if map_index < 0 else f"{task_id}_{map_index}"
