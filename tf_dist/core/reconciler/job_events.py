"""The Kubernetes Events of a job that a pass records, from the status before and after the pass.

Events that the training operator also has for ``kubeflow.org/v1`` TFJobs use the operator's texts (``phase_text``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tf_dist.core.dialects.volcano_annotations import unused_annotations
from tf_dist.core.integrations.dispatch import names_idle_scheduler
from tf_dist.core.model.context import Create, Delete, EmitEvent, ReconcileContext
from tf_dist.core.model.fieldpath import mapping
from tf_dist.core.model.job import Dialect, Job
from tf_dist.core.model.pods import PodPhase, exit_text, held_text
from tf_dist.core.model.reasons import Reason, reason_row
from tf_dist.core.model.status import LIVE, NO_PODS, STOPPED, SUCCESSFUL, Phase, Status
from tf_dist.core.reconciler.status_writer import phase_text, resumed_text

_STARTED_AT_ONCE: Final = frozenset({"", Reason.JOB_CREATED, Reason.RESUMED})

# Reasons for which the training operator has its own event with the same content.
_SAID_BY_OPERATOR: Final = frozenset({Reason.JOB_SUCCEEDED, Reason.SUSPENDED, Reason.RESUMED})
_FAILED: Final = frozenset({Phase.FAILED, Phase.TERMINATING, Phase.TERMINATED})
_ENDS: Final = (
    (STOPPED, Reason.TFJOB_SUSPENDED),
    (SUCCESSFUL, Reason.TFJOB_SUCCEEDED),
    (_FAILED, Reason.TFJOB_FAILED),
)


def job_events(s: ReconcileContext) -> Iterator[EmitEvent]:
    """The events of changes since the start of the pass. Later passes do not repeat them."""
    before = s.before
    if _deserves_event(s.job, before, s.status):
        type_ = "Warning" if s.status.phase in _FAILED else reason_row(s.status.reason).event_type
        yield EmitEvent(type_, s.status.reason, s.status.message)
    yield from _node_events(s)
    if s.job.dialect is Dialect.TFJOB_V1:
        yield from _exit_events(before, s)
        yield from _waiting_events(before, s)
        yield from _phase_events(before, s)
    yield from _container_events(before, s)


def _event(reason: Reason, message: str, *, routine: bool = False) -> EmitEvent:
    return EmitEvent(reason.row.event_type, reason, message, routine=routine)


def _node_events(s: ReconcileContext) -> Iterator[EmitEvent]:
    """The event of a gang that keeps its size and gets other nodes, or none, for some of its pods."""
    old, new, verdict = s.before.admission, s.status.admission, s.standing_resize
    if verdict is None or old is None or new is None or old.admitted_sizes != new.admitted_sizes:
        return
    if verdict.message and new.placement == verdict.placement != old.placement:
        yield _event(Reason.NODES_REASSIGNED, verdict.message)


def _deserves_event(job: Job, before: Status, after: Status) -> bool:
    """Whether a Kubernetes Event is recorded. Expected transitions are only in the conditions."""
    if job.dialect is Dialect.TFJOB_V1 and after.reason in _SAID_BY_OPERATOR:
        return False
    resized = after.reason == Reason.RESIZED and after.message != before.message
    same = (after.reason, after.attempts) == (before.reason, before.attempts) and not resized
    if same or not reason_row(after.reason).is_event:
        return False
    return after.reason != Reason.ADMITTED or before.reason not in _STARTED_AT_ONCE


def document_notes(s: ReconcileContext) -> Iterator[EmitEvent]:
    """Warnings about an accepted document, recorded once; ``validate`` also prints them."""
    if s.integration is not None:
        return
    job = s.requested_job
    templates = [spec.template for spec in job.replica_specs] if job.dialect is Dialect.VOLCANO else []
    job_level = {"spec": {"schedulerName": job.scheduling.scheduler_name}}
    unused = [key for _, key in unused_annotations(job.annotations, templates)] if templates else []
    if unused:
        message = f"tf-dist does not use {', '.join(unused)}: tf-dist validate explains each of them"
        yield _event(Reason.ANNOTATIONS_NOT_USED, message[:1000])
    if any(names_idle_scheduler(job, mapping(one.get("spec"))) for one in (job_level, *templates)):
        message = (
            "tf-dist decides where the pods go, so they are left to the cluster's default scheduler, not to volcano"
        )
        yield _event(Reason.SCHEDULER_NAME_NOT_USED, message)


def spec_events(before: Status, after: Status, unknown_keys: str) -> Iterator[EmitEvent]:
    """The events about a spec: refused (once for each spec), accepted again, accepted with unknown keys."""
    if unknown_keys and after.accepted_spec is not None and after.accepted_spec != before.accepted_spec:
        yield _event(Reason.UNKNOWN_FIELDS, f"unknown fields of the spec, which are not used: {unknown_keys}")
    if after.refusal and after.refused_spec != before.refused_spec:
        yield _event(Reason.INVALID_SPEC, after.refusal)
    elif before.refusal and after.refused_spec is None:
        yield _event(Reason.SPEC_ACCEPTED, "the spec is accepted again")


def _container_events(before: Status, s: ReconcileContext) -> Iterator[EmitEvent]:
    """An Event for each replica type with a container that the kubelet has restarted in its pod since ``before``."""
    after, pods = s.status, s.facts.current.values()
    if after.phase not in LIVE or after.attempts != before.attempts:
        return
    for type_, counts in after.counts.items():
        if counts.restarts <= before.counts.get(type_, NO_PODS).restarts:
            continue
        ended = ((pod, pod.last_exit) for pod in pods if pod.last_exit and pod.replica.type == type_)
        latest = max(ended, key=lambda one: (one[1].finished_at or 0.0, one[0].replica), default=None)
        if latest is not None:
            pod, exit_ = latest
            text = f"{pod.replica} {exit_text(exit_)}; its container was restarted in its pod (restart {pod.restarts})"
            yield _event(Reason.CONTAINER_RESTARTED, text, routine=True)


def _exit_events(before: Status, s: ReconcileContext) -> Iterator[EmitEvent]:
    """The events of pods that have ended since ``before``. The pods of a stopped job have no such events."""
    if before.phase not in LIVE:
        return
    ended = [
        (pod, pod.exit.code)
        for pod in s.observed.pods
        if pod.finished and not pod.deleting and pod.exit is not None and pod.exit.code is not None
        if not pod.exit.container
        if pod.replica not in before.succeeded and pod.attempt == before.attempts.label(pod.replica)
    ]
    failed = Counter(pod.replica.type for pod, _ in ended if pod.phase is PodPhase.FAILED)
    for pod, code in ended:
        type_ = pod.replica.type
        if pod.phase is PodPhase.SUCCEEDED or failed[type_] > before.counts.get(type_, NO_PODS).failed:
            text = f"Pod: {s.job.key.namespace}.{pod.name} exited with code {code}"
            yield _event(Reason.EXITED_WITH_CODE, text, routine=True)


def _waiting_events(before: Status, s: ReconcileContext) -> Iterator[EmitEvent]:
    """The events of containers that the kubelet cannot start, when the job's message starts to report it."""
    after = s.status
    held = [pod for pod in s.observed.pods if pod.held_by and pod.attempt == after.attempts.label(pod.replica)]
    if not held or after.phase not in LIVE:
        return
    said = held_text(sorted(held, key=lambda pod: pod.replica))
    if said not in after.message or said in before.message:
        return
    for pod in held:
        spec, (reason, message) = s.job.spec(pod.replica.type), pod.waiting or ("", "")
        name, found, rest = message.removeprefix("container ").partition(": ")
        if not (found and message.startswith("container ")):  # otherwise, the message names another container
            name, rest = spec.container if spec else "", message
        if rest:
            text = f"Error pod {pod.name} container {name} waiting message: {rest}"
            yield EmitEvent("Warning", reason, text, routine=True)


def _phase_events(before: Status, s: ReconcileContext) -> Iterator[EmitEvent]:
    job, after = s.job, s.status
    if before.phase in STOPPED and after.phase in LIVE:
        yield _event(Reason.TFJOB_RESUMED, resumed_text(job))
    if after.phase is Phase.RESTARTING and after.attempts != before.attempts:
        yield _event(Reason.TFJOB_RESTARTING, phase_text(job, after, after.phase))
    for phases, reason in _ENDS if before.phase in LIVE else ():
        if after.phase in phases:
            yield _event(reason, phase_text(job, after, after.phase))
    if before.created is None and after.created is not None:
        pods = [spec.pod_spec for spec in s.job.replica_specs]
        if any(pod.get("restartPolicy") for pod in pods):
            text = "Restart policy in pod template will be overwritten by restart policy in replica spec"
            yield _event(Reason.SET_POD_TEMPLATE_RESTART_POLICY, text)
        ours = s.integration.scheduler_name if s.integration is not None else ""
        if ours and any(pod.get("schedulerName") not in (None, "", ours) for pod in pods):
            text = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
            yield _event(Reason.SET_POD_TEMPLATE_SCHEDULER_NAME, text)


def object_event(api_version: str, action: Create | Delete, error: Exception | None = None) -> EmitEvent | None:
    """The operator's event about a created or deleted pod or service of a TFJob v1, or about the error; else None."""
    kind = action.body["kind"] if isinstance(action, Create) else action.kind
    if api_version != Dialect.TFJOB_V1.value or kind not in ("Pod", "Service"):
        return None
    verb = "Create" if isinstance(action, Create) else "Delete"
    if error is not None:
        doing = "creating" if isinstance(action, Create) else "deleting"
        return EmitEvent("Warning", f"Failed{verb}{kind}", f"Error {doing}: {error}", routine=True)
    name = action.body["metadata"]["name"] if isinstance(action, Create) else action.name
    return EmitEvent("Normal", f"Successful{verb}{kind}", f"{verb}d {kind.lower()}: {name}", routine=True)


def combined_events(events: Iterable[EmitEvent]) -> list[EmitEvent]:
    """The events of a pass. Routine events of the same type and reason are combined into one event, which counts them.

    ``Created pod: a`` and ``Created pod: b`` become ``Created pod: a, b``, in a single write.
    """
    groups: dict[object, list[EmitEvent]] = {}
    for event in events:
        groups.setdefault((event.type, event.reason) if event.routine else event, []).append(event)
    return [same[0] if len(same) == 1 else _combined(same) for same in groups.values()]


def _combined(same: Sequence[EmitEvent]) -> EmitEvent:
    parts = [event.message.partition(": ") for event in same]
    if all(mark and head == parts[0][0] for head, mark, _ in parts):
        message = f"{parts[0][0]}: {', '.join(dict.fromkeys(tail for _, _, tail in parts))}"
    else:
        message = "; ".join(dict.fromkeys(event.message for event in same))
    return replace(same[0], message=message, count=sum(event.count for event in same))
