"""Event payload: the outcome of a wait as plain JSON, from the trigger to the task."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tf_dist.core.api.assignment import largest_job
from tf_dist.core.api.status import Status, display_phase
from tf_dist.core.diagnostics.replicas import leaders_first
from tf_dist.core.steps.wait_result import WaitEnd, WaitResult
from tf_dist.errors import (
    AdmissionTimeout,
    ImagePullFailed,
    JobEvicted,
    JobFailed,
    JobTimeout,
    TFDistError,
    Unavailable,
)

if TYPE_CHECKING:
    from tf_dist.airflow.shared.subscription import Subscription
    from tf_dist.client.monitor import JobSnapshot

ERROR_KEY: Final = "error"
"""What stands for ``WaitEnd`` where the wait itself could not go on."""

_EXCEPTIONS: Final[Mapping[str, type[TFDistError]]] = {
    WaitEnd.FAILED: JobFailed,
    WaitEnd.EVICTED: JobEvicted,
    WaitEnd.STOPPED: JobFailed,
    WaitEnd.GONE: JobFailed,
    WaitEnd.TIMEOUT: JobTimeout,
    WaitEnd.NOT_ADMITTED: AdmissionTimeout,
    WaitEnd.NOT_STARTED: JobTimeout,
    WaitEnd.IMAGE: ImagePullFailed,
    WaitEnd.INVALID: JobFailed,
    ERROR_KEY: Unavailable,
}


def event_payload(subscription: Subscription, snapshot: JobSnapshot, conclusion: WaitResult) -> dict[str, Any]:
    """Everything a task needs to know, for nothing may be left of the job when it reads this."""
    last, failure = subscription.last, subscription.last.status.failure
    return {
        "end": conclusion.end.value,
        "message": conclusion.message,
        "hint": conclusion.hint,
        "job": last.shown,
        "over": last.status.finished,
        "exit_code": failure.code if failure else None,
        "replica": failure.replica if failure else "",
        "result": {
            "name": last.name,
            "namespace": last.namespace,
            "uid": last.uid,
            "status": display_phase(last.status),
            **_reported_metrics(snapshot),
            **_durations(last.status),
            "restarts": last.status.total_restarts,
            "disruptions": last.status.total_disruptions,
        },
    }


def _reported_metrics(snapshot: JobSnapshot) -> dict[str, Any]:
    """What the replicas reported: in log lines, and in the leader's termination message, where that is a JSON
    object."""
    output = _output(snapshot)
    numbers = {key: float(value) for key, value in output.items() if type(value) in (int, float)}
    metrics = {**snapshot.result.metrics, **numbers}
    values = {
        "metrics": {key: _plain(value) for key, value in metrics.items()},
        "checkpoint": snapshot.result.checkpoint,
    }
    return {**values, "output": output} if output else values


def _output(snapshot: JobSnapshot) -> dict[str, Any]:
    exits = {pod.replica: pod.exit for pod in snapshot.pods if pod.exit is not None}
    for replica in leaders_first(largest_job(snapshot.job)):
        message = exits[replica].message.strip() if replica in exits else ""
        if message.startswith("{"):
            try:
                found = json.loads(message)
            except ValueError:
                continue
            return found if isinstance(found, dict) else {}
    return {}


def _plain(value: float) -> float | str:
    """A number that every database takes: ``nan`` and ``inf`` are none there."""
    return value if math.isfinite(value) else str(value)


def _durations(status: Status) -> dict[str, float | None]:
    """Seconds in the queue, and from the gang's place to the end."""
    begun, ended = status.start_time, status.completion_time
    return {
        "waited_seconds": _between(status.created, begun or ended),
        "ran_seconds": _between(begun, ended),
    }


def _between(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else round(max(0.0, until - since), 3)


def error_payload(error: Exception, job: str) -> dict[str, Any]:
    """The payload of a wait that could not go on; the job is where it was."""
    hint = getattr(error, "hint", "")
    known = isinstance(error, TFDistError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    nothing: dict[str, Any] = {"over": False, "exit_code": None, "replica": "", "result": {}}
    return {"end": ERROR_KEY, "message": message, "hint": hint, "job": job, **nothing}


def payload_error(event: Mapping[str, Any]) -> TFDistError | None:
    """The error that a payload means, None for what was waited for."""
    end = str(event["end"])
    if end == WaitEnd.REACHED:
        return None
    kind = _EXCEPTIONS.get(end, JobFailed)
    hint = str(event.get("hint") or "")
    message = f"{event['job']}: {event['message']}"
    return kind(f"{message} ({hint})" if hint else message, hint=hint)
