"""A fake task instance that works without Airflow's processes and records what an operator writes to it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tf_dist.airflow import TFJobOperator, TFJobTrigger

    MakeOperator = Callable[..., TFJobOperator]
else:
    MakeOperator = Callable


class Instance:
    """One try of a task. ``retry`` returns the next try, and ``state`` is its state in the database.

    ``others`` are other task instances in the database. ``store`` is the task state store, shared by all tries.
    """

    def __init__(
        self,
        run_id: str,
        *,
        try_number: int = 1,
        max_tries: int = 1,
        xcoms: dict[str, Any] | None = None,
        others: Sequence[Instance] = (),
    ) -> None:
        self.id = uuid.uuid4()
        self.dag_id, self.task_id, self.run_id, self.map_index = "dag", "train", run_id, -1
        self.try_number, self.max_tries = try_number, max_tries
        self.start_date = datetime.now(UTC)
        self.xcoms = {} if xcoms is None else xcoms
        self.state: str | None = "running"
        self.events: dict[Any, Any] = defaultdict(lambda: SimpleNamespace(extra={}))
        self._others = others
        self.store: dict[str, Any] = {}

    def retry(self) -> Instance:
        other = Instance(self.run_id, try_number=self.try_number + 1, max_tries=self.max_tries, xcoms=self.xcoms)
        other.store = self.store
        return other

    def cleared(self, retries: int) -> Instance:
        """The next try after a user's clear, which raises ``max_tries`` (``clear_task_instances``)."""
        other = Instance(self.run_id, try_number=self.try_number + 1, max_tries=self.try_number + retries, xcoms={})
        other.store = self.store
        return other

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, *, key: str, **_: Any) -> Any:
        return self.xcoms.get(key)

    def get_task_states(self, *, run_ids: Sequence[str], **_: Any) -> dict[str, Any]:
        return {one.run_id: {one.task_id: one.state} for one in (self, *self._others) if one.run_id in run_ids}

    def context(self) -> Any:
        return {"ti": self, "run_id": self.run_id, "outlet_events": self.events, "task_state_store": self}

    def get(self, key: str) -> Any:
        """Read a key like the task state store."""
        return self.store.get(key)

    def set(self, key: str, value: Any) -> None:
        self.store[key] = json.loads(json.dumps(value))


def deferred(task: TFJobOperator, instance: Instance) -> TFJobTrigger:
    """The trigger to which the task defers."""
    from tf_dist.airflow import TFJobTrigger
    from tf_dist.airflow.version_compat import TaskDeferred

    task.deferrable = True
    with pytest.raises(TaskDeferred) as caught:
        task.execute(instance.context())
    assert callable(getattr(task, caught.value.method_name))
    path, arguments = caught.value.trigger.serialize()
    assert path == "tf_dist.airflow.triggers.tfjob.TFJobTrigger"
    return TFJobTrigger(**arguments)


def event_of(trigger: TFJobTrigger) -> Any:
    """The payload of the only event that the trigger yields."""

    async def events() -> list[Any]:
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(events())
    return event.payload
