"""Airflow provider: operator, sensors, hook, trigger, decorator, links.

Names are imported when they are first used: Airflow looks at this package in every process that lists its providers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tf_dist.airflow.callbacks import TFJobCallbacks
    from tf_dist.airflow.decorators.tfjob import tfjob_task
    from tf_dist.airflow.hooks.tfjob import TFJobHook
    from tf_dist.airflow.operators.job_actions import (
        DeleteTFJobOperator,
        ResumeTFJobOperator,
        ScaleTFJobOperator,
        SubmitTFJobOperator,
        SuspendTFJobOperator,
    )
    from tf_dist.airflow.operators.tfjob import TFJobOperator
    from tf_dist.airflow.sensors.tfjob import GangAdmittedSensor, TFJobSensor
    from tf_dist.airflow.triggers.tfjob import TFJobTrigger
    from tf_dist.client.tfjob import TFJob
    from tf_dist.errors import AdmissionTimeout, ImagePullFailed, JobEvicted, JobFailed, JobTimeout

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

__all__ = [
    "AdmissionTimeout",
    "DeleteTFJobOperator",
    "GangAdmittedSensor",
    "ImagePullFailed",
    "JobEvicted",
    "JobFailed",
    "JobTimeout",
    "ResumeTFJobOperator",
    "ScaleTFJobOperator",
    "SubmitTFJobOperator",
    "SuspendTFJobOperator",
    "TFJob",
    "TFJobCallbacks",
    "TFJobHook",
    "TFJobOperator",
    "TFJobSensor",
    "TFJobTrigger",
    "tfjob_task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
