"""The trigger's former path, which Airflow's database holds for tasks that an earlier release deferred.

Goes with the next release; import ``TFJobTrigger`` from ``tf_dist.airflow``.
"""

from __future__ import annotations

from tf_dist.airflow.triggers.tfjob import TFJobTrigger

__all__ = ["TFJobTrigger"]
