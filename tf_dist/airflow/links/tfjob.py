"""Links of a task: the page of its job, TensorBoard, and the checkpoint."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

JOB_URL: Final = "job_url"
TENSORBOARD_URL: Final = "tensorboard_url"
CHECKPOINT_URL: Final = "checkpoint_url"


class _XComLink(BaseOperatorLink):
    """A link whose URL is an XCom, which exists as soon as the job is created."""

    xcom_key = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The URL; "" for none. Never raises an error."""
        from airflow.sdk.execution_time.xcom import XCom

        if not operator.has_job:  # Airflow also requests links without a job, and logs an error for a missing XCom
            return ""
        try:
            return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")
        except Exception:
            return ""


class JobLink(_XComLink):
    """The page of the job (``job_url``)."""

    name = "Job"
    xcom_key = JOB_URL


class TensorBoardLink(_XComLink):
    """The TensorBoard of the job (``tensorboard_url``)."""

    name = "TensorBoard"
    xcom_key = TENSORBOARD_URL


class CheckpointLink(_XComLink):
    """The page of the last checkpoint."""

    name = "Checkpoint"
    xcom_key = CHECKPOINT_URL


def checkpoint_page(checkpoint: str) -> str:
    """The page of a checkpoint, in the cloud's console for a bucket; "" for a path."""
    url = urlsplit(checkpoint)
    path = quote(url.path.strip("/"))
    if url.scheme in ("http", "https"):
        return checkpoint
    if url.scheme == "gs" and url.netloc:
        return f"https://console.cloud.google.com/storage/browser/{url.netloc}/{path}".rstrip("/")
    if url.scheme in ("s3", "s3a", "s3n") and url.netloc:
        return f"https://s3.console.aws.amazon.com/s3/buckets/{url.netloc}?prefix={path}{'/' if path else ''}"
    return ""
