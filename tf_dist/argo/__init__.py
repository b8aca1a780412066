"""Jobs as steps of Argo workflows, built with Hera (``pip install '.[argo]'`` in a checkout).

Hera is imported when a name is first used, because the launcher, which runs in the steps, does not need Hera.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tf_dist.client.tfjob import TFJob

if TYPE_CHECKING:
    from tf_dist.argo.job_source import Input
    from tf_dist.argo.resource import tf_job_resource
    from tf_dist.argo.steps import IMAGE, JobFate, TFJobStep, cleanup_step, default_retries, wait_admitted_step

__all__ = [
    "IMAGE",
    "Input",
    "JobFate",
    "TFJob",
    "TFJobStep",
    "cleanup_step",
    "default_retries",
    "tf_job_resource",
    "wait_admitted_step",
]

_MODULES: Final = {"Input": "job_source", "tf_job_resource": "resource"}  # the others are in steps


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("hera.workflows")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tf_dist.argo needs Hera: pip install 'hera>=7.1'", name=error.name) from error
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'steps')}"), name)
