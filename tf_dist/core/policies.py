"""The policy table: what to do when something happens. Rows come from the job, this module only looks them up.

A task's own rows go before the job's, and the first that matches wins. What no row answers has a default: a replica
that was taken away comes back, everything else is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tf_dist.core.facts import Facts, Occurrence, occurrences
from tf_dist.core.model import Job, ReplicaSpec
from tf_dist.core.policy_model import Action, Event, Rule
from tf_dist.core.status import Status
from tf_dist.core.times import round_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do about an occurrence. ``due``: not yet, look again then."""

    action: Action
    due: float | None = None


Answered = list[tuple[Occurrence, Decision]]

NOTHING: Final = Decision(action=Action.IGNORE)

_DEFAULTS: Final[Mapping[Event, Decision]] = {
    Event.POD_EVICTED: Decision(action=Action.RESTART_POD),
    Event.NODE_LOST: Decision(action=Action.RESTART_POD),
}

# Where several things happened at once: the gravest answer is given, then the others have no object any more.
# What is not listed (Ignore; ResumeJob, which means something to a stopped job only) changes nothing.
GRAVITY: Final = (
    Action.FAIL_JOB,
    Action.TERMINATE_JOB,
    Action.ABORT_JOB,
    Action.COMPLETE_JOB,
    Action.RESTART_JOB,
    Action.RESTART_TASK,
    Action.RESTART_POD,
)

_RESTARTS: Final = frozenset({Action.RESTART_JOB, Action.RESTART_TASK, Action.RESTART_POD})

# An eviction that leaves the pod behind as Failed is an eviction first; rows for failures still see it.
_ALSO: Final[Mapping[Event, tuple[Event, ...]]] = {
    Event.POD_EVICTED: (Event.POD_EVICTED, Event.POD_FAILED),
    Event.NODE_LOST: (Event.NODE_LOST, Event.POD_EVICTED),
}


def decide(job: Job, occurrence: Occurrence, now: float) -> Decision:
    """The answer to an occurrence at this time."""
    for event in _ALSO.get(occurrence.event, (occurrence.event,)):
        if event is Event.POD_FAILED and occurrence.exit is None:
            continue
        for rule in _rules(job, occurrence):
            if _matches(rule, event, occurrence):
                return _answer(rule, occurrence, now)
    return _default(occurrence)


def _default(occurrence: Occurrence) -> Decision:
    return _DEFAULTS.get(occurrence.event, NOTHING)


def may_restart(job: Job, spec: ReplicaSpec) -> bool:
    """Whether a policy that waits for its timeout may yet restart a replica that has failed and was not restarted."""
    waiting = (rule for rule in (*spec.rules, *job.rules) if rule.timeout > 0 and rule.action in _RESTARTS)
    return any(not rule.events.isdisjoint(_ALSO[Event.POD_EVICTED]) for rule in waiting)


def next_due(job: Job, status: Status, facts: Facts, now: float) -> float | None:
    """When the earliest policy that waits for its timeout must be looked at again."""
    dues = (decide(job, occurrence, now).due for occurrence in occurrences(job, status, facts))
    return min((due for due in dues if due is not None), default=None)


def _rules(job: Job, occurrence: Occurrence) -> Iterator[Rule]:
    yield from occurrence.spec.rules
    yield from job.rules


def _matches(rule: Rule, event: Event, occurrence: Occurrence) -> bool:
    if event not in rule.events:
        return False
    if rule.index is not None and (occurrence.replica is None or occurrence.replica.index != rule.index):
        return False
    if event is Event.POD_PENDING:
        return rule.timeout > 0
    if event is Event.POD_FAILED and occurrence.exit is not None:
        return (occurrence.exit.code, occurrence.exit.out_of_memory) in rule.codes
    return True


def _answer(rule: Rule, occurrence: Occurrence, now: float) -> Decision:
    # A kubelet's clock may be ahead: without a timeout there is nothing to wait for.
    timed = occurrence.since is not None and rule.timeout > 0
    due = round_time((occurrence.since or 0.0) + rule.timeout) if timed else None
    if due is not None and now < due:
        return Decision(action=Action.IGNORE, due=due)
    if rule.action is Action.RESUME_JOB:
        return _default(occurrence)
    if occurrence.handled and rule.action in (Action.RESTART_POD, Action.RESTART_TASK):
        return NOTHING
    if rule.action is Action.RESTART_POD and occurrence.replica is None:
        return Decision(action=Action.RESTART_TASK)
    return Decision(action=rule.action)
