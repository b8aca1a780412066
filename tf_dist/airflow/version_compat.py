"""Airflow 3.0 to 3.3: names that moved between its lines, and what a line lacks."""

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
"""Whether a task may say of itself that its templates make texts: else its DAG says it."""
TRIGGERS_LEARN_OF_KILLS: Final = hasattr(BaseTrigger, "on_kill")
"""Whether a trigger's ``on_kill`` is called (from 3.3): before, the end of a trigger is all there is."""


def is_test_run() -> bool:
    """Whether the task runs in the process of ``dag.test()`` or ``airflow dags test``, and nothing goes on after it."""
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
