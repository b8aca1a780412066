"""Node loss: pods that are lost with their node, and the recovery of the gang, smaller or requeued. A cluster's taint
manager deletes pods of a lost node when their toleration expires.

If it does not, or is late, the job does not wait for it.

The recovery timeout is that of Kueue (``waitForPodsReady.recoveryTimeout``). A gang with only a part of its nodes does
not work, and two such gangs can block each other forever. A gang that can run with fewer replicas does so. Otherwise
all its pods stop, and it waits again at its former position. Neither counts as a restart.

A pod on an unreachable node may still run, and an old and a new attempt must not overlap. So the job does not start
until Kubernetes has confirmed the end of such a pod (its node returned, was deleted, or is tainted
``node.kubernetes.io/out-of-service``). Until then the job's message names the pod and the node, and it is not admitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tf_dist.core.model.assignment import (
    admitted_with,
    placement_within,
    replica_bounds,
    replica_change_text,
    replica_counts,
    resize_restarts,
    startable_replicas,
)
from tf_dist.core.model.context import ReconcileContext
from tf_dist.core.model.job import DisruptionPolicy, Event, ReplicaId
from tf_dist.core.model.pods import PodView, UnreadyNode
from tf_dist.core.model.reasons import OUT_OF_SERVICE, Reason
from tf_dist.core.model.status import LIVE, Admission, Failure, Phase, Status
from tf_dist.core.model.timestamps import format_time, round_time
from tf_dist.core.model.wording import join_names
from tf_dist.core.reconciler.job_objects import AttemptBarrier, backoff_until, dependencies_met
from tf_dist.core.reconciler.requeue import requeue, with_size

DEFAULT_RECOVERY_TIMEOUT: Final = 300.0
# A pass that comes so many seconds late means that the clock was set ahead, or that no controller ran.
_LATE: Final = 60.0
# Seconds that a kubelet needs to remove a pod whose grace period is over.
_CLEARING: Final = 30.0


def recovery_timeout(s: ReconcileContext) -> float:
    """Seconds that a gang may lack a part of its nodes: the job's setting, otherwise the queue's."""
    return s.job.scheduling.recovery_timeout or s.observed.recovery_timeout or DEFAULT_RECOVERY_TIMEOUT


# What is missing


def pod_overdue_at(pod: PodView) -> float | None:
    """When a deleted pod should have stopped; None for other pods."""
    return None if pod.stops_at is None else round_time(pod.stops_at + _CLEARING)


def overdue_pods(s: ReconcileContext) -> tuple[PodView, ...]:
    """Pods of older attempts that should have stopped, and may still run."""
    return tuple(pod for pod in s.facts.stale if (due := pod_overdue_at(pod)) is not None and due <= s.now)


def _lacking(s: ReconcileContext) -> Iterator[ReplicaId]:
    """The replicas that wait for a node, or for an old pod that does not stop.

    Back-offs, dependencies and grace periods are not reasons to requeue. If a gang has never been complete,
    ``requeue_unplaced`` handles replicas that wait for a node.
    """
    # The pods that have nodes are the minimum of the gang. The others may wait for theirs as long as it takes.
    least = replica_bounds(s.job)
    elastic = any(least[spec.type][0] < spec.replicas for spec in s.job.replica_specs)
    if not elastic and s.facts.gang_has_nodes(s.job):
        return
    startable = startable_replicas(s.job, s.status)
    blocked = AttemptBarrier.of(s.status, overdue_pods(s))
    stopping = AttemptBarrier.of(s.status, s.facts.stale)
    complete = s.status.admission is not None and s.status.admission.complete is not None
    ready = {spec.type for spec in s.job.replica_specs if dependencies_met(s, spec)}
    for replica in s.facts.without_node(s.job):
        pod = s.facts.current.get(replica)
        if replica not in startable or backoff_until(s.status, replica) > s.now:
            continue
        if pod is not None:
            waits = complete and pod.waits_for_node
        else:
            expected = replica.type in ready and not stopping.blocks(replica)
            waits = blocked.blocks(replica) or (complete and expected)
        if waits:
            yield replica


def track_completeness(s: ReconcileContext) -> Status:
    """The status with the time since which the gang is incomplete, and the pods that prevent its start."""
    status, admission = s.status, s.status.admission
    if status.phase not in LIVE or s.integration is not None:
        return status if not status.unconfirmed else replace(status, unconfirmed="")
    if admission is None:
        late = sorted(overdue_pods(s), key=lambda pod: pod.name)
        return replace(status, unconfirmed=join_names([f"{pod.name} on {pod.node or 'no node'}" for pod in late]))
    lacks = next(_lacking(s), None) is not None
    since = (_since(s, admission) or s.now) if lacks else None
    if since == admission.incomplete and not status.unconfirmed:
        return status
    return replace(status, unconfirmed="", admission=replace(admission, incomplete=since))


def recovery_due_at(s: ReconcileContext) -> float | None:
    """When the gang stops waiting for missing nodes, if nothing changes; None if none are missing."""
    since = _since(s, s.status.admission) if s.status.admission is not None else None
    return None if since is None else round_time(since + recovery_timeout(s))


def _since(s: ReconcileContext, admission: Admission) -> float | None:
    """The time since which the gang is incomplete, or None. Time without a controller does not count, because
    pods could not be created then.
    """
    since = admission.incomplete
    late = since is not None and s.now > since + recovery_timeout(s) + _LATE
    return s.now if late else since


def next_overdue_at(s: ReconcileContext) -> float | None:
    """When the next pod of an older attempt should have stopped."""
    return s.next_of(*map(pod_overdue_at, s.facts.stale))


# What follows


def recover_from_node_loss(s: ReconcileContext) -> Status | None:
    """Continue with fewer replicas, or requeue the gang, if it has lacked nodes for too long."""
    due = recovery_due_at(s)
    if due is None or s.now < due:
        return None
    lacking = list(_lacking(s))
    if not lacking:
        return None
    limit = recovery_timeout(s)
    what = f"{_lacks_text(s, lacking)} for {limit:g} s"
    return _smaller(s, lacking, what) or _given_back(s, lacking, what)


def _given_back(s: ReconcileContext, lacking: list[ReplicaId], what: str) -> Status:
    message = f"{what}; the gang gave up its admission and waits for another one"
    if late := overdue_pods(s):
        message = f"{what}; the gang gave up its admission; it {_waits_text(s, late)}"
    node = _node(s, lacking[0])
    failure = Failure(event=Reason.RECOVERY_TIMEOUT, replica=str(lacking[0]), message=message, at=s.now, node=node)
    status = replace(s.status, failure=failure)
    policy = s.job.run_policy.on_eviction
    if policy is DisruptionPolicy.FAIL:
        return status.with_phase(Phase.FAILED, s.now, Event.NODE_LOST.value, what)
    fall_back = policy is DisruptionPolicy.FALLBACK
    return requeue(
        s, status.with_restart(Reason.RECOVERY_TIMEOUT), Reason.RECOVERY_TIMEOUT, message, fall_back=fall_back
    )


def _smaller(s: ReconcileContext, lacking: list[ReplicaId], what: str) -> Status | None:
    """The gang with the replicas that have nodes, if it may run with them."""
    admission = s.status.admission
    if admission is None:
        return None
    before = {**replica_counts(s.job), **admission.admitted_sizes}
    missing = Counter(replica.type for replica in lacking)
    # A replica whose old pod may still run cannot be started: only replicas with lower indexes remain.
    late = overdue_pods(s)
    first = {pod.replica.type: pod.replica.index for pod in sorted(late, key=lambda pod: -pod.replica.index)}
    after = {type_: min(count - missing[type_], first.get(type_, count)) for type_, count in before.items()}
    least = {type_: low for type_, (low, _) in replica_bounds(s.job).items()}
    if after == before or any(after[type_] < least.get(type_, 0) for type_ in after):
        return None
    if late and resize_restarts(s.job, before, after):
        return None
    nodes: dict[str, Counter[str]] = {}
    for replica, pod in s.facts.current.items():
        if pod.node and not pod.deleting:
            nodes.setdefault(replica.type, Counter())[pod.node] += 1
    placement = {type_: dict(counts) for type_, counts in nodes.items()}
    where = placement_within(s.job, placement, after) if admission.placement else admission.placement
    smaller = replace(admitted_with(admission, s.job, after), placement=where, resized=s.now, incomplete=None)
    return with_size(s, smaller, before, f"{what}; {replica_change_text(before, after)}, which it may run with")


def wait_for_lost_nodes(s: ReconcileContext) -> Status | None:
    """Report old pods of a job without an admission that may still run. It is not admitted until they have ended."""
    late = overdue_pods(s)
    if s.status.admission is not None or not late or s.integration is not None:
        return None
    text = _waits_text(s, late)
    if text in s.status.message:
        return None
    return replace(s.status, reason=Reason.WAITING_FOR_LOST_NODE, message=text)


def _waits_text(s: ReconcileContext, late: tuple[PodView, ...]) -> str:
    pods = sorted((pod for pod in late if not pod.kept_by), key=lambda pod: pod.name)
    if not pods:
        kept = min(late, key=lambda pod: pod.name)
        return f"waits for pod {kept.name}, which has stopped and is kept by the finalizer {kept.kept_by}"
    named = join_names([f"{pod.name} on node {pod.node}" for pod in pods])
    text = f"waits for pod {named}, which should have stopped at {format_time(min(map(_stopped_at, pods)))} and may "
    text += f"still run{_node_text(s.observed.unready.get(pods[0].node))}"
    return f"{text}; delete the node or taint it {OUT_OF_SERVICE} if it is certainly down"


def _stopped_at(pod: PodView) -> float:
    return pod.stops_at or 0.0


def _node_text(node: UnreadyNode | None) -> str:
    if node is None:
        return ""
    if node.gone:
        return " (the node is gone)"
    return " (the node has not been ready" + (f" since {format_time(node.since)})" if node.since is not None else ")")


def _lacks_text(s: ReconcileContext, lacking: list[ReplicaId]) -> str:
    words = next(
        (pod.unschedulable for replica in lacking if (pod := s.facts.current.get(replica)) and pod.unschedulable), ""
    )
    late = [f"{pod.name} on {pod.node}" for pod in overdue_pods(s)]
    text = f"{join_names(lacking)} {'have' if len(lacking) > 1 else 'has'} had no node"
    if words:
        return f"{text} ({words})"
    return f"{text} (its pod {join_names(late)} does not stop)" if late else text


def _node(s: ReconcileContext, replica: ReplicaId) -> str:
    """The last known node of a replica."""
    late = next((pod.node for pod in overdue_pods(s) if pod.replica == replica), "")
    failure = s.status.failure
    return late or (failure.node if failure is not None and failure.replica == str(replica) else "")
