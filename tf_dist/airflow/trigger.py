"""The trigger under its former name: Airflow's database holds this path for tasks that were deferred by an earlier release.

Goes with the next release; import ``TFJobTrigger`` from ``tf_dist.airflow``.
"""

from __future__ import annotations

from tf_dist.airflow.triggers.tfjob import TFJobTrigger

__all__ = ["TFJobTrigger"]
