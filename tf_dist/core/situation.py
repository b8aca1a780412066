"""A job at one moment, as the rules of ``advance`` see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tf_dist.core.facts import Facts
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.observed import Observed
from tf_dist.core.policies import next_due
from tf_dist.core.status import LIVE, Status


@dataclass(frozen=True, slots=True)
class Situation:
    """What a rule decides on: the job, its memory, what its pods say, and what surrounds it.

    ``job`` has the size that it was granted, ``asked`` the one its document asks for.
    """

    job: Job
    status: Status
    facts: Facts
    observed: Observed
    asked: Job

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return self.observed.now

    @property
    def live(self) -> bool:
        """Whether the job's pods are meant to be there."""
        return self.status.phase in LIVE

    @property
    def awaits_policy(self) -> bool:
        """Whether a policy is only waiting for its timeout: what it will do is not to be forestalled."""
        return next_due(self.job, self.status, self.facts, self.now) is not None


Rule = Callable[[Situation], Status | None]


def members(job: Job, type_: str, index: int | None) -> tuple[ReplicaId, ...]:
    """Replica ``index`` of a type, or all of them; none if the job has no such replica."""
    spec = job.spec(type_)
    if spec is None:
        return ()
    return tuple(ReplicaId(type_, i) for i in range(spec.replicas) if index is None or i == index)
