"""How a job came out, as plain JSON that travels from a trigger to a task, and what the task makes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tf_dist.core.conclusion import Conclusion, End
from tf_dist.core.replica_view import leaders_first
from tf_dist.core.sizes import largest
from tf_dist.core.status import Status, state_word
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
    from tf_dist.airflow.tickets import Ticket
    from tf_dist.client.scene import Scene

ERROR: Final = "error"
"""What stands for ``End`` where the wait itself could not go on."""

_EXCEPTIONS: Final[Mapping[str, type[TFDistError]]] = {
    End.FAILED: JobFailed,
    End.EVICTED: JobEvicted,
    End.STOPPED: JobFailed,
    End.GONE: JobFailed,
    End.TIMEOUT: JobTimeout,
    End.NOT_ADMITTED: AdmissionTimeout,
    End.NOT_STARTED: JobTimeout,
    End.IMAGE: ImagePullFailed,
    End.INVALID: JobFailed,
    ERROR: Unavailable,
}


def payload(ticket: Ticket, scene: Scene, conclusion: Conclusion) -> dict[str, Any]:
    """Everything a task needs to know, for nothing may be left of the job when it reads this."""
    last, failure = ticket.last, ticket.last.status.failure
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
            "status": state_word(last.status),
            **_told(scene),
            **_durations(last.status),
            "restarts": last.status.total_restarts,
            "disruptions": last.status.total_disruptions,
        },
    }


def _told(scene: Scene) -> dict[str, Any]:
    """What the replicas told: in log lines, and in the leader's termination message, where that is a JSON object."""
    output = _output(scene)
    numbers = {key: float(value) for key, value in output.items() if type(value) in (int, float)}
    metrics = {**scene.result.metrics, **numbers}
    told = {"metrics": {key: _plain(value) for key, value in metrics.items()}, "checkpoint": scene.result.checkpoint}
    return {**told, "output": output} if output else told


def _output(scene: Scene) -> dict[str, Any]:
    exits = {pod.replica: pod.exit for pod in scene.pods if pod.exit is not None}
    for replica in leaders_first(largest(scene.job)):
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


def of_error(error: Exception, job: str) -> dict[str, Any]:
    """The payload of a wait that could not go on; the job is where it was."""
    hint = getattr(error, "hint", "")
    known = isinstance(error, TFDistError)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    nothing: dict[str, Any] = {"over": False, "exit_code": None, "replica": "", "result": {}}
    return {"end": ERROR, "message": message, "hint": hint, "job": job, **nothing}


def failure_of(event: Mapping[str, Any]) -> TFDistError | None:
    """The error that a payload means, None for what was waited for."""
    end = str(event["end"])
    if end == End.REACHED:
        return None
    kind = _EXCEPTIONS.get(end, JobFailed)
    hint = str(event.get("hint") or "")
    message = f"{event['job']}: {event['message']}"
    return kind(f"{message} ({hint})" if hint else message, hint=hint)
