"""The last accepted spec of a job, which stays in force after an invalid edit.

While the current spec is accepted, the status contains its generation and digest. A refused edit replaces the accepted
spec in the document, so the controller writes the previous version into the status together with the refusal. If no
controller ran at the time of the edit, the accepted spec is lost, and pods are not changed until the spec is corrected.
If a job has never had a valid spec (``kubectl apply`` without validation), the controller only writes the error into
the status (``plan_for_invalid_spec``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tf_dist.core.dialects import as_written, parse, read, update_problems
from tf_dist.core.dialects.common_schema import SERVICES_ANNOTATION, SUSPEND_ANNOTATION
from tf_dist.core.dialects.field_errors import PROBLEM_LIMIT
from tf_dist.core.dialects.volcano_annotations import SLA
from tf_dist.core.model import names
from tf_dist.core.model.context import Action, Delete, DeleteJob, Plan, WriteStatus
from tf_dist.core.model.fieldpath import list_items, mapping, number, updated, value_at
from tf_dist.core.model.job import CleanPodPolicy, Document, Job
from tf_dist.core.model.pods import PodView
from tf_dist.core.model.reasons import reason_row
from tf_dist.core.model.status import AcceptedSpec, RefusedSpec, Status, display_phase
from tf_dist.core.model.status_codec import FIELD, dump_status, stored_status
from tf_dist.core.model.timestamps import format_time, round_time
from tf_dist.core.reconciler.job_context import with_accepted_spec
from tf_dist.core.reconciler.job_events import spec_events
from tf_dist.core.reconciler.status_writer import SPEC_ACCEPTED, spec_condition
from tf_dist.errors import InvalidJob

# In addition to the spec, these annotations and labels define a job. The other annotations of tf-dist are commands and
# marks. Their current values always apply.
_KEYS: Final = frozenset(
    {
        names.MIN_WORKERS,
        names.MAX_WORKERS,
        names.TOPOLOGY,
        names.TOPOLOGY_REQUIRED,
        names.MAX_DISRUPTIONS,
        names.FALLBACK,
        names.ADMISSION_TIMEOUT,
        names.ON_EVICTION,
        names.ON_PREEMPTION,
        names.RECOVERY_TIMEOUT,
        names.STARTUP_TIMEOUT,
        names.EXPECTED_DURATION,
        names.GANG_SCHEDULER,
        names.QUEUE,
        names.WORKDIR,
        SERVICES_ANNOTATION,
        *SLA,
    }
)
_PREFIXES: Final = ("volcano.sh/", "scheduling.volcano.sh/", "kueue.x-k8s.io/")
# The maximum size of an accepted spec in a status, in characters of JSON: Kubernetes' limit for annotations. The whole
# object must stay below etcd's limit of 1.5 MiB.
_MOST_TEXT: Final = 262_144
_MOST_MESSAGE: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSpec:
    """The job in force of a stored job, or None; its accepted spec; and the current spec if it is refused."""

    job: Job | None
    accepted: AcceptedSpec | None = None
    refused: RefusedSpec | None = None
    problem: InvalidJob | None = None


def read_stored_spec(
    stored: Document, status: Status, previous: tuple[Document, StoredSpec] | None = None
) -> StoredSpec:
    """The job of ``stored``, or the last accepted job.

    ``previous``: the previously read version of this job, and its result.
    """
    generation = number(value_at(stored, "metadata", "generation")) or 0
    before = _last_accepted(status.accepted_spec, previous)
    runtime_id = _left_out_runtime_id(stored, before)
    if runtime_id:
        stored = {**stored, "spec": {**mapping(stored.get("spec")), **runtime_id}}
    try:
        job = read(stored)
        if runtime_id:
            job = replace(job, spec_defaults=runtime_id)  # the controller writes it again
        digest = _digest(_source(stored, job.spec_defaults))
        if before is not None and before.document and before.digest != digest:
            problems = update_problems(before.document, stored)
            if problems:
                raise InvalidJob(problems)
    except InvalidJob as first:
        problem = all_problems(stored, first)
        message = "; ".join(map(str, problem.problems))[:_MOST_MESSAGE]
        refused = RefusedSpec(generation=generation, digest=_digest(_source(stored)), message=message)
        return StoredSpec(job=_in_force(stored, before), accepted=before, refused=refused, problem=problem)
    if before is not None and before.digest == digest:
        return StoredSpec(job=job, accepted=updated(before, generation=generation, document={}))
    return StoredSpec(job=job, accepted=AcceptedSpec(generation=generation, digest=digest, runtime_id=job.runtime_id))


def _last_accepted(stored: AcceptedSpec | None, previous: tuple[Document, StoredSpec] | None) -> AcceptedSpec | None:
    """The last accepted spec, with its document if the status or the previous version has it."""
    if stored is None or previous is None:
        return stored
    document, reading = previous
    accepted = reading.accepted
    if accepted is None or accepted.generation < stored.generation:
        return stored  # another controller has accepted a later spec
    if reading.refused is None and reading.job is not None:
        said = _source(document, reading.job.spec_defaults)
        accepted = replace(accepted, document=json.loads(said) if len(said) <= _MOST_TEXT else {})
    return accepted if accepted.document else stored


def _left_out_runtime_id(stored: Document, before: AcceptedSpec | None) -> dict[str, Any]:
    """The RuntimeId of a v1alpha1 job that has lost it: a controller wrote it, and `kubectl replace` removed it.

    It must not change, because the names of the job's pods and services contain it.
    """
    spec = mapping(stored.get("spec"))
    if before is None or spec.get("RuntimeId") or not isinstance(spec.get("replicaSpecs"), list):
        return {}
    return {"RuntimeId": before.runtime_id} if before.runtime_id else {}


def unknown_keys(stored: Document) -> str:
    """The unknown keys of a stored job, each with the most similar known key. Several times as slow as ``read``."""
    try:
        warnings = parse(as_written(stored), strict=False, limit=PROBLEM_LIMIT).warnings
    except InvalidJob:
        return ""  # the controller is less strict than the checks of files: it reads only parts of pod templates
    return "; ".join(str(one) for one in warnings if one.message.startswith("unknown key"))[:_MOST_MESSAGE]


def all_problems(stored: Document, first: InvalidJob) -> InvalidJob:
    """The problems of an invalid document, from the parser of files, up to a limit."""
    try:
        parse(as_written(stored), strict=False, limit=PROBLEM_LIMIT)
    except InvalidJob as every:
        return every
    return first


def _source(stored: Document, defaults: Mapping[str, Any] | None = None) -> str:
    """The parts of the document that define the job, in a canonical form, without fields that a controller writes."""
    metadata = mapping(stored.get("metadata"))
    parts = {
        key: {name: value for name, value in mapping(metadata.get(key)).items() if _is_of_spec(name)}
        for key in ("annotations", "labels")
    }
    spec = {**mapping(stored.get("spec")), **defaults} if defaults else stored.get("spec")
    return json.dumps({"spec": spec, **parts}, sort_keys=True, separators=(",", ":"))


def _is_of_spec(key: object) -> bool:
    return isinstance(key, str) and (key in _KEYS or key.startswith(_PREFIXES))


def _digest(said: str) -> str:
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _in_force(stored: Document, accepted: AcceptedSpec | None) -> Job | None:
    """The last accepted job; None if no spec was accepted, it was not kept, or it can no longer be read.

    Suspension is not part of it: a job is suspended even if the rest of the edit is invalid.
    """
    if accepted is None or not accepted.document:
        return None
    metadata = mapping(stored.get("metadata"))
    present = {key: mapping(metadata.get(key)) for key in ("annotations", "labels")}
    merged = {
        key: {name: value for name, value in pairs.items() if isinstance(value, str) and not _is_of_spec(name)}
        | dict(mapping(accepted.document.get(key)))
        for key, pairs in present.items()
    }
    if value_at(stored, "spec", "runPolicy", "suspend") is True:
        merged["annotations"] |= {SUSPEND_ANNOTATION: "true"}
    try:
        return read({**stored, "metadata": {**metadata, **merged}, "spec": accepted.document.get("spec")})
    except InvalidJob:
        return None


def plan_for_invalid_spec(
    document: Document, before: Status, refused: RefusedSpec, now: float, pods: Iterable[PodView] = ()
) -> Plan:
    """The plan for a job without any valid spec: its status contains the error, and its pods are not changed.

    The status names no controller, because a controller of another release may be able to parse the spec. If the job
    has ended, its ``pods`` are deleted, and later the job, by the fields of its spec that can be read.
    """
    if "deletionTimestamp" in mapping(document.get("metadata")):
        return Plan(before)
    now = round_time(now)
    if before.finished:
        return _after_its_end(mapping(document.get("spec")), before, now, pods)
    after = with_accepted_spec(replace(before, since=now if before.since is None else before.since), None, refused)
    if after == before:
        return Plan(before)
    return Plan(after, (WriteStatus(_held(document, after, now)), *spec_events(before, after, "")))


def _after_its_end(spec: Document, status: Status, now: float, pods: Iterable[PodView]) -> Plan:
    policy = {**spec, **mapping(spec.get("runPolicy"))}
    clean = policy.get("cleanPodPolicy") or policy.get("cleanupPodPolicy")
    if clean is None and "tfReplicaSpecs" in spec:
        clean = CleanPodPolicy.NONE.value  # the default of this format
    kept = clean == CleanPodPolicy.NONE.value and not reason_row(status.reason).cuts_pods_short
    actions: list[Action] = [
        Delete("Pod", pod.name, pod.uid)
        for pod in (() if kept else pods)
        if not pod.deleting and (clean == CleanPodPolicy.ALL.value or not pod.finished)
    ]
    ttl = number(policy.get("ttlSecondsAfterFinished"))
    if ttl is None or ttl < 0 or status.completion_time is None:
        return Plan(status, tuple(actions))
    expires = round_time(status.completion_time + ttl)
    if expires <= now:
        return Plan(status, (*actions, DeleteJob()))
    return Plan(status, tuple(actions), expires)


def _held(document: Document, status: Status, now: float) -> dict[str, Any]:
    stored, spec = stored_status(document), mapping(document.get("spec"))
    shown = mapping(stored.get(FIELD))
    kept = {key: shown.get(key, "") for key in ("ready", "selector")}
    memory = {**dump_status(status), **kept, "state": display_phase(status), "why": status.display_reason}
    return {**stored, **_shown(document.get("kind"), spec, stored, status, now), FIELD: memory}


def _shown(kind: object, spec: Document, stored: Document, status: Status, now: float) -> dict[str, Any]:
    if kind == "Job":
        fresh = {"phase": status.phase.value, "lastTransitionTime": format_time(now)}
        words = {"reason": status.display_reason, "message": status.display_message}
        return {"state": {**fresh, **mapping(stored.get("state")), **words}}
    listed = [dict(one) for one in list_items(stored.get("conditions")) if isinstance(one, Mapping)]
    before = next((one for one in listed if one.get("type") == SPEC_ACCEPTED), None)
    others = [one for one in listed if one.get("type") != SPEC_ACCEPTED]
    conditions = {"conditions": [*spec_condition(status, before, now), *others]}
    if isinstance(spec.get("replicaSpecs"), list):
        begins = {"phase": "Creating", "state": "Running", "replicaStatuses": []}
        return {**begins, **stored, "reason": status.display_message, **conditions}
    return {"replicaStatuses": {}, **stored, **conditions}
