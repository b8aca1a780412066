"""Lineage: the dataset of a checkpoint, and the facet for OpenLineage's provider if it is installed."""

from __future__ import annotations

import importlib.util

import pytest

from tf_dist.airflow.jobs.lineage import dataset_name, job_lineage

INSTALLED = importlib.util.find_spec("openlineage") is not None


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("gs://models/digits/7", ("gs://models", "digits/7")),
        ("s3://models/", ("s3://models", "/")),
        ("/mnt/models/7", ("file", "/mnt/models/7")),
        ("", None),
    ],
)
def test_checkpoint_maps_to_dataset(checkpoint: str, name: tuple[str, str] | None) -> None:
    assert dataset_name(checkpoint) == name


def test_lineage_contains_result_if_provider_is_installed() -> None:
    result = {"name": "digits-x", "namespace": "default", "checkpoint": "gs://models/7", "metrics": {"loss": 0.5}}
    found = job_lineage(result)
    if not INSTALLED:
        assert found is None
        return
    assert [(one.namespace, one.name) for one in found.outputs] == [("gs://models", "7")]
    facet = found.run_facets["tfDist_job"]
    assert (facet.name, facet.metrics) == ("digits-x", {"loss": 0.5})
    assert job_lineage({}).run_facets == {}
