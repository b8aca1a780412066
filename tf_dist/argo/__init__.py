"""Jobs as steps of Argo workflows, built with Hera (``pip install '.[argo]'`` in a checkout)."""

from __future__ import annotations

try:
    import hera.workflows  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("tf_dist.argo needs Hera: pip install 'hera>=7.1'", name=error.name) from error

from tf_dist.argo.job_source import Input
from tf_dist.argo.resource import tf_job_resource
from tf_dist.argo.steps import IMAGE, OnTerm, TFJobStep, cleanup_step, default_retries, wait_admitted_step
from tf_dist.client.tfjob import TFJob

__all__ = [
    "IMAGE",
    "Input",
    "OnTerm",
    "TFJob",
    "TFJobStep",
    "cleanup_step",
    "default_retries",
    "tf_job_resource",
    "wait_admitted_step",
]
