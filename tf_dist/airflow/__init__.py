"""Airflow provider: operator, sensors, hook, trigger, decorator, links.

Names are imported when they are first used, because every Airflow process that lists providers imports this package.
``__init__.pyi`` has their types.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_HOMES: Final = {
    "AdmissionTimeout": "tf_dist.errors",
    "DeleteTFJobOperator": "tf_dist.airflow.operators.job_actions",
    "GangAdmittedSensor": "tf_dist.airflow.sensors.tfjob",
    "ImagePullFailed": "tf_dist.errors",
    "JobEvicted": "tf_dist.errors",
    "JobFailed": "tf_dist.errors",
    "JobTimeout": "tf_dist.errors",
    "ResumeTFJobOperator": "tf_dist.airflow.operators.job_actions",
    "ScaleTFJobOperator": "tf_dist.airflow.operators.job_actions",
    "SubmitTFJobOperator": "tf_dist.airflow.operators.job_actions",
    "SuspendTFJobOperator": "tf_dist.airflow.operators.job_actions",
    "TFJob": "tf_dist.client.tfjob",
    "TFJobCallbacks": "tf_dist.airflow.callbacks",
    "TFJobHook": "tf_dist.airflow.hooks.tfjob",
    "TFJobOperator": "tf_dist.airflow.operators.tfjob",
    "TFJobSensor": "tf_dist.airflow.sensors.tfjob",
    "TFJobTrigger": "tf_dist.airflow.triggers.tfjob",
    "tfjob_task": "tf_dist.airflow.decorators.tfjob",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
