"""The nodes that admission assigned to a gang: which replica goes to which, and which replicas wait for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tf_dist.core.model.assignment import Placement, replica_nodes
from tf_dist.core.model.context import PodClassification
from tf_dist.core.model.job import Job, ReplicaId


def assign_nodes(
    job: Job, placement: Placement, facts: PodClassification, wanted: Collection[ReplicaId]
) -> dict[ReplicaId, str]:
    """The nodes of these replicas, which have none yet: that to which its pod is pinned, else its own, else any other
    one of its type; if that is free.

    ``job`` has its granted size. Other replicas keep their nodes. A replica for which none is free is left out: the
    scheduler of the cluster finds a node for it.
    """
    found: dict[ReplicaId, str] = {}
    for type_ in {replica.type for replica in wanted} if placement else ():
        found |= _of_type(job, placement, facts, type_)
    return {replica: node for replica, node in found.items() if replica in wanted}


def waiting_for_leaving_pods(
    job: Job, placement: Placement, facts: PodClassification, wanted: Collection[ReplicaId]
) -> frozenset[ReplicaId]:
    """Those of these replicas, which have no pod, on whose nodes pods that have to go still take what was granted."""
    leaving = Counter((pod.replica.type, node) for pod in facts.stale if (node := pod.node or pod.pinned))
    if not placement or not leaving:
        return frozenset()
    free = Counter({(type_, node): count for type_, nodes in placement.items() for node, count in nodes.items()})
    free.subtract(leaving)
    free.subtract((replica.type, pod.node) for replica, pod in facts.current.items() if pod.node)
    seats = assign_nodes(job, placement, facts, job.replicas)
    free.subtract((replica.type, node) for replica, node in seats.items() if replica in facts.current)
    found: set[ReplicaId] = set()
    for replica in sorted(seats.keys() & set(wanted)):
        seat = replica.type, seats[replica]
        if free[seat] > 0:
            free[seat] -= 1
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
