"""Lookups in the lifecycle policy table: the action on an event. The rows come from the job.

A task's own rows precede the job's, and the first match decides. Without a match, a disrupted replica is restarted, and
nothing else is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tf_dist.core.model.context import PodClassification, ReconcileContext
from tf_dist.core.model.job import Action, DisruptionPolicy, Event, Job, Rule
from tf_dist.core.model.status import SCHEDULER_PREEMPTION, Phase, Status
from tf_dist.core.model.timestamps import round_time
from tf_dist.core.reconciler.pod_classification import PodEvent, derive_events, event_key


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """The action on an event. ``due``: the time of a later action. ``by_policy``: whether it comes from a
    policy of the job.
    """

    action: Action
    due: float | None = None
    by_policy: bool = field(default=False, compare=False)


DecidedEvents = list[tuple[PodEvent, PolicyDecision]]

NO_ACTION: Final = PolicyDecision(action=Action.IGNORE)

_DEFAULTS: Final[Mapping[Event, PolicyDecision]] = {
    Event.POD_EVICTED: PolicyDecision(action=Action.RESTART_POD),
    Event.NODE_LOST: PolicyDecision(action=Action.RESTART_POD),
}

_DISRUPTION_ACTIONS: Final[Mapping[DisruptionPolicy, Action]] = {
    DisruptionPolicy.FAIL: Action.FAIL_JOB,
    DisruptionPolicy.REQUEUE: Action.REQUEUE_JOB,
    DisruptionPolicy.FALLBACK: Action.FALL_BACK,
}

# The most severe first: where several events happened at once, it alone is done, and leaves nothing for the others.
# What is not listed (Ignore; ResumeJob, which means something to a stopped job only) changes nothing.
SEVERITY: Final = (
    Action.FAIL_JOB,
    Action.TERMINATE_JOB,
    Action.ABORT_JOB,
    Action.COMPLETE_JOB,
    Action.FALL_BACK,
    Action.REQUEUE_JOB,
    Action.RESTART_JOB,
    Action.RESTART_TASK,
    Action.RESTART_POD,
)

# The phases to which the actions lead that end a job.
END_PHASES: Final[Mapping[Action, Phase]] = {
    Action.FAIL_JOB: Phase.FAILED,
    Action.TERMINATE_JOB: Phase.TERMINATING,
    Action.ABORT_JOB: Phase.ABORTING,
    Action.COMPLETE_JOB: Phase.COMPLETING,
}

_TARGETED: Final = frozenset({Action.RESTART_TASK, Action.RESTART_POD})
_RESTARTS: Final = _TARGETED | {Action.RESTART_JOB}

# An eviction that leaves the pod behind as Failed is an eviction first; rows for failures still see it.
_ALSO: Final[Mapping[Event, tuple[Event, ...]]] = {
    Event.POD_EVICTED: (Event.POD_EVICTED, Event.POD_FAILED),
    Event.NODE_LOST: (Event.NODE_LOST, Event.POD_EVICTED),
}


def decide_action(job: Job, occurrence: PodEvent, now: float) -> PolicyDecision:
    """The decision about an event now. Disruption policies of the pipeline precede the job's rows.

    A pod whose containers cannot be created is never restarted, because the next one would fail as well.
    """
    if occurrence.event in (Event.POD_EVICTED, Event.NODE_LOST):
        taken, policy = occurrence.disruption, job.run_policy
        preempted = taken is not None and taken.reason == SCHEDULER_PREEMPTION
        answer = _DISRUPTION_ACTIONS.get(policy.on_preemption if preempted else policy.on_eviction)
        if answer is not None:
            return PolicyDecision(action=answer, by_policy=True)
    for event in _ALSO.get(occurrence.event, (occurrence.event,)):
        if event is Event.POD_FAILED and occurrence.exit is None:
            continue
        for rule in _rules(job, occurrence):
            if _matches(rule, event, occurrence):
                decision = _answer(rule, occurrence, now)
                never = event is Event.POD_FAILED and occurrence.exit is not None and occurrence.exit.never_runs
                return replace(decision, action=Action.FAIL_JOB) if never and decision.action in _RESTARTS else decision
    return _default(occurrence)


def most_severe_action(job: Job, events: Iterable[PodEvent], now: float) -> tuple[Action, DecidedEvents] | None:
    """The most severe action for any of these events, with these events; None without an action."""
    decided: dict[Action, DecidedEvents] = {}
    for event in events:
        decision = decide_action(job, event, now)
        decided.setdefault(decision.action, []).append((event, decision))
    return next(((action, decided[action]) for action in SEVERITY if action in decided), None)


def _default(occurrence: PodEvent) -> PolicyDecision:
    return _DEFAULTS.get(occurrence.event, NO_ACTION)


def next_policy_timeout(s: ReconcileContext) -> float | None:
    """When the first timeout of a policy expires, or None."""
    events = derive_events(s.job, s.status, s.facts)
    dues = (decide_action(s.job, occurrence, s.now).due for occurrence in events)
    return min((due for due in dues if due is not None), default=None)


def _every_rule(job: Job) -> Iterator[tuple[Rule, ...]]:
    yield job.rules
    yield from (spec.rules for spec in job.replica_specs)


def policy_timeouts(job: Job, status: Status, facts: PodClassification, now: float) -> dict[str, float]:
    """The start times of events with a policy timeout, if no object has the time.

    A disrupted pod is created again in the meantime. When that runs, the action is cancelled (``derive_events``).
    """
    known, found = status.policy_timeouts, {}
    if not known and not any(rule.timeout > 0 for rules in _every_rule(job) for rule in rules):
        return {}
    for one in derive_events(job, status, facts):
        key = event_key(one, status.attempts)
        if key in known:
            found[key] = known[key]
        elif one.since is None and decide_action(job, one, now).due is not None:
            found[key] = now
    return found


def _rules(job: Job, occurrence: PodEvent) -> Iterator[Rule]:
    yield from occurrence.spec.rules
    yield from job.rules


def _matches(rule: Rule, event: Event, occurrence: PodEvent) -> bool:
    if event not in rule.events:
        return False
    if rule.index is not None and (occurrence.replica is None or occurrence.replica.index != rule.index):
        return False
    if event is Event.POD_PENDING:
        return rule.timeout > 0
    if event is Event.POD_FAILED and occurrence.exit is not None:
        exit_ = occurrence.exit
        if exit_.start_failed and not rule.codes.start_failures:
            return False
        return (exit_.code, exit_.out_of_memory) in rule.codes
    return True


def _answer(rule: Rule, occurrence: PodEvent, now: float) -> PolicyDecision:
    # A kubelet's clock may be ahead, so without a timeout there is no waiting.
    began = now if occurrence.since is None else occurrence.since
    due = round_time(began + rule.timeout) if rule.timeout > 0 else None
    if due is not None and now < due:
        return PolicyDecision(action=Action.IGNORE, due=due, by_policy=True)
    if rule.action is Action.RESUME_JOB:
        return _default(occurrence)
    if occurrence.handled and rule.action in _TARGETED:
        return NO_ACTION
    if rule.action is Action.RESTART_POD and occurrence.replica is None:
        return PolicyDecision(action=Action.RESTART_TASK, by_policy=True)
    return PolicyDecision(action=rule.action, by_policy=True)
