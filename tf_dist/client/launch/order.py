"""The job of a step: the user's document, tailored, under a name that is the same at every try of the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tf_dist.client.bundle import Bundle, Entry, load, one_job
from tf_dist.client.launch import contract
from tf_dist.client.launch.arguments import Options
from tf_dist.core import names
from tf_dist.core.dialects import Tailoring, parse, tailored
from tf_dist.core.dialects.names import MAX
from tf_dist.core.inputs import input_overrides, listed_values, read_inputs
from tf_dist.core.model import Dialect, Job
from tf_dist.core.overrides import Override, parse_overrides
from tf_dist.core.sizes import largest

_GIVEN: Final = "--job"
_HASH: Final = 8
_MOST_V1ALPHA1: Final = (
    40  # of a v1alpha1 job's name so much is in its pods' names, and the rest must not be what differs
)


def order(options: Options, home: str) -> tuple[Entry, Bundle]:
    """The job to create, and all that its document holds. InvalidFiles with every problem.

    ``home``: the namespace of the workflow, where the job goes that names no other. Elsewhere it has no owner.
    """
    name = options.job_file or _GIVEN
    texts = {} if options.job_file else {_GIVEN: options.job}
    bundle = load([name], _overrides(options), texts=texts, change=lambda content: _changed(content, options, home))
    return one_job(bundle), bundle


def _overrides(options: Options) -> tuple[Override, ...]:
    """What is changed in the document, the workflow's values last; InvalidJob."""
    fixed = parse_overrides(options.changes, json=options.changes_json, strings=options.changes_text)
    inputs = [one for text in options.inputs for one in read_inputs(text)]
    values = listed_values(options.input_list, {one.name for one in inputs})
    for text in options.input_values:
        name, _, values[name] = text.partition("=")
    return (*fixed, *input_overrides(inputs, values))


def _changed(content: Any, options: Options, home: str) -> Any:
    job = parse(content).job  # all its problems are told in its own terms before anything is changed
    labels = _labels(options)
    tailoring = Tailoring(
        workers=options.workers,
        ps=options.ps,
        queue=options.queue,
        priority_class=options.priority_class,
        image=options.image,
        env={contract.MODEL_DIR: options.model_dir} if options.model_dir else {},
        labels=labels,
        tidy=True,
    )
    document = tailored(content, tailoring)
    return {**document, "metadata": _metadata(document["metadata"], job, options, home, labels)}


def _metadata(
    own: Mapping[str, Any], job: Job, options: Options, home: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    found: dict[str, Any] = {**own, "labels": {**(own.get("labels") or {}), **labels}}
    if not options.workflow_uid:
        return found
    found.pop("generateName", None)
    found["name"] = step_name(job, options.workflow_uid, options.node)
    found["labels"][contract.WORKFLOW_UID] = options.workflow_uid
    found["annotations"] = {**(own.get("annotations") or {}), contract.NODE: options.node}
    if home == (own.get("namespace") or options.namespace or home):
        found["ownerReferences"] = [*(own.get("ownerReferences") or ()), _owner(options)]
    return found


def step_name(job: Job, workflow_uid: str, node: str) -> str:
    """The job's name for one step of one workflow. ``node`` is the same for all tries of a step (``{{node.name}}``)."""
    base = job.key.name.removesuffix("xxxxx").rstrip("-")
    ending = max((len(names.replica_name(job, replica)) for replica in largest(job).replicas), default=0)
    ending -= len(job.key.name[:_MOST_V1ALPHA1] if job.dialect is Dialect.TFJOB_V1ALPHA1 else job.key.name)
    room = MAX - max(ending, 0) - _HASH - 1
    if job.dialect is Dialect.TFJOB_V1ALPHA1:
        room = min(room, _MOST_V1ALPHA1 - _HASH - 1)
    return f"{base[: max(room, 1)].rstrip('-')}-{names.short_hash(workflow_uid, node, length=_HASH)}"


def _labels(options: Options) -> dict[str, str]:
    named = bool(options.workflow) and len(options.workflow) <= MAX
    return {contract.WORKFLOW_LABEL: options.workflow} if named else {}


def _owner(options: Options) -> dict[str, Any]:
    """The workflow, and not the launcher's pod: the job survives this pod, and goes with the workflow.

    It blocks nothing: where OwnerReferencesPermissionEnforcement is on, that would need a right on the workflow.
    """
    return {
        "apiVersion": contract.WORKFLOWS.api_version,
        "kind": contract.WORKFLOWS.kind,
        "name": options.workflow,
        "uid": options.workflow_uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
