"""A job's status and conditions in the format of its dialect.

A condition moves to the end when it is set, because printers show the last condition as the state. Running and
Restarting exclude each other. The end of a job sets Running to False. After Failed or Succeeded, conditions are final.
tf-dist's own conditions come first, so that no printer shows them as the state: ``SpecAccepted``, ``Admitted``, and
``Stalled`` (as in kstatus), which exists while the job cannot continue.

Formats and texts are those of the original systems, so that existing clients continue to work. The texts of conditions
and events of a ``kubeflow.org/v1`` TFJob are a contract, because scripts and clients compare them (training-operator
1.9, ``pkg/controller.v1``: ``common/job.go``, ``common/pod.go``, ``control/*.go``,
``tensorflow/tfjob_controller.go``). tf-dist's own events and ``status.tfDist`` contain further facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tf_dist.core.model import names
from tf_dist.core.model.context import ReconcileContext
from tf_dist.core.model.fieldpath import mapping, mappings, number
from tf_dist.core.model.job import Action, Dialect, Document, Event, Job, ReplicaSpec, Role, TFConfigStyle
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import (
    LIVE,
    NO_PODS,
    STOPPED,
    SUCCESSFUL,
    Counts,
    Phase,
    Status,
    display_phase,
    disruptions,
    ending_failure,
    outcome_kind,
    outcome_reason,
    preemptions,
)
from tf_dist.core.model.status_codec import FIELD, dump_status
from tf_dist.core.model.timestamps import format_dragon_time, format_go_duration, format_time

Condition = dict[str, Any]

SPEC_ACCEPTED: Final = "SpecAccepted"
_ADMITTED: Final = "Admitted"
_STALLED: Final = "Stalled"
_OURS: Final = (SPEC_ACCEPTED, _ADMITTED, _STALLED)

# The condition that a phase sets, and the conditions that it turns off (False) or removes (None).
_OF_PHASE: Final[Mapping[Phase, tuple[str, Mapping[str, bool | None]]]] = {
    Phase.RUNNING: ("Running", {"Restarting": None}),
    Phase.RESTARTING: ("Restarting", {"Running": None}),
    Phase.ABORTING: ("Suspended", {"Running": False, "Restarting": None}),
    Phase.ABORTED: ("Suspended", {"Running": False, "Restarting": None}),
    Phase.COMPLETING: ("Succeeded", {"Running": False, "Restarting": None}),
    Phase.COMPLETED: ("Succeeded", {"Running": False, "Restarting": None}),
    Phase.TERMINATING: ("Failed", {"Running": False, "Restarting": None}),
    Phase.TERMINATED: ("Failed", {"Running": False, "Restarting": None}),
    Phase.FAILED: ("Failed", {"Running": False, "Restarting": None}),
}
# The order in which the operator checks the types of a job. It names the first type with failures.
_ORDER: Final = ("chief", "evaluator", "master", "ps", "worker")
_LIMITS: Final[Mapping[str, str]] = {
    Reason.BACKOFF_LIMIT_EXCEEDED: "it has reached the specified backoff limit",
    Reason.DEADLINE_EXCEEDED: "it was active longer than specified deadline",
}


def resumed_text(job: Job) -> str:
    """The text of the condition Suspended when it becomes False, and of its event."""
    return f"TFJob {job.key.name} is resumed."


def phase_text(job: Job, status: Status, phase: Phase) -> str:
    """The text of the condition that a phase sets, and of its event."""
    match phase:
        case Phase.RUNNING:
            return f"TFJob {job.key} is running."
        case Phase.RESTARTING:
            spec = _failure_spec(job, status)
            if spec is None or status.reason != Event.POD_FAILED or status.phase is not Phase.RESTARTING:
                # The operator has no text for disruptions, or for gangs that were resized or requeued.
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
    answers = {rule.action for rule in spec.rules if Event.POD_FAILED in rule.events} if spec is not None else set()
    # The restart policy ExitCode: only some failures are restarted.
    if spec is not None and {Action.RESTART_POD, Action.FAIL_JOB} <= answers:
        return f'job "{job.key.name}" is failing because "{spec.name}" replica(s) failed.'
    for type_ in _ORDER:
        first, failed = job.spec(type_), status.counts.get(type_, NO_PODS).failed
        if first is not None and failed:
            return f"TFJob {job.key} has failed because {failed} {first.name} replica(s) failed."
    return f"TFJob {job.key} has failed: {status.message}."


def _failure_spec(job: Job, status: Status) -> ReplicaSpec | None:
    """The spec of the replica or type that failed last."""
    named = status.failure.replica if status.failure else ""
    return job.spec(named) or job.spec(named.rpartition("-")[0])


def build_conditions(job: Job, status: Status, stored: Iterable[Mapping[str, Any]], now: float) -> list[Condition]:
    """The new conditions, from the stored conditions."""
    listed = [dict(condition) for condition in stored if condition.get("type") not in _OURS]
    spec, admitted, stalled = (next((dict(c) for c in stored if c.get("type") == type_), None) for type_ in _OURS)
    if not any(condition.get("type") == "Created" for condition in listed):
        listed = _set(listed, "Created", True, "TFJobCreated", f"TFJob {job.key.name} is created.", now)
    if status.phase in LIVE and any(c.get("type") == "Suspended" and c.get("status") == "True" for c in listed):
        listed = _set(listed, "Suspended", False, "TFJobResumed", resumed_text(job), now)
    phase = Phase.RESTARTING if _starts_over(status, listed) else status.phase
    if phase in _OF_PHASE:
        listed = _of_phase(job, status, phase, listed, now)
    ours = [*spec_condition(status, spec, now), _admitted(status, admitted, now), *_stalled(status, stalled, now)]
    return [*ours, *listed]


def _starts_over(status: Status, listed: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the job ran and waits for another admission. No condition exists for this, and the job is not Running."""
    waits = status.phase is Phase.PENDING and not status.admission_holds
    return waits and any(c.get("type") in ("Running", "Restarting") and c.get("status") == "True" for c in listed)


def _of_phase(job: Job, status: Status, phase: Phase, listed: list[Condition], now: float) -> list[Condition]:
    type_, others = _OF_PHASE[phase]
    text = phase_text(job, status, phase)
    for other, value in others.items():
        there = any(condition.get("type") == other for condition in listed)
        if there and value is None:
            listed = [condition for condition in listed if condition.get("type") != other]
        elif there:
            # A suspension writes why the job no longer runs. An end does not change the reason and message.
            words = {"reason": f"TFJob{type_}", "message": text} if phase in STOPPED else {}
            listed = [_turned_off(c, words, now) if c.get("type") == other else c for c in listed]
    return _set(listed, type_, True, f"TFJob{type_}", text, now)


def _turned_off(condition: Condition, words: Mapping[str, str], now: float) -> Condition:
    if condition.get("status") == "False":
        return condition
    moment = format_time(now)
    return {**condition, "status": "False", **words, "lastUpdateTime": moment, "lastTransitionTime": moment}


def _set(listed: list[Condition], type_: str, value: bool, reason: str, message: str, now: float) -> list[Condition]:
    """The conditions with this condition. If it exists with this status and reason, its message is kept."""
    before = next((condition for condition in listed if condition.get("type") == type_), None)
    text = "True" if value else "False"
    if before is not None and (before.get("status"), before.get("reason")) == (text, reason):
        return listed
    moment = format_time(now)
    condition = {
        "type": type_,
        "status": text,
        "reason": reason,
        "message": message,
        "lastUpdateTime": moment,
        "lastTransitionTime": moment,
    }
    return [*(c for c in listed if c.get("type") != type_), condition]


def _own(before: Condition | None, type_: str, value: bool, reason: str, message: str, now: float) -> Condition:
    """A condition of tf-dist, whose message is always current."""
    condition = _set([before] if before else [], type_, value, reason, message, now)[-1]
    if condition.get("message") == message:
        return condition
    return {**condition, "message": message, "lastUpdateTime": format_time(now)}


def _admitted(status: Status, before: Condition | None, now: float) -> Condition:
    """Whether the gang is admitted with nodes for its minimum. A job that has ended keeps the last condition."""
    if before is not None and status.phase not in LIVE and status.phase not in STOPPED:
        return before
    value = status.admission_holds
    reason, message = (Reason.ADMITTED, "the gang is admitted") if value else (status.reason, status.message)
    return _own(before, _ADMITTED, value, reason, message, now)


def _stalled(status: Status, before: Condition | None, now: float) -> list[Condition]:
    if not status.last_error:
        return []
    return [_own(before, _STALLED, True, Reason.RECONCILE_FAILED, status.last_error, now)]


def spec_condition(status: Status, before: Condition | None, now: float) -> list[Condition]:
    """Whether the current spec is in force. A job that has ended keeps the last condition."""
    if status.finished or (status.accepted_spec is None and status.refused_spec is None):
        return [before] if before else []
    if status.refused_spec is not None:
        condition = _own(before, SPEC_ACCEPTED, False, Reason.INVALID_SPEC, status.refusal, now)
        return [{**condition, "observedGeneration": status.refused_spec.generation}]
    condition = _own(before, SPEC_ACCEPTED, True, "Accepted", "the spec is in force", now)
    return [{**condition, "observedGeneration": status.accepted_spec.generation if status.accepted_spec else 0}]


RawStatus = dict[str, Any]


def build_status(s: ReconcileContext) -> RawStatus:
    """The new raw status, from the stored one (conditions keep their history)."""
    report = _REPORTS[s.job.dialect](s.job, s.status, s.observed.stored_status, s.now)
    return {**report, FIELD: {**dump_status(s.status), **_shown(s.job, s.status)}}


def _shown(job: Job, status: Status) -> RawStatus:
    """The fields for columns and autoscalers, which ``load_status`` ignores."""
    selector = {names.JOB_UID: job.uid, names.REPLICA_TYPE: Role.WORKER.value}
    return {
        "state": display_phase(status),
        "ready": ready_text(job, status),
        "why": status.display_reason,
        "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
        **_outcome(status),
    }


def _outcome(status: Status) -> RawStatus:
    """The job's outcome, for workflows that read fields of the object. Numbers are present even if they are 0."""
    kind = outcome_kind(status)
    if kind is None:
        return {}
    counts = {
        "restarts": status.total_restarts,
        "disruptions": disruptions(status),
        "preemptions": preemptions(status),
        "fallback": status.fallback,
        "gpuSeconds": status.usage.gpus.held,
        "lostGpuSeconds": status.usage.gpus.lost,
        "replicaSeconds": status.usage.replicas.held,
        "lostReplicaSeconds": status.usage.replicas.lost,
        "goodput": status.usage.goodput or 0.0,
    }
    failure = ending_failure(status)
    culprit = {} if failure is None else _without_none({"replica": failure.replica or None, "exitCode": failure.code})
    return {"outcome": {"kind": kind.value, "reason": outcome_reason(status), **counts, **culprit}}


def ready_text(job: Job, status: Status) -> str:
    """``2/3``: the number of replicas that are ready or have succeeded, and the requested number."""
    return f"{ready_replicas(job, status)}/{sum(spec.replicas for spec in job.replica_specs)}"


def ready_replicas(job: Job, status: Status) -> int:
    """The number of replicas that are ready or have succeeded."""
    counts = (status.counts.get(spec.type, NO_PODS) for spec in job.replica_specs)
    return sum(one.ready + one.succeeded for one in counts)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)


def _without_none(fields: Mapping[str, Any]) -> RawStatus:
    return {key: value for key, value in fields.items() if value is not None}


def _v1(job: Job, status: Status, stored: Document, now: float) -> RawStatus:
    # Replicas that still ran when the job succeeded count as succeeded, even after their pods are gone.
    conditions = mappings(stored.get("conditions"))
    over = any(one.get("type") == "Succeeded" and one.get("status") == "True" for one in conditions)
    before = mapping(stored.get("replicaStatuses")) if over else {}
    return _without_none(
        {
            "conditions": build_conditions(job, status, mappings(stored.get("conditions")), now),
            "replicaStatuses": {
                spec.name: _v1_replicas(job, spec, status, mapping(before.get(spec.name))) for spec in job.replica_specs
            },
            "startTime": _time(status.start_time),
            "completionTime": _time(status.completion_time),
        }
    )


def _v1_replicas(job: Job, spec: ReplicaSpec, status: Status, before: Document) -> RawStatus:
    counts = status.counts.get(spec.type, NO_PODS)
    prefix = "training.kubeflow.org/"
    selector = (
        f"{prefix}job-name={job.key.name},{prefix}operator-name=tfjob-controller,{prefix}replica-type={spec.type}"
    )
    numbers = {"active": counts.running, "succeeded": counts.succeeded, "failed": counts.failed}
    if status.phase in SUCCESSFUL:
        done = max(counts.running + counts.succeeded, number(before.get("succeeded")) or 0)
        numbers |= {"active": 0, "succeeded": min(done, spec.replicas)}
    return {**{key: number for key, number in numbers.items() if number}, "selector": selector}


_V1ALPHA1_PHASES: Final[Mapping[Phase, tuple[str, str]]] = {
    Phase.PENDING: ("Creating", "Running"),
    Phase.RUNNING: ("Running", "Running"),
    Phase.RESTARTING: ("Running", "Running"),
    Phase.ABORTING: ("CleanUp", "Unknown"),
    Phase.ABORTED: ("Creating", "Unknown"),
    Phase.COMPLETING: ("CleanUp", "Succeeded"),
    Phase.COMPLETED: ("Done", "Succeeded"),
    Phase.TERMINATING: ("CleanUp", "Failed"),
    Phase.TERMINATED: ("Done", "Failed"),
    Phase.FAILED: ("Done", "Failed"),
}


def _v1alpha1(job: Job, status: Status, stored: Document, now: float) -> RawStatus:
    phase, state = _V1ALPHA1_PHASES[status.phase]
    if status.phase is Phase.PENDING and status.admission is not None and stored.get("phase") == "Running":
        phase = "Running"  # pods are being replaced: in the original, a job that ran is never Creating again
    replicas = [_v1alpha1_replicas(spec, status.counts.get(spec.type, NO_PODS)) for spec in job.replica_specs]
    well = status.phase in (Phase.RUNNING, Phase.COMPLETED) and not status.stalled and not status.refusal
    reason = "" if well else status.display_message
    return {
        # The original has no conditions. With conditions, `kubectl wait` works for jobs of each version.
        "conditions": build_conditions(job, status, mappings(stored.get("conditions")), now),
        "phase": phase,
        "state": state,
        "reason": reason,
        "replicaStatuses": replicas,
        **_dragon(job, status),
    }


def _dragon(job: Job, status: Status) -> RawStatus:
    """The fields that the DRAGON fork adds (``pkg/trainer/training.go`` of its branch auto-scale).

    They contain the times when the job started to wait, started to run, and ended, and its number of workers. Times
    have no zone, and are UTC.
    """
    times = {
        "enqueueScheduleTime": status.created,
        "startRunTime": status.start_time,
        "jobFinishTime": status.completion_time,
    }
    workers = sum(spec.replicas for spec in job.replica_specs if spec.role is Role.WORKER)
    return {
        **{key: format_dragon_time(at) for key, at in times.items() if at is not None},
        "runningReplicas": workers if status.admission is not None else 0,
    }


def _v1alpha1_replicas(spec: ReplicaSpec, counts: Counts) -> RawStatus:
    # A replica without a pod counts as running, as in tf-operator of v1alpha1.
    waiting = spec.replicas - counts.succeeded - counts.failed
    states = {"Running": waiting, "Succeeded": counts.succeeded, "Failed": counts.failed}
    present = {state: number for state, number in states.items() if number > 0}
    state = next((state for state in ("Failed", "Running", "Succeeded") if state in present), "Unknown")
    return {"tf_replica_type": spec.name, "state": state, "ReplicasStates": present}


_VOLCANO_PHASES: Final = ("pending", "running", "succeeded", "failed")


def _volcano(job: Job, status: Status, stored: Document, now: float) -> RawStatus:
    since = _time(status.since)
    tasks = {
        spec.name: {state.capitalize(): number for state in _VOLCANO_PHASES if (number := getattr(counts, state))}
        for spec in job.replica_specs
        for counts in (status.counts.get(spec.type, NO_PODS),)
    }
    totals = {
        key: sum(getattr(counts, key) for counts in status.counts.values()) for key in (*_VOLCANO_PHASES, "terminating")
    }
    state = {"phase": status.phase.value, "reason": status.display_reason, "message": status.display_message}
    claims = [str(volume["volumeClaimName"]) for volume in job.volumes]
    framework = ("tensorflow",) if job.tf_config is TFConfigStyle.VOLCANO else ()
    plugins = {f"plugin-{name}": name for name in (*job.plugins.names, *framework)}
    duration = None
    if status.start_time is not None and status.completion_time is not None:
        duration = format_go_duration(status.completion_time - status.start_time)
    # One entry for each phase, with the current phase last.
    others = [dict(one) for one in mappings(stored.get("conditions")) if one.get("status") != status.phase.value]
    entry = _without_none({"status": status.phase.value, "lastTransitionTime": since})
    return _without_none(
        {
            "state": _without_none({**state, "lastTransitionTime": since}),
            "minAvailable": job.scheduling.min_available,
            "taskStatusCount": {name: {"phase": phases} for name, phases in tasks.items() if phases},
            **{key: number for key, number in totals.items() if number},
            "version": status.attempts.job - 1,
            "retryCount": max(status.retries, status.charged_restarts),
            "runningDuration": duration,
            "controlledResources": {**plugins, **{f"volume-pvc-{name}": name for name in claims}} or None,
            "conditions": [*others, entry],
        }
    )


_REPORTS: Final[Mapping[Dialect, Callable[[Job, Status, Document, float], RawStatus]]] = {
    Dialect.TFJOB_V1: _v1,
    Dialect.TFJOB_V1ALPHA1: _v1alpha1,
    Dialect.VOLCANO: _volcano,
}
