"""An operator whose trigger raises in the first try, like a trigger of another version. A triggerer can import it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tf_dist.airflow import TFJobOperator


class FaultyTrigger(BaseTrigger):
    """A trigger that raises."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.airflow.faulty.FaultyTrigger", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        raise RuntimeError("out of luck")
        yield


class FaultyOperator(TFJobOperator):
    """An operator with a working trigger from the second try on."""

    def execute(self, context: Any) -> Any:
        self.sound = context["ti"].try_number > 1
        return super().execute(context)

    def defer(self, *, trigger: BaseTrigger, **arguments: Any) -> Any:
        super().defer(trigger=trigger if self.sound else FaultyTrigger(), **arguments)
