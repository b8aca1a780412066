"""The rule for a pod whose node the cluster's scheduler refuses: drained, gone, full of others' pods, or closed to it.

Admission cannot know all that a scheduler looks at (volumes of a zone, taints that others set, the anti-affinity of
others' pods). What it chose is required at first, so that gangs do not take each other's places; a pod that is refused
there is made anew and may go to any node. Its part of the place counts as taken somewhere until the pod is bound, and
then where it is. The node is remembered, so that admission leaves it out for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core import names
from tf_dist.core.facts import Facts
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.observed import PodView
from tf_dist.core.seats import Placement, assigned
from tf_dist.core.situation import Situation
from tf_dist.core.status import Admission, Status
from tf_dist.core.times import round_time

UNPINNED: Final = "Unpinned"
# Seconds that the cluster's scheduler has to find room on the node that the gang was given.
PATIENCE: Final = 30.0
# And for so long, from then or from when the job may try again, admission leaves the node out for the job.
REFUSED_FOR: Final = 600.0
_MOST_REFUSED: Final = 32


def unpin(s: Situation) -> Status | None:
    """Take away the seats of pods that cannot be scheduled to them, and have these pods made again."""
    place = s.status.admission
    if not s.live or place is None or not _may_unpin(s.job, place):
        return None
    stuck = {replica: pod for replica, pod in s.facts.current.items() if _since(pod) <= s.now - PATIENCE}
    lost = assigned(s.job, place.placement, s.facts, stuck)
    if not lost:
        return None
    attempts = s.status.attempts
    for replica in sorted(lost):
        attempts = attempts.next_pod(replica)
    first = min(lost)
    named = ", ".join(f"{replica} from {node}" for replica, node in sorted(lost.items()))
    message = f"goes to any node now: {named} ({stuck[first].unschedulable})"
    return replace(
        s.status,
        admission=replace(place, placement=_without(place.placement, lost)),
        attempts=attempts,
        seen=s.status.seen - lost.keys(),
        refused_nodes=refuse(s.status.refused_nodes, lost.values(), s.now),
        reason=UNPINNED,
        message=message,
    )


def unpin_at(job: Job, status: Status, facts: Facts) -> float | None:
    """When the next pod has waited long enough for its node; None if none does."""
    place = status.admission
    if place is None or not _may_unpin(job, place):
        return None
    due = min(map(_since, facts.current.values()), default=float("inf")) + PATIENCE
    return None if due == float("inf") else round_time(due)


def _may_unpin(job: Job, place: Admission) -> bool:
    """Only while it has all its nodes are the pods of a gang that must be in one rack surely in one."""
    required = job.annotations.get(names.TOPOLOGY) and job.annotations.get(names.TOPOLOGY_REQUIRED) == "true"
    return bool(place.placement) and (place.complete is not None or not required)


def stuck_nodes(job: Job, status: Status, facts: Facts) -> Collection[str]:
    """The nodes on which the scheduler would not have pods that were sent there."""
    place = status.admission
    stuck = {replica: pod for replica, pod in facts.current.items() if _since(pod) < float("inf")}
    return assigned(job, place.placement, facts, stuck).values() if place is not None else ()


def refuse(refused: Mapping[str, float], nodes: Collection[str], now: float) -> Mapping[str, float]:
    """The nodes that are left out from ``now`` on for a while, with those that were before."""
    until = {**refused, **dict.fromkeys(sorted(nodes), round_time(now + REFUSED_FOR))}
    latest = sorted(until, key=lambda node: -until[node])[:_MOST_REFUSED]
    return {node: until[node] for node in sorted(latest)}


def unexpired(refused: Mapping[str, float], now: float) -> Mapping[str, float]:
    """Those that are still left out."""
    if all(until > now for until in refused.values()):
        return refused
    return {node: until for node, until in refused.items() if until > now}


def _since(pod: PodView) -> float:
    """Since when the scheduler has been looking for a node in vain."""
    looks = bool(pod.unschedulable) and not pod.has_node and not pod.deleting
    return pod.created_at if looks and pod.created_at is not None else float("inf")


def _without(placement: Placement, lost: dict[ReplicaId, str]) -> Placement:
    taken = Counter((replica.type, node) for replica, node in lost.items())
    left = {
        type_: {node: count - taken[type_, node] for node, count in nodes.items() if count > taken[type_, node]}
        for type_, nodes in placement.items()
    }
    return {type_: nodes for type_, nodes in left.items() if nodes}
