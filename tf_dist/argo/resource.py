"""A job as a resource template of Argo. A controller in the cluster runs the job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hera.workflows import Parameter, Resource
from hera.workflows import models as m

from tf_dist.argo.arguments import is_lone_reference, merged, reference_problems, reference_text, value_problems
from tf_dist.argo.job_source import JobSource, code_folder_of, has_fallbacks, job_documents, named_job
from tf_dist.argo.launcher import contract
from tf_dist.argo.step_arguments import ROWS
from tf_dist.client.yaml_files import to_yaml
from tf_dist.core.dialects import StepOverrides, apply_step_overrides, dialect_of, parse, policy_annotations
from tf_dist.core.dialects.code_folder import packages_of
from tf_dist.core.dialects.common_annotations import with_startup_timeout
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.timestamps import duration_text
from tf_dist.core.pipeline.run_options import SWITCH
from tf_dist.errors import InvalidJob, Problem

# Label selectors over the fields of the object (Argo Workflows 4.1, workflow/executor/resource.go). The step fails as
# soon as one requirement of the failure condition holds, so a condition is a single requirement with all its states.
_ENDS: Final = "status.tfDist.phase in (Failed,Terminated)"
_ENDS_VOLCANO: Final = "status.state.phase in (Failed,Aborted,Terminated)"
_SUCCESS: Final = "status.tfDist.phase == Completed"
_SUCCESS_VOLCANO: Final = "status.state.phase == Completed"
_OVER: Final = "status.tfDist.phase in (Completed,Failed,Terminated)"
_OVER_VOLCANO: Final = "status.state.phase in (Completed,Failed,Aborted,Terminated)"
_CONDITIONS: Final = {False: (_SUCCESS, _OVER, _ENDS), True: (_SUCCESS_VOLCANO, _OVER_VOLCANO, _ENDS_VOLCANO)}
# Output parameters, and their paths in the object after the end of the job.
_OUTCOME: Final = {
    "outcome": "{.status.tfDist.outcome.kind}",
    "reason": "{.status.tfDist.outcome.reason}",
    "replica": "{.status.tfDist.outcome.replica}",
    "exit-code": "{.status.tfDist.outcome.exitCode}",
    "restarts": "{.status.tfDist.outcome.restarts}",
    "disruptions": "{.status.tfDist.outcome.disruptions}",
    "preemptions": "{.status.tfDist.outcome.preemptions}",
    "fallback": "{.status.tfDist.outcome.fallback}",
    "gpu-seconds": "{.status.tfDist.outcome.gpuSeconds}",
    "lost-gpu-seconds": "{.status.tfDist.outcome.lostGpuSeconds}",
    "goodput": "{.status.tfDist.outcome.goodput}",
}
_WAY: Final = 'TFJobStep(driver="controller", overrides={"spec.…args[1]": Input("steps", int, text="--steps={}")}) can'


def tf_job_resource(
    job: JobSource,
    *,
    name: str,
    workers: int | None = None,
    ps: int | None = None,
    queue_name: str | Parameter = "",
    priority_class: str | Parameter = "",
    job_image: str | Parameter = "",
    admission_timeout: str | int | None = None,
    fallback: Sequence[Mapping[str, Any]] | None = None,
    on_eviction: str | None = None,
    on_preemption: str | None = None,
    startup_timeout: str | int | None = contract.STARTUP_TIMEOUT,
    wait: bool = True,
    fail_with_job: bool = True,
    **resource: Any,
) -> Resource:
    """A step without an image of tf-dist: Argo creates the job, and a controller (``tf-dist install``) runs it.

    The outputs are ``job``, its name, and after the wait ``outcome``, ``reason``, ``replica``, ``exit-code``,
    ``restarts``, ``disruptions``, ``preemptions``, ``fallback``, ``gpu-seconds``, ``lost-gpu-seconds`` and
    ``goodput``. Other arguments are those of a Hera resource template. InvalidJob lists all problems of the arguments.

    Unlike ``TFJobStep``, the step shows no logs and no progress. The job does not stop when the workflow stops, but is
    deleted with the workflow. A retry creates another job. The step waits for a suspended TFJob, and fails for an
    aborted Volcano job. Only ``queue_name``, ``priority_class`` and ``job_image`` may be a ``Parameter`` or ``{{…}}``,
    because Argo would fill in other fields as YAML.

    :param job: See ``TFJobStep``. Companion objects and ``code`` are refused.
    :param name: The name of the template.
    :param admission_timeout: Seconds, or ``10m``, without admission after which ``fallback`` is tried. The step itself
        waits for admission without a limit.
    :param startup_timeout: The job fails if it does not run within this time after its admission. The annotation
        ``tf-dist.dev/startup-timeout`` of its document has precedence. None: no limit.
    :param wait: Wait for the end of the job.
    :param fail_with_job: The step fails if the job fails. Argo does not pass on the outputs of a failed resource step.
        False: the step succeeds, and the next step can branch on ``outcome``.
    """
    texts = {"queue_name": queue_name, "priority_class": priority_class, "job_image": job_image}
    values = {"workers": workers, "ps": ps, "admission_timeout": admission_timeout, "startup_timeout": startup_timeout}
    _check(texts, {**values, "wait": wait, "fail_with_job": fail_with_job})
    limit = duration_text(startup_timeout) or ""
    job = named_job(job, name)
    documents = job_documents(job, way=_WAY)
    if len(documents) > 1:
        hint = "apply the companion objects separately, or use TFJobStep"
        raise InvalidJob([Problem("job", "a resource step creates one object", hint)])
    if code_folder_of(job):
        hint = "use TFJobStep, which sends it, or put the code into the image"
        raise InvalidJob([Problem("job", "a resource step cannot send its code, because it creates one object", hint)])
    if packages_of(documents[0]):
        hint = "use TFJobStep, which has each pod install them, or put the packages into the image"
        raise InvalidJob([Problem("job", "a resource step cannot install packages", hint)])
    document = with_startup_timeout(documents[0], limit)
    filled = _FilledIn()
    tailoring = StepOverrides(
        workers=workers,
        ps=ps,
        queue=filled.stand_in(queue_name),
        priority_class=filled.stand_in(priority_class),
        image=filled.stand_in(job_image),
        labels={contract.WORKFLOW_LABEL: "{{workflow.name}}"},
        tidy=True,
    )
    volcano = dialect_of(document) is Dialect.VOLCANO
    manifest = apply_step_overrides(document, tailoring)
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "generateName")}
    base = manifest["metadata"].get("generateName") or f"{manifest['metadata']['name']}-"
    policies = policy_annotations(
        fallback=fallback,
        on_eviction=on_eviction,
        on_preemption=on_preemption,
        admission_timeout=admission_timeout,
        has_fallbacks=has_fallbacks(job),
    )
    way = "write the value itself: it becomes a part of the job"
    problems = [one for key, value in policies.items() for one in reference_problems(key, value, way)]
    if problems:
        raise InvalidJob(problems)
    if policies:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **policies}
    labels = {**(metadata.get("labels") or {}), contract.WORKFLOW_UID: "{{workflow.uid}}"}
    manifest["metadata"] = {"generateName": base, **metadata, "labels": labels}
    # Check without the labels of the pods: Argo fills in their value, and the reference itself is not a valid label.
    checked = apply_step_overrides(document, replace(tailoring, labels={}))
    parse({**checked, "metadata": manifest["metadata"]}, strict=False)
    paths = {"job": "{.metadata.name}", **(_OUTCOME if wait else {})}
    outputs = [Parameter(name=name, value_from=m.ValueFrom(json_path=path)) for name, path in paths.items()]
    reached, over, missed = _CONDITIONS[volcano]
    return Resource(
        name=name,
        action="create",
        set_owner_reference=True,
        manifest=filled.into(to_yaml(manifest)),
        success_condition=(reached if fail_with_job else over) if wait else None,
        failure_condition=missed if wait and fail_with_job else None,
        inputs=merged(filled.parameters, resource.pop("inputs", None)) or None,
        outputs=merged(outputs, resource.pop("outputs", None)),
        **resource,
    )


def _check(texts: Mapping[str, Any], values: Mapping[str, object]) -> None:
    problems: list[Problem] = []
    for what, given in texts.items():
        problems += value_problems(what, given, ROWS[what])
        text = reference_text(given)
        if not is_lone_reference(text):
            problems += reference_problems(what, str(text or ""), "write one {{…}} and nothing else")
        elif not _NAMED.fullmatch(text):
            problems.append(Problem(what, f"{text} contains more than a name", "write {{inputs.parameters.NAME}}"))
    for name, value in values.items():
        row = ROWS.get(name)  # Argo does not fill in these values
        problems += row.problems(value, lambda _: False) if row else SWITCH.problems(name, value, lambda _: False)
    if problems:
        raise InvalidJob(problems)


_NAMED: Final = re.compile(r"\{\{((?:inputs|workflow)(?:\.[A-Za-z]\w*)*?)\.([-\w]+)\}\}", re.ASCII)


class _FilledIn:
    """Texts of the manifest that the workflow fills in as JSON, so that they remain texts.

    ``parameters``: the input parameters that the step needs for these texts.
    """

    def __init__(self) -> None:
        self._expressions: dict[str, str] = {}
        self.parameters: list[Parameter] = []

    def stand_in(self, given: str | Parameter) -> str:
        """A placeholder that is valid as a name and as an image. ``into`` replaces it."""
        text = str(reference_text(given) or "")
        if not is_lone_reference(text):
            return text
        if isinstance(given, Parameter) and text != given.value:
            self.parameters.append(given)
        name = f"tf-dist-filled-in-{len(self._expressions)}"
        self._expressions[name] = _NAMED.sub(r"{{=toJson(\1['\2'])}}", text)
        return name

    def into(self, manifest: str) -> str:
        """The manifest, with the placeholders replaced by the references."""
        for name, expression in self._expressions.items():
            place = re.compile(rf"(?m)(?<=: ){name}$|(?<=- ){name}$")
            manifest = expression.join(place.split(manifest))
        return manifest
