"""Rules that follow the pods of a job: whether it is pending, restarts or runs; policy timeouts; the start limit.

While a pod cannot run, its reason is also the job's, so that a list shows it. If the cluster's scheduler refuses some
pods of a gang, the gang is pending until all have their nodes, even if others run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tf_dist.core.model.assignment import startable_replicas
from tf_dist.core.model.context import ReconcileContext
from tf_dist.core.model.fieldpath import updated
from tf_dist.core.model.job import Event
from tf_dist.core.model.pods import PodPhase, PodView
from tf_dist.core.model.reasons import HOLDING_REASONS, Reason
from tf_dist.core.model.status import Failure, Phase, Status
from tf_dist.core.model.timestamps import round_time
from tf_dist.core.model.wording import join_names, share_text
from tf_dist.core.reconciler import restarts
from tf_dist.core.reconciler.lifecycle_policy import decide_action, policy_timeouts
from tf_dist.core.reconciler.pod_classification import PodEvent, derive_events, event_key, eviction_key, held_pods
from tf_dist.core.reconciler.requeue import refused_pods
from tf_dist.core.reconciler.status_messages import describe_events, held_text, waiting_text


def follow_pod_phases(s: ReconcileContext) -> Status | None:
    """Set Pending, Restarting or Running of an admitted job from the phases of its pods."""
    if s.status.admission is None:
        return None
    phase = s.status.phase
    if phase is Phase.RESTARTING and (s.facts.stale or _incomplete(s)):
        return None
    refused = refused_pods(s)
    if refused:
        return s.status.with_phase(Phase.PENDING, s.now, Reason.UNSCHEDULABLE, _refused_text(refused))
    if s.status.reason == Reason.UNSCHEDULABLE and not s.status.admission.placement:
        # It was admitted by quota alone, and has nodes only now: the wait for them counts as waiting.
        s = replace(s, status=replace(s.status, start_time=s.now))
    if _runs(s):
        if phase is not Phase.RUNNING:
            return s.status.with_phase(Phase.RUNNING, s.now, Reason.JOB_RUNNING, _running_text(s))
        return _running_status(s)
    held = _pending_reason(s)
    if phase is Phase.RESTARTING:
        reason, message = held or (Reason.PODS_PENDING, "the new pods have not started yet")
        return s.status.with_phase(Phase.PENDING, s.now, reason, message)
    if phase is Phase.RUNNING and _too_few(s):
        return s.status.with_phase(Phase.PENDING, s.now, *(held or (Reason.PODS_PENDING, "too few pods are running")))
    if phase is Phase.RUNNING:
        return _running_status(s)
    if phase is Phase.PENDING:
        if held is not None:
            return replace(s.status, reason=held[0], message=held[1])
        if s.status.reason not in (*HOLDING_REASONS, Reason.UNSCHEDULABLE):
            return None
        return replace(s.status, reason=Reason.PODS_PENDING, message="its pods are starting")
    return None


def _running_status(s: ReconcileContext) -> Status | None:
    """Report how many replicas of a running job run, which may be fewer than needed."""
    return updated(s.status, message=_running_text(s)) if s.status.reason == Reason.JOB_RUNNING else None


def _refused_text(refused: list[PodView]) -> str:
    """The pods without a node, and the scheduler's message about the first."""
    lack = "lacks its node" if len(refused) == 1 else "lack their nodes"
    return (
        f"the gang waits for its nodes: {join_names([p.replica for p in refused])} {lack} ({refused[0].unschedulable})"
    )


def _incomplete(s: ReconcileContext) -> bool:
    due = startable_replicas(s.job, s.status) - s.facts.succeeded
    return any(replica not in s.facts.current for replica in due)


def _running_text(s: ReconcileContext) -> str:
    """How many replicas run, why a restarted one does not run, and which may no longer run."""
    held = held_pods(s.facts)
    down = sum(pod.phase is PodPhase.RUNNING for pod in held)
    text = f"{share_text(s.facts.total().running - down, len(s.job.replicas))} running{waiting_text(s.job, s.status)}"
    silent = sorted((pod for pod in s.facts.current.values() if pod.node_silent), key=lambda pod: pod.replica)
    if silent:
        nodes = sorted({pod.node for pod in silent})
        which = f"{join_names(nodes)}, which {'is' if len(nodes) == 1 else 'are'} not ready"
        text += f"; {join_names([pod.replica for pod in silent])} on {which}, may no longer run"
    return f"{text}; {held_text(held)}" if held else text


def _pending_reason(s: ReconcileContext) -> tuple[str, str] | None:
    """The kubelet's reason why the first pods do not start, with a message; or None."""
    held = held_pods(s.facts)
    return (held[0].held_by, held_text(held)) if held else None


def _runs(s: ReconcileContext) -> bool:
    if s.job.running_types:
        return any(s.facts.count(type_).running for type_ in s.job.running_types)
    total = s.facts.total()
    return total.running + total.succeeded + total.failed >= max(1, s.job.scheduling.min_available)


def _too_few(s: ReconcileContext) -> bool:
    """Whether Running ends because too many pods are pending, as in Volcano; a TFJob stays Running."""
    if s.job.running_types:
        return False
    return s.facts.total().pending > len(s.job.replicas) - s.job.scheduling.min_available


def exceed_start_limit(s: ReconcileContext) -> Status | None:
    """Fail an admitted job that has not run within its ``tf-dist.dev/startup-timeout``, because it holds
    nodes in vain.
    """
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

    Disrupted replicas are created again in the meantime. Volcano's controller keeps a timer in memory for each
    (``AddDelayActionForJob``). Here the start is in the status, so that the next leader continues, and the timer of
    another attempt never fires. If the pod runs again in time, the action is cancelled and a disruption counted, so
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
    # A pod that stops within its grace period is gone in a later pass than the one in which its eviction was seen.
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
    # Rows for failures, which see how a container ended, wait with the pod.
    return decide_action(s.job, replace(eviction, exit=None), s.now).due is not None


def _called_off(s: ReconcileContext, timeouts: Mapping[str, float]) -> set[str]:
    """The evictions of the current attempt whose pods run again before the timeout."""
    over = s.status.policy_timeouts.keys() - timeouts.keys()
    return over & {eviction_key(replica, s.status.attempts) for replica in s.job.replicas} if over else set()
