"""The nodes that admission assigned to a gang: which replica goes to which node, and when a replica leaves its node.

Admission does not know everything that the cluster's scheduler considers (zones of volumes, taints set by others,
anti-affinity of other pods). Pods are pinned to the assigned nodes at first, so that gangs do not take each other's
nodes. If the scheduler refuses a pod there, the pod is created again without the pin. It counts as assumed on any node
until it is bound, and admission excludes the refused node for this job for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core.model.assignment import Placement, replica_nodes, requires_domain
from tf_dist.core.model.context import PodClassification, ReconcileContext
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.pods import PodView
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Admission, Status
from tf_dist.core.model.timestamps import round_time
from tf_dist.core.model.wording import join_names


def assign_nodes(
    job: Job, placement: Placement, facts: PodClassification, wanted: Collection[ReplicaId]
) -> dict[ReplicaId, str]:
    """Free nodes for these replicas, which have none yet: the node to which the pod is pinned, otherwise the replica's
    own, otherwise any other of its type.

    ``job`` has its admitted size. Other replicas keep their nodes. A replica without a free node is left out; the
    cluster's scheduler finds a node for it.
    """
    found: dict[ReplicaId, str] = {}
    for type_ in {replica.type for replica in wanted} if placement else ():
        found |= _of_type(job, placement, facts, type_)
    return {replica: node for replica, node in found.items() if replica in wanted}


def waiting_for_leaving_pods(
    job: Job, placement: Placement, facts: PodClassification, wanted: Collection[ReplicaId]
) -> frozenset[ReplicaId]:
    """Those of these replicas without a pod whose assigned capacity is still used by pods that will be deleted."""
    leaving = Counter((pod.replica.type, node) for pod in facts.stale if (node := pod.node or pod.pinned))
    if not placement or not leaving:
        return frozenset()
    free = Counter({(type_, node): count for type_, nodes in placement.items() for node, count in nodes.items()})
    free.subtract(leaving)
    free.subtract((replica.type, pod.node) for replica, pod in facts.current.items() if pod.node)
    assigned = assign_nodes(job, placement, facts, job.replicas)
    free.subtract((replica.type, node) for replica, node in assigned.items() if replica in facts.current)
    found: set[ReplicaId] = set()
    for replica in sorted(assigned.keys() & set(wanted)):
        pod = replica.type, assigned[replica]
        if free[pod] > 0:
            free[pod] -= 1
        else:
            found.add(replica)
    return frozenset(found)


def _of_type(job: Job, placement: Placement, facts: PodClassification, type_: str) -> dict[ReplicaId, str]:
    listed = replica_nodes(job, placement, type_)
    free = Counter(listed)
    free.subtract(pod.node for replica, pod in facts.current.items() if replica.type == type_ and pod.node)
    waiting = [replica for replica in facts.without_node(job) if replica.type == type_]
    pinned = {replica: pod.pinned for replica in waiting if (pod := facts.current.get(replica)) and pod.pinned}
    own = {replica: listed[replica.index] for replica in waiting if replica.index < len(listed)}
    found: dict[ReplicaId, str] = {}
    for wished in (pinned, own):
        for replica, node in wished.items():
            if replica not in found and free[node] > 0:
                found[replica] = node
                free[node] -= 1
    for replica in waiting:
        if replica not in found and (node := next((node for node in listed if free[node] > 0), "")):
            found[replica] = node
            free[node] -= 1
    return found


# Seconds that the cluster's scheduler has to bind a pod to the node that admission chose.
UNPIN_AFTER: Final = 30.0
# Seconds, from then or from when the job may try again, for which admission leaves the node out for the job.
NODE_EXCLUDED_FOR: Final = 600.0
_MOST_REFUSED: Final = 32
# What kube-scheduler reports of a node to which a bound volume of the pod does not belong; the second in older ones.
_VOLUME_IS_ELSEWHERE: Final = (
    "didn't match PersistentVolume's node affinity",
    "had volume node affinity conflict",
    "had no available volume zone",
)


def unpin_pods(s: ReconcileContext) -> Status | None:
    """Create pods that cannot be scheduled to their nodes again, without the pin."""
    admission = s.status.admission
    if admission is None or not _may_unpin(s.job, admission):
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
    """Delete pods without a node whose assigned node accepts no such pods (it is drained), because the cluster's
    scheduler would refuse them there.

    Their replicas wait for other nodes, which admission assigns in its next cycle (``Resize``). They may go to any node
    if it does not in time, or if a topology domain is required.
    """
    admission, lost = s.status.admission, replicas_on_closed_nodes(s)
    if admission is None or not lost:
        return None
    due, attempts = leave_closed_nodes_at(s), s.status.attempts
    waiting = sorted(lost.keys() & s.facts.current.keys())
    for replica in waiting:
        attempts = attempts.next_pod(replica)
    status = replace(s.status, attempts=attempts, observed_replicas=s.status.observed_replicas.difference(waiting))
    # A verdict assigns nodes to some of them at least, and comes first.
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


def replicas_on_closed_nodes(s: ReconcileContext) -> dict[ReplicaId, str]:
    """The replicas without a node whose assigned node accepts no such pods, with that node."""
    admission, closed = s.status.admission, s.observed.closed_nodes
    if admission is None or not closed or not _may_unpin(s.job, admission):
        return {}
    nodes = assign_nodes(s.job, admission.placement, s.facts, s.facts.without_node(s.job))
    return {replica: node for replica, node in nodes.items() if node in closed.get(replica.type, ())}


def unpin_due_at(s: ReconcileContext) -> float | None:
    """When the first pod has waited long enough for its node; None if none waits."""
    admission = s.status.admission
    if admission is None or not _may_unpin(s.job, admission):
        return None
    due = min(map(_unpin_at, s.facts.current.values()), default=float("inf"))
    return None if due == float("inf") else round_time(due)


def _may_unpin(job: Job, admission: Admission) -> bool:
    """Whether pods may go to any node. If a topology domain is required, only after the gang was complete in one."""
    return bool(admission.placement) and (admission.complete is not None or not requires_domain(job))


def unschedulable_nodes(s: ReconcileContext) -> Collection[str]:
    """The nodes that the scheduler refuses to pods of the job that are pinned to them."""
    admission = s.status.admission
    stuck = {replica: pod for replica, pod in s.facts.current.items() if _since(pod) < float("inf")}
    lost = assign_nodes(s.job, admission.placement, s.facts, stuck) if admission is not None else {}
    return [stuck[replica].pinned or node for replica, node in lost.items()]


def exclude_nodes(refused: Mapping[str, float], nodes: Collection[str], now: float) -> Mapping[str, float]:
    """The excluded nodes, including these for a while from ``now``."""
    until = {**refused, **dict.fromkeys(sorted(nodes), round_time(now + NODE_EXCLUDED_FOR))}
    latest = sorted(until, key=lambda node: -until[node])[:_MOST_REFUSED]
    return {node: until[node] for node in sorted(latest)}


def _since(pod: PodView) -> float:
    """The time since which the scheduler has found no node for the pod; infinity if it has, or need not."""
    return pod.created_at if pod.unschedulable and pod.waits_for_node and pod.created_at is not None else float("inf")


def _unpin_at(pod: PodView) -> float:
    """When the pod may go to any node: at once where its volume is on another node, which does not change."""
    elsewhere = bool(pod.pinned) and any(words in pod.unschedulable for words in _VOLUME_IS_ELSEWHERE)
    return _since(pod) + (0.0 if elsewhere else UNPIN_AFTER)


def _without(placement: Placement, lost: dict[ReplicaId, str]) -> Placement:
    taken = Counter((replica.type, node) for replica, node in lost.items())
    left = {
        type_: {node: count - taken[type_, node] for node, count in nodes.items() if count > taken[type_, node]}
        for type_, nodes in placement.items()
    }
    return {type_: nodes for type_, nodes in left.items() if nodes}
