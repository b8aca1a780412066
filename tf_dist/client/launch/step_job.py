"""The job of a step: its document and deterministic name; created, or adopted from an earlier try of the step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tf_dist.client.connection import Backoff, until_taken
from tf_dist.client.job_files import JobFiles, LoadedJob, load_job_files, one_job
from tf_dist.client.launch import contract
from tf_dist.client.launch.launcher_arguments import LauncherOptions, option_name
from tf_dist.client.launch.step_suspension import stop_patch
from tf_dist.client.monitor import ObjectsListed, SignalReceived, WatchingJobInformer
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.submission import create_job, job_resource
from tf_dist.cluster.api import PODS, Cluster
from tf_dist.controller.observability.signals import Signals
from tf_dist.core.api import names
from tf_dist.core.api.assignment import largest_job
from tf_dist.core.api.fieldpath import parse_field_path
from tf_dist.core.api.job import Dialect, Job
from tf_dist.core.api.overrides import Override, parse_overrides, shorten_text
from tf_dist.core.dialects import StepOverrides, apply_step_overrides, parse, policy_annotations
from tf_dist.core.dialects.common_schema import MAX_NAME
from tf_dist.core.steps.adoption import ExistingJobAction, decide_existing_job
from tf_dist.core.steps.inputs import input_overrides, listed_values, read_inputs
from tf_dist.errors import AlreadyExists, Conflict, InvalidJob, NotFound, Problem

_LENGTH_FOR_GIVEN_NAME: Final = "--job"
_HASH: Final = 8
_MAX_V1ALPHA1: Final = (
    40  # of a v1alpha1 job's name so much is in its pods' names, and the rest must not be what differs
)


def step_document(options: LauncherOptions, home: str) -> tuple[LoadedJob, JobFiles]:
    """The job to create, and all that its document holds. InvalidFiles with every problem.

    ``home``: the namespace of the workflow, where the job goes that names no other. Elsewhere it has no owner.
    """
    name = options.job_file or _LENGTH_FOR_GIVEN_NAME
    texts = {} if options.job_file else {_LENGTH_FOR_GIVEN_NAME: options.job}
    bundle = load_job_files(
        [name], _overrides(options), texts=texts, change=lambda content: _changed(content, options, home)
    )
    return one_job(bundle), bundle


def _overrides(options: LauncherOptions) -> tuple[Override, ...]:
    """What is changed in the document, the workflow's values last; InvalidJob."""
    fixed = parse_overrides(options.changes, json=options.changes_json, strings=options.changes_text)
    listed = listed_overrides(options.overrides)
    inputs = [one for text in options.inputs for one in read_inputs(text)]
    values = listed_values(options.input_list, {one.name for one in inputs})
    for text in options.input_values:
        name, _, values[name] = text.partition("=")
    return (*fixed, *listed, *input_overrides(inputs, values))


_OVERRIDES: Final = 'write {"spec.runPolicy.backoffLimit": 3}'


def listed_overrides(text: str) -> tuple[Override, ...]:
    """The overrides of ``{PATH: VALUE}`` as JSON; InvalidJob with all that cannot be read. "" is none."""
    content = _json("--overrides", text, _OVERRIDES) if text else {}
    if not isinstance(content, Mapping):
        raise InvalidJob([Problem("--overrides", f"{shorten_text(text)} is no JSON object", _OVERRIDES)])
    found: list[Override] = []
    problems: list[Problem] = []
    for path, value in content.items():
        try:
            found.append(Override(parse_field_path(path), value))
        except ValueError as error:
            problems.append(Problem(f"--overrides: {shorten_text(path)}", str(error), _OVERRIDES))
    if problems:
        raise InvalidJob(problems)
    return tuple(found)


def _json(option: str, text: str, example: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJob([Problem(option, f"{shorten_text(text)} is no JSON: {error}", example)]) from None


def _changed(content: Any, options: LauncherOptions, home: str) -> Any:
    job = parse(content, strict=False).job  # all its problems are reported in its own terms before anything is changed
    labels = _labels(options)
    tailoring = StepOverrides(
        workers=options.workers,
        ps=options.ps,
        queue=options.queue,
        priority_class=options.priority_class,
        image=options.image,
        env={contract.MODEL_DIR: options.model_dir} if options.model_dir else {},
        labels=labels,
        tidy=True,
    )
    document = apply_step_overrides(content, tailoring)
    annotations = _policies(options, fallbacks=bool(job.fallbacks))
    return {**document, "metadata": _metadata(document["metadata"], job, options, home, labels, annotations)}


def _policies(options: LauncherOptions, *, fallbacks: bool) -> dict[str, str]:
    """The annotations that the policies of the step are. ``fallbacks``: the document has some of its own."""
    if not (options.fallback or options.on_eviction or options.on_preemption or fallbacks):
        return {}
    return policy_annotations(
        fallback=_json("--fallback", options.fallback, 'write [{"workers": 4}]') if options.fallback else None,
        on_eviction=options.on_eviction or None,
        on_preemption=options.on_preemption or None,
        admission_timeout=options.admission_timeout,
        has_fallbacks=fallbacks,
        spelling=option_name,
    )


def _metadata(
    own: Mapping[str, Any],
    job: Job,
    options: LauncherOptions,
    home: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, Any]:
    found: dict[str, Any] = {**own, "labels": {**(own.get("labels") or {}), **labels}}
    if annotations:
        found["annotations"] = {**(own.get("annotations") or {}), **annotations}
    found["annotations"] = {**(found.get("annotations") or {}), contract.NODE: options.node}
    if not options.workflow_uid:
        if options.node and found.pop("generateName", None):  # else no try would find the job of the one before
            found["name"] = step_job_name(job, options.workflow, options.node)
        return found
    found.pop("generateName", None)
    found["name"] = step_job_name(job, options.workflow_uid, options.node)
    found["labels"][contract.WORKFLOW_UID] = options.workflow_uid
    if home == (own.get("namespace") or options.namespace or home):
        found["ownerReferences"] = [*(own.get("ownerReferences") or ()), _owner(options)]
    return found


def step_job_name(job: Job, workflow_uid: str, node: str) -> str:
    """The job's name for one step of one workflow. ``node`` is the same for all tries of a step (``{{node.name}}``)."""
    base = job.key.name.removesuffix("xxxxx").rstrip("-")
    ending = max(len(names.replica_name(job, replica)) for replica in largest_job(job).replicas)
    ending -= len(job.key.name[:_MAX_V1ALPHA1] if job.dialect is Dialect.TFJOB_V1ALPHA1 else job.key.name)
    room = MAX_NAME - max(ending, 0) - _HASH - 1
    if job.dialect is Dialect.TFJOB_V1ALPHA1:
        room = min(room, _MAX_V1ALPHA1 - _HASH - 1)
    return f"{base[: max(room, 1)].rstrip('-')}-{names.short_hash(workflow_uid, node, length=_HASH)}"


def _labels(options: LauncherOptions) -> dict[str, str]:
    named = bool(options.workflow) and len(options.workflow) <= MAX_NAME
    return {contract.WORKFLOW_LABEL: options.workflow} if named else {}


def _owner(options: LauncherOptions) -> dict[str, Any]:
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


_ATTEMPTS: Final = 5


class Interrupted(Exception):
    """A signal came before the job was there; ``number``: which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class StepJobCreator:
    """``say`` gets what is done and why. ``reattach``: a job of an earlier try is gone on with."""

    cluster: Cluster
    entry: LoadedJob
    namespace: str
    signals: Signals
    say: Callable[[str], object]
    reattach: bool = True

    def place(self, workdir: str | None) -> StoredJob:
        """The job as it is there now. ``workdir``: of one that is created, see ``create_job``.

        AlreadyExists when another job has its name; Interrupted; ClusterError.
        """
        for _ in range(_ATTEMPTS):
            found = self._find()
            if found is None:
                return create_job(self.cluster, self.entry, self.namespace, workdir=workdir)
            self._require_ours(found)
            if not found.stored["metadata"].get("deletionTimestamp"):
                reported = contract.REPORTED in _annotations(found)
                action = decide_existing_job(found.status, reported=reported, reattach=self.reattach)
                if action is ExistingJobAction.JOIN:
                    return self._join(found)
            self._clear_away(found)
        raise Conflict(
            f"job {self.entry.job.key.name} comes again each time that it is deleted", hint="see who makes it"
        )

    def _find(self) -> StoredJob | None:
        resource = job_resource(self.entry)
        try:
            return StoredJob(resource, self.cluster.get(resource, self.namespace, self.entry.job.key.name))
        except NotFound:
            return None

    def _require_ours(self, found: StoredJob) -> None:
        if _step_of(found.stored["metadata"]) != _step_of(self.entry.document["metadata"]):
            raise AlreadyExists(
                f"there is a job {found.name} in namespace {self.namespace}, and it is not this step's",
                hint="give the job another metadata.name; in a workflow: --workflow-uid={{workflow.uid}} "
                "--node={{node.name}}, so that each step has its own",
            )

    def _join(self, found: StoredJob) -> StoredJob:
        self.say(f"goes on with {found.shown}, which an earlier try of this step has made")
        if contract.STOPPED_BY not in _annotations(found):
            return found
        self.say(f"resumes {found.shown}, which that try had suspended")
        patch = stop_patch(found, suspend=False)
        patched = self.cluster.patch(found.resource, found.namespace, found.name, patch)
        return StoredJob(found.resource, patched)

    def _clear_away(self, found: StoredJob) -> None:
        """Delete it, and wait until it and its pods are gone: a new one has pods of the same names."""
        why = "has ended" if found.status.finished else "is not gone on with"
        self.say(f"{found.shown} of an earlier try {why}: deletes it, and starts anew")
        request = partial(self.cluster.delete, found.resource, found.namespace, found.name, uid=found.uid)
        until_taken(request, Backoff())
        with WatchingJobInformer(self.cluster, found) as watch:
            self.signals.listen(lambda number: watch.put(SignalReceived(number)))
            listed = False
            while watch.job is not None or watch.pods or not listed:
                for item in watch.take():
                    listed = listed or (isinstance(item, ObjectsListed) and item.resource is PODS)
                    if isinstance(item, SignalReceived):
                        raise Interrupted(item.number)


def _step_of(metadata: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Which step a job was made for: the workflow's uid says it, or, without one, what the launcher was told of it."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if uid := labels.get(contract.WORKFLOW_UID):
        return (uid,)
    return labels.get(contract.WORKFLOW_UID), labels.get(contract.WORKFLOW_LABEL), annotations.get(contract.NODE)


def _annotations(found: StoredJob) -> Mapping[str, str]:
    return found.stored["metadata"].get("annotations") or {}
