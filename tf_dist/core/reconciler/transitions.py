"""Ordered state-transition rules of a job.

The first rule that speaks gives the next status; then the list is read again, until all are silent. So one pass, and
one write, carries a job as far as what is there allows. Rules, in order:

1. ``finish_stopping``  Completing, Terminating, Aborting end when nothing is left to stop.
2. ``suspend``/``resume`` the wish of the user; costs no restart budget.
3. ``exceed_active_deadline``           active longer than allowed: Failed.
4. ``succeed``            a success rule holds: Completing. Before failures: a chief that is done is done.
5. ``apply_lifecycle_policy``             what happened, looked up in the policy table.
6. ``finish_by_counts``  Volcano: all replicas that end have ended.
7. ``fail_when_success_unreachable``           no success rule can hold any more: Failed, instead of running for ever.
8. ``fail_over_backoff_limit``          the kubelet's own restarts used up the budget: Failed.
9. ``requeue_preempted``           another gang needs the place: the job waits again, or ends.
10. ``requeue_unplaced``           pods found no node in time: the place is given back for a while.
11. ``recover_from_node_loss``           nodes were lost: the gang goes on with less, or gives its place back.
12. ``unpin_pods``             the scheduler refuses a pod its node: it may go to any.
13. ``resize``            admission, or the document, has changed the number of replicas.
14. ``wait_for_lost_nodes`` pods of an earlier attempt may still run: the job asks for no place.
15. ``take_admission``             the gang has its place.
16. ``follow_pod_phases``       Pending, Restarting and Running follow from the pods.

``ending`` holds the rules by which a job ends, ``requeue`` those by which it waits again, ``living`` those by which it
goes on. All are told the size that the job has been granted as if its document said it (``sizes.granted``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core.api import names
from tf_dist.core.api.assignment import Admit, Resize, Wait, granted_job, replica_difference_text
from tf_dist.core.api.context import Observed, ReconcileContext, TransitionRule, matching_replicas
from tf_dist.core.api.job import Action, CompletionByCounts, Job, ReplicaId, ReplicaSpec
from tf_dist.core.api.lifecycle_policy import SEVERITY, DecidedEvents, decide_action
from tf_dist.core.api.pod_events import (
    PodClassification,
    classify_pods,
    derive_events,
    describe_event,
    describe_events,
    training_specs,
)
from tf_dist.core.api.pods import PodPhase
from tf_dist.core.api.status import LIVE, NO_PODS, RUNNING, STOPPED, Admission, Counts, Phase, Status
from tf_dist.core.api.timestamps import round_time
from tf_dist.core.integrations.dispatch import integration_of
from tf_dist.core.reconciler import restarts, sync
from tf_dist.core.reconciler.node_loss import (
    mark_lost_pods,
    overdue_pods,
    recover_from_node_loss,
    track_completeness,
    wait_for_lost_nodes,
)
from tf_dist.core.reconciler.requeue import (
    is_complete,
    requeue_preempted,
    requeue_unplaced,
    resize,
    unexpired_exclusions,
    unpin_pods,
)
from tf_dist.core.reconciler.sync import pods_to_delete


def apply_lifecycle_policy(s: ReconcileContext) -> Status | None:
    """Give the gravest answer that the policy table has for what happened."""
    if not s.live:
        return None
    answers: dict[Action, DecidedEvents] = {}
    for occurrence in derive_events(s.job, s.status, s.facts):
        decision = decide_action(s.job, occurrence, s.now)
        answers.setdefault(decision.action, []).append((occurrence, decision))
    for action in SEVERITY:
        if action in answers:
            return _ACTIONS[action](s, answers[action])
    return None


def _end(phase: Phase) -> Callable[[ReconcileContext, DecidedEvents], Status]:
    def end(s: ReconcileContext, answered: DecidedEvents) -> Status:
        occurrence = answered[0][0]
        failed = replace(s.status, failure=restarts.failure_of(occurrence, s.now))
        return failed.to(phase, s.now, str(occurrence.event), describe_events(s.job, [o for o, _ in answered]))

    return end


def _complete(s: ReconcileContext, answered: DecidedEvents) -> Status:
    occurrence = answered[0][0]
    return s.status.to(Phase.COMPLETING, s.now, str(occurrence.event), describe_event(s.job, occurrence))


_ACTIONS: Final[dict[Action, Callable[[ReconcileContext, DecidedEvents], Status]]] = {
    Action.FAIL_JOB: _end(Phase.FAILED),
    Action.TERMINATE_JOB: _end(Phase.TERMINATING),
    Action.ABORT_JOB: _end(Phase.ABORTING),
    Action.COMPLETE_JOB: _complete,
    Action.RESTART_JOB: lambda s, answered: restarts.restart_job(s.job, s.status, s.facts, answered, s.now),
    Action.RESTART_TASK: lambda s, answered: restarts.restart_tasks(s.job, s.status, s.facts, answered, s.now),
    Action.RESTART_POD: lambda s, answered: restarts.restart_pods(s.job, s.status, s.facts, answered, s.now),
}


def finish_stopping(s: ReconcileContext) -> Status | None:
    """A stop is over when no pod that had to go is there any more."""
    after = {
        Phase.COMPLETING: Phase.COMPLETED,
        Phase.TERMINATING: Phase.TERMINATED,
        Phase.ABORTING: Phase.ABORTED,
    }.get(s.status.phase)
    if after is None or pods_to_delete(s.job, s.status, s.facts):
        return None
    return s.status.to(after, s.now, s.status.reason, s.status.message)


def exceed_active_deadline(s: ReconcileContext) -> Status | None:
    """``activeDeadlineSeconds`` counts from the start, and fires on time."""
    due = active_deadline_at(s.job, s.status)
    if not s.live or due is None or s.now < due:
        return None
    message = f"active longer than activeDeadlineSeconds={s.job.run_policy.active_deadline:g}"
    return s.status.to(Phase.FAILED, s.now, "DeadlineExceeded", message)


def active_deadline_at(job: Job, status: Status) -> float | None:
    """When the active deadline falls, None without one or before the start."""
    limit = job.run_policy.active_deadline
    return None if limit is None or status.start_time is None else round_time(status.start_time + limit)


def succeed(s: ReconcileContext) -> Status | None:
    """A success rule of the job holds."""
    if not s.live:
        return None
    for rule in s.job.success:
        needed = matching_replicas(s.job, rule.type, rule.index)
        if needed and all(replica in s.facts.succeeded for replica in needed):
            who = str(needed[0]) if len(needed) == 1 else f"all {len(needed)} {rule.type} replicas"
            return s.status.to(Phase.COMPLETING, s.now, "JobSucceeded", f"{who} succeeded")
    return None


def finish_by_counts(s: ReconcileContext) -> Status | None:
    """Volcano's rules, in its order; parameter servers are not waited for, because they never end by themselves."""
    counting = s.job.counting
    if counting is None or not s.live:
        return None
    succeeded = sum(counts.succeeded for counts in s.facts.counts.values())
    if counting.min_success is not None and succeeded >= counting.min_success:
        return s.status.to(Phase.COMPLETING, s.now, "MinSuccess", f"{succeeded} replicas succeeded (minSuccess)")
    if not _all_ended(s) or s.policy_pending:
        return None
    if counting.min_success is None and _enough(s, counting):
        return s.status.to(Phase.COMPLETING, s.now, "JobSucceeded", f"{succeeded} replicas succeeded")
    return s.status.to(Phase.FAILED, s.now, "PodFailed", _ended_badly(s))


def _all_ended(s: ReconcileContext) -> bool:
    judged = [spec for spec in training_specs(s.job) if spec.replicas]
    return bool(judged) and all(_has_ended(s, spec) for spec in judged)


def _has_ended(s: ReconcileContext, spec: ReplicaSpec) -> bool:
    counts = s.facts.count(spec.type)
    ended = counts.succeeded + counts.failed
    if ended == spec.replicas:
        return True
    there = counts.pending + counts.running + counts.terminating
    return not there and sync.dependencies_unreachable(s.job, spec, s.facts)


def _enough(s: ReconcileContext, counting: CompletionByCounts) -> bool:
    """Every task has its minimum where the job's minimum is no less than theirs together, and the job has its own.

    A parameter server counts as if it had succeeded: whoever needed it has ended.
    """
    judged = {spec.type for spec in training_specs(s.job)}
    done = {
        spec.type: s.facts.count(spec.type).succeeded if spec.type in judged else spec.replicas
        for spec in s.job.replica_specs
    }
    strict = counting.min_available >= sum(spec.min_replicas for spec in s.job.replica_specs)
    short = any(done[spec.type] < spec.min_replicas for spec in s.job.replica_specs)
    return not (strict and short) and sum(done.values()) >= counting.min_available


def _ended_badly(s: ReconcileContext) -> str:
    failed = sorted(r for r, pod in s.facts.current.items() if pod.phase is PodPhase.FAILED)
    listed = ", ".join(map(str, failed[:5])) + (", …" if len(failed) > 5 else "")
    if not failed:
        return "every replica that ends has ended, and too few have succeeded"
    return f"no policy answers the failure of {listed}, and what else could end has ended"


def fail_when_success_unreachable(s: ReconcileContext) -> Status | None:
    """Every way to succeed needs a replica that has failed and that no policy brings back."""
    if not s.live or not s.job.success:
        return None
    lost = [_lost(s, rule.type, rule.index) for rule in s.job.success]
    if None in lost or s.policy_pending:
        return None
    message = f"{lost[0]} has failed, no policy restarts it, and without it the job cannot succeed"
    return s.status.to(Phase.FAILED, s.now, "PodFailed", message)


def _lost(s: ReconcileContext, type_: str, index: int | None) -> ReplicaId | None:
    for replica in matching_replicas(s.job, type_, index):
        pod = s.facts.current.get(replica)
        if pod is not None and pod.phase is PodPhase.FAILED:
            return replica
    return None


def fail_over_backoff_limit(s: ReconcileContext) -> Status | None:
    """Restarts by the kubelet, inside living pods, count against the budget too."""
    limit = s.job.run_policy.max_restarts
    if not s.live or limit is None:
        return None
    spent = restarts.spent_restarts(s.job, s.status, s.facts)
    if spent <= limit or spent == restarts.charged_restarts(s.job, s.status):
        return None
    return restarts.fail_over_budget(
        s.job, s.status, s.now, f"its containers were restarted again and again ({spent} restarts)"
    )


def suspend(s: ReconcileContext) -> Status | None:
    """The user asks the job to stop for a while."""
    if not (s.job.run_policy.suspend and s.live):
        return None
    return s.status.to(Phase.ABORTING, s.now, "Suspended", "suspended by the user; its pods are stopped")


def resume(s: ReconcileContext) -> Status | None:
    """The suspension was lifted, or somebody answered an AbortJob policy with a resume of this very attempt.

    Replicas that are done stay done, as in Volcano and in a Kubernetes Job; the others start anew.
    """
    if s.status.phase not in STOPPED or s.job.run_policy.suspend:
        return None
    by_command = s.job.annotations.get(names.RESUME_ATTEMPT) == str(s.status.attempts.job)
    if s.status.reason != "Suspended" and not by_command:
        return None
    attempts = s.status.attempts.next_job()
    fresh = replace(
        s.status,
        attempts=attempts,
        seen=frozenset(),
        start_time=None,
        admission=None,
        last_sizes={},
        requeues=0,
        refused_nodes={},
        not_before=0.0,
        backoffs={},
    )
    return fresh.to(Phase.PENDING, s.now, "Resumed", "resumed; waits for its place")


def take_admission(s: ReconcileContext) -> Status | None:
    """Take the verdict of admission into the memory; no pod is made before that is written."""
    if not s.live or s.status.admission is not None or s.now < s.status.not_before or overdue_pods(s.facts, s.now):
        return None
    verdict = s.observed.verdict
    if isinstance(verdict, Wait):
        return replace(s.status, reason=verdict.reason.value, message=verdict.message)
    if isinstance(verdict, Admit):
        other = integration_of(s.asked, s.status)
        place = Admission(s.now, verdict.placement, verdict.sizes, by=other.name if other else "")
        admitted = replace(s.status, admission=place, start_time=s.now)
        smaller = replica_difference_text(s.asked, granted_job(s.asked, admitted))
        message = f"begins with {smaller}" if smaller else f"all {len(s.asked.replicas)} replicas have their place"
        return replace(admitted, reason="Admitted", message=message)
    return None


def follow_pod_phases(s: ReconcileContext) -> Status | None:
    """Pending, Restarting and Running are what the pods make of it."""
    if not s.live or s.status.admission is None:
        return None
    phase = s.status.phase
    if phase is Phase.RESTARTING and (s.facts.stale or len(s.facts.current) < _expected(s)):
        return None
    if _runs(s):
        if phase is not Phase.RUNNING:
            return s.status.to(Phase.RUNNING, s.now, RUNNING, _running_text(s))
        return replace(s.status, message=_running_text(s)) if s.status.reason == RUNNING else None
    if phase is Phase.RESTARTING:
        return s.status.to(Phase.PENDING, s.now, "PodsPending", "the new pods have not started yet")
    if phase is Phase.RUNNING and _too_few(s):
        return s.status.to(Phase.PENDING, s.now, "PodsPending", "too few pods are running")
    return None


def _expected(s: ReconcileContext) -> int:
    return len(s.job.replicas) - sum(1 for r in s.facts.succeeded if r not in s.facts.current)


def _running_text(s: ReconcileContext) -> str:
    return f"{s.facts.total().running} of {len(s.job.replicas)} replicas are running"


def _runs(s: ReconcileContext) -> bool:
    if s.job.running_types:
        return any(s.facts.count(type_).running for type_ in s.job.running_types)
    total = s.facts.total()
    return total.running + total.succeeded + total.failed >= max(1, s.job.scheduling.min_available)


def _too_few(s: ReconcileContext) -> bool:
    """Volcano takes Running back when too many pods are pending; a TFJob stays Running."""
    if s.job.running_types:
        return False
    return s.facts.total().pending > len(s.job.replicas) - s.job.scheduling.min_available


TRANSITION_RULES: Final[tuple[TransitionRule, ...]] = (
    finish_stopping,
    suspend,
    resume,
    exceed_active_deadline,
    succeed,
    apply_lifecycle_policy,
    finish_by_counts,
    fail_when_success_unreachable,
    fail_over_backoff_limit,
    requeue_preempted,
    requeue_unplaced,
    recover_from_node_loss,
    unpin_pods,
    resize,
    wait_for_lost_nodes,
    take_admission,
    follow_pod_phases,
)

# What another driver than the job's own may do that has a verdict for it, and what it leaves to that one meanwhile.
# What the other rules say comes before the verdict, and is for the job's own driver to find out, too: it sees the pods
# that it made itself, by its own clock. Two drivers that wrote what each of them sees would write for ever.
_OF_VERDICTS: Final = frozenset({requeue_preempted, resize, take_admission})
_LEFT: Final = frozenset({requeue_unplaced, recover_from_node_loss, unpin_pods, wait_for_lost_nodes, follow_pod_phases})

# More steps in one pass than there are phases would be a circle.
_MAX_STEPS: Final = 2 * len(Phase)


def apply_transitions(job: Job, status: Status, observed: Observed) -> tuple[Status, PodClassification]:
    """The status after this moment, with the facts it was decided on; the same object when nothing changed."""
    now = observed.now
    before = status
    if status.created is None and status.phase is Phase.PENDING:
        status = replace(status, created=now, since=now, reason="JobCreated", message="the job has been accepted")
    sized = granted_job(job, status)
    pods = mark_lost_pods(job, observed)
    facts = classify_pods(sized, status, pods, observed.gone)
    for _ in range(_MAX_STEPS):
        following = _first_transition(ReconcileContext(sized, status, facts, observed, job))
        if following is None:
            break
        if status.phase in LIVE and following.phase not in LIVE:
            # Its pods may go from now on, and their restart counters with them: the end, too, says how many there were.
            following = restarts.keep_container_restarts(following, facts.current, facts)
        if status.succeeded - following.succeeded and isinstance(observed.verdict, Resize):
            # It was reckoned with the room of replicas that were done, and now run again.
            observed = replace(observed, verdict=None)
        if (following.attempts, following.admission) != (status.attempts, status.admission):
            sized = granted_job(job, following)
            facts = classify_pods(sized, following, pods, observed.gone)
        status = following
    status = _within(sized, status) if observed.verdict_only else _record_observed(sized, status, facts, observed)
    return (before if status == before else status), facts


def _first_transition(situation: ReconcileContext) -> Status | None:
    if situation.observed.verdict_only:
        return _of_verdict(situation)
    for rule in TRANSITION_RULES:
        following = rule(situation)
        if following is not None and following != situation.status:
            return following
    return None


def _of_verdict(situation: ReconcileContext) -> Status | None:
    """What the verdict alone makes of the memory. One that waits loses nothing by it, whatever else has happened."""
    waits = situation.status.admission is None
    for rule in TRANSITION_RULES:
        following = rule(situation) if rule is take_admission or not (waits or rule in _LEFT) else None
        if following is not None and following != situation.status:
            return following if rule in _OF_VERDICTS else None
    return None


def _within(job: Job, status: Status) -> Status:
    """The memory without replicas that the job is not to have any more: they are no loss."""
    sizes = {spec.type: spec.replicas for spec in job.replica_specs}
    seen = frozenset(replica for replica in status.seen if replica.index < sizes.get(replica.type, 0))
    return status if seen == status.seen else replace(status, seen=seen)


def _record_observed(job: Job, status: Status, facts: PodClassification, observed: Observed) -> Status:
    """Fold what is seen now into the memory, so that what goes missing later is missed."""
    sizes = {spec.type: spec.replicas for spec in job.replica_specs}
    # A pod that was on its way out when it came in sight (scaled away, and wanted again) is nobody's loss.
    staying = {replica for replica, pod in facts.current.items() if not pod.deleting}
    known = status.seen | staying if status.phase in LIVE else status.seen
    seen = frozenset(replica for replica in known if replica.index < sizes.get(replica.type, 0))
    counts = facts.counts if status.phase in LIVE else _kept_failures(status.counts, facts.counts)
    refused = unexpired_exclusions(status.refused_nodes, observed.now)
    remembered = replace(status, seen=seen, succeeded=facts.succeeded, counts=counts, refused_nodes=refused)
    return track_completeness(job, _completed(job, remembered, facts, observed.now), facts, observed)


def _completed(job: Job, status: Status, facts: PodClassification, now: float) -> Status:
    """A gang that has had all its nodes keeps its place, whatever happens to one of its pods."""
    place = status.admission
    if status.phase not in LIVE or place is None or place.complete is not None or not is_complete(job, facts):
        return status
    return replace(status, admission=replace(place, complete=now), requeues=0, not_before=0.0)


def _kept_failures(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> dict[str, Counts]:
    """A job that is over says how many failed even when their pods are gone."""
    return {
        type_: replace(counts, failed=max(counts.failed, before.get(type_, NO_PODS).failed))
        for type_, counts in now.items()
    }
