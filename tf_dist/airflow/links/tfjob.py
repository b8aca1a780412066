"""Links on a task: to the job's page, to TensorBoard, to the checkpoint, as far as they are known."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

JOB_URL: Final = "job_url"
TENSORBOARD_URL: Final = "tensorboard_url"
CHECKPOINT_URL: Final = "checkpoint_url"


class _XComLink(BaseOperatorLink):
    """A link that is an XCom of its own, pushed when the job begins: it is there while the task runs or is deferred.

    The operator that shows it is never the one that ran.
    """

    xcom_key = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL, "" while there is none; never an error."""
        from airflow.sdk.execution_time.xcom import XCom

        try:
            return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")
        except Exception:
            return ""


class JobLink(_XComLink):
    """The job in the dashboard that the operator names."""

    name = "Job"
    xcom_key = JOB_URL


class TensorBoardLink(_XComLink):
    """TensorBoard, where the operator names one."""

    name = "TensorBoard"
    xcom_key = TENSORBOARD_URL


class CheckpointLink(_XComLink):
    """Where the job left its model, if that is somewhere a browser can go."""

    name = "Checkpoint"
    xcom_key = CHECKPOINT_URL


def checkpoint_page(checkpoint: str) -> str:
    """The page that shows a checkpoint: of a bucket, its cloud's console; "" for one that has none (a path)."""
    url = urlsplit(checkpoint)
    path = quote(url.path.strip("/"))
    if url.scheme in ("http", "https"):
        return checkpoint
    if url.scheme == "gs" and url.netloc:
        return f"https://console.cloud.google.com/storage/browser/{url.netloc}/{path}".rstrip("/")
    if url.scheme in ("s3", "s3a", "s3n") and url.netloc:
        return f"https://s3.console.aws.amazon.com/s3/buckets/{url.netloc}?prefix={path}{'/' if path else ''}"
    return ""
