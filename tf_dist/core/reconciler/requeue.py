"""Transitions of an admitted gang: it is resized or requeued.

Resized: the replicas with the highest indexes are removed first, which is not a failure. If the others cannot continue
with another number of replicas (``resize_restarts``), all restart, which does not count against the budget.

Requeued: all pods are stale and are deleted, and the job waits for another admission. This counts against no budget.
Replicas that have succeeded stay so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tf_dist.core.model.assignment import (
    Preempt,
    Sizes,
    admitted_with,
    bounded_counts,
    fallback_job,
    minimum_met,
    placement_within,
    replica_change_text,
    replica_counts,
    resize_restarts,
    startable_replicas,
)
from tf_dist.core.model.context import ReconcileContext
from tf_dist.core.model.fieldpath import updated
from tf_dist.core.model.job import Action, Event, Job, ReplicaId
from tf_dist.core.model.names import short_hash
from tf_dist.core.model.pods import Disruption, PodPhase, PodView
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import LIVE, SCHEDULER_PREEMPTION, Admission, Failure, Phase, Status
from tf_dist.core.model.timestamps import format_time, round_time
from tf_dist.core.model.wording import join_names
from tf_dist.core.reconciler import restarts
from tf_dist.core.reconciler.assigned_nodes import exclude_nodes, unschedulable_nodes
from tf_dist.core.reconciler.lifecycle_policy import END_PHASES, DecidedEvents, most_severe_action
from tf_dist.core.reconciler.pod_classification import PodEvent
from tf_dist.core.reconciler.status_messages import admitted_text, describe_events, fallback_text


def resize(s: ReconcileContext) -> Status | None:
    """Change the replica counts or nodes of the admission, by a verdict or by the document. Pods follow."""
    admission = s.status.admission
    if admission is None:
        return None
    verdict = s.standing_resize
    job, why = fallback_job(s.requested_job, s.status.fallback), ""
    new = admission
    if verdict is not None:
        new, why = admitted_with(admission, job, {**admission.admitted_sizes, **verdict.sizes}), verdict.message
        new = replace(new, placement=verdict.placement)
    if not new.sizes:
        return None
    before = {**replica_counts(s.job), **admission.sizes}
    after = bounded_counts(job, new.sizes)
    started = bounded_counts(job, new.admitted_sizes)
    placement = placement_within(job, new.placement, started)
    new = updated(new, sizes=after, started=started if started != after else {}, placement=placement)
    changed = any(before.get(type_) != count for type_, count in after.items())
    if changed or new.admitted_sizes != admission.admitted_sizes:
        new = replace(new, resized=s.now)
    if new == admission:
        return None
    if not changed:
        status = replace(s.status, admission=new)
        return replace(status, message=admitted_text(job, status)) if status.reason == Reason.ADMITTED else status
    return with_size(s, new, before, why or f"{replica_change_text(before, after)}, as the job now requests")


def with_size(s: ReconcileContext, admission: Admission, before: Sizes, message: str) -> Status:
    """The status with this admission, whose replica counts differ from ``before``."""
    after = admission.sizes
    leaving = [replica for replica in s.facts.current if replica.index >= after.get(replica.type, 0)]
    if not s.facts.current or not resize_restarts(s.job, before, after):
        status = restarts.keep_container_restarts(s, s.status, leaving)
        return replace(status, admission=admission, reason=Reason.RESIZED, message=message)
    status = restarts.keep_container_restarts(s, s.status, s.facts.current)
    message += "; all replicas start again, because TF_CONFIG names every one of them"
    return (
        status.next_attempt(admission)
        .with_restart(Reason.RESIZED)
        .with_phase(Phase.RESTARTING, s.now, Reason.RESIZED, message)
    )


# Seconds: the back-off before the gang tries again, doubling up to the longest.
_FIRST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
# The share of a back-off that depends on the job: gangs that failed together do not come back together.
_SPREAD: Final = 0.1
_DIGITS: Final = 36


def requeue_preempted(s: ReconcileContext) -> Status | None:
    """Preempt the gang. The job's policy decides whether it waits for another admission, or ends."""
    verdict = s.verdict
    if s.status.admission is None or not isinstance(verdict, Preempt):
        return None
    message = f"gave up its admission to {_preemptor(s.job, verdict)}" if verdict.by else "gave up its admission"
    message += f": {verdict.message}" if verdict.message else ""
    status = replace(s.status, failure=Failure(event=Reason.PREEMPTED, message=message, at=s.now))
    evictions = (
        PodEvent(
            event=Event.POD_EVICTED,
            spec=spec,
            replica=replica,
            disruption=Disruption(SCHEDULER_PREEMPTION),
        )
        for spec in s.job.replica_specs
        for replica in spec.ids
    )
    decided = most_severe_action(s.job, evictions, s.now)
    if decided is not None and decided[0] in END_PHASES:
        return status.with_phase(END_PHASES[decided[0]], s.now, Reason.PREEMPTED, message)
    falls_back = decided is not None and decided[0] is Action.FALL_BACK
    return requeue(s, status.with_restart(Reason.PREEMPTED), Reason.PREEMPTED, message, fall_back=falls_back)


def _preemptor(job: Job, verdict: Preempt) -> str:
    """The preempting job. It is named only within the same namespace, because names of other tenants' jobs
    are private.
    """
    if verdict.by is None or verdict.by.namespace == job.key.namespace:
        return str(verdict.by)
    return f"a job of queue {verdict.queue}" if verdict.queue else "a job of another namespace"


def requeue_evicted(s: ReconcileContext, answered: DecidedEvents, *, fall_back: bool = False) -> Status:
    """Requeue the gang after disruptions, if that is the job's policy."""
    status = restarts.charge_disruption(s, answered)
    if status.phase not in LIVE:
        return status
    what = describe_events(s.job, [occurrence for occurrence, _ in answered])
    message = f"{what}; the gang gave up its admission and waits for another one, at its former position"
    return requeue(s, status, Reason.EVICTED, message, fall_back=fall_back)


def fail_invalid_objects(s: ReconcileContext) -> Status | None:
    """Fail an admitted gang if the API server finds one of its objects invalid, because retries cannot succeed."""
    if not s.observed.invalid or s.status.admission is None:
        return None
    reason, why = Reason.PODS_REJECTED, s.observed.last_error or ""
    failed = replace(s.status, failure=Failure(event=reason, message=why, at=s.now))
    return failed.with_phase(Phase.FAILED, s.now, reason, f"the API server finds an object of the job invalid: {why}")


_REJECTIONS: Final = {
    Reason.PODS_REJECTED: "the cluster refuses pods of the gang",
    Reason.NAME_CONFLICT: "the name of one of its objects is taken",
}


def requeue_unplaced(s: ReconcileContext) -> Status | None:
    """Requeue the whole gang if pods found no node in time, or cannot be created. It is tried again after a
    back-off, or when the job's spec changes.
    """
    due = unplaced_due_at(s)
    if due is None:
        return None
    if s.observed.rejected is not None:
        return _released(s, s.observed.rejected, f"{_REJECTIONS[s.observed.rejected]}: {s.observed.last_error}", "")
    if s.now < due:
        return None
    return _released(s, Reason.SCHEDULE_TIMEOUT, _unplaced_text(s), f" within {s.job.schedule_timeout:g} s")


def requeue_incomplete(s: ReconcileContext) -> Status | None:
    """Restart all replicas together if replicas that decide success ended before the gang was complete,
    because the cluster's scheduler had refused nodes to others. A job whose replicas do not need each other
    has a lower minimum.
    """
    ended = [replica for replica, pod in s.facts.current.items() if pod.phase is PodPhase.SUCCEEDED]
    if not ended or not (s.status.reason == Reason.UNSCHEDULABLE or refused_pods(s)):
        return None
    done = {replica for replica in s.facts.succeeded if replica not in s.facts.current}
    started = {replica for replica, pod in s.facts.current.items() if _has_started(pod)}
    if minimum_met(s.job, Counter(replica.type for replica in done | started)):
        return None
    missing = join_names(sorted(replica for replica, pod in s.facts.current.items() if not _has_started(pod)))
    why = f"{join_names(sorted(ended))} ended before {missing} had a node"
    again = replace(s, status=replace(s.status, succeeded=s.status.succeeded.difference(ended)))
    return _released(again, Reason.SCHEDULE_TIMEOUT, why, "")


def refused_pods(s: ReconcileContext) -> list[PodView]:
    """The pods to which the cluster's scheduler refuses nodes, if the gang has not been complete without them."""
    admission = s.status.admission
    if admission is None or admission.complete is not None or (s.integration is not None and s.integration.pods_first):
        return []
    refused = [pod for pod in s.facts.current.values() if pod.unschedulable and pod.waits_for_node]
    short = bool(refused) and not s.facts.gang_has_nodes(s.job)
    return sorted(refused, key=lambda pod: pod.replica) if short else []


def _has_started(pod: PodView) -> bool:
    return pod.phase is not PodPhase.PENDING


def _released(s: ReconcileContext, reason: Reason, why: str, when: str) -> Status:
    requeues = s.status.requeues + 1
    following = _next_fallback(s)
    # A fallback that has not had its turn since the first is tried at once.
    pause = 0.0 if following else requeue_backoff(s.job.uid, requeues)
    not_before = round_time(s.now + pause)
    then = (
        f"falls back to {fallback_text(s.job, following)}" if following else f"tries again at {format_time(not_before)}"
    )
    message = f"{why}{when}; the gang gave up its admission and {then}"
    stuck = {*s.status.refused_nodes, *unschedulable_nodes(s)}
    status = replace(
        s.status,
        requeues=requeues,
        not_before=not_before,
        refused_nodes=exclude_nodes(s.status.refused_nodes, stuck, not_before),
        failure=Failure(event=reason.value, message=why, at=s.now),
    )
    return requeue(s, status, reason.value, message, fall_back=True)


def requeue(s: ReconcileContext, status: Status, reason: str, message: str, *, fall_back: bool = False) -> Status:
    """``status`` without an admission, with all pods stale: the job waits for another admission.

    ``fall_back``: its next fallback comes first; after the last one, the document itself.
    """
    status = restarts.keep_container_restarts(s, status, s.facts.current)
    status = replace(status, fallback_from=_next_fallback(s) if fall_back else 0)
    return status.next_attempt(None).with_phase(Phase.PENDING, s.now, reason, message)


def _next_fallback(s: ReconcileContext) -> int:
    """The fallback after the one that ran; 0 after the last, and with another gang scheduler."""
    if s.integration is not None:
        return 0
    return (s.status.fallback + 1) % (len(s.job.fallbacks) + 1)


def requeue_backoff(uid: str, count: int) -> float:
    """Seconds before the next try of a gang that was requeued ``count`` consecutive times."""
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(count - 1, 30))
    length = 5
    part = int(short_hash(uid, count, length=length), _DIGITS) / float(_DIGITS**length)
    return float(pause * (1 - _SPREAD * part))


def unplaced_due_at(s: ReconcileContext) -> float | None:
    """When the gang is requeued if nothing changes; None if every pod has, or had, its node.

    A gang scheduler that binds pods has its own timeout for pods beyond the minimum.
    """
    if s.status.admission is None or s.status.admission.complete is not None:
        return None
    if s.integration is not None and s.integration.pods_first:
        return None
    since = min((since for _, since in _unplaced(s)), default=None)
    return None if since is None else round_time(since + s.job.schedule_timeout)


def _unplaced(s: ReconcileContext) -> Iterator[tuple[ReplicaId, float]]:
    """The replicas without a node, and the time since which they could have one.

    A replica without a pod counts only if a refusal is the only possible reason.
    """
    at = s.status.admission.at if s.status.admission is not None else 0.0
    expected = not s.facts.stale and not s.status.backoffs
    startable = startable_replicas(s.job, s.status)
    depends = {spec.type for spec in s.job.replica_specs if spec.depends is not None}
    for replica in s.facts.without_node(s.job):
        pod = s.facts.current.get(replica)
        if replica not in startable:
            continue
        if pod is None:
            if expected and replica.type not in depends and replica not in s.status.observed_replicas:
                yield replica, at
        elif pod.waits_for_node:
            yield replica, max(at, pod.created_at or at)


def _unplaced_text(s: ReconcileContext) -> str:
    replicas = [replica for replica, _ in _unplaced(s)]
    pods = (s.facts.current.get(replica) for replica in replicas)
    words = next((pod.unschedulable for pod in pods if pod is not None and pod.unschedulable), "")
    return f"{join_names(replicas)} got no node" + (f" ({words})" if words else "")
