"""A task instance without Airflow's processes: what an operator sees of one, and what it leaves there."""

from __future__ import annotations

import uuid
from collections import defaultdict
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any


class Instance:
    """One try of a task; ``retry`` is the next one. ``state``: what the database says of it."""

    def __init__(self, run_id: str, *, try_number: int = 1, max_tries: int = 1, xcoms: dict[str, Any] | None = None):
        self.id = uuid.uuid4()
        self.dag_id, self.task_id, self.run_id, self.map_index = "dag", "train", run_id, -1
        self.try_number, self.max_tries = try_number, max_tries
        self.start_date = datetime.now(UTC)
        self.xcoms = {} if xcoms is None else xcoms
        self.state = "running"
        self.events: dict[Any, Any] = defaultdict(lambda: SimpleNamespace(extra={}))

    def retry(self) -> Instance:
        return Instance(self.run_id, try_number=self.try_number + 1, max_tries=self.max_tries, xcoms=self.xcoms)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, *, key: str, **_: Any) -> Any:
        return self.xcoms.get(key)

    def get_task_states(self, **_: Any) -> dict[str, Any]:
        return {self.run_id: {self.task_id: self.state}}

    def context(self) -> Any:
        return {"ti": self, "run_id": self.run_id, "outlet_events": self.events}
