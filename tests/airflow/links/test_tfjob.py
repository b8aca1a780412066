"""Extra links of a task, such as the page of a checkpoint."""

from __future__ import annotations

import pytest

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow.links.tfjob import CHECKPOINT_URL, JOB_URL, TENSORBOARD_URL, checkpoint_page


@pytest.mark.parametrize(
    ("checkpoint", "page"),
    [
        ("gs://models/digits/7", "https://console.cloud.google.com/storage/browser/models/digits/7"),
        ("gs://models", "https://console.cloud.google.com/storage/browser/models"),
        ("s3://models/a b/7/", "https://s3.console.aws.amazon.com/s3/buckets/models?prefix=a%20b/7/"),
        ("s3a://models", "https://s3.console.aws.amazon.com/s3/buckets/models?prefix="),
        ("https://models.example/7", "https://models.example/7"),
        ("/mnt/models/7", ""),
        ("hdfs://models/7", ""),
        ("javascript://alert(1)", ""),
        ("", ""),
    ],
)
def test_checkpoint_page_url(checkpoint: str, page: str) -> None:
    assert checkpoint_page(checkpoint) == page


def test_xcom_keys_of_links_are_stable() -> None:
    assert (JOB_URL, TENSORBOARD_URL, CHECKPOINT_URL) == ("job_url", "tensorboard_url", "checkpoint_url")
