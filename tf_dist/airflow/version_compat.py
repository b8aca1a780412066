"""Differences between Airflow 3.0 and 3.3: names that moved, and missing features."""

from __future__ import annotations

import inspect
from typing import Final

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    AirflowTaskTimeout,
    BaseHook,
    TaskDeferred,
    conf,
)
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger

try:
    from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout
except ImportError:  # before 3.2
    from airflow.exceptions import TaskDeferralError, TaskDeferralTimeout  # type: ignore[no-redef]

TASKS_CHOOSE_NATIVE: Final = "render_template_as_native_obj" in inspect.signature(BaseOperator.__init__).parameters
"""Whether a task can choose native templates. In older versions, only its DAG can."""
TRIGGERS_LEARN_OF_KILLS: Final = hasattr(BaseTrigger, "on_kill")
"""Whether Airflow calls ``on_kill`` of triggers (from 3.3 on)."""


def is_test_run() -> bool:
    """Whether the task runs in the process of ``dag.test()`` or ``airflow dags test``."""
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
    return type(comms).__name__ == "InProcessSupervisorComms"


__all__ = [
    "TASKS_CHOOSE_NATIVE",
    "TRIGGERS_LEARN_OF_KILLS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "BaseHook",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "TaskDeferred",
    "conf",
    "is_test_run",
]
