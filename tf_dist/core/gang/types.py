"""Types of gang admission: gangs, nodes, queues, ResourceQuotas, and the admission policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tf_dist.core.model.gang_queue import DEFAULT_QUEUE, Queue
from tf_dist.core.model.job import Document, Job, JobKey
from tf_dist.core.model.reasons import Reason

if TYPE_CHECKING:
    from tf_dist.core.model.assignment import Placement, Sizes
    from tf_dist.core.model.status import Status


_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQuotaUsage:
    """Usage of one pod in the ResourceQuotas of its namespace, and the properties by which quotas select it."""

    amounts: tuple[tuple[str, Decimal], ...]
    """The usage of each resource, by its name in quotas."""
    terminating: bool = False
    """Whether it has an active deadline."""
    best_effort: bool = False
    """Whether no container requests or limits CPU or memory."""
    priority_class: str = ""
    """The priority class of the pod."""
    job_class: str = ""
    """The priority class of the job. The API server counts the pod by this class only if the pod has it."""


@dataclass(frozen=True, slots=True)
class GangQuotaUsage:
    """Usage of a gang in ResourceQuotas."""

    members: tuple[PodQuotaUsage, ...]
    """The usage of one pod of each member, in order."""
    once: tuple[tuple[str, Decimal], ...] = ()
    """Its usage independent of the number of pods, by resource."""


class Scope(NamedTuple):
    """Scope of a ResourceQuota: it counts the pods whose property matches."""

    name: str
    """``PriorityClass``, or a property of pods such as ``BestEffort``."""
    operator: str = "Exists"
    """How the priority class is compared."""
    values: frozenset[str] = frozenset()
    """The values for the comparison."""

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
    """A ResourceQuota of a namespace."""

    name: str
    """Its name."""
    hard: Mapping[str, Decimal]
    """The limit of each resource."""
    used: Mapping[str, Decimal]
    """The usage that the API server has counted."""
    scopes: tuple[Scope, ...] = ()
    """The scopes, all of which must include a pod."""

    def counts(self, pod: PodQuotaUsage) -> bool:
        """Whether the quota counts a pod."""
        return all(scope.counts(pod) for scope in self.scopes)

    def counts_by_job_alone(self, pod: PodQuotaUsage) -> bool:
        """Whether the quota counts a pod only by the class of its job, so that ``used`` does not include the pod."""
        return bool(pod.job_class) and self.counts(pod) and not self.counts(replace(pod, job_class=""))

    def need(self, charges: GangQuotaUsage, counts: Sequence[int], *, once: bool = True) -> dict[str, Decimal]:
        """The usage of these pods of each member. ``once``: add the gang's usage independent of pods."""
        need = {resource: value for resource, value in charges.once if resource in self.hard} if once else {}
        for pod, count in zip(charges.members, counts, strict=True):
            if count and self.counts(pod):
                for resource, value in pod.amounts:
                    if resource in self.hard:
                        need[resource] = need.get(resource, _NONE) + count * value
        return need


Resources = Mapping[str, Decimal]

EXCLUSIVE_CAPACITY: Final = 1 << 20
"""Capacity of a node for an exclusive resource, which a node has only once. No node has more pods than this."""
EXCLUSIVE_PREFIX: Final = "exclusive:"


def exclusive_resource(number: int) -> str:
    """The column name of an exclusive resource, which no other resource can have."""
    return f"{EXCLUSIVE_PREFIX}{number}"


class ExclusiveResource(NamedTuple):
    """A pod's use of an exclusive resource, such as a host port."""

    name: str
    """Its column (``exclusive_resource``)."""
    amount: int
    """The pod's part of ``EXCLUSIVE_CAPACITY``."""
    text: str
    """Its description, for messages."""


@dataclass(frozen=True, slots=True)
class UnavailableNode:
    """A node that currently accepts no pods."""

    node: Node
    """The node without pods."""
    why: str
    """``cordoned`` or ``not ready``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """``count`` equal pods of a gang, one replica type of a job."""

    type: str
    """The replica type."""
    count: int
    """The number of pods that the job requests."""
    requests: Resources
    """The requests of one pod."""
    constraints: Document = field(default_factory=dict)
    """Parts of the pod spec that ``predicates`` reads (node selector, affinity, tolerations), and the refused nodes."""
    least: int | None = None
    """The size to which an elastic gang may shrink; None: ``count``."""
    most: int | None = None
    """The size to which it may grow; None: ``count``."""
    exclusives: tuple[ExclusiveResource, ...] = ()
    """The exclusive resources of its pods; see ``exclusive_resource``."""
    start: int | None = None
    """The number with which the gang starts. The rest up to ``least`` starts as capacity becomes free. None:
    ``least``.
    """
    priority: int = 0
    """Pods of a higher priority start first if not all fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRequest:
    """All pods of a gang on nodes of one topology domain."""

    label: str
    """Nodes with one value of this label are a domain."""
    required: bool = False
    """False: preferred."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A job that takes part in admission: it is admitted or waits."""

    job: Job
    """The job of its accepted document."""
    status: Status
    """Its memory: its admission, and the state of its replicas."""
    created_at: float
    """The creation time of the job: epoch seconds."""
    stalled: bool = False
    """Whether its status cannot be written at present. An admitted job then keeps its admission as it is."""

    def is_same(self, other: AdmissionRequest) -> bool:
        """Whether both were read from the same version of a job."""
        same = self.job is other.job and self.status is other.status
        return same and (self.created_at, self.stalled) == (other.created_at, other.stalled)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPods:
    """The pods with which a gang is admitted, and their nodes."""

    at: float
    """When it was admitted: epoch seconds."""
    sizes: Sizes
    """Pods by type; a missing type has all requested pods."""
    placement: Placement
    """Pods by type and node, if the nodes are known."""
    resized: float | None = None
    """The time of the last change of ``sizes``: epoch seconds; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as admission reads it: its request, its assignment, and the nodes of its pods.

    A job with fallbacks is a gang with ``fallbacks``. Each fallback is a gang that waits in a queue.
    """

    key: JobKey
    """Namespace and name of the job."""
    uid: str
    """The uid of the job. A fallback has its own uid."""
    created_at: float
    """The creation time of the job: epoch seconds."""
    members: tuple[PodSet, ...]
    """Its pods, by replica type."""
    queue: str = ""
    """The name of its queue; "": the queue ``default``."""
    priority: int = 0
    """The value of its priority class."""
    preempts: bool = True
    """Whether the gang may preempt others."""
    preemptable: bool = True
    """Whether others may preempt the gang."""
    patience: float | None = None
    """Seconds of waiting until the gang gets a reservation; None: the patience of the policy."""
    nominated: bool = False
    """Whether others are preempted for the gang, which therefore comes first until it is admitted."""
    live: bool = True
    """Whether the gang grows without a restart."""
    pinned: bool = True
    """Whether its pods are pinned to assigned nodes; False: the cluster's scheduler chooses nodes."""
    charges: GangQuotaUsage | None = None
    """Its usage of the ResourceQuotas of its namespace; None if the namespace has none."""
    created: Sizes = field(default_factory=dict)
    """Existing pods by type, bound to nodes or not."""
    locality: TopologyRequest | None = None
    """The topology constraint; None: any nodes."""
    estimate: float | None = None
    """The expected run time in seconds; None: unknown."""
    not_before: float = 0.0
    """The end of its back-off: epoch seconds."""
    assigned: AssignedPods | None = None
    """Its assignment; None: it waits."""
    stalled: bool = False
    """Whether its assignment cannot be changed at present, because its job's status cannot be written."""
    bound: Placement = field(default_factory=dict)
    """Pods that are bound to nodes. Pods beyond the assigned sizes will be deleted."""
    earlier: Placement = field(default_factory=dict)
    """The pods of ``bound`` that are being deleted or are of earlier attempts. They end before assigned pods start."""
    requeued: bool = False
    """Whether ``earlier`` pods are from before the job was requeued. If so, pods without an assigned node do not take
    over their nodes.
    """
    pod_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The nodes of its pods by type and replica index; "": none, or unknown."""
    done: Sizes = field(default_factory=dict)
    """Finished replicas by type."""
    vacated: Placement = field(default_factory=dict)
    """Assigned pods of finished replicas. Other pods may use their capacity."""
    problem: str = ""
    """Why its pods cannot be counted. In this case, the gang waits, or keeps the capacity of its pods."""
    inadmissible: str = ""
    """Why its queue does not accept the gang. In this case, the gang waits, or keeps its size and does not grow."""
    inadmissible_reason: Reason = Reason.NAMESPACE_MISMATCH
    """The reason of the wait of an inadmissible gang."""
    priority_classes: tuple[str, ...] = ()
    """The priority classes that the job and its pod templates name."""
    fallback: int = 0
    """The number of this fallback of the job; 0: the document itself."""
    fallbacks: tuple[Gang, ...] = ()
    """The alternatives with which it may start, in order."""
    fallback_of: str = ""
    """For a fallback: the job's uid."""
    tried_from: float = 0.0
    """The time from which on a fallback may start: epoch seconds."""

    @property
    def job_uid(self) -> str:
        """The uid of the job."""
        return self.fallback_of or self.uid

    @property
    def wakes_at(self) -> float:
        """The earliest time at which admission considers the gang: epoch seconds."""
        return max(self.not_before, self.tried_from)

    def admitted(self, assigned: AssignedPods, fallback: int) -> Gang:
        """The gang after its admission, with the size of its document or of a fallback."""
        chosen = next((other for other in self.fallbacks if other.fallback == fallback), self)
        if chosen is self:
            return replace(self, assigned=assigned, nominated=False, fallbacks=())
        mine = replace(chosen, uid=self.uid, fallback_of="", tried_from=0.0, assigned=assigned)
        return replace(mine, bound=self.bound, earlier=self.earlier, created=self.created)


class GangDecisionError(Exception):
    """The decision about a gang failed."""

    def __init__(self, uid: str, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.uid = uid
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that accepts pods."""

    name: str
    """Its name."""
    allocatable: Resources
    """Its allocatable resources."""
    free: Resources
    """Its free resources."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels."""
    taints: tuple[Mapping[str, Any], ...] = ()
    """Its taints, as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """The parameters of admission, in seconds unless noted."""

    patience: float = 900.0
    """The wait after which a gang gets a reservation, which gangs behind it must not delay."""
    starving: float = 86_400.0
    """The wait after which a gang has precedence over all other gangs of its priority."""
    stretch: float = 0.5
    """A factor. Gangs of equal priority that are younger by up to this multiple of a gang's estimate precede it."""
    assumed: float = 3600.0
    """The run time of a gang without an estimate, for ``stretch``."""
    shrink_after: float = 30.0
    """The wait after which other gangs shrink to their requested size for a gang, or it starts below this size."""
    shrink_below_spec_after: float = 900.0
    """The wait after which gangs of equal or lower priority shrink below their requested size."""
    grow_after: float = 20.0
    """The time without changes of any gang after which gangs grow."""
    steady: float = 60.0
    """The time after a resize within which an elastic gang does not grow again."""
    restart_cost: float = 15.0
    """The cost of growth for a gang that must restart to grow."""

    def patience_of(self, gang: Gang) -> float:
        """The patience of a gang: its own, or that of the policy."""
        return self.patience if gang.patience is None else gang.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDefaults:
    """The defaults of a namespace's LimitRanges for containers."""

    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits by resource, as quantities."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """Requests by resource."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass."""

    value: int
    """The priority of its jobs."""
    preempts: bool = True
    """Whether its jobs may preempt others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeClass:
    """The fields that the API server adds to pods of a RuntimeClass."""

    overhead: Mapping[str, Any] = field(default_factory=dict)
    """The requests of the pod in addition to its containers."""
    node_selector: Mapping[str, Any] = field(default_factory=dict)
    """Labels of the nodes that have the runtime."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Tolerations of the taints of these nodes."""


RuntimeClasses = Mapping[str, RuntimeClass]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Cluster-wide configuration of admission, as read by ``resources.admission_config``."""

    queues: tuple[Queue, ...] | None = None
    """The queues. None if none exist or they cannot be listed: queues that jobs name then belong to another system."""
    priorities: Mapping[str, PriorityClass] = field(default_factory=dict)
    """Priority classes by name; "": the class of jobs without a class."""
    default_class: str = ""
    """The name of the class of jobs without a class."""
    runtime_classes: RuntimeClasses = field(default_factory=dict)
    """RuntimeClasses by name. Classes that add nothing to their pods are left out."""
    container_defaults: Mapping[str, ContainerDefaults] = field(default_factory=dict)
    """The defaults of LimitRanges, by namespace."""

    def queue_of(self, named: str) -> str:
        """The queue of a job that names this queue ("": none). The result "" is the queue ``default``.

        If a queue is marked as the default, ``default`` means that queue, unless ``default`` itself is defined.
        """
        if self.queues is None:
            return ""
        defined = any(queue.name == DEFAULT_QUEUE for queue in self.queues)
        if named and (named != DEFAULT_QUEUE or defined):
            return named
        return next((queue.name for queue in self.queues if queue.default), named)

    @property
    def counted(self) -> tuple[object, ...]:
        """The part that determines how jobs are counted, without quotas, as a comparable value."""
        queues = self.queues and {
            queue.name: (queue.default_priority, queue.priority_classes, queue.default) for queue in self.queues
        }
        return queues, self.priorities, self.default_class, self.runtime_classes, self.container_defaults


NO_ADMISSION_CONFIG: Final = AdmissionConfig()
