"""On which node each replica of a gang sits: admission says how many pods of a type go to a node, this says which.

The order is the same wherever it is asked for: first the nodes with parameter servers, then the fullest. So the highest
indexes, which go first when a job shrinks, are those that are far from the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from tf_dist.core.facts import Facts
from tf_dist.core.model import Job, ReplicaId, Role

Placement = Mapping[str, Mapping[str, int]]


def seats(job: Job, placement: Placement, type_: str) -> tuple[str, ...]:
    """The nodes of a type's replicas, by index; as many as the placement speaks of."""
    serving = {node for spec in job.replica_specs if spec.role is Role.PS for node in placement.get(spec.type, ())}
    counts = placement.get(type_, {})
    nodes = sorted(counts, key=lambda node: (node not in serving, -counts[node], node))
    return tuple(node for node in nodes for _ in range(counts[node]))


def within(job: Job, placement: Placement, sizes: Mapping[str, int]) -> Placement:
    """The placement without the seats of those who are too many."""
    if all(sum(nodes.values()) <= sizes.get(type_, 0) for type_, nodes in placement.items()):
        return placement
    return {type_: dict(Counter(seats(job, placement, type_)[: sizes.get(type_, 0)])) for type_ in placement}


def assigned(job: Job, placement: Placement, facts: Facts, wanted: Collection[ReplicaId]) -> dict[ReplicaId, str]:
    """The nodes of these replicas, which have none yet: each its own seat if it is free, else any free one of its type.

    ``job`` has its granted size. Replicas that are not asked about have their seats kept. One without a free seat is
    left out: the scheduler of the cluster finds a node for it.
    """
    found: dict[ReplicaId, str] = {}
    for type_ in {replica.type for replica in wanted} if placement else ():
        found |= _of_type(job, placement, facts, type_)
    return {replica: node for replica, node in found.items() if replica in wanted}


def _of_type(job: Job, placement: Placement, facts: Facts, type_: str) -> dict[ReplicaId, str]:
    listed = seats(job, placement, type_)
    free = Counter(listed)
    free.subtract(pod.node for replica, pod in facts.current.items() if replica.type == type_ and pod.node)
    waiting = [replica for replica in job.replicas if replica.type == type_ and _lacks_node(replica, facts)]
    found: dict[ReplicaId, str] = {}
    for replica in waiting:
        if replica.index < len(listed) and free[listed[replica.index]] > 0:
            found[replica] = listed[replica.index]
            free[found[replica]] -= 1
    for replica in waiting:
        if replica not in found and (node := next((node for node in listed if free[node] > 0), "")):
            found[replica] = node
            free[node] -= 1
    return found


def _lacks_node(replica: ReplicaId, facts: Facts) -> bool:
    pod = facts.current.get(replica)
    return replica not in facts.succeeded if pod is None else not pod.node
