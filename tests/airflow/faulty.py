"""An operator whose trigger breaks at the first try, as one of another version might; importable by a triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tf_dist.airflow import TFJobOperator


class FaultyTrigger(BaseTrigger):
    """Raises."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.airflow.faulty.FaultyTrigger", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        raise RuntimeError("out of luck")
        yield


class FaultyOperator(TFJobOperator):
    """Has a sound trigger from its second try on."""

    def execute(self, context: Any) -> Any:
        self.sound = context["ti"].try_number > 1
        return super().execute(context)

    def defer(self, *, trigger: BaseTrigger, **arguments: Any) -> Any:
        super().defer(trigger=trigger if self.sound else FaultyTrigger(), **arguments)
