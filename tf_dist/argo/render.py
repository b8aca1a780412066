"""A workflow as YAML."""

from __future__ import annotations

from typing import Any

from hera.workflows import ClusterWorkflowTemplate, CronWorkflow, Workflow, WorkflowTemplate
from hera.workflows import models as m

from tf_dist.client.yaml_files import to_yaml

HeraObject = Workflow | WorkflowTemplate | ClusterWorkflowTemplate | CronWorkflow | m.WorkflowEventBinding


def document_of(built: HeraObject) -> dict[str, Any]:
    """The object to submit."""
    if isinstance(built, m.WorkflowEventBinding):
        return dict(built.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dict(built.to_dict())


def render(built: HeraObject) -> str:
    """The object as YAML."""
    return to_yaml(document_of(built))
