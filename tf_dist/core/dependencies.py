"""Which tasks may start: Volcano's ``dependsOn``, answered from what the pods say."""

from __future__ import annotations

from tf_dist.core.facts import Facts
from tf_dist.core.model import Job, ReplicaSpec


def met(job: Job, spec: ReplicaSpec, facts: Facts) -> bool:
    """Whether what the task waits for is up: so many of its pods as it needs are ready, or done."""
    if spec.depends is None:
        return True
    up = [_is_up(job, type_, facts) for type_ in spec.depends.on]
    return any(up) if spec.depends.any else all(up)


def out_of_reach(job: Job, spec: ReplicaSpec, facts: Facts) -> bool:
    """Whether what the task waits for can never come up: too many of its pods have failed, for good."""
    if spec.depends is None or met(job, spec, facts):
        return False
    lost = [_is_lost(job, type_, facts) for type_ in spec.depends.on]
    return all(lost) if spec.depends.any else any(lost)


def _is_up(job: Job, type_: str, facts: Facts) -> bool:
    other = job.spec(type_)
    counts = facts.count(type_)
    return other is None or counts.ready + counts.succeeded >= other.min_replicas


def _is_lost(job: Job, type_: str, facts: Facts) -> bool:
    other = job.spec(type_)
    if other is None:
        return False
    return other.replicas - facts.count(type_).failed < other.min_replicas or out_of_reach(job, other, facts)
