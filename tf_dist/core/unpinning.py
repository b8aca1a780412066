"""The rule for a pod that came back to a gang and finds its node closed: drained, gone, or full of others' pods.

A gang that was complete keeps its place, so nothing else would ever end this wait. The pod is made anew, and may go to
any node; admission sees where it went.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from tf_dist.core.facts import Facts
from tf_dist.core.model import ReplicaId
from tf_dist.core.observed import PodView
from tf_dist.core.seats import Placement, assigned
from tf_dist.core.situation import Situation
from tf_dist.core.status import Status
from tf_dist.core.times import round_time

UNPINNED: Final = "Unpinned"
# Seconds that the cluster's scheduler has to find room on the node that the gang was given.
PATIENCE: Final = 30.0


def unpin(s: Situation) -> Status | None:
    """Take away the seats of pods that cannot be scheduled to them, and have these pods made again."""
    place = s.status.admission
    if not s.live or place is None or not place.placement or place.complete is None:
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
        reason=UNPINNED,
        message=message,
    )


def unpin_at(status: Status, facts: Facts) -> float | None:
    """When the next pod has waited long enough for its node; None if none does."""
    place = status.admission
    if place is None or not place.placement or place.complete is None:
        return None
    due = min(map(_since, facts.current.values()), default=float("inf")) + PATIENCE
    return None if due == float("inf") else round_time(due)


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
