"""A gang in the scheduler: what it requests and uses, and where it is in its queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tf_dist.core.gang import usage
from tf_dist.core.gang.placement.pod_sets import GangRequest, PodsOnNode
from tf_dist.core.gang.types import DEFAULT_QUEUE, Gang, Resources
from tf_dist.core.gang.usage import Usage
from tf_dist.core.model.job import JobKey


class Rank(NamedTuple):
    """A gang's rank in its queue; the smallest is first."""

    nominated: int
    """-1: others are preempted for it."""
    priority: int
    """The negative of its priority."""
    patient: int
    """0: it starves."""
    since: float
    """When it came, or later for a gang that runs long: see ``AdmissionPolicy.stretch``."""
    created_at: float
    """When the job was created: epoch seconds."""
    key: JobKey
    """The job."""
    uid: str
    """The uid of the gang."""


@dataclass(slots=True, eq=False)
class EquivalentGangs:
    """Gangs of a queue with equal requests and priority, and about the same estimate: if the first cannot start, none
    can.
    """

    queue: str
    """The name of their queue."""
    key: tuple[object, ...]
    """What they have in common."""
    request: GangRequest
    """What each of them requests."""
    ranks: list[Rank]
    """Their ranks, the first in front; never empty."""
    no_preemption_at: object = None
    """The state in which nothing could be preempted for the first."""
    blocked_by: str | None = None
    """The last reason why none could start however many others end; "": they could; None: not looked at yet."""


@dataclass(slots=True, eq=False)
class Workload:
    """A gang with all that the scheduler knows of it."""

    gang: Gang
    """As it was reported last, or as it is since a decision of the scheduler."""
    request: GangRequest | None
    """None: it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""
    uid: str = field(init=False)
    """The uid of the gang."""
    held: Usage = field(default_factory=lambda: usage.NO_USAGE)
    """Its usage of nodes and quota."""
    released_pods: Sequence[PodsOnNode] = ()
    """The pods that it gives up by a verdict that it has not confirmed."""
    released_resources: Resources = field(default_factory=dict)
    """The requests of those."""
    rank: Rank | None = None
    """None: it is not queued."""
    group: EquivalentGangs | None = None
    """None: it is not queued."""
    _nodes: dict[str, list[str]] = field(default_factory=dict)
    """Cache of ``nodes_by_index``, by type."""

    def __post_init__(self) -> None:
        self.uid = self.gang.uid

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.gang.queue or DEFAULT_QUEUE

    @property
    def admitted(self) -> bool:
        """Whether it is admitted."""
        return self.gang.assigned is not None

    @property
    def releasing(self) -> bool:
        """Whether it is being preempted or shrunk and has not confirmed it."""
        return bool(self.released_pods or self.released_resources)

    @property
    def since(self) -> float:
        """Since when it may start: epoch seconds."""
        return max(self.gang.created_at, self.gang.not_before)

    @property
    def changed_at(self) -> float:
        """When its assigned pods changed last: epoch seconds; -inf: it has none."""
        assigned = self.gang.assigned
        return -inf if assigned is None else assigned.at if assigned.resized is None else assigned.resized

    def update(self, gang: Gang, request: GangRequest | None, problem: str) -> None:
        """Update the gang."""
        self.gang, self.request, self.problem = gang, request, problem
        self._nodes = {}

    def nodes_by_index(self, type_: str) -> list[str]:
        """The nodes of its assigned pods, as ``usage.nodes_by_index`` has them. Not to be changed."""
        found = self._nodes.get(type_)
        if found is None:
            found = self._nodes[type_] = usage.nodes_by_index(self.gang, type_)
        return found
