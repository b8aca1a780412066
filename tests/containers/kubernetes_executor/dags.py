"""The DAGs of ``test_kubernetes_executor``: jobs that run until a file exists in their pods."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from tf_dist.airflow import TFJobOperator

_SCRIPT = (
    "trap 'exit 143' TERM; echo up; while [ ! -e /tmp/over ]; do sleep 0.1; done; "
    "echo accuracy=0.5 checkpoint=gs://models/7"
)
# Without a connection or a kubeconfig, the operator uses the cluster of its pod.
_COMMON: dict[str, Any] = {
    "task_id": "train",
    "image": os.environ["TD_TRAINER"],
    "command": ["sh", "-c", _SCRIPT],
    "workers": 2,
    "resources": {"cpu": "10m", "memory": "16Mi"},
    "namespace": os.environ["TD_NAMESPACE"],
    "retry_delay": timedelta(seconds=0),
    "poll_interval": 1,
}

with DAG("here"):
    TFJobOperator(**_COMMON, retries=5, deferrable=False)
with DAG("deferred"):
    TFJobOperator(**_COMMON, retries=5, deferrable=True)
with DAG("forbidden"):
    TFJobOperator(**{**_COMMON, "namespace": os.environ["TD_FORBIDDEN"]}, deferrable=False)
