"""Types of gang admission: gangs, nodes, queues, ResourceQuotas, and the admission policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tf_dist.core.api.job import Document, JobKey
from tf_dist.core.api.names import Requirements

if TYPE_CHECKING:
    from tf_dist.core.api.assignment import Placement, Sizes


_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQuotaUsage:
    """What one pod counts as in the ResourceQuotas of its namespace, and what says in which of them."""

    amounts: tuple[tuple[str, Decimal], ...]
    terminating: bool = False
    best_effort: bool = False
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class GangQuotaUsage:
    """What a gang counts as there: a pod of each member, in their order; and ``once``, however many pods there are."""

    members: tuple[PodQuotaUsage, ...]
    once: tuple[tuple[str, Decimal], ...] = ()


class Scope(NamedTuple):
    """Which pods a quota counts: all whose property fulfils the operator."""

    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()

    def counts(self, pod: PodQuotaUsage) -> bool:
        """Whether it counts a pod. What is not known here counts none."""
        match self.name:
            case "Terminating":
                return pod.terminating
            case "NotTerminating":
                return not pod.terminating
            case "BestEffort":
                return pod.best_effort
            case "NotBestEffort":
                return not pod.best_effort
            case "PriorityClass":
                return self._holds(pod.priority_class)
        return False

    def _holds(self, name: str) -> bool:
        match self.operator:
            case "In":
                return name in self.values
            case "NotIn":
                return name not in self.values
            case "Exists":
                return bool(name)
        return not name


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuota:
    """A quota of a namespace: of each resource how much there may be, and how much the API server has counted."""

    name: str
    hard: Mapping[str, Decimal]
    used: Mapping[str, Decimal]
    scopes: tuple[Scope, ...] = ()

    def counts(self, pod: PodQuotaUsage) -> bool:
        """Whether it counts a pod."""
        return all(scope.counts(pod) for scope in self.scopes)

    def need(self, charges: GangQuotaUsage, counts: Sequence[int], *, once: bool = True) -> dict[str, Decimal]:
        """What so many pods of each member take of it, and (``once``) what a gang takes however many they are."""
        need = {resource: value for resource, value in charges.once if resource in self.hard} if once else {}
        for pod, count in zip(charges.members, counts, strict=True):
            if count and self.counts(pod):
                for resource, value in pod.amounts:
                    if resource in self.hard:
                        need[resource] = need.get(resource, _NONE) + count * value
        return need


Resources = Mapping[str, Decimal]


# Of what no node has twice, every node has so much; no node has more pods than this.
EXCLUSIVE_CAPACITY: Final = 1 << 20
EXCLUSIVE_PREFIX: Final = "exclusive:"


def exclusive_resource(number: int) -> str:
    """The name of a column for something that no node has twice; as a resource it could not be called so."""
    return f"{EXCLUSIVE_PREFIX}{number}"


class ExclusiveResource(NamedTuple):
    """What one pod takes of what no node has twice (a host port, say): the name of its column, how much, in words."""

    name: str
    amount: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """``count`` equal pods of a gang: what one requests, and what says which nodes it may go to.

    The gang may start with ``least`` of them (None: with no fewer than ``count``) and may grow to ``most`` (None: not
    beyond ``count``). ``constraints`` are the parts of the pod spec that ``fit`` reads: node selector, affinity,
    tolerations; and the nodes that have been refused. ``exclusives``: what keeps pods apart (see
    ``exclusive_resource``).
    """

    type: str
    count: int
    requests: Resources
    constraints: Document = field(default_factory=dict)
    least: int | None = None
    most: int | None = None
    exclusives: tuple[ExclusiveResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRequest:
    """All pods of a gang on nodes that agree in the value of ``label``: if possible, or (``required``) not at all."""

    label: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a gang was given: how many pods per type, and per type on which nodes (node -> count) where that is known.

    ``at``: since when; ``resized``: when ``sizes`` changed last (None: never). Epoch seconds.
    """

    at: float
    sizes: Sizes
    placement: Placement = field(default_factory=dict)
    resized: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as admission sees it.

    ``place``: what it has been given (None: it waits). ``bound``: its pods that nodes count already, per type and node;
    with a place, those beyond its sizes are on their way out; without one, all of them are. ``earlier``: those of them
    from before the job was requeued: they go before the pods of the place come. ``done``: per type the
    replicas that have finished for good and need no room any more. ``seats``: per type the nodes of its pods by replica
    index, "" where there is none or it is not known; ``vacated``: how many of the seats of its place belong to replicas
    that are done, per type and node. ``not_before``: it is not considered before this time (epoch
    seconds). ``estimate``: seconds it is expected to run (None: nobody knows). ``preempts``: whether it may have others
    stopped for it; ``promised``: others have been told to give way to it, and it comes first until it has its place.
    ``live``: its size can change while it runs (False: it must start again to grow). ``pinned``: its pods are sent to
    the nodes that are found for them (False: to as many as have room, and the cluster's scheduler chooses).
    ``charges``: what it counts as in the ResourceQuotas of its namespace (None: there are none), and ``created``: how
    many pods of each type are there, on nodes or not. ``problem``: why it cannot be counted ("": it can): then it only
    waits, or keeps what its pods hold. ``inadmissible``: why its queue takes no jobs from its namespace ("": it does):
    then it waits, or keeps its place and does not grow.
    """

    key: JobKey
    uid: str
    created_at: float
    members: tuple[PodSet, ...]
    queue: str = ""
    priority: int = 0
    preempts: bool = True
    promised: bool = False
    live: bool = True
    pinned: bool = True
    charges: GangQuotaUsage | None = None
    created: Sizes = field(default_factory=dict)
    locality: TopologyRequest | None = None
    estimate: float | None = None
    not_before: float = 0.0
    place: Assignment | None = None
    bound: Placement = field(default_factory=dict)
    earlier: Placement = field(default_factory=dict)
    seats: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    done: Sizes = field(default_factory=dict)
    vacated: Placement = field(default_factory=dict)
    problem: str = ""
    inadmissible: str = ""


class GangDecisionError(Exception):
    """Deciding about one gang has failed: it is to be left out, and the admitter is to be made anew."""

    def __init__(self, uid: str, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.uid = uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's room: all it has to give, and what the pods on it leave of that."""

    name: str
    allocatable: Resources
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()


class QueueingStrategy(StrEnum):
    """Whether a gang that cannot start holds back those behind it in its queue."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class PreemptionPolicy(StrEnum):
    """Whom the gangs of a queue may have stopped: nobody, gangs of lower priority in the queue, or besides that gangs
    of other queues that have borrowed what is nominally this queue's."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    RECLAIM = "Reclaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of one resource: what is the queue's own, how much more it may borrow, how much of its own it lends.

    None: no limit (borrow whatever others lend; lend all).
    """

    nominal: Decimal
    borrowing_limit: Decimal | None = None
    lending_limit: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of gangs. Queues with the same ``parent`` share what they do not use.

    A resource without a quota, here and in every ancestor, is not limited by quota. ``recovery_timeout``: seconds, see
    ``core.recovery`` (None: the default). ``namespace_selector``: whose labels a namespace must have for its jobs to be
    in this queue (None: no matter which); it says nothing of the queues below.
    """

    name: str
    parent: str = ""
    weight: int = 1
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    order: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    preemption: PreemptionPolicy = PreemptionPolicy.RECLAIM
    default_priority: int = 0
    recovery_timeout: float | None = None
    namespace_selector: Requirements | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """The tunable part of admission; seconds.

    ``patience``: a gang that has waited so long gets a reservation, and nobody passes it who would delay it.
    ``starving``: from then on it comes before everybody of its priority. ``stretch``: a gang lets those of its priority
    go first that come up to so many times its estimate later, but never longer than ``starving``; who gives no estimate
    is taken to run for ``assumed``. ``shrink_after``: so long a gang waits before overgrown others are made smaller for
    it, or before it starts with less than it wanted; ``shrink_below_spec_after``: before others, of no higher
    priority, are made smaller than they wanted to be. ``grow_after``: for so long nobody must have waited before
    gangs grow; ``steady``: a gang is not resized again (unless for a waiting one) within this time. ``restart_cost``:
    what growing costs a gang that must start again for it.
    """

    patience: float = 900.0
    starving: float = 86_400.0
    stretch: float = 0.5
    assumed: float = 3600.0
    shrink_after: float = 30.0
    shrink_below_spec_after: float = 900.0
    grow_after: float = 20.0
    steady: float = 60.0
    restart_cost: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything one admission pass decides on. ``now``: epoch seconds.

    ``nodes`` None: they may not be seen, and quotas alone decide. ``bounds``: the ResourceQuotas by namespace.
    """

    gangs: tuple[Gang, ...]
    nodes: tuple[Node, ...] | None
    now: float = 0.0
    queues: tuple[Queue, ...] = ()
    policy: AdmissionPolicy = field(default_factory=AdmissionPolicy)
    bounds: Mapping[str, tuple[ResourceQuota, ...]] = field(default_factory=dict)


Overheads = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """What a PriorityClass says: its value, and whether its jobs may have others stopped for them."""

    value: int
    preempts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """What else counts: the queues, and the priority classes by name ("": that of jobs which name none, whose
    name is ``default_class``), and what a pod of a runtime class takes besides its containers, by its name.

    ``queues`` None: there are none, or they may not be seen. The queue that a job names is another system's then.
    """

    queues: tuple[Queue, ...] | None = None
    priorities: Mapping[str, PriorityClass] = field(default_factory=dict)
    default_class: str = ""
    overheads: Overheads = field(default_factory=dict)

    @property
    def counted(self) -> tuple[object, ...]:
        """What of it decides how jobs are counted, as a value to compare: quotas do not."""
        queues = None if self.queues is None else {one.name: one.default_priority for one in self.queues}
        return queues, self.priorities, self.default_class, self.overheads


NO_ADMISSION_CONFIG: Final = AdmissionConfig()
