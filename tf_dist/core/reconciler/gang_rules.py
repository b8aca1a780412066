"""The rules of an admitted gang: it is resized, gets other nodes, loses nodes, or is requeued.

Resized: the replicas with the highest indexes are removed first, which is not a failure. If the others cannot continue
with another number of replicas (``resize_restarts``), all restart. This does not count against the budget.

Requeued: all pods are stale and are deleted, and the job waits for another admission. Only an eviction counts against a
budget, as a disruption. Succeeded replicas remain succeeded.

Other nodes: admission does not know everything that the cluster's scheduler considers (zones of volumes, taints set by
others, anti-affinity of other pods). Pods are pinned to the assigned nodes at first, so that gangs do not take each
other's nodes. If the scheduler refuses a pod there, the pod is created again without the pin. The new pod counts as
assumed on any node until it is bound, and admission excludes the refused node for this job for a while.

Lost nodes: a cluster's taint manager deletes pods of a lost node when their toleration expires. The job does not wait
for this. The recovery timeout is that of Kueue (``waitForPodsReady.recoveryTimeout``). A gang with only a part of its
nodes does not work, and two such gangs can block each other forever. If a gang can run with fewer replicas, it
continues with these. Otherwise, it is requeued at its former position. Neither counts against the budget. A pod on an
unreachable node may still run, and an old and a new attempt must not overlap. Therefore the job does not start until
Kubernetes has confirmed the end of such a pod (its node returned, was deleted, or is tainted
``node.kubernetes.io/out-of-service``). Until then, the job is not admitted, and its message names the pod and the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Final

from tf_dist.core.model.assignment import (
    Placement,
    Preempt,
    Sizes,
    admitted_text,
    admitted_with,
    bounded_counts,
    fallback_job,
    fallback_text,
    minimum_met,
    replica_bounds,
    replica_change_text,
    replica_counts,
    requires_domain,
    resize_restarts,
    startable_replicas,
)
from tf_dist.core.model.context import ReconcileContext
from tf_dist.core.model.fieldpath import updated
from tf_dist.core.model.job import Action, DisruptionPolicy, Event, Job, ReplicaId
from tf_dist.core.model.names import short_hash
from tf_dist.core.model.pods import Disruption, PodPhase, PodView, UnreadyNode
from tf_dist.core.model.reasons import OUT_OF_SERVICE, Reason
from tf_dist.core.model.status import LIVE, SCHEDULER_PREEMPTION, Admission, Failure, Phase, Status
from tf_dist.core.model.timestamps import format_time, round_time
from tf_dist.core.model.wording import are, join_names
from tf_dist.core.reconciler import restarts
from tf_dist.core.reconciler.job_objects import (
    AttemptBarrier,
    assign_nodes,
    backoff_until,
    dependencies_met,
    may_unpin,
    replicas_on_closed_nodes,
)
from tf_dist.core.reconciler.lifecycle_policy import (
    END_PHASES,
    DecidedEvents,
    PodEvent,
    describe_events,
    most_severe_action,
)


def resize(s: ReconcileContext) -> Status | None:
    """Change the replica counts or nodes of the admission, by a verdict or by the document."""
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
    placement = new.placement if verdict is not None else _placement_within(s, new.placement, started)
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


def _placement_within(s: ReconcileContext, placement: Placement, sizes: Sizes) -> Placement:
    """The placement without the nodes of replicas beyond these sizes. Pods keep their nodes."""
    if all(sum(nodes.values()) <= sizes.get(type_, 0) for type_, nodes in placement.items()):
        return placement
    nodes = assign_nodes(s.job, placement, s.facts, s.job.replicas)
    nodes |= {replica: pod.node for replica, pod in s.facts.current.items() if pod.node}
    first = _first_nodes(nodes, sizes)
    return {type_: dict(Counter(first.get(type_, {})) & Counter(placement[type_])) for type_ in placement}


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


# Seconds: the first back-off of a requeued gang, which doubles up to the longest.
_FIRST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
# The share of a back-off that depends on the job: gangs that failed at the same time retry at different times.
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
    """The preempting job, by name only within the namespace, because names of other tenants' jobs are private."""
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
    """Fail an admitted gang if the API server rejects one of its objects as invalid: retries cannot succeed."""
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
    """Requeue the gang if pods got no node in time, or cannot be created. A change of its spec ends the back-off."""
    due = unplaced_due_at(s)
    if due is None:
        return None
    if s.observed.rejected is not None:
        return _released(s, s.observed.rejected, f"{_REJECTIONS[s.observed.rejected]}: {s.observed.last_error}", "")
    if s.now < due:
        return None
    replicas = [replica for replica, _ in _unplaced(s)]
    why = f"{join_names(replicas)} got no node" + (f" ({words})" if (words := _refusal(s, replicas)) else "")
    return _released(s, Reason.SCHEDULE_TIMEOUT, why, f" within {s.job.schedule_timeout:g} s")


def requeue_incomplete(s: ReconcileContext) -> Status | None:
    """Requeue the gang if replicas that decide success ended before the gang was complete.

    In this case, the cluster's scheduler had refused nodes to other replicas. All replicas then start together. A job
    whose replicas do not need each other has a lower minimum.
    """
    ended = [replica for replica, pod in s.facts.current.items() if pod.phase is PodPhase.SUCCEEDED]
    if not ended or not (s.status.reason == Reason.UNSCHEDULABLE or refused_pods(s)):
        return None
    done = {replica for replica in s.facts.succeeded if replica not in s.facts.current}
    started = {replica for replica, pod in s.facts.current.items() if pod.phase is not PodPhase.PENDING}
    if minimum_met(s.job, Counter(replica.type for replica in done | started)):
        return None
    missing = join_names(sorted(s.facts.current.keys() - started))
    why = f"{join_names(sorted(ended))} ended before {missing} had a node"
    again = replace(s, status=replace(s.status, succeeded=s.status.succeeded.difference(ended)))
    return _released(again, Reason.SCHEDULE_TIMEOUT, why, "")


def refused_pods(s: ReconcileContext) -> list[PodView]:
    """The pods to which the cluster's scheduler refuses nodes, if the gang has never been complete and needs them."""
    admission = s.status.admission
    if admission is None or admission.complete is not None or (s.integration is not None and s.integration.pods_first):
        return []
    refused = [pod for pod in s.facts.current.values() if pod.unschedulable and pod.waits_for_node]
    short = bool(refused) and not s.facts.gang_has_nodes(s.job)
    return sorted(refused, key=lambda pod: pod.replica) if short else []


def _released(s: ReconcileContext, reason: Reason, why: str, when: str) -> Status:
    requeues = s.status.requeues + 1
    following = _next_fallback(s)
    # The next fallback is tried immediately. The back-off follows the last fallback.
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

    ``fall_back``: its next fallback comes first. After the last fallback, the document itself comes first.
    """
    status = restarts.keep_container_restarts(s, status, s.facts.current)
    status = replace(status, fallback_from=_next_fallback(s) if fall_back else 0)
    return status.next_attempt(None).with_phase(Phase.PENDING, s.now, reason, message)


def _next_fallback(s: ReconcileContext) -> int:
    """The fallback after the admitted fallback; 0 after the last fallback, and with another gang scheduler."""
    if s.integration is not None:
        return 0
    return (s.status.fallback + 1) % (len(s.job.fallbacks) + 1)


def requeue_backoff(uid: str, count: int) -> float:
    """The back-off, in seconds, of a gang that was requeued ``count`` consecutive times."""
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(count - 1, 30))
    length = 5
    part = int(short_hash(uid, count, length=length), _DIGITS) / float(_DIGITS**length)
    return float(pause * (1 - _SPREAD * part))


def unplaced_due_at(s: ReconcileContext) -> float | None:
    """When the gang is requeued if nothing changes; None if no pod waits for a node, or the gang was once complete."""
    if s.status.admission is None or s.status.admission.complete is not None:
        return None
    if s.integration is not None and s.integration.pods_first:
        return None
    since = min((since for _, since in _unplaced(s)), default=None)
    return None if since is None else round_time(since + s.job.schedule_timeout)


def _unplaced(s: ReconcileContext) -> Iterator[tuple[ReplicaId, float]]:
    """The replicas without a node, and the start of their wait.

    A replica without a pod is included only if a rejection of its pod must be the reason.
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


def _refusal(s: ReconcileContext, replicas: Iterable[ReplicaId]) -> str:
    """The scheduler's message about the first of these replicas with such a message; "" without any."""
    pods = (s.facts.current.get(replica) for replica in replicas)
    return next((pod.unschedulable for pod in pods if pod is not None and pod.unschedulable), "")


# Nodes that the scheduler refuses to pods, and drained nodes

# Seconds within which the cluster's scheduler must bind a pod to its assigned node.
UNPIN_AFTER: Final = 30.0
# Seconds for which admission excludes a refused node for the job, from this time or from the end of the job's back-off.
NODE_EXCLUDED_FOR: Final = 600.0
_MOST_REFUSED: Final = 32
# Messages of kube-scheduler about a node to which a bound volume of the pod does not belong. The second message is that
# of older versions.
_VOLUME_IS_ELSEWHERE: Final = (
    "didn't match PersistentVolume's node affinity",
    "had volume node affinity conflict",
    "had no available volume zone",
)


def unpin_pods(s: ReconcileContext) -> Status | None:
    """Create pods that cannot be scheduled to their nodes again, without the pin."""
    admission = s.status.admission
    if admission is None or not may_unpin(s.job, admission):
        return None
    stuck = {replica: pod for replica, pod in s.facts.current.items() if _unpin_at(pod) <= s.now}
    lost = assign_nodes(s.job, admission.placement, s.facts, stuck)
    if not lost:
        return None
    attempts = s.status.attempts
    for replica in sorted(lost):
        attempts = attempts.next_pod(replica)
    first = min(lost)
    refused = {replica: stuck[replica].pinned or node for replica, node in lost.items()}
    named = ", ".join(f"{replica} from {node}" for replica, node in sorted(refused.items()))
    message = f"may now go to any node: {named} ({stuck[first].unschedulable})"
    return replace(
        s.status,
        admission=replace(admission, placement=_without(admission.placement, lost)),
        attempts=attempts,
        observed_replicas=s.status.observed_replicas - lost.keys(),
        refused_nodes=exclude_nodes(s.status.refused_nodes, refused.values(), s.now),
        reason=Reason.UNPINNED,
        message=message,
    )


def leave_closed_nodes(s: ReconcileContext) -> Status | None:
    """Delete unbound pods whose assigned node accepts no such pods, for example because it is drained.

    The cluster's scheduler would refuse these pods there. Their replicas wait for other nodes, which admission assigns
    in its next cycle (``Resize``). They may go to any node if admission does not assign nodes in time, or if a topology
    domain is required.
    """
    admission, lost = s.status.admission, replicas_on_closed_nodes(s)
    if admission is None or not lost:
        return None
    due, attempts = leave_closed_nodes_at(s), s.status.attempts
    waiting = sorted(lost.keys() & s.facts.current.keys())
    for replica in waiting:
        attempts = attempts.next_pod(replica)
    status = replace(s.status, attempts=attempts, observed_replicas=s.status.observed_replicas.difference(waiting))
    # A verdict assigns nodes to at least some of them, and has precedence.
    if s.standing_resize is None and (requires_domain(s.job) or (due is not None and due <= s.now)):
        named = join_names([f"{replica} from {node}" for replica, node in sorted(lost.items())])
        message = f"{s.status.message}; goes to any node that takes pods: {named}"
        return replace(
            status, admission=replace(admission, placement=_without(admission.placement, lost)), message=message
        )
    return status if waiting else None


def leave_closed_nodes_at(s: ReconcileContext) -> float | None:
    """When replicas that wait for other nodes may go to any node; None if none wait, or the gang was never complete."""
    since = s.status.admission.incomplete if s.status.admission is not None else None
    return round_time(since + UNPIN_AFTER) if since is not None and replicas_on_closed_nodes(s) else None


def unpin_due_at(s: ReconcileContext) -> float | None:
    """When the first pod has waited long enough for its node; None if none waits."""
    admission = s.status.admission
    if admission is None or not may_unpin(s.job, admission):
        return None
    due = min(map(_unpin_at, s.facts.current.values()), default=inf)
    return None if due == inf else round_time(due)


def unschedulable_nodes(s: ReconcileContext) -> Collection[str]:
    """The nodes that the scheduler refuses to pods of the job that are pinned to them."""
    admission = s.status.admission
    stuck = {replica: pod for replica, pod in s.facts.current.items() if _unschedulable_since(pod) < inf}
    lost = assign_nodes(s.job, admission.placement, s.facts, stuck) if admission is not None else {}
    return [stuck[replica].pinned or node for replica, node in lost.items()]


def exclude_nodes(refused: Mapping[str, float], nodes: Collection[str], now: float) -> Mapping[str, float]:
    """The excluded nodes, including these for a while from ``now``."""
    until = {**refused, **dict.fromkeys(sorted(nodes), round_time(now + NODE_EXCLUDED_FOR))}
    latest = sorted(until, key=lambda node: -until[node])[:_MOST_REFUSED]
    return {node: until[node] for node in sorted(latest)}


def _unschedulable_since(pod: PodView) -> float:
    """The time since which the scheduler has found no node for the pod; inf if the pod does not wait for a node."""
    return pod.created_at if pod.unschedulable and pod.waits_for_node and pod.created_at is not None else inf


def _unpin_at(pod: PodView) -> float:
    """When the pod may go to any node: immediately if its volume is on another node, because this does not change."""
    elsewhere = bool(pod.pinned) and any(words in pod.unschedulable for words in _VOLUME_IS_ELSEWHERE)
    return _unschedulable_since(pod) + (0.0 if elsewhere else UNPIN_AFTER)


def _without(placement: Placement, lost: dict[ReplicaId, str]) -> Placement:
    taken = Counter((replica.type, node) for replica, node in lost.items())
    left = {
        type_: {node: count - taken[type_, node] for node, count in nodes.items() if count > taken[type_, node]}
        for type_, nodes in placement.items()
    }
    return {type_: nodes for type_, nodes in left.items() if nodes}


# Lost nodes

DEFAULT_RECOVERY_TIMEOUT: Final = 300.0
# Seconds: if a pass is later than this, the clock was set ahead, or no controller ran.
_LATE: Final = 60.0
# Seconds that a kubelet needs to remove a pod after its grace period.
_CLEARING: Final = 30.0


def recovery_timeout(s: ReconcileContext) -> float:
    """Seconds for which a gang may lack a part of its nodes: the job's setting, otherwise the queue's."""
    return s.job.scheduling.recovery_timeout or s.observed.recovery_timeout or DEFAULT_RECOVERY_TIMEOUT


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
    # The gang's minimum has nodes. The other pods may wait for their nodes without a limit.
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
    since = (_incomplete_since(s, admission) or s.now) if lacks else None
    if since == admission.incomplete and not status.unconfirmed:
        return status
    return replace(status, unconfirmed="", admission=replace(admission, incomplete=since))


def recovery_due_at(s: ReconcileContext) -> float | None:
    """When the gang stops waiting for missing nodes, if nothing changes; None if none are missing."""
    since = _incomplete_since(s, s.status.admission) if s.status.admission is not None else None
    return None if since is None else round_time(since + recovery_timeout(s))


def _incomplete_since(s: ReconcileContext, admission: Admission) -> float | None:
    """The time since which the gang is incomplete, or None. Time without a controller does not count."""
    since = admission.incomplete
    late = since is not None and s.now > since + recovery_timeout(s) + _LATE
    return s.now if late else since


def next_overdue_at(s: ReconcileContext) -> float | None:
    """When the next pod of an older attempt should have stopped."""
    return s.next_of(*map(pod_overdue_at, s.facts.stale))


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
    pods = {replica: pod.node for replica, pod in s.facts.current.items() if pod.node and not pod.deleting}
    where = _first_nodes(pods, after) if admission.placement else admission.placement
    smaller = replace(admitted_with(admission, s.job, after), placement=where, resized=s.now, incomplete=None)
    return with_size(s, smaller, before, f"{what}; {replica_change_text(before, after)}, which it may run with")


def _first_nodes(nodes: Mapping[ReplicaId, str], sizes: Sizes) -> Placement:
    """The nodes of the first replicas of each type, up to these sizes."""
    first: dict[str, list[str]] = {}
    for replica in sorted(nodes):
        first.setdefault(replica.type, []).append(nodes[replica])
    return {type_: dict(Counter(listed[: sizes.get(type_, 0)])) for type_, listed in first.items()}


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
    due = format_time(min(pod.stops_at or 0.0 for pod in pods))
    where = _node_text(s.observed.unready.get(pods[0].node))
    text = f"waits for pod {named}, which should have stopped at {due} and may still run{where}"
    return f"{text}; delete the node or taint it {OUT_OF_SERVICE} if it is certainly down"


def _node_text(node: UnreadyNode | None) -> str:
    if node is None:
        return ""
    if node.gone:
        return " (the node is gone)"
    return " (the node has not been ready" + (f" since {format_time(node.since)})" if node.since is not None else ")")


def _lacks_text(s: ReconcileContext, lacking: list[ReplicaId]) -> str:
    late = [f"{pod.name} on {pod.node}" for pod in overdue_pods(s)]
    text = f"{join_names(lacking)} {are(len(lacking), 'has', 'have')} had no node"
    if words := _refusal(s, lacking):
        return f"{text} ({words})"
    return f"{text} (its pod {join_names(late)} does not stop)" if late else text


def _node(s: ReconcileContext, replica: ReplicaId) -> str:
    """The last known node of a replica."""
    late = next((pod.node for pod in overdue_pods(s) if pod.replica == replica), "")
    failure = s.status.failure
    return late or (failure.node if failure is not None and failure.replica == str(replica) else "")
