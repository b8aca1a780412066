"""The training operator's texts of conditions and events of a ``kubeflow.org/v1`` TFJob. Scripts and clients compare
them, so they are a contract (training-operator 1.9, ``pkg/controller.v1``: ``common/job.go``, ``common/pod.go``,
``control/*.go``, ``tensorflow/tfjob_controller.go``). Further facts are in tf-dist's own events and in
``status.tfDist``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tf_dist.core.model.context import Create, Delete, EmitEvent
from tf_dist.core.model.job import Action, Dialect, Event, Job, ReplicaSpec
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import NO_PODS, Phase, Status

# In this order the operator looks at the types of a job: the first that has failures is named.
_ORDER: Final = ("chief", "evaluator", "master", "ps", "worker")
_LIMITS: Final[Mapping[str, str]] = {
    Reason.BACKOFF_LIMIT_EXCEEDED: "it has reached the specified backoff limit",
    Reason.DEADLINE_EXCEEDED: "it was active longer than specified deadline",
}


def created_text(job: Job) -> str:
    """Of the condition Created."""
    return f"TFJob {job.key.name} is created."


def resumed_text(job: Job) -> str:
    """Of the condition Suspended when it becomes False, and of the event."""
    return f"TFJob {job.key.name} is resumed."


def phase_text(job: Job, status: Status, phase: Phase) -> str:
    """Of the condition that a phase sets, and of its event."""
    match phase:
        case Phase.RUNNING:
            return f"TFJob {job.key} is running."
        case Phase.RESTARTING:
            spec = _failure_spec(job, status)
            if spec is None or status.reason != Event.POD_FAILED or status.phase is not Phase.RESTARTING:
                # What the operator has no words for: pods were taken away, or the gang was resized or requeued.
                return f"TFJob {job.key.name} is restarting: {status.message}."
            return f"job {job.key.name} is restarting because {spec.name} replica(s) failed."
        case Phase.ABORTING | Phase.ABORTED:
            return f"TFJob {job.key.name} is suspended."
        case Phase.COMPLETING | Phase.COMPLETED:
            return f"TFJob {job.key} successfully completed."
        case _:
            return _failed_text(job, status)


def _failed_text(job: Job, status: Status) -> str:
    if limit := _LIMITS.get(status.reason):
        return f"Job {job.key.name} has failed because {limit}"
    spec = _failure_spec(job, status)
    if status.reason != Event.POD_FAILED:
        return f"TFJob {job.key} has failed: {status.message}."
    if spec is not None and _judges_exit_codes(spec):
        return f'job "{job.key.name}" is failing because "{spec.name}" replica(s) failed.'
    for type_ in _ORDER:
        first, failed = job.spec(type_), status.counts.get(type_, NO_PODS).failed
        if first is not None and failed:
            return f"TFJob {job.key} has failed because {failed} {first.name} replica(s) failed."
    return f"TFJob {job.key} has failed: {status.message}."


def _failure_spec(job: Job, status: Status) -> ReplicaSpec | None:
    """The spec of the replica (or of the type) that failed last."""
    named = status.failure.replica if status.failure else ""
    return job.spec(named) or job.spec(named.rpartition("-")[0])


def _judges_exit_codes(spec: ReplicaSpec) -> bool:
    """Whether only some of its failures are restarted: the restart policy ExitCode."""
    answers = {rule.action for rule in spec.rules if Event.POD_FAILED in rule.events}
    return {Action.RESTART_POD, Action.FAIL_JOB} <= answers


_REPORTED: Final = frozenset({"Pod", "Service"})


def object_event(api_version: str, action: Create | Delete, error: Exception | None = None) -> EmitEvent | None:
    """The operator's event about a created or deleted pod or service, or about the error.

    ``api_version``: of the job. It is None for other kinds of objects, and for jobs of other dialects.
    """
    kind = action.body["kind"] if isinstance(action, Create) else action.kind
    if api_version != Dialect.TFJOB_V1.value or kind not in _REPORTED:
        return None
    verb = "Create" if isinstance(action, Create) else "Delete"
    if error is not None:
        doing = "creating" if isinstance(action, Create) else "deleting"
        return EmitEvent("Warning", f"Failed{verb}{kind}", f"Error {doing}: {error}", routine=True)
    name = action.body["metadata"]["name"] if isinstance(action, Create) else action.name
    return EmitEvent("Normal", f"Successful{verb}{kind}", f"{verb}d {kind.lower()}: {name}", routine=True)


def combined_events(events: Iterable[EmitEvent]) -> list[EmitEvent]:
    """The events of one pass. Routine events of the same type and reason are combined into one, which names every
    object and counts them:

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
