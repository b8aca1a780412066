"""A job's status in the words of its dialect, made from its memory. The memory itself goes along (``tfDist``).

The shapes and texts are those of the systems that wrote them first, so that whatever reads them goes on working.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.conditions import conditions
from tf_dist.core.model import Dialect, Document, Job, ReplicaSpec, Role
from tf_dist.core.sizes import granted
from tf_dist.core.status import NO_PODS, Counts, Phase, Status, state_word
from tf_dist.core.status_codec import FIELD, dump_status
from tf_dist.core.times import format_time

Report = dict[str, Any]


def report(job: Job, status: Status, stored: Document, now: float) -> Report:
    """The raw status to store, given the one stored before (conditions keep their history)."""
    job = granted(job, status)
    return {**_REPORTS[job.dialect](job, status, stored, now), FIELD: {**dump_status(status), **_shown(job, status)}}


def _shown(job: Job, status: Status) -> Report:
    """What columns and autoscalers read; ``load_status`` does not."""
    selector = {names.JOB_UID: job.uid, names.REPLICA_TYPE: Role.WORKER.value}
    return {
        "state": state_word(status),
        "ready": ready_text(job, status),
        "why": status.why,
        "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
    }


def ready_text(job: Job, status: Status) -> str:
    """``2/3``: workers that run and are ready, or are done, of those wanted (all replicas where there is no worker)."""
    job = granted(job, status)
    workers = [spec for spec in job.replica_specs if spec.role is Role.WORKER] or list(job.replica_specs)
    counts = [status.counts.get(spec.type, NO_PODS) for spec in workers]
    return f"{sum(c.ready + c.succeeded for c in counts)}/{sum(spec.replicas for spec in workers)}"


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)


def _without_none(fields: Mapping[str, Any]) -> Report:
    return {key: value for key, value in fields.items() if value is not None}


def _v1(job: Job, status: Status, stored: Document, now: float) -> Report:
    return _without_none(
        {
            "conditions": conditions(job, status, stored.get("conditions") or (), now),
            "replicaStatuses": {spec.name: _v1_replicas(job, spec, status) for spec in job.replica_specs},
            "startTime": _time(status.start_time),
            "completionTime": _time(status.completion_time),
        }
    )


def _v1_replicas(job: Job, spec: ReplicaSpec, status: Status) -> Report:
    counts = status.counts.get(spec.type, NO_PODS)
    selector = ",".join(f"{key}={value}" for key, value in sorted(_v1_selector(job, spec).items()))
    numbers = {"active": counts.running, "succeeded": counts.succeeded, "failed": counts.failed}
    return {**{key: number for key, number in numbers.items() if number}, "selector": selector}


def _v1_selector(job: Job, spec: ReplicaSpec) -> dict[str, str]:
    prefix = "training.kubeflow.org/"
    return {
        f"{prefix}job-name": job.key.name,
        f"{prefix}operator-name": "tfjob-controller",
        f"{prefix}replica-type": spec.type,
    }


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


def _v1alpha1(job: Job, status: Status, stored: Document, now: float) -> Report:
    phase, state = _V1ALPHA1_PHASES[status.phase]
    replicas = [_v1alpha1_replicas(spec, status.counts.get(spec.type, NO_PODS)) for spec in job.replica_specs]
    well = status.phase in (Phase.RUNNING, Phase.COMPLETED) and not status.stalled and not status.refusal
    reason = "" if well else status.told
    return {"phase": phase, "state": state, "reason": reason, "replicaStatuses": replicas}


def _v1alpha1_replicas(spec: ReplicaSpec, counts: Counts) -> Report:
    # A replica without a pod yet counts as running: that is how the seed's operator had it.
    waiting = spec.replicas - counts.succeeded - counts.failed
    states = {"Running": waiting, "Succeeded": counts.succeeded, "Failed": counts.failed}
    present = {state: number for state, number in states.items() if number > 0}
    state = next((state for state in ("Failed", "Running", "Succeeded") if state in present), "Unknown")
    return {"tf_replica_type": spec.name, "state": state, "ReplicasStates": present}


def _volcano(job: Job, status: Status, stored: Document, now: float) -> Report:
    since = _time(status.since)
    tasks = {spec.name: _pod_phases(status.counts.get(spec.type, NO_PODS)) for spec in job.replica_specs}
    totals = {
        key: sum(getattr(counts, key) for counts in status.counts.values())
        for key in ("pending", "running", "succeeded", "failed", "terminating")
    }
    state = {"phase": status.phase.value, "reason": status.why, "message": status.told}
    return _without_none(
        {
            "state": _without_none({**state, "lastTransitionTime": since}),
            "minAvailable": job.scheduling.min_available,
            "taskStatusCount": {name: {"phase": phases} for name, phases in tasks.items() if phases},
            **{key: number for key, number in totals.items() if number},
            "version": status.attempts.job - 1,
            "retryCount": status.charged_restarts,
            "runningDuration": _duration(status),
            "conditions": _volcano_conditions(status, stored.get("conditions") or (), since),
        }
    )


def _pod_phases(counts: Counts) -> dict[str, int]:
    phases = {
        "Pending": counts.pending,
        "Running": counts.running,
        "Succeeded": counts.succeeded,
        "Failed": counts.failed,
    }
    return {phase: number for phase, number in phases.items() if number}


def _duration(status: Status) -> str | None:
    """From start to end, in Go's form, which is Volcano's."""
    if status.start_time is None or status.completion_time is None:
        return None
    minutes, seconds = divmod(int(status.completion_time - status.start_time), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"


def _volcano_conditions(status: Status, stored: Any, since: str | None) -> list[Report]:
    """One entry a phase, replaced where it stands."""
    entry = _without_none({"status": status.phase.value, "lastTransitionTime": since})
    kept = [dict(condition) for condition in stored]
    for position, condition in enumerate(kept):
        if condition.get("status") == status.phase.value:
            kept[position] = entry
            return kept
    return [*kept, entry]


_REPORTS: Final[Mapping[Dialect, Callable[[Job, Status, Document, float], Report]]] = {
    Dialect.TFJOB_V1: _v1,
    Dialect.TFJOB_V1ALPHA1: _v1alpha1,
    Dialect.VOLCANO: _volcano,
}
