"""Ordered state-transition rules of a job.

``TRANSITION_RULES``, below the rules, is the ordered list of rules, with the phases in which each applies and to which
it leads. Rules for admitted gangs, which may be resized or requeued, are in ``gang_rules``.

``apply_transitions`` applies the first rule that changes the status, and starts again from the top of the list, until
no rule changes it. Therefore one pass, with one write, takes a job as far as possible.

Rules use the job with its admitted number of replicas, as if its document requested this number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from tf_dist.core.model import names
from tf_dist.core.model.assignment import (
    Admit,
    Wait,
    admitted_text,
    admitted_with,
    fallback_job,
    fallback_text,
    minimum_met,
    replica_counts,
    startable_replicas,
    waiting_text,
)
from tf_dist.core.model.context import ReconcileContext, matching_replicas
from tf_dist.core.model.fieldpath import updated
from tf_dist.core.model.job import Action, Event, ReplicaId, ReplicaSpec
from tf_dist.core.model.pods import PodPhase, PodView, held_text
from tf_dist.core.model.reasons import HOLDING_REASONS, Reason
from tf_dist.core.model.status import LIVE, NO_PODS, STOPPED, Admission, Counts, Failure, Phase, Status
from tf_dist.core.model.status_codec import runs_under_other_controller
from tf_dist.core.model.timestamps import parse_time, round_time
from tf_dist.core.model.wording import are, counted, join_names, share_text
from tf_dist.core.reconciler import restarts
from tf_dist.core.reconciler.commands import COMMANDED_PHASES, execute_command, ignore_command, resume_by_command
from tf_dist.core.reconciler.gang_rules import (
    fail_invalid_objects,
    leave_closed_nodes,
    leave_closed_nodes_at,
    next_overdue_at,
    overdue_pods,
    recover_from_node_loss,
    recovery_due_at,
    refused_pods,
    requeue_evicted,
    requeue_incomplete,
    requeue_preempted,
    requeue_unplaced,
    resize,
    track_completeness,
    unpin_due_at,
    unpin_pods,
    unplaced_due_at,
    wait_for_lost_nodes,
)
from tf_dist.core.reconciler.job_context import classify_pods, node_loss_times, with_status
from tf_dist.core.reconciler.job_objects import dependencies_unreachable, pods_to_delete
from tf_dist.core.reconciler.lifecycle_policy import (
    END_PHASES,
    DecidedEvents,
    PodEvent,
    decide_action,
    derive_events,
    describe_event,
    describe_events,
    event_key,
    eviction_key,
    held_pods,
    most_severe_action,
    next_policy_timeout,
    policy_timeouts,
)
from tf_dist.core.reconciler.usage_accounting import account_usage
from tf_dist.errors import TFDistError


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """A row of the list. ``apply`` returns the next status, or None without a change.

    It is called only in ``phases``, and keeps the phase or leads to a phase of ``leads_to``. ``due``: the time at which
    time alone may cause a change. Past times are ignored.
    """

    apply: Callable[[ReconcileContext], Status | None]
    phases: frozenset[Phase]
    leads_to: frozenset[Phase] = frozenset()
    due: Callable[[ReconcileContext], float | None] | None = None

    @property
    def name(self) -> str:
        """The name of the rule's function."""
        return self.apply.__name__


_STOPPED_AS: Final[Mapping[Phase, Phase]] = {
    Phase.COMPLETING: Phase.COMPLETED,
    Phase.TERMINATING: Phase.TERMINATED,
    Phase.ABORTING: Phase.ABORTED,
}


def finish_stopping(s: ReconcileContext) -> Status | None:
    """End Completing, Terminating and Aborting when every pod to delete is deleted."""
    if pods_to_delete(s):
        return None
    return s.status.with_phase(_STOPPED_AS[s.status.phase], s.now, s.status.reason, s.status.message)


def suspend(s: ReconcileContext) -> Status | None:
    """Suspend the job for the user. This does not count as a restart."""
    if not s.job.run_policy.suspend:
        return None
    return s.status.with_phase(Phase.ABORTING, s.now, Reason.SUSPENDED, "suspended by the user; its pods are stopped")


def resume(s: ReconcileContext) -> Status | None:
    """Resume the job when the suspension is removed, or when the user resumed this attempt after AbortJob."""
    if s.job.run_policy.suspend:
        return None
    by_command = s.job.annotations.get(names.RESUME_ATTEMPT) == str(s.status.attempts.job)
    if s.status.reason != Reason.SUSPENDED and not by_command:
        return None
    return restarts.next_run(s)


def exceed_active_deadline(s: ReconcileContext) -> Status | None:
    """Fail a job that is active for longer than its ``activeDeadlineSeconds``, counted from its start."""
    due = active_deadline_at(s)
    if due is None or s.now < due:
        return None
    message = f"active longer than activeDeadlineSeconds={s.job.run_policy.active_deadline:g}"
    return _end_before(s, due) or s.status.with_phase(Phase.FAILED, s.now, Reason.DEADLINE_EXCEEDED, message)


def _end_before(s: ReconcileContext, due: float) -> Status | None:
    """The end of a job whose containers had finished before the deadline, although this pass is later."""
    pods = tuple(_as_of(pod, due) for pod in s.observed.pods)
    facts = classify_pods(s.job, s.status, pods, s.observed.departed)
    then = replace(s, facts=facts, observed=replace(s.observed, now=due, pods=pods))
    rules = (succeed, apply_lifecycle_policy, finish_by_counts, fail_when_success_unreachable)
    ended = next((following for rule in rules if (following := rule(then)) is not None), None)
    if ended is None or ended.phase in LIVE:
        return None
    return replace(ended, since=s.now, completion_time=s.now if ended.completion_time else None)


def _as_of(pod: PodView, moment: float) -> PodView:
    """The pod at this time: a container that ended later counts as running."""
    end, last = (
        exit_ if exit_ and (exit_.finished_at or inf) <= moment else None for exit_ in (pod.exit, pod.last_exit)
    )
    return replace(pod, phase=PodPhase.RUNNING if pod.finished and not end else pod.phase, exit=end, last_exit=last)


def active_deadline_at(s: ReconcileContext) -> float | None:
    """When the active deadline expires; None without one, or before the start."""
    limit, start = s.job.run_policy.active_deadline, s.status.start_time
    return None if limit is None or start is None else round_time(start + limit)


def succeed(s: ReconcileContext) -> Status | None:
    """Complete a job by a success rule, if its gang was complete. Success precedes failures: a chief's end is final."""
    for rule in s.job.success if s.facts.succeeded else ():
        needed = matching_replicas(s.job, rule.type, rule.index)
        if needed and all(replica in s.facts.succeeded for replica in needed):
            who = str(needed[0]) if len(needed) == 1 else f"all {len(needed)} {rule.type} replicas"
            done = s.status.with_phase(Phase.COMPLETING, s.now, Reason.JOB_SUCCEEDED, f"{who} succeeded")
            return requeue_incomplete(s) or done
    return None


def apply_lifecycle_policy(s: ReconcileContext) -> Status | None:
    """Execute the most severe action of the lifecycle policy table for the events of the job's pods."""
    decided = most_severe_action(s.job, derive_events(s.job, s.status, s.facts), s.now)
    return None if decided is None else _ACTIONS[decided[0]](s, decided[1])


def policy_due_at(s: ReconcileContext) -> float | None:
    """When the next timeout of a policy expires, or the next pod is lost with its node."""
    dated = (counts.pending or counts.failed or counts.terminating for counts in s.facts.counts.values())
    timed = s.status.policy_timeouts or any(dated)
    timeout = next_policy_timeout(s) if timed else None
    return s.next_of(timeout, *node_loss_times(s))


def _end(phase: Phase) -> Callable[[ReconcileContext, DecidedEvents], Status]:
    def end(s: ReconcileContext, answered: DecidedEvents) -> Status:
        occurrence = answered[0][0]
        failed = replace(s.status, failure=restarts.failure_of(occurrence, s.now))
        return failed.with_phase(phase, s.now, str(occurrence.event), describe_events(s.job, [o for o, _ in answered]))

    return end


def _complete(s: ReconcileContext, answered: DecidedEvents) -> Status:
    occurrence = answered[0][0]
    done = s.status.with_phase(Phase.COMPLETING, s.now, str(occurrence.event), describe_event(s.job, occurrence))
    return requeue_incomplete(s) or done


_ACTIONS: Final[dict[Action, Callable[[ReconcileContext, DecidedEvents], Status]]] = {
    **{action: _end(phase) for action, phase in END_PHASES.items()},
    Action.COMPLETE_JOB: _complete,
    Action.RESTART_JOB: restarts.restart_job,
    Action.RESTART_TASK: restarts.restart_tasks,
    Action.RESTART_POD: restarts.restart_pods,
    Action.REQUEUE_JOB: requeue_evicted,
    Action.FALL_BACK: lambda s, answered: requeue_evicted(s, answered, fall_back=True),
}


def finish_by_counts(s: ReconcileContext) -> Status | None:
    """End a Volcano Job if all replicas that can end have ended, or ``minSuccess`` replicas have succeeded.

    The conditions and their order are Volcano's. Parameter servers are ignored, because they never end by themselves.
    """
    counting = s.job.counting
    if counting is None:
        return None
    succeeded = sum(counts.succeeded for counts in s.facts.counts.values())
    done = f"{counted(succeeded, 'replica')} succeeded"
    if counting.min_success is not None and succeeded >= counting.min_success:
        return s.status.with_phase(Phase.COMPLETING, s.now, Reason.MIN_SUCCESS, f"{done} (minSuccess)")
    judged = {spec.type: spec for spec in s.job.training_specs if spec.replicas}
    all_ended = judged and all(_has_ended(s, spec) for spec in judged.values())
    if not all_ended or next_policy_timeout(s) is not None:
        return None
    # Parameter servers count as succeeded, because the replicas that needed them have ended.
    have = {
        spec.type: s.facts.count(spec.type).succeeded if spec.type in judged else spec.replicas
        for spec in s.job.replica_specs
    }
    if counting.min_success is None and minimum_met(s.job, have):
        return s.status.with_phase(Phase.COMPLETING, s.now, Reason.JOB_SUCCEEDED, done)
    failed = {replica for replica, pod in s.facts.current.items() if pod.phase is PodPhase.FAILED}
    return restarts.fail_unhandled(s, failed, _ended_badly(s))


def _has_ended(s: ReconcileContext, spec: ReplicaSpec) -> bool:
    counts = s.facts.count(spec.type)
    ended = counts.succeeded + counts.failed
    if ended == spec.replicas:
        return True
    there = counts.pending + counts.running + counts.terminating
    return not there and dependencies_unreachable(s, spec)


def _ended_badly(s: ReconcileContext) -> str:
    failed = sorted(r for r, pod in s.facts.current.items() if pod.phase is PodPhase.FAILED)
    listed = ", ".join(map(str, failed[:5])) + (", …" if len(failed) > 5 else "")
    if not failed:
        return "every replica that ends has ended, and too few have succeeded"
    return f"no policy answers the failure of {listed}, and all other replicas that could end have ended"


def fail_when_success_unreachable(s: ReconcileContext) -> Status | None:
    """Fail a job if every success rule needs a failed replica that no policy restarts: it would run forever."""
    if not s.job.success:
        return None
    lost = [_lost(s, rule.type, rule.index) for rule in s.job.success]
    if None in lost or next_policy_timeout(s) is not None:
        return None
    message = f"{lost[0]} has failed, no policy restarts it, and without it the job cannot succeed"
    failed = {replica for replica in lost if replica is not None}
    return restarts.fail_unhandled(s, failed, message)


def _lost(s: ReconcileContext, type_: str, index: int | None) -> ReplicaId | None:
    for replica in matching_replicas(s.job, type_, index) if s.facts.current else ():
        pod = s.facts.current.get(replica)
        if pod is not None and pod.phase is PodPhase.FAILED and not pod.deleting:
            return replica
    return None


def fail_over_backoff_limit(s: ReconcileContext) -> Status | None:
    """Fail a job whose budget is exceeded because the kubelet's restarts of containers also count."""
    limit = s.job.run_policy.max_restarts
    if limit is None:
        return None
    spent = restarts.spent_restarts(s)
    if spent <= limit or spent == restarts.charged_restarts(s.job, s.status):
        return None
    return restarts.fail_by_container_restarts(s)


def take_admission(s: ReconcileContext) -> Status | None:
    """Record the verdict of admission on a waiting job. No pod is created before the admission is written."""
    if s.status.admission is not None or s.now < s.status.not_before or overdue_pods(s):
        return None
    other = s.integration
    if other is None and runs_under_other_controller(s.observed.stored_status):
        # The job's own pods use the capacity for which it would wait.
        begun = parse_time(s.observed.stored_status.get("startTime"))
        admitted = replace(s.status, admission=Admission(s.now), start_time=s.now if begun is None else begun)
        return replace(admitted, reason=Reason.ADMITTED, message="its pods ran already when tf-dist took the job over")
    verdict = s.verdict
    if isinstance(verdict, Wait):
        return replace(s.status, reason=verdict.reason, message=verdict.message)
    if isinstance(verdict, Admit):
        job = fallback_job(s.requested_job, verdict.fallback)
        admission = Admission(s.now, verdict.placement, verdict.sizes, by=other.name if other else "")
        # Another scheduler admits no further replicas of this run later.
        admission = admission if other else admitted_with(admission, job, verdict.sizes)
        admitted = replace(s.status, fallback=verdict.fallback, fallback_from=0, admission=admission, start_time=s.now)
        which = f"{fallback_text(s.requested_job, verdict.fallback)}: " if verdict.fallback else ""
        return replace(admitted, reason=Reason.ADMITTED, message=which + admitted_text(job, admitted))
    return None


def follow_pod_phases(s: ReconcileContext) -> Status | None:
    """Set Pending, Restarting or Running of an admitted job from the phases of its pods.

    While a pod cannot run, the job has the pod's reason, so that lists show it. If the cluster's scheduler refuses some
    pods of a gang, the gang is pending until its minimum has nodes, even if other pods run.
    """
    if s.status.admission is None:
        return None
    phase = s.status.phase
    if phase is Phase.RESTARTING and (
        s.facts.stale or startable_replicas(s.job, s.status) - s.facts.succeeded - s.facts.current.keys()
    ):
        return None
    if refused := refused_pods(s):
        which = f"{join_names([p.replica for p in refused])} {are(len(refused), 'lacks its node', 'lack their nodes')}"
        message = f"the gang waits for its nodes: {which} ({refused[0].unschedulable})"
        return s.status.with_phase(Phase.PENDING, s.now, Reason.UNSCHEDULABLE, message)
    if s.status.reason == Reason.UNSCHEDULABLE and not s.status.admission.placement:
        # Quota alone admitted the gang, and it has nodes only now: the time until now counts as waiting.
        s = replace(s, status=replace(s.status, start_time=s.now))
    if _runs(s):
        if phase is not Phase.RUNNING:
            return s.status.with_phase(Phase.RUNNING, s.now, Reason.JOB_RUNNING, _running_text(s))
        return _running_status(s)
    pods = held_pods(s.facts)
    held = (pods[0].held_by, held_text(pods)) if pods else None
    if phase is Phase.RESTARTING:
        reason, message = held or (Reason.PODS_PENDING, "the new pods have not started yet")
        return s.status.with_phase(Phase.PENDING, s.now, reason, message)
    if phase is Phase.RUNNING:
        # Running ends because too many pods are pending, as in Volcano; a TFJob stays Running.
        if s.job.running_types or s.facts.total().pending <= len(s.job.replicas) - s.job.scheduling.min_available:
            return _running_status(s)
        return s.status.with_phase(Phase.PENDING, s.now, *(held or (Reason.PODS_PENDING, "too few pods are running")))
    if phase is Phase.PENDING:
        if held is not None:
            return replace(s.status, reason=held[0], message=held[1])
        if s.status.reason not in (*HOLDING_REASONS, Reason.UNSCHEDULABLE):
            return None
        return replace(s.status, reason=Reason.PODS_PENDING, message="its pods are starting")
    return None


def _running_status(s: ReconcileContext) -> Status | None:
    """Report how many replicas of a running job run. These may be fewer than needed."""
    return updated(s.status, message=_running_text(s)) if s.status.reason == Reason.JOB_RUNNING else None


def _running_text(s: ReconcileContext) -> str:
    """The number of running replicas, why a restarted replica does not run, and which replicas may no longer run."""
    held = held_pods(s.facts)
    down = sum(pod.phase is PodPhase.RUNNING for pod in held)
    text = f"{share_text(s.facts.total().running - down, len(s.job.replicas))} running{waiting_text(s.job, s.status)}"
    silent = sorted((pod for pod in s.facts.current.values() if pod.node_silent), key=lambda pod: pod.replica)
    if silent:
        nodes = sorted({pod.node for pod in silent})
        which = f"{join_names(nodes)}, which {are(len(nodes))} not ready"
        text += f"; {join_names([pod.replica for pod in silent])} on {which}, may no longer run"
    return f"{text}; {held_text(held)}" if held else text


def _runs(s: ReconcileContext) -> bool:
    if s.job.running_types:
        return any(s.facts.count(type_).running for type_ in s.job.running_types)
    total = s.facts.total()
    return total.running + total.succeeded + total.failed >= max(1, s.job.scheduling.min_available)


def exceed_start_limit(s: ReconcileContext) -> Status | None:
    """Fail an admitted job that has not run within its startup timeout, because it holds nodes without using them."""
    due = start_limit_at(s)
    if due is None or s.now < due:
        return None
    held = held_pods(s.facts)
    first, said = (held[0], f": {held_text(held)}") if held else (None, "")
    message = f"was admitted, and did not run within {s.job.run_policy.startup_timeout:g} s{said}"
    failure = Failure(
        event=Reason.START_TIMEOUT,
        replica=str(first.replica) if first else "",
        reason=first.held_by if first else "",
        message=first.waiting[1] if first and first.waiting else "",
        at=s.now,
    )
    return replace(s.status, failure=failure).with_phase(Phase.FAILED, s.now, Reason.START_TIMEOUT, message)


def start_limit_at(s: ReconcileContext) -> float | None:
    """When an admitted job must run; None without a limit."""
    limit, placed = s.job.run_policy.startup_timeout, s.status.placed_at
    return None if limit is None or placed is None else round_time(placed + limit)


def start_policy_timeouts(s: ReconcileContext) -> Status | None:
    """Record the start of events whose policy has a timeout.

    Disrupted replicas are created again in the meantime. Volcano's controller keeps a timer in memory for each event
    (``AddDelayActionForJob``). Here, the status contains the start, so that the next leader continues, and the timer of
    another attempt never fires. If the pod runs again in time, the action is cancelled and a disruption is counted, so
    repeated disruptions finally end the job.
    """
    status = s.status
    before, attempts = status.policy_timeouts, status.attempts
    timeouts = policy_timeouts(s.job, status, s.facts, s.now)
    if not before and not timeouts:
        return None
    evicted = [
        one
        for one in derive_events(s.job, status, s.facts)
        if one.event is Event.POD_EVICTED and event_key(one, attempts) in timeouts
    ]
    if any(event_key(one, attempts) not in before for one in evicted):
        over = restarts.fail_over_disruptions(s, evicted, describe_events(s.job, evicted))
        if over:
            return over
    status = restarts.charge_disruptions(s.job, status, len(_called_off(s, timeouts)))
    # A pod that stops within its grace period is gone only in a later pass than the pass that observed its eviction.
    back = {one.replica for one in evicted if one.replica is not None and one.replica not in s.facts.current}
    for one in evicted:
        if one.replica is not None and _is_replaced(s, one):
            since = timeouts.pop(event_key(one, attempts))
            attempts = attempts.next_pod(one.replica)
            timeouts[event_key(one, attempts)] = since
            back.add(one.replica)
    seen = status.observed_replicas - back
    return updated(status, policy_timeouts=timeouts, observed_replicas=seen, attempts=attempts)


def _is_replaced(s: ReconcileContext, eviction: PodEvent) -> bool:
    """Whether an eviction has left a Failed pod, and a policy for evictions waits for its timeout."""
    pod = s.facts.current.get(eviction.replica) if eviction.replica is not None else None
    if pod is None or pod.deleting or not pod.finished:
        return False
    # Rows for failures depend on the container's exit, so their timeouts keep the pod.
    return decide_action(s.job, replace(eviction, exit=None), s.now).due is not None


def _called_off(s: ReconcileContext, timeouts: Mapping[str, float]) -> set[str]:
    """The evictions of the current attempt whose pods run again before the timeout."""
    over = s.status.policy_timeouts.keys() - timeouts.keys()
    return over & {eviction_key(replica, s.status.attempts) for replica in s.job.replicas} if over else set()


def admission_due_at(s: ReconcileContext) -> float | None:
    """When a waiting job, or a node that was excluded for a waiting or incomplete job, may be tried again."""
    backoff = s.status.not_before if s.status.admission is None else None
    return s.next_of(backoff, *s.status.refused_nodes.values())


def _phases(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


_AFTER_NODE_LOSS: Final = _phases(Phase.PENDING, Phase.RESTARTING, Phase.FAILED)
_BY_POLICY: Final = _phases(*END_PHASES.values())

TRANSITION_RULES: Final[tuple[TransitionRule, ...]] = (
    # Columns: rule, phases in which it applies, phases to which it may lead, when it is due.
    # The job stops, ends or fails.
    TransitionRule(finish_stopping, _phases(*_STOPPED_AS), _phases(*_STOPPED_AS.values())),
    TransitionRule(suspend, LIVE, _phases(Phase.ABORTING)),
    TransitionRule(resume, STOPPED, _phases(Phase.PENDING)),
    TransitionRule(execute_command, LIVE, COMMANDED_PHASES),
    TransitionRule(resume_by_command, STOPPED, _phases(Phase.PENDING)),
    TransitionRule(ignore_command, _phases(Phase.COMPLETING, Phase.TERMINATING)),
    TransitionRule(exceed_active_deadline, LIVE, _BY_POLICY, active_deadline_at),
    TransitionRule(succeed, LIVE, _phases(Phase.COMPLETING, Phase.PENDING)),
    TransitionRule(start_policy_timeouts, LIVE, _phases(Phase.FAILED)),
    TransitionRule(apply_lifecycle_policy, LIVE, _BY_POLICY | {Phase.RESTARTING, Phase.PENDING}, policy_due_at),
    TransitionRule(finish_by_counts, LIVE, _phases(Phase.COMPLETING, Phase.FAILED)),
    TransitionRule(fail_when_success_unreachable, LIVE, _phases(Phase.FAILED)),
    TransitionRule(fail_over_backoff_limit, LIVE, _phases(Phase.FAILED)),
    TransitionRule(fail_invalid_objects, LIVE, _phases(Phase.FAILED)),
    # An admitted gang loses its admission, in whole or in part, or is resized.
    TransitionRule(requeue_preempted, LIVE, _BY_POLICY | {Phase.PENDING}),
    TransitionRule(requeue_unplaced, LIVE, _phases(Phase.PENDING), unplaced_due_at),
    TransitionRule(recover_from_node_loss, LIVE, _AFTER_NODE_LOSS, recovery_due_at),
    TransitionRule(leave_closed_nodes, LIVE, _phases(), leave_closed_nodes_at),
    TransitionRule(unpin_pods, LIVE, _phases(), unpin_due_at),
    TransitionRule(resize, LIVE, _phases(Phase.RESTARTING)),
    # A gang waits, is admitted and runs.
    TransitionRule(wait_for_lost_nodes, LIVE, _phases(), next_overdue_at),
    TransitionRule(take_admission, LIVE, _phases(), admission_due_at),
    TransitionRule(follow_pod_phases, LIVE, _phases(Phase.PENDING, Phase.RUNNING)),
    # Last: a controller that is late may observe running pods for the first time in this pass.
    TransitionRule(exceed_start_limit, _phases(Phase.PENDING), _phases(Phase.FAILED), start_limit_at),
)

# If a job takes more steps than this in a pass, the rules form a cycle. The error shows the last steps.
_MAX_STEPS: Final = 2 * len(Phase)
_STEPS_SHOWN: Final = 4


class TransitionCycle(TFDistError):
    """The rules undo each other endlessly, which is a defect."""


def apply_transitions(s: ReconcileContext, rules: tuple[TransitionRule, ...] = TRANSITION_RULES) -> ReconcileContext:
    """The context after all transitions that are due. Raises TransitionCycle if the rules undo each other."""
    first, before = s, s.status
    if before.created is None and before.phase is Phase.PENDING:
        new = replace(
            before, created=s.now, since=s.now, reason=Reason.JOB_CREATED, message="the job has been accepted"
        )
        s = replace(s, status=new)
    steps: list[str] = []
    while (found := _next_transition(s, rules)) is not None:
        rule, following = found
        steps.append(f"{rule.name}: {s.status.phase} to {following.phase}")
        if len(steps) > _MAX_STEPS:
            cycle = f"…, {', '.join(steps[-_STEPS_SHOWN:])}"
            raise TransitionCycle(f"the transitions of {s.job.key} do not end: {cycle}")
        if s.status.phase in LIVE and following.phase not in LIVE:
            # Pods may be deleted from now on, with their restart counters. The final count includes these.
            following = restarts.keep_container_restarts(s, following, s.facts.current)
        s = with_status(s, following)
    recorded = _record(s)
    after = updated(recorded, usage=account_usage(first, replace(s, status=recorded)))
    return updated(s, status=before if after == before else after)


def next_transition_at(s: ReconcileContext) -> float | None:
    """The earliest time at which time alone may cause a transition."""
    return s.next_of(
        *(rule.due(s) for rule in TRANSITION_RULES if rule.due is not None and s.status.phase in rule.phases)
    )


def _next_transition(s: ReconcileContext, rules: tuple[TransitionRule, ...]) -> tuple[TransitionRule, Status] | None:
    """The first rule that changes the status, with the new status; or None."""
    for rule in rules:
        if s.status.phase not in rule.phases:
            continue
        following = rule.apply(s)
        if following is None or following == s.status:
            continue
        if following.phase is not s.status.phase and following.phase not in rule.leads_to:
            raise ValueError(f"{rule.name} leads to {following.phase}, which its row does not name")
        return rule, following
    return None


def _record(s: ReconcileContext) -> Status:
    """The status with the observed pods, so that a pod that is missing later is detected."""
    status, facts = s.status, s.facts
    # A pod that was being deleted when it was first observed (scaled away, and wanted again) is not a disruption.
    staying = {replica for replica, pod in facts.current.items() if not pod.deleting}
    live = status.phase in LIVE
    replicas = status.observed_replicas | staying if live else status.observed_replicas
    sizes = replica_counts(s.job)
    remembered = updated(
        status,
        observed_replicas=frozenset(replica for replica in replicas if replica.index < sizes.get(replica.type, 0)),
        succeeded=facts.succeeded,
        counts=facts.counts if live else _kept_failures(status.counts, facts.counts),
        refused_nodes={node: until for node, until in s.status.refused_nodes.items() if until > s.now},
        admission=_admission(s),
    )
    if remembered.admission is not status.admission:
        remembered = updated(remembered, requeues=0, not_before=0.0)
    return track_completeness(updated(s, status=remembered))


def _admission(s: ReconcileContext) -> Admission | None:
    """The admission with the time at which the gang's minimum first had nodes. This time is then kept."""
    admission = s.status.admission
    if s.status.phase not in LIVE or admission is None or admission.complete is not None:
        return admission
    return replace(admission, complete=s.now) if s.facts.gang_has_nodes(s.job) else admission


def _kept_failures(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> dict[str, Counts]:
    """The counts of a job that has ended, with deleted failed pods, and without later restarts of a kept container."""
    return {
        type_: replace(counts, failed=max(counts.failed, was.failed), restarts=was.restarts)
        for type_, counts in now.items()
        for was in (before.get(type_, NO_PODS),)
    }
