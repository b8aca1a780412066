"""The job of a step: its document and its name. The job is created, or adopted from an earlier try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.client.connection import Backoff, until_taken
from tf_dist.client.job_files import JobFiles, LoadedJob, load_documents, load_job_files, one_job
from tf_dist.client.monitor import ObjectsListed, SignalReceived, WatchingJobInformer
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.submission import create_job, job_resource
from tf_dist.client.yaml_files import YamlDocument
from tf_dist.cluster.api import PODS, Cluster
from tf_dist.cluster.signals import Signals
from tf_dist.core.dialects import apply_step_overrides, parse, suspend_patch
from tf_dist.core.dialects.common_schema import MAX_NAME
from tf_dist.core.model import names
from tf_dist.core.model.assignment import possible_replicas
from tf_dist.core.model.job import Dialect, Job
from tf_dist.core.model.overrides import Override, named_overrides
from tf_dist.core.pipeline.adoption import AdoptionAction, AdoptionDecision, decide_existing_job
from tf_dist.core.pipeline.inputs import input_overrides, listed_values, read_inputs
from tf_dist.errors import AlreadyExists, NotFound

_JOB: Final = "the job"
_HASH: Final = 8
_MAX_V1ALPHA1: Final = 40  # characters of a v1alpha1 job's name in the names of its pods


def step_document(options: LauncherOptions, home: str) -> tuple[LoadedJob, JobFiles]:
    """The job to create, and its companion objects. Raises InvalidFiles with all problems.

    ``home``: the namespace of the workflow, and the default namespace of the job. A job in another namespace gets no
    owner reference.
    """
    overrides = (*named_overrides(options.overrides or {}), *_filled_in(options))

    def change(content: Any) -> Any:
        return _changed(content, options, home)

    if isinstance(options.job, Mapping | list):
        given = options.job if isinstance(options.job, list) else [options.job]
        numbers = [None] if len(given) == 1 else range(1, len(given) + 1)
        documents = [YamlDocument(_JOB, number, one, None) for number, one in zip(numbers, given, strict=True)]
        bundle = load_documents(documents, overrides, change=change)
    else:
        texts = {} if options.job_file else {_JOB: str(options.job)}
        bundle = load_job_files([options.job_file or _JOB], overrides, texts=texts, change=change)
    return one_job(bundle), bundle


def _filled_in(options: LauncherOptions) -> tuple[Override, ...]:
    """The overrides that the workflow fills in. Raises InvalidJob."""
    inputs = read_inputs(options.inputs or [])
    listed = listed_values(options.parameters, {one.name for one in inputs})
    return input_overrides(inputs, {**listed, **(options.values or {})})


def _changed(content: Any, options: LauncherOptions, home: str) -> Any:
    job = parse(content, strict=False).job  # reports all problems of the original document before any change
    named = bool(options.workflow) and len(options.workflow) <= MAX_NAME
    labels = {contract.WORKFLOW_LABEL: options.workflow} if named else {}
    env = {contract.MODEL_DIR: options.model_dir} if options.model_dir else {}
    changes = options.changes(queue=options.queue_name, env=env, labels=labels, tidy=True)
    document = apply_step_overrides(content, changes)
    metadata: dict[str, Any] = dict(document["metadata"])
    policies = options.policies(has_fallbacks=bool(job.fallbacks))
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **policies, contract.NODE: options.node}
    if options.workflow_uid:
        metadata["labels"][contract.WORKFLOW_UID] = options.workflow_uid
        if home == (metadata.get("namespace") or options.namespace or home):
            metadata["ownerReferences"] = [*(metadata.get("ownerReferences") or ()), _owner(options)]
    if options.workflow_uid or (options.node and metadata.get("generateName")):
        metadata.pop("generateName", None)  # otherwise, no try would find the job of the previous try
        metadata["name"] = step_job_name(job, options.workflow_uid or options.workflow, options.node)
    return {**document, "metadata": metadata}


def step_job_name(job: Job, workflow_uid: str, node: str) -> str:
    """The name of the job of a step. ``node`` is the same for all tries of the step (``{{node.name}}``)."""
    base = job.key.name.removesuffix("xxxxx").rstrip("-")
    ending = max(len(names.replica_name(job, replica)) for replica in possible_replicas(job))
    ending -= len(job.key.name[:_MAX_V1ALPHA1] if job.dialect is Dialect.TFJOB_V1ALPHA1 else job.key.name)
    room = MAX_NAME - max(ending, 0) - _HASH - 1
    if job.dialect is Dialect.TFJOB_V1ALPHA1:
        room = min(room, _MAX_V1ALPHA1 - _HASH - 1)
    return f"{base[: max(room, 1)].rstrip('-')}-{names.short_hash(workflow_uid, node, length=_HASH)}"


def _owner(options: LauncherOptions) -> dict[str, Any]:
    """The owner: the workflow, not the launcher's pod. The job survives the pod, and is deleted with the workflow.

    ``blockOwnerDeletion`` is False, because True requires a permission with OwnerReferencesPermissionEnforcement.
    """
    return {
        "apiVersion": contract.WORKFLOWS.api_version,
        "kind": contract.WORKFLOWS.kind,
        "name": options.workflow,
        "uid": options.workflow_uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


class Interrupted(Exception):
    """A signal arrived before the job was created. ``number``: the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class StepJobs:
    """Finds, creates, adopts and replaces the job of a step by its name, for ``start_job``."""

    cluster: Cluster
    """The cluster."""
    entry: LoadedJob
    """The job to create."""
    namespace: str
    """Its namespace."""
    signals: Signals
    """Signals of this process."""
    say: Callable[[str], object]
    """Called with a line for each action."""
    reattach: bool = True
    """The job of an earlier try is continued."""
    workdir: str | None = ""
    """See ``create_job``."""
    archive: bytes = b""
    """The packed code."""

    def find(self) -> Sequence[StoredJob]:
        """The job with the name, if it exists. Raises AlreadyExists if it belongs to another step."""
        resource = job_resource(self.entry)
        try:
            found = StoredJob(resource, self.cluster.get(resource, self.namespace, self.entry.job.key.name))
        except NotFound:
            return ()
        if _step_of(found.stored["metadata"]) != _step_of(self.entry.document["metadata"]):
            raise AlreadyExists(
                f"there is a job {found.name} in namespace {self.namespace}, and it does not belong to this step",
                hint="give the job another metadata.name; in a workflow: workflow_uid={{workflow.uid}} "
                "node={{node.name}}, so that each step has its own",
            )
        return (found,)

    def decide(self, found: Sequence[StoredJob]) -> AdoptionDecision:
        """Decide by the table of adoption. A job that is being deleted is replaced."""
        if not found:
            return AdoptionDecision(AdoptionAction.CREATE)
        (job,) = found
        reported = contract.REPORTED in _annotations(job)
        deleting = job.stored["metadata"].get("deletionTimestamp")
        action = decide_existing_job(job.status, reported=reported, reattach=self.reattach)
        return AdoptionDecision(AdoptionAction.REPLACE if deleting else action, job.uid)

    def create(self) -> StoredJob:
        """Create the job."""
        return create_job(self.cluster, self.entry, self.namespace, workdir=self.workdir, archive=self.archive)

    def adopt(self, found: StoredJob) -> StoredJob:
        """Continue with the job. Resume it if an earlier try suspended it."""
        self.say(f"continues with {found.shown}, which an earlier try of this step created")
        if contract.STOPPED_BY not in _annotations(found):
            return found
        self.say(f"resumes {found.shown}, which that try suspended")
        patch = stop_patch(found, suspend=False)
        patched = self.cluster.patch(found.resource, found.namespace, found.name, patch)
        return StoredJob(found.resource, patched)

    def replace(self, found: StoredJob) -> None:
        """Delete the job, and wait until its pods are gone, because the new pods have the same names.

        Raises Interrupted if a signal arrives meanwhile.
        """
        why = "has ended" if found.status.finished else "is not continued"
        self.say(f"{found.shown} of an earlier try {why}: deletes it, and creates another")
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


def stop_patch(job: StoredJob, *, suspend: bool, by: str = "") -> dict[str, Any]:
    """The patch that suspends a job and records ``by`` as the cause, or that resumes it."""
    patch = suspend_patch(job.stored, suspend)
    metadata = patch.setdefault("metadata", {})
    metadata.setdefault("annotations", {})[contract.STOPPED_BY] = by if suspend else None
    return patch


def _step_of(metadata: Mapping[str, Any]) -> tuple[str | None, ...]:
    """The identity of a job's step: the uid of the workflow, or otherwise the arguments of the launcher."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if uid := labels.get(contract.WORKFLOW_UID):
        return (uid,)
    return labels.get(contract.WORKFLOW_UID), labels.get(contract.WORKFLOW_LABEL), annotations.get(contract.NODE)


def _annotations(found: StoredJob) -> Mapping[str, str]:
    return found.stored["metadata"].get("annotations") or {}
