"""Airflow 3.0 to 3.3: names that moved between its lines, and what a line lacks."""

from __future__ import annotations

from typing import Final

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    AirflowTaskTimeout,
    conf,
)
from airflow.triggers.base import BaseTrigger

try:
    from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout
except ImportError:  # before 3.2
    from airflow.exceptions import TaskDeferralError, TaskDeferralTimeout  # type: ignore[no-redef]

TRIGGERS_LEARN_OF_KILLS: Final = hasattr(BaseTrigger, "on_kill")
"""Whether a trigger's ``on_kill`` is called (from 3.3): before, the end of a trigger is all there is."""

__all__ = [
    "TRIGGERS_LEARN_OF_KILLS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "conf",
]
