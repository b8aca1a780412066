"""Events of a job's pods, sentences about them, and the lifecycle policy's action on each. The rows come from the job.

The rows of a task precede the rows of the job, and the first match decides. Without a match, only disrupted replicas
are restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tf_dist.core.model.context import PodClassification, ReconcileContext
from tf_dist.core.model.job import Action, DisruptionPolicy, Event, Job, ReplicaId, ReplicaSpec, Rule
from tf_dist.core.model.pods import DEADLINE_EXCEEDED, POD_DELETED, Disruption, Exit, PodPhase, PodView, exit_text
from tf_dist.core.model.status import SCHEDULER_PREEMPTION, Attempts, Phase, Status
from tf_dist.core.model.timestamps import end_of_second, round_time
from tf_dist.core.model.wording import MAX_LISTED


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """An event of the policy table: its kind, task, replica, exit and start.

    ``handled``: the kubelet has already restarted the container. ``disruption``: the disruption of the pod, which does
    not count as a failure.
    """

    event: Event
    spec: ReplicaSpec
    replica: ReplicaId | None = None
    exit: Exit | None = None
    since: float | None = None
    handled: bool = False
    disruption: Disruption | None = None


def event_key(occurrence: PodEvent, attempts: Attempts) -> str:
    """The key of an event in ``Status.policy_timeouts``, which differs between attempts."""
    who = occurrence.replica or ReplicaId(occurrence.spec.type, 0)
    label = attempts.label(who)
    if occurrence.replica is None:
        return f"{occurrence.event} {occurrence.spec.type} {label.rpartition('.')[0]}"
    return f"{occurrence.event} {who} {label}"


def eviction_key(replica: ReplicaId, attempts: Attempts) -> str:
    """The ``event_key`` of a replica's eviction."""
    return f"{Event.POD_EVICTED} {replica} {attempts.label(replica)}"


def derive_events(job: Job, status: Status, facts: PodClassification) -> Iterator[PodEvent]:
    """The events of the current attempt that have not been handled yet, in document order.

    Handling an event changes the attempt (or ends the job), so it does not occur again.
    """
    for occurrence in _present_events(job, status, facts):
        began = occurrence.since
        if status.policy_timeouts:
            began = status.policy_timeouts.get(event_key(occurrence, status.attempts), began)
        yield occurrence if began == occurrence.since else replace(occurrence, since=began)
    if status.policy_timeouts:
        yield from _unreturned(job, status, facts)


def _unreturned(job: Job, status: Status, facts: PodClassification) -> Iterator[PodEvent]:
    """Evictions with a pending policy timeout: the pod was created again, and has not run yet."""
    for spec in job.replica_specs:
        for replica in spec.ids:
            pod = facts.current.get(replica)
            going = pod is None or pod.deleting
            back = replica in facts.succeeded or not (going or (pod and pod.phase is PodPhase.PENDING))
            if back or (going and replica in status.observed_replicas):
                continue
            lost = PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=Disruption(POD_DELETED))
            began = status.policy_timeouts.get(event_key(lost, status.attempts))
            if began is not None:
                yield replace(lost, since=began)


def _present_events(job: Job, status: Status, facts: PodClassification) -> Iterator[PodEvent]:
    # A waiting job may have a hundred thousand replicas, and edits that are more frequent than this loop is fast.
    never_ran = not facts.current and not status.observed_replicas
    for spec in job.replica_specs:
        for replica in () if never_ran else spec.ids:
            if replica not in facts.succeeded:
                yield from _of_replica(job, spec, replica, facts, seen=replica in status.observed_replicas)
        if spec.replicas and facts.count(spec.type).succeeded == spec.replicas:
            yield PodEvent(event=Event.TASK_COMPLETED, spec=spec)
        if spec.container_restarts is not None:
            restarts = sum(pod.restarts for pod in facts.current.values() if pod.replica.type == spec.type)
            if restarts and restarts >= spec.container_restarts:
                yield PodEvent(event=Event.TASK_FAILED, spec=spec)
    yield from _of_gang(job, facts)


def _of_replica(
    job: Job, spec: ReplicaSpec, replica: ReplicaId, facts: PodClassification, *, seen: bool
) -> Iterator[PodEvent]:
    pod = facts.current.get(replica)
    if pod is None:
        if seen:
            last = facts.departed.get(replica)
            taken = last.disruption if last is not None else None
            taken = taken or Disruption(POD_DELETED, node=last.node if last is not None else "")
            yield PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=taken)
    elif pod.phase is PodPhase.FAILED and not (pod.deleting and pod.disruption is not None):
        outlived = pod.past_deadline and _has_deadline_of_job(job, spec)
        event = Event.POD_EVICTED if pod.evicted or outlived else Event.POD_FAILED
        since = end_of_second(pod.exit.finished_at) if pod.exit and event is Event.POD_FAILED else None
        taken = Disruption(DEADLINE_EXCEEDED, node=pod.node) if outlived else pod.disruption if pod.evicted else None
        yield PodEvent(event=event, spec=spec, replica=replica, exit=pod.exit, since=since, disruption=taken)
    elif pod.node_lost:
        yield PodEvent(event=Event.NODE_LOST, spec=spec, replica=replica, disruption=pod.disruption)
    elif pod.deleting:
        # Its exit in the grace period is not relevant. A timeout counts from the end of the grace period at the latest,
        # because the replica can return then.
        # A pod that was being deleted when it was first observed (scaled away, and wanted again) is not a disruption.
        if seen:
            yield PodEvent(
                event=Event.POD_EVICTED, spec=spec, replica=replica, since=pod.stops_at, disruption=pod.disruption
            )
    elif pod.phase is PodPhase.PENDING:
        yield PodEvent(event=Event.POD_PENDING, spec=spec, replica=replica, since=end_of_second(pod.created_at))
    elif (judged := pod.training_end(spec)) is not None:
        # If the kubelet does not restart the container, other containers of its pod may run forever.
        restarted = judged is pod.last_exit or spec.pod_restart_policy != "Never"
        yield PodEvent(event=Event.POD_FAILED, spec=spec, replica=replica, exit=judged, handled=restarted)


def _has_deadline_of_job(job: Job, spec: ReplicaSpec) -> bool:
    """Whether pods have the deadline that the job had at their creation. It may have been raised since."""
    own = spec.pod_spec.get("activeDeadlineSeconds")
    return job.run_policy.active_deadline is not None and own is None


def _of_gang(job: Job, facts: PodClassification) -> Iterator[PodEvent]:
    """Volcano's event Unknown: some pods run, but fewer than the gang's minimum, and others cannot be scheduled."""
    stuck = next((pod for pod in facts.current.values() if pod.unschedulable), None)
    if stuck is None or facts.gang_has_nodes(job):
        return
    if any(counts.running for counts in facts.counts.values()):
        spec = job.spec(stuck.replica.type)
        if spec is not None:
            yield PodEvent(event=Event.UNKNOWN, spec=spec, replica=stuck.replica)


def held_pods(facts: PodClassification) -> list[PodView]:
    """The current pods that cannot run, in the order of their replicas."""
    return sorted((pod for pod in facts.current.values() if pod.held_by), key=lambda pod: pod.replica)


def describe_event(job: Job, occurrence: PodEvent) -> str:
    """A sentence about an occurrence, without a period."""
    who = str(occurrence.replica) if occurrence.replica else occurrence.spec.name
    match occurrence.event:
        case Event.POD_FAILED:
            return f"{who} {exit_text(occurrence.exit)}"
        case Event.POD_EVICTED:
            if occurrence.disruption is not None:
                return f"{who} {occurrence.disruption}"
            exit_ = occurrence.exit
            said = ": ".join(filter(None, (exit_.reason, exit_.message))) if exit_ is not None else ""
            return f"{who} was evicted" + (f" ({said})" if said else "")
        case Event.NODE_LOST:
            return f"{who} {occurrence.disruption or 'is lost with its node'}"
        case Event.POD_PENDING:
            return f"{who} has been pending for longer than its policy allows"
        case Event.TASK_COMPLETED:
            count = occurrence.spec.replicas
            return f"all {count} {who} replicas succeeded" if count > 1 else f"the {who} replica succeeded"
        case Event.TASK_FAILED:
            return f"the containers of {who} were restarted too often (maxRetry={occurrence.spec.container_restarts})"
        case Event.UNKNOWN:
            return f"{who} cannot be scheduled while other replicas of {job.key.name} run"


def describe_events(job: Job, occurrences: Iterable[PodEvent]) -> str:
    """Sentences about the first occurrences, and the number of others."""
    sentences = [describe_event(job, occurrence) for occurrence in occurrences]
    more = len(sentences) - MAX_LISTED
    return "; ".join(sentences[:MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """The action on an event. ``due``: the time of a later action. ``by_policy``: it comes from a policy of the job."""

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

# The most severe action first. If several events occur at the same time, only the most severe action is executed, and
# makes the others unnecessary. Other actions change nothing: Ignore, and ResumeJob, which is only for stopped jobs.
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

# The actions that end a job, and the phases to which they lead.
END_PHASES: Final[Mapping[Action, Phase]] = {
    Action.FAIL_JOB: Phase.FAILED,
    Action.TERMINATE_JOB: Phase.TERMINATING,
    Action.ABORT_JOB: Phase.ABORTING,
    Action.COMPLETE_JOB: Phase.COMPLETING,
}

_TARGETED: Final = frozenset({Action.RESTART_TASK, Action.RESTART_POD})
_RESTARTS: Final = _TARGETED | {Action.RESTART_JOB}

# The events whose rows match, in order. If an eviction leaves a Failed pod, rows for failures also match it.
_ALSO: Final[Mapping[Event, tuple[Event, ...]]] = {
    Event.POD_EVICTED: (Event.POD_EVICTED, Event.POD_FAILED),
    Event.NODE_LOST: (Event.NODE_LOST, Event.POD_EVICTED),
}


def decide_action(job: Job, occurrence: PodEvent, now: float) -> PolicyDecision:
    """The decision about an event now. Disruption policies of the pipeline precede the job's rows.

    A pod whose containers cannot be created is never restarted, because the next pod would fail, too.
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
        for rule in (*occurrence.spec.rules, *job.rules):
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


def policy_timeouts(job: Job, status: Status, facts: PodClassification, now: float) -> dict[str, float]:
    """The start times of events with a policy timeout, if no object has the time.

    A disrupted pod is created again in the meantime. When the new pod runs, the action is cancelled
    (``derive_events``).
    """
    known, found = status.policy_timeouts, {}
    rules = (*job.rules, *(rule for spec in job.replica_specs for rule in spec.rules))
    if not known and not any(rule.timeout > 0 for rule in rules):
        return {}
    for one in derive_events(job, status, facts):
        key = event_key(one, status.attempts)
        if key in known:
            found[key] = known[key]
        elif one.since is None and decide_action(job, one, now).due is not None:
            found[key] = now
    return found


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
    # A kubelet's clock may be ahead, so a rule without a timeout does not wait.
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
