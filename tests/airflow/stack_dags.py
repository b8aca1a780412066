"""The DAGs of the stack's tests, with jobs that run until a file exists."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset

from tests.airflow.faulty import FaultyOperator
from tests.airflow.site import document
from tests.faces.cases import CASES, STACK
from tf_dist.airflow import TFJobOperator
from tf_dist.airflow.task_options import OPTIONS

_FLAGS, _KUBECONFIG = os.environ["TD_FLAGS"], os.environ["TD_KUBECONFIG"]
# Airflow renders the template in the document, so each run has its own file.
_UNTIL_TOLD = (
    f"trap 'exit 143' TERM; echo up; while [ ! -e '{_FLAGS}/{{{{ run_id }}}}' ]; do sleep 0.05; done; "
    "echo accuracy=0.5 checkpoint=gs://models/7"
)
_COMMON: dict[str, Any] = {
    "task_id": "train",
    "job": document(_UNTIL_TOLD),
    "config_file": _KUBECONFIG,
    "retries": 5,
    "retry_delay": timedelta(seconds=0),
    "poll_interval": 1,
    "job_url": "http://jobs/{namespace}/{name}",
    "tensorboard_url": "http://boards/{name}",
}
DATA = Asset("data")

with DAG("deferred"):
    TFJobOperator(**_COMMON, deferrable=True)
with DAG("here"):
    TFJobOperator(**_COMMON, deferrable=False)
with DAG("late"):
    TFJobOperator(**{**_COMMON, "retries": 0}, deferrable=True, execution_timeout=timedelta(seconds=10))
with DAG("faulty"):
    FaultyOperator(**_COMMON, deferrable=True)
with DAG("on_data", schedule=[DATA]):
    TFJobOperator(**_COMMON, deferrable=True)

# One task for each case of all interfaces. Every second task is deferrable.
_NAMES = {row.name: name for name, row in OPTIONS.items()}
# Airflow fails a task that resumes before Airflow has stored that it deferred. Fewer active tasks avoid this race.
with DAG("cases", max_active_tasks=4):
    for _number, _name in enumerate(STACK):
        TFJobOperator(
            task_id=_name,
            job=CASES[_name].document,
            config_file=_KUBECONFIG,
            deferrable=_number % 2 == 0,
            poll_interval=1,
            **{_NAMES[option]: value for option, value in CASES[_name].options.items()},
        )
