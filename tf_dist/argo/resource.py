"""The thin way: Argo's own resource template creates the job, and a controller in the cluster drives it."""

from __future__ import annotations

from typing import Any, Final

import yaml
from hera.workflows import Parameter, Resource
from hera.workflows import models as m

from tf_dist.argo.job_source import JobSource, document_text, refuse_references
from tf_dist.client.launch import contract
from tf_dist.client.yaml_output import to_yaml
from tf_dist.core.api.job import Dialect
from tf_dist.core.dialects import StepOverrides, apply_step_overrides, dialect_of

# Label selectors over the object's fields (Argo Workflows 4.1, workflow/executor/resource.go): the step has failed as
# soon as one requirement of the failure holds, so each condition is one that lists every way to end.
_ENDS: Final = "status.tfDist.phase in (Failed,Terminated)"
_ENDS_VOLCANO: Final = "status.state.phase in (Failed,Aborted,Terminated)"
_SUCCESS: Final = "status.tfDist.phase == Completed"
_SUCCESS_VOLCANO: Final = "status.state.phase == Completed"
_WAY: Final = 'TFJobStep(drive="controller", overrides={"spec.…args[1]": Input("steps", int, text="--steps={}")}) can'


def tf_job_resource(
    job: JobSource,
    *,
    name: str,
    workers: int | None = None,
    ps: int | None = None,
    queue: str = "",
    priority_class: str = "",
    job_image: str = "",
    wait: bool = True,
    **resource: Any,
) -> Resource:
    """A step without an image of tf-dist: the job, created by Argo, driven by a controller (``tf-dist install``).

    ``wait``: until it has ended, else the step is over at once. Output: ``job``, its name. ``resource``: whatever a
    Hera resource template takes.

    What it cannot do, and ``TFJobStep`` can: show logs and progress, hand over outputs of a failed job, stop the job
    with the workflow (it goes when the workflow is deleted), go on with it at a retry (a retry makes another one).
    A suspended TFJob is waited for; a Volcano job that was aborted has failed. Nothing in it is the workflow's to fill
    in: Argo would put it into YAML.
    """
    for what, text in (("queue", queue), ("priority_class", priority_class), ("job_image", job_image)):
        refuse_references(what, text, _WAY)
    document = yaml.safe_load(document_text(job, way=_WAY))
    tailoring = StepOverrides(
        workers=workers,
        ps=ps,
        queue=queue,
        priority_class=priority_class,
        image=job_image,
        labels={contract.WORKFLOW_LABEL: "{{workflow.name}}"},
        tidy=True,
    )
    volcano = dialect_of(document) is Dialect.VOLCANO
    manifest = apply_step_overrides(document, tailoring)
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "generateName")}
    base = manifest["metadata"].get("generateName") or f"{manifest['metadata']['name']}-"
    labels = {**(metadata.get("labels") or {}), contract.WORKFLOW_UID: "{{workflow.uid}}"}
    manifest["metadata"] = {"generateName": base, **metadata, "labels": labels}
    outputs = [Parameter(name="job", value_from=m.ValueFrom(json_path="{.metadata.name}"))]
    return Resource(
        name=name,
        action="create",
        set_owner_reference=True,
        manifest=to_yaml(manifest),
        success_condition=(_SUCCESS_VOLCANO if volcano else _SUCCESS) if wait else None,
        failure_condition=(_ENDS_VOLCANO if volcano else _ENDS) if wait else None,
        outputs=[*outputs],
        **resource,
    )
