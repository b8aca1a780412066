"""The conditions of a v1 TFJob, with the algebra of the training operator: what a new one does to those before it.

A condition moves to the end when it is set, because printers show the last one as the state. Running and Restarting
exclude each other; an end turns Running off; after Failed or Succeeded nothing more is said. tf-dist's own come first,
so that no printer takes them for the state: ``SpecAccepted``, ``Admitted``, and ``Stalled`` (as kstatus has it), which
is there while the job cannot go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tf_dist.core.model import Job
from tf_dist.core.status import INVALID_SPEC, LIVE, STALLED, STOPPED, Phase, Status
from tf_dist.core.times import format_time

Condition = dict[str, Any]

SPEC_ACCEPTED: Final = "SpecAccepted"
_ADMITTED: Final = "Admitted"
_STALLED: Final = "Stalled"
_OURS: Final = (SPEC_ACCEPTED, _ADMITTED, _STALLED)

# Which condition a phase sets, and which ones that turns off (False) or removes (None).
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


def conditions(job: Job, status: Status, stored: Iterable[Mapping[str, Any]], now: float) -> list[Condition]:
    """The list to store, given the one stored before."""
    listed = [dict(condition) for condition in stored if condition.get("type") not in _OURS]
    spec, admitted, stalled = (next((dict(c) for c in stored if c.get("type") == type_), None) for type_ in _OURS)
    if not any(condition.get("type") == "Created" for condition in listed):
        listed = _set(listed, "Created", True, "TFJobCreated", f"TFJob {job.key.name} is created.", now)
    if status.phase in LIVE and any(c.get("type") == "Suspended" and c.get("status") == "True" for c in listed):
        listed = _set(listed, "Suspended", False, "TFJobResumed", f"TFJob {job.key.name} is resumed.", now)
    phase = Phase.RESTARTING if _starts_over(status, listed) else status.phase
    if phase in _OF_PHASE:
        listed = _of_phase(job, status, phase, listed, now)
    ours = [*spec_condition(status, spec, now), _admitted(status, admitted, now), *_stalled(status, stalled, now)]
    return [*ours, *listed]


def _starts_over(status: Status, listed: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the job ran, and waits for another place: that has no condition of its own, and is no more Running."""
    waits = status.phase is Phase.PENDING and status.admission is None
    return waits and any(c.get("type") in ("Running", "Restarting") and c.get("status") == "True" for c in listed)


def _of_phase(job: Job, status: Status, phase: Phase, listed: list[Condition], now: float) -> list[Condition]:
    type_, others = _OF_PHASE[phase]
    for other, value in others.items():
        there = any(condition.get("type") == other for condition in listed)
        if there and value is None:
            listed = [condition for condition in listed if condition.get("type") != other]
        elif there:
            was = next(c for c in listed if c.get("type") == other)
            off = _turned_off(was, f"TFJob{type_}", _text(job, status, phase), now)
            listed = [c if c is not was else off for c in listed]
    return _set(listed, type_, True, f"TFJob{type_}", _text(job, status, phase), now)


def _turned_off(condition: Condition, reason: str, message: str, now: float) -> Condition:
    if condition.get("status") == "False":
        return condition
    moment = format_time(now)
    changed = {"status": "False", "reason": reason, "message": message}
    return {**condition, **changed, "lastUpdateTime": moment, "lastTransitionTime": moment}


def _text(job: Job, status: Status, phase: Phase) -> str:
    """The operator's own sentence, and what tf-dist knows beyond it."""
    match phase:
        case Phase.RUNNING:
            return f"TFJob {job.key} is running."
        case Phase.RESTARTING:
            return f"TFJob {job.key.name} is restarting: {status.message}."
        case Phase.ABORTING | Phase.ABORTED:
            return f"TFJob {job.key.name} is suspended."
        case Phase.COMPLETING | Phase.COMPLETED:
            return f"TFJob {job.key} successfully completed."
        case _:
            return f"TFJob {job.key} has failed: {status.message}."


def _set(listed: list[Condition], type_: str, value: bool, reason: str, message: str, now: float) -> list[Condition]:
    before = next((condition for condition in listed if condition.get("type") == type_), None)
    text = "True" if value else "False"
    if before is not None and (before.get("status"), before.get("reason")) == (text, reason):
        return listed if before.get("message") == message else [_with_message(c, type_, message, now) for c in listed]
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


def _with_message(condition: Condition, type_: str, message: str, now: float) -> Condition:
    if condition.get("type") != type_:
        return condition
    return {**condition, "message": message, "lastUpdateTime": format_time(now)}


def _admitted(status: Status, before: Condition | None, now: float) -> Condition:
    """Whether the gang has its place; a job that is over keeps what was said last."""
    if before is not None and status.phase not in LIVE and status.phase not in STOPPED:
        return before
    value = status.admission is not None
    reason, message = ("Admitted", "the gang has its place") if value else (status.reason, status.message)
    return _set([before] if before else [], _ADMITTED, value, reason, message, now)[-1]


def _stalled(status: Status, before: Condition | None, now: float) -> list[Condition]:
    if not status.obstacle:
        return []
    return _set([before] if before else [], _STALLED, True, STALLED, status.obstacle, now)


def spec_condition(status: Status, before: Condition | None, now: float) -> list[Condition]:
    """Whether the present spec is the one in force; a job that is over keeps what was said last."""
    if status.finished or (status.accepted is None and status.refused is None):
        return [before] if before else []
    listed = [before] if before else []
    if status.refused is not None:
        condition = _set(listed, SPEC_ACCEPTED, False, INVALID_SPEC, status.refusal, now)[-1]
        return [{**condition, "observedGeneration": status.refused.generation}]
    condition = _set(listed, SPEC_ACCEPTED, True, "Accepted", "the spec is in force", now)[-1]
    return [{**condition, "observedGeneration": status.accepted.generation if status.accepted else 0}]
