"""Event payload: the end of a wait as plain JSON, which the trigger passes to the task."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Final

from tf_dist.core.diagnostics.metrics_parser import RESULT_MARK
from tf_dist.core.diagnostics.outcome import Outcome, outcome_error, read_outcome, storable
from tf_dist.core.diagnostics.replicas import leaders_first
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import Status, display_phase
from tf_dist.core.pipeline.session import EndCause, SessionEnd
from tf_dist.core.pipeline.wait_result import wait_outcome
from tf_dist.errors import TFDistError, Unavailable

if TYPE_CHECKING:
    from tf_dist.client.monitor import JobSnapshot
    from tf_dist.client.stored_jobs import StoredJob

Event = Mapping[str, Any]

_NOTHING: Final = object()


def event_payload(last: StoredJob, snapshot: JobSnapshot, end: SessionEnd) -> dict[str, Any]:
    """Everything that the task needs to know about a job and its end. By then, the job may be gone."""
    conclusion = end.result
    found = wait_outcome(last.status, conclusion, time.time())
    outcome = snapshot.observed(found) if found is not None else None
    timed = outcome or Outcome.of(last.status, OutcomeKind.UNKNOWN)
    event = {
        "reached": conclusion.reached,
        "decided": conclusion.decided,
        "outcome": outcome.document() if outcome else None,
        "message": exception_first(conclusion.message),
        "hint": conclusion.hint,
        "job": last.shown,
        "cause": end.cause.value,
        "exit_code": outcome.exit_code if outcome else None,
        "replica": outcome.replica if outcome else "",
        "result": {
            "name": last.name,
            "namespace": last.namespace,
            "uid": last.uid,
            "status": display_phase(last.status),
            **_reported_metrics(snapshot),
            "waited_seconds": timed.waited_seconds,
            "ran_seconds": timed.ran_seconds,
            "gpu_seconds": timed.gpu_seconds,
            "lost_gpu_seconds": timed.lost_gpu_seconds,
            "goodput": timed.goodput,
            "restarts": last.status.total_restarts,
            "disruptions": last.status.total_disruptions,
        },
    }
    return dict(storable(event))


def _reported_metrics(snapshot: JobSnapshot) -> dict[str, Any]:
    """The reports of the replicas, from their log lines and from the leader's termination message.

    ``output``: the termination message, if it is a JSON object. ``value``: the return value of a ``@task.tfjob``
    function.
    """
    exits = {pod.replica: pod.exit for pod in snapshot.pods if pod.exit is not None}
    messages = (exits[one].message.strip() for one in leaders_first(snapshot.job) if one in exits)
    message = next((one for one in messages if one.startswith(("{", RESULT_MARK))), "")
    value = _read_json(message.removeprefix(RESULT_MARK) if message.startswith(RESULT_MARK) else snapshot.result.result)
    output = read if isinstance(read := _read_json(message), dict) else {}
    numbers = {key: float(str(value)) for key, value in output.items() if type(value) in (int, float)}
    values = {"metrics": {**snapshot.result.metrics, **numbers}, "checkpoint": snapshot.result.checkpoint}
    return values | ({"output": output} if output else {}) | ({} if value is _NOTHING else {"value": value})


_MOST_LEVELS: Final = 100  # of nested values: those who read and store them call a function for each level


def _read_json(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING
    return _NOTHING if _is_deep(value, _MOST_LEVELS) else value


def _is_deep(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deep(one, levels - 1) for one in inner)


_TRACEBACK: Final = "Traceback (most recent call last):"


def exception_first(message: str) -> str:
    """A message whose traceback is replaced by the exception. The log has the traceback."""
    before, traceback, lines = message.rpartition(_TRACEBACK)
    if not traceback:
        return message
    raised = list(dropwhile(lambda line: not line or line[:1].isspace(), lines.splitlines()))
    return before.partition(_TRACEBACK)[0] + "\n".join(raised) if raised else message


def unseen_payload(end: SessionEnd, job: str) -> dict[str, Any]:
    """The payload of a wait that never observed its job, or lost the job. ``job``: the name to show."""
    return {
        "reached": False,
        "decided": end.result.decided,
        "outcome": end.outcome(Status(), time.time()).document(),
        "message": end.result.message,
        "hint": end.result.hint,
        "job": job,
        "cause": end.cause.value,
        "exit_code": None,
        "replica": "",
        "result": {},
    }


def payload_outcome(event: Event) -> Outcome | None:
    """How the job ended, or why the wait ended; None if the job reached the goal and continues."""
    return read_outcome(event["outcome"])


def payload_cause(event: Event) -> EndCause:
    """Why the wait ended; ERROR for an unknown cause from another release."""
    try:
        return EndCause(event.get("cause", ""))
    except ValueError:
        return EndCause.ERROR


def payload_error(event: Event) -> TFDistError | None:
    """The error of a payload; None if the job reached the goal."""
    if event["reached"]:
        return None
    hint = str(event.get("hint") or "")
    return failure(event["job"], event["message"], hint, payload_outcome(event), decided=event["decided"])


def failure(job: str, message: str, hint: str, outcome: Outcome | None, *, decided: bool) -> TFDistError:
    """The error of a job that did not reach its goal. Workers, triggers and sensors use the same text."""
    text = f"{job}: {exception_first(message)}"
    text = f"{text} ({hint})" if hint else text
    if outcome is None or outcome.kind is OutcomeKind.UNKNOWN:
        return Unavailable(text, hint=hint)
    return outcome_error(outcome, text, hint=hint, decided=decided)
