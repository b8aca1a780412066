"""Airflow shows only the message of a task's error, so the message contains the hint."""

from __future__ import annotations

from typing import Any

import pytest

from tests.airflow.instance import Instance

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow import SuspendTFJobOperator, TFJobOperator, TFJobSensor
from tf_dist.errors import Unavailable


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (TFJobOperator, {"image": "train:1", "command": ["true"]}),
        (SuspendTFJobOperator, {"job_name": "digits"}),
        (TFJobSensor, {"job_name": "digits"}),
    ],
)
def test_task_error_contains_hint_once(
    monkeypatch: pytest.MonkeyPatch, instance: Instance, kind: Any, arguments: dict[str, Any]
) -> None:
    monkeypatch.setenv("AIRFLOW__TF_DIST__DEPLOYMENT", "tests")
    task = kind(task_id="train", in_cluster=True, kubernetes_conn_id=None, **arguments)
    with pytest.raises(Unavailable) as caught:
        task.execute(instance.context())
    assert str(caught.value).endswith("this is not a pod with a service account (leave it out)")
    assert str(caught.value).count(caught.value.hint) == 1
