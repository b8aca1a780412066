"""Links on a task: to the job's page, to TensorBoard, to the checkpoint, as far as they are known."""

from __future__ import annotations

from typing import Any, Final

from airflow.sdk import BaseOperatorLink

JOB_URL: Final = "job_url"
TENSORBOARD_URL: Final = "tensorboard_url"
CHECKPOINT_URL: Final = "checkpoint_url"


class _XComLink(BaseOperatorLink):
    """A link that stands in an XCom: the operator that shows it is never the one that ran."""

    key = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL, "" while there is none; never an error."""
        from airflow.sdk.execution_time.xcom import XCom

        try:
            return str(XCom.get_value(ti_key=ti_key, key=self.key) or "")
        except Exception:
            return ""


class JobLink(_XComLink):
    """The job in the dashboard that the operator names."""

    name = "Job"
    key = JOB_URL


class TensorBoardLink(_XComLink):
    """TensorBoard, where the operator names one."""

    name = "TensorBoard"
    key = TENSORBOARD_URL


class CheckpointLink(_XComLink):
    """Where the job left its model, if that is somewhere a browser can go."""

    name = "Checkpoint"
    key = CHECKPOINT_URL
