"""Lineage of a job for the OpenLineage provider. The checkpoint is the output of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


def job_lineage(result: Mapping[str, Any]) -> Any:
    """The ``OperatorLineage`` of a result (the XCom ``result``); None without the provider."""
    try:
        import attrs
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.generated.base import RunFacet
    except ImportError:
        return None

    @attrs.define
    class TFJobRunFacet(RunFacet):
        """The identity and the result of a job."""

        name: str
        namespace: str
        uid: str
        status: str
        metrics: dict[str, Any]
        restarts: int
        disruptions: int
        gpu_seconds: float
        lost_gpu_seconds: float

    facts: dict[str, Any] = {
        one.name: result.get(one.name) for one in attrs.fields(TFJobRunFacet) if not one.name.startswith("_")
    }
    outputs = [OutputDataset(*place)] if (place := dataset_name(str(result.get("checkpoint") or ""))) else []
    return OperatorLineage(outputs=outputs, run_facets={"tfDist_job": TFJobRunFacet(**facts)} if result else {})


def dataset_name(checkpoint: str) -> tuple[str, str] | None:
    """The namespace and the name of a checkpoint, as OpenLineage names files and objects."""
    url = urlsplit(checkpoint)
    if not checkpoint:
        return None
    if not url.netloc:
        return "file", url.path
    return f"{url.scheme}://{url.netloc}", url.path.strip("/") or "/"
