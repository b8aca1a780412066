"""Input and output of ``reconcile``: what is observed of a job, the context of its rules, the plan of actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tf_dist.core.model.assignment import Resize, Verdict, minimum_met
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Document, Job, ReplicaId
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import NO_PODS, AcceptedSpec, Counts, RefusedSpec, Status
from tf_dist.core.model.timestamps import round_time

if TYPE_CHECKING:
    from tf_dist.core.model.pods import PodView, UnreadyNode


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResource:
    """A kind of object that a gang scheduler reads, and the versions of it that are understood, best first."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    namespaced: bool = True

    @property
    def key(self) -> str:
        """The kind as kubectl names it where there are several: ``PodGroup.scheduling.volcano.sh``."""
        return f"{self.kind}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApis:
    """What a cluster has of a gang scheduler's API at one moment.

    ``versions``: which version of each kind it serves, by ``ApiResource.key``. ``missing``: why the scheduler cannot
    be used here, "" if it can. ``shared``: objects in no namespace, by (``ApiResource.key``, name). ``priorities``: of
    PriorityClasses. ``assume_served``: the cluster was not asked: what a job names is taken to be there.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    shared: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    assume_served: bool = False


@dataclass(frozen=True, slots=True)
class PodClassification:
    """``current``: the pod of the present attempt of each replica; ``stale``: every other pod of the job.

    ``departed``: the pod that a replica without one has had, as it was seen last, if it is still remembered.
    """

    current: Mapping[ReplicaId, PodView]
    stale: tuple[PodView, ...]
    counts: Mapping[str, Counts]
    succeeded: frozenset[ReplicaId]
    departed: Mapping[ReplicaId, PodView] = field(default_factory=dict)

    def count(self, type_: str) -> Counts:
        """Pods of a type by what they do."""
        return self.counts.get(type_, NO_PODS)

    def without_node(self, job: Job) -> tuple[ReplicaId, ...]:
        """The replicas that have not succeeded and have no node: no pod, or one that has not been scheduled."""
        waiting = (replica for replica in job.replicas if replica not in self.succeeded)
        return tuple(one for one in waiting if (pod := self.current.get(one)) is None or not pod.has_node)

    @property
    def with_node(self) -> Counter[str]:
        """How many replicas of each type have a node or have succeeded."""
        found = Counter(replica.type for replica, pod in self.current.items() if pod.has_node)
        found.update(
            replica.type for replica in self.succeeded if (pod := self.current.get(replica)) is None or not pod.has_node
        )
        return found

    def gang_has_nodes(self, job: Job) -> bool:
        """Whether the gang's minimum has nodes or has succeeded."""
        return minimum_met(job, self.with_node)

    def total(self) -> Counts:
        """Pods of the whole job by what they do."""
        return Counts(**{one.name: sum(getattr(c, one.name) for c in self.counts.values()) for one in fields(Counts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileContext:
    """The snapshot that one pass decides on: the job, its status, its pods, and everything else observed of it.

    A pass reads the job in two ways: as its document requests it, and as it runs now.
    """

    requested_job: Job
    """As its document says, with all its replicas."""
    job: Job
    """As it runs now: as the fallback, and with the replica counts, that it was admitted with (``current_job``)."""
    status: Status
    facts: PodClassification
    observed: Observed
    before: Status
    """The status at the start of the pass."""
    integration: Integration | None = None
    """The gang scheduler that decides about it (None: tf-dist itself)."""
    verdict: Verdict | None = None
    """The verdict of admission, or of the integration, for this pass. It is never replaced within the pass."""

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return self.observed.now

    def next_of(self, *moments: float | None) -> float | None:
        """The earliest of these moments that is yet to come; None if none is."""
        return min((moment for moment in moments if moment is not None and moment > self.now), default=None)

    @property
    def standing_resize(self) -> Resize | None:
        """The verdict to resize the gang, as long as it stands; None if the pass has no such verdict.

        It counts on the capacity of replicas that had succeeded, so it lapses when one of these restarts in the pass.
        """
        lapsed = self.before.succeeded - self.status.succeeded
        return self.verdict if isinstance(self.verdict, Resize) and not lapsed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """One gang scheduler, as data. All functions are pure; ``ServedApis`` is never one with something ``missing``.

    ``apis``: its kinds; of several alternatives the first that is served is used. ``pods_first``: it binds pods, and so
    the gang waits as pods without nodes (else it is asked before there is any pod).

    ``wanted``: the objects that should exist while a job lives. ``updates``: what to change in one that is there.
    ``verdict``: what it says of a job that lives (None: nothing new, or nothing yet). ``takes_pods``: whether pods may
    be created now. ``decorate``: what a pod must carry so that the scheduler knows it. ``scheduler_name``: of pods
    whose template names none ("": as Kubernetes has it).
    """

    name: GangScheduler
    apis: tuple[tuple[ApiResource, ...], ...]
    pods_first: bool
    wanted: Callable[[ReconcileContext, ServedApis], Iterable[dict[str, Any]]]
    updates: Callable[[ReconcileContext, ServedApis, Document, dict[str, Any]], Iterable[Update]]
    verdict: Callable[[ReconcileContext, ServedApis], Verdict | None]
    takes_pods: Callable[[ReconcileContext, ServedApis], bool]
    decorate: Callable[[ReconcileContext, ServedApis, ReplicaId, dict[str, Any]], None]
    scheduler_name: str = ""


def matching_replicas(job: Job, type_: str, index: int | None) -> tuple[ReplicaId, ...]:
    """Replica ``index`` of a type, or all of them; none if the job has no such replica."""
    spec = job.spec(type_)
    if spec is None:
        return ()
    if index is None:
        return spec.ids
    return (ReplicaId(type_, index),) if 0 <= index < spec.replicas else ()


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the job's status. It comes first: the other actions are valid only once it has been written."""

    status: Document


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object. That it exists already is no error, if it is the job's."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EnsureKeys:
    """Create a Secret of the job unless it is there; one that lacks its key pair gets a new one when it is made."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """Patch an object of the job, or its ``subresource`` (merge patch).

    ``kind``: with the group where it is a gang scheduler's (``PodGroup.scheduling.volcano.sh``), as for ``Delete``.
    """

    kind: str
    name: str
    patch: dict[str, Any]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object with this uid. That it is gone already is no error."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PatchJob:
    """Patch the job itself (merge patch): fields of its spec that the original's controller fills in."""

    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job itself: its time to live has expired."""


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Record a Kubernetes Event on the job. ``type`` is Normal or Warning.

    ``routine``: one of many of its kind, which must not take the room of others (``controller/observability/events``).
    ``count``: how often it happened.
    """

    type: str
    reason: str
    message: str
    routine: bool = False
    count: int = 1


Action = WriteStatus | Create | EnsureKeys | Update | Delete | PatchJob | DeleteJob | EmitEvent


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of one pass: the status from now on, what to do, and when to reconcile again (epoch seconds)."""

    status: Status
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is observed of one job at one moment.

    - ``now``: epoch seconds. ``stored_status``: the job's status as stored. ``deleting``: the job is being deleted.
    - ``pods``: those of the job; ``departed``: pods that are gone, as they were observed last, if still in the cache;
      ``objects``: its other objects, by (kind, name); ``addresses``: see ``Cluster.addresses``.
    - ``unready``: of the nodes of its pods those that are not ready, as far as nodes may be read.
    - ``closed_nodes``: by replica type, of the nodes that it was assigned those that take no such pods now: cordoned,
      tainted or gone.
    - ``recovery_timeout``: that of the job's queue (None: it has none).
    - ``verdict``: that of admission.
    - ``last_status``: the status that the last pass left, where that was not worth a write. ``last_written``: when
      this controller wrote the status last, by its own clock (None: a difference is written now). It is not stored: two
      controllers whose clocks differ would each find the other's time due, and write in turn without end.
    - ``served``: what there is of the gang scheduler that the job asks for, where that is another system (None: not
      known yet); its objects are among ``objects``, their kinds with the group (``PodGroup.scheduling.volcano.sh``).
    - ``gang``: the gang scheduler of jobs which name none ("": tf-dist itself).
    - ``last_error``: why the passes before this one failed, several in a row ("": they did not; None: not known yet);
      ``rejected``: as which reason the gang gives its admission back, because trying again soon is of no use;
      ``invalid``: the API server finds an object of the job invalid, so that no later try will do better.
    - ``status_only``: nothing but the status and events is written in this pass: other jobs wait for theirs.
    - ``accepted``: the spec that the job was parsed from (None: that of its status); ``refused``: the present one, if
      that is another.
    """

    now: float
    stored_status: Document = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    departed: tuple[PodView, ...] = ()
    unready: Mapping[str, UnreadyNode] = field(default_factory=dict)
    closed_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    recovery_timeout: float | None = None
    objects: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    verdict: Verdict | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    last_status: Status | None = None
    last_written: float | None = None
    served: ServedApis | None = None
    gang: str = ""
    last_error: str | None = None
    rejected: Reason | None = None
    invalid: bool = False
    status_only: bool = False
    accepted: AcceptedSpec | None = None
    refused: RefusedSpec | None = None

    def __post_init__(self) -> None:
        """Times are stored to the microsecond, so one that is compared with a stored one must be no finer."""
        object.__setattr__(self, "now", round_time(self.now))
