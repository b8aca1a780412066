"""Types of gang admission: gangs, nodes, queues, ResourceQuotas, and the admission policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tf_dist.core.api.assignment import PendingReason
from tf_dist.core.api.job import Document, JobKey
from tf_dist.core.api.names import Requirements

if TYPE_CHECKING:
    from tf_dist.core.api.assignment import Placement, Sizes


_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQuotaUsage:
    """Usage of one pod in the ResourceQuotas of its namespace, and the properties that decide which ones count it."""

    amounts: tuple[tuple[str, Decimal], ...]
    terminating: bool = False
    best_effort: bool = False
    priority_class: str = ""
    job_class: str = ""
    """The priority class of the job. It need not be on the pod: then the API server does not count the pod by it."""


@dataclass(frozen=True, slots=True)
class GangQuotaUsage:
    """Usage of a gang in ResourceQuotas: a pod of each member, in order; ``once``: for any number of pods."""

    members: tuple[PodQuotaUsage, ...]
    once: tuple[tuple[str, Decimal], ...] = ()


class Scope(NamedTuple):
    """Scope of a ResourceQuota: it counts the pods whose property fulfils the operator."""

    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()

    def counts(self, pod: PodQuotaUsage) -> bool:
        """Whether the scope includes a pod. An unknown scope includes none."""
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
                by_job = bool(pod.job_class) and self.operator in ("In", "Exists") and self._holds(pod.job_class)
                return by_job or self._holds(pod.priority_class)
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
    """A ResourceQuota: the hard limit of each resource, and the usage that the API server has counted."""

    name: str
    hard: Mapping[str, Decimal]
    used: Mapping[str, Decimal]
    scopes: tuple[Scope, ...] = ()

    def counts(self, pod: PodQuotaUsage) -> bool:
        """Whether it counts a pod."""
        return all(scope.counts(pod) for scope in self.scopes)

    def counts_by_job_alone(self, pod: PodQuotaUsage) -> bool:
        """Whether it counts a pod by the class of its job only, so that ``used`` does not include the pod."""
        return bool(pod.job_class) and self.counts(pod) and not self.counts(replace(pod, job_class=""))

    def need(self, charges: GangQuotaUsage, counts: Sequence[int], *, once: bool = True) -> dict[str, Decimal]:
        """What so many pods of each member use of it; ``once``: plus what the gang uses for any number."""
        need = {resource: value for resource, value in charges.once if resource in self.hard} if once else {}
        for pod, count in zip(charges.members, counts, strict=True):
            if count and self.counts(pod):
                for resource, value in pod.amounts:
                    if resource in self.hard:
                        need[resource] = need.get(resource, _NONE) + count * value
        return need


Resources = Mapping[str, Decimal]

DEFAULT_QUEUE: Final = "default"
"""The queue of jobs that name none. It is always there, and has no quotas unless it is defined."""


# Capacity of a node for an exclusive resource (one that no node has twice); no node has more pods than this.
EXCLUSIVE_CAPACITY: Final = 1 << 20
EXCLUSIVE_PREFIX: Final = "exclusive:"


def exclusive_resource(number: int) -> str:
    """The column name of something that no node has twice; no resource can have such a name."""
    return f"{EXCLUSIVE_PREFIX}{number}"


class ExclusiveResource(NamedTuple):
    """What a pod takes of something that no node has twice, such as a host port: column, amount, and a description."""

    name: str
    amount: int
    text: str


@dataclass(frozen=True, slots=True)
class UnavailableNode:
    """A node that takes no pods for now: the node as it is without any pods, and ``why`` (cordoned, not ready)."""

    node: Node
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """``count`` equal pods of a gang: the requests of one, and its constraints on nodes.

    An elastic gang may be resized to ``least`` of them (None: to no fewer than ``count``) and may grow to ``most``
    (None: not beyond ``count``). It starts once ``start`` of them have room (None: ``least``); those between that and
    ``least`` start as room appears, and are not given up again. ``constraints`` are the parts of the pod spec that
    ``fit`` reads: node selector, affinity, tolerations; and the nodes that have been refused. ``exclusives``: what
    keeps pods apart (see ``exclusive_resource``). ``priority``: where not all have room, the
    pods of a higher one come first.
    """

    type: str
    count: int
    requests: Resources
    constraints: Document = field(default_factory=dict)
    least: int | None = None
    most: int | None = None
    exclusives: tuple[ExclusiveResource, ...] = ()
    start: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRequest:
    """All pods of a gang on nodes with one value of ``label``: preferred, or ``required``."""

    label: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Pods assigned to a gang: how many per type, and where known on which nodes (type -> node -> count).

    ``at``: since when; ``resized``: when ``sizes`` changed last (None: never). Epoch seconds.
    """

    at: float
    sizes: Sizes
    placement: Placement
    resized: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as admission sees it.

    ``place``: what it is assigned (None: it waits). ``bound``: its pods that nodes count already, per type and node;
    with a place, those beyond its sizes are on their way out; without one, all of them are. ``earlier``: those of them
    from before the job was requeued: they go before the pods of the place come. ``done``: per type the replicas that
    have finished for good and need no room any more. ``seats``: per type the nodes of its pods by replica index, ""
    where there is none or it is not known; ``vacated``: how many of the seats of its place belong to replicas that are
    done, per type and node. ``patience``: the wait after which room is reserved for it (None: that of the policy);
    ``preemptable``: whether others may take its place. ``not_before``: it is not considered before this time (epoch
    seconds). ``estimate``: seconds it is expected to run (None: unknown). ``preempts``: whether it may preempt others;
    ``nominated``: others are preempted for it, and it comes first until it is admitted. ``live``: its size can change
    while it runs (False: it must start again to grow). ``pinned``: its pods are sent to the nodes that are found for
    them (False: to as many as have room, and the cluster's scheduler chooses). ``charges``: what it counts as in the
    ResourceQuotas of its namespace (None: there are none), and ``created``: how many pods of each type are there, on
    nodes or not. ``problem``: why it cannot be counted ("": it can): then it only waits, or keeps what its pods hold.
    ``inadmissible``: why its queue does not take it ("": it does): then it waits with ``inadmissible_reason``, or
    keeps its place and does not grow. ``priority_classes``: those that the job and its pod templates name.

    ``fallback``: as which of the job's fallbacks it stands here (0: as its document says). ``fallbacks``: the other
    ways in which it may start instead, in order, each a gang with a uid of its own, the one age, and ``fallback_of``
    the job's uid; ``tried_from``: when such a one may be taken (epoch seconds).
    """

    key: JobKey
    uid: str
    created_at: float
    members: tuple[PodSet, ...]
    queue: str = ""
    priority: int = 0
    preempts: bool = True
    preemptable: bool = True
    patience: float | None = None
    nominated: bool = False
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
    inadmissible_reason: PendingReason = PendingReason.NAMESPACE_MISMATCH
    priority_classes: tuple[str, ...] = ()
    fallback: int = 0
    fallbacks: tuple[Gang, ...] = ()
    fallback_of: str = ""
    tried_from: float = 0.0

    @property
    def job_uid(self) -> str:
        """The uid of the job, for a fallback, too."""
        return self.fallback_of or self.uid

    @property
    def wakes_at(self) -> float:
        """Before this time it is not considered: epoch seconds."""
        return max(self.not_before, self.tried_from)

    def admitted(self, place: Assignment, fallback: int) -> Gang:
        """The gang with its place, as it was admitted: as its document says, or as one of its fallbacks."""
        chosen = next((one for one in self.fallbacks if one.fallback == fallback), self)
        if chosen is self:
            return replace(self, place=place, nominated=False, fallbacks=())
        mine = replace(chosen, uid=self.uid, fallback_of="", tried_from=0.0, place=place)
        return replace(mine, bound=self.bound, earlier=self.earlier, created=self.created)


class GangDecisionError(Exception):
    """The decision about one gang failed: leave it out, and make a new admitter."""

    def __init__(self, uid: str, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.uid = uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node: what it can allocate, and what the pods on it leave free of that."""

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
    """What the gangs of a queue may preempt: nothing, gangs of lower priority in the queue, or also gangs of other
    queues that have borrowed this queue's nominal quota."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    RECLAIM = "Reclaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of one resource: the nominal quota, and the limits of borrowing and lending.

    None: no limit (borrow all that others lend; lend all).
    """

    nominal: Decimal
    borrowing_limit: Decimal | None = None
    lending_limit: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of gangs. Queues with the same ``parent`` lend each other what they do not use.

    A resource without a quota, here and in every ancestor, is not limited by quota. ``recovery_timeout``: seconds, see
    ``node_loss`` (None: the default). ``namespace_selector``: whose labels a namespace must have for its jobs to be
    in this queue (None: no matter which); it says nothing of the queues below. ``priority``: queues of a higher one are
    served first, however much they hold. ``reclaimable``: whether gangs of other queues may take back what it borrowed.
    ``priority_classes``: those that its jobs may name (None: any). ``default``: it is the queue of jobs that name none.
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
    priority: int = 0
    reclaimable: bool = True
    priority_classes: tuple[str, ...] | None = None
    default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """The tunable part of admission; seconds.

    ``patience``: the wait after which a gang gets a reservation, which gangs behind it must not delay. ``starving``:
    the wait after which it comes before all others of its priority. ``stretch``: gangs of its priority that come up to
    so many times its estimate later go first, but never later than ``starving``; without an estimate, ``assumed`` is
    taken. ``shrink_after``: the wait after which overgrown gangs shrink for it, or it starts with less than it wanted;
    ``shrink_below_spec_after``: after which others, of no higher priority, shrink below what they wanted.
    ``grow_after``: gangs grow when none has waited for so long; ``steady``: a gang is not resized again (unless for a
    waiting one) within this time. ``restart_cost``: what growing costs a gang that has to restart for it.
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

    def patience_of(self, gang: Gang) -> float:
        """The patience of a gang: its own, or the usual one."""
        return self.patience if gang.patience is None else gang.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The input of one admission cycle. ``now``: epoch seconds.

    ``nodes`` None: the driver may not list them, and quotas alone decide. ``bounds``: the ResourceQuotas by namespace.
    ``orphans``: by queue, what pods without a gang request.
    """

    gangs: tuple[Gang, ...]
    nodes: tuple[Node, ...] | None
    now: float = 0.0
    queues: tuple[Queue, ...] = ()
    policy: AdmissionPolicy = field(default_factory=AdmissionPolicy)
    bounds: Mapping[str, tuple[ResourceQuota, ...]] = field(default_factory=dict)
    unavailable: Mapping[str, UnavailableNode] = field(default_factory=dict)
    orphans: Mapping[str, Resources] = field(default_factory=dict)


Overheads = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDefaults:
    """What the LimitRanges of a namespace give each container that does not say it itself."""

    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits by resource, as quantities are written."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """Requests by resource."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass: its value, and whether its jobs may preempt others."""

    value: int
    preempts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Cluster-wide configuration: the queues; the priority classes by name ("": that of jobs which name none, called
    ``default_class``); the pod overhead of runtime classes by name.

    ``queues`` None: there are none, or the driver may not list them. The queue that a job names is another system's.
    """

    queues: tuple[Queue, ...] | None = None
    priorities: Mapping[str, PriorityClass] = field(default_factory=dict)
    default_class: str = ""
    overheads: Overheads = field(default_factory=dict)
    container_defaults: Mapping[str, ContainerDefaults] = field(default_factory=dict)
    """Of the LimitRanges, by namespace."""

    def queue_of(self, named: str) -> str:
        """The queue of a job that names this one ("": none), "" for the queue ``default``.

        Where a queue is marked as the default one, ``default`` means that queue, unless it is defined itself.
        """
        if self.queues is None:
            return ""
        defined = any(one.name == DEFAULT_QUEUE for one in self.queues)
        if named and (named != DEFAULT_QUEUE or defined):
            return named
        return next((one.name for one in self.queues if one.default), named)

    @property
    def counted(self) -> tuple[object, ...]:
        """The part that decides how jobs are counted, for comparing; quotas are not part of it."""
        queues = self.queues and {
            one.name: (one.default_priority, one.priority_classes, one.default) for one in self.queues
        }
        return queues, self.priorities, self.default_class, self.overheads, self.container_defaults


NO_ADMISSION_CONFIG: Final = AdmissionConfig()
