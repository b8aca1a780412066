"""Input and output of ``reconcile``: the observation of a job, the context of its rules, the plan of actions."""

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
    """A kind of object that a gang scheduler reads, and its supported versions, preferred first."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    namespaced: bool = True

    @property
    def key(self) -> str:
        """The kind with its group, as in kubectl: ``PodGroup.scheduling.volcano.sh``."""
        return f"{self.kind}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApis:
    """The state of a gang scheduler's API in a cluster.

    ``versions``: the served version of each kind, by ``ApiResource.key``. ``missing``: why the scheduler cannot be used
    here, "" if it can. ``shared``: cluster-wide objects, by (``ApiResource.key``, name). ``priorities``: of
    PriorityClasses. ``assume_served``: no cluster was read, so every object that a job names is assumed to exist.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    shared: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    assume_served: bool = False


@dataclass(frozen=True, slots=True)
class PodClassification:
    """``current``: the pod of the current attempt of each replica. ``stale``:

    every other pod of the job. ``departed``: the former pod of a replica without a pod, as last observed, if it is
    still cached.
    """

    current: Mapping[ReplicaId, PodView]
    stale: tuple[PodView, ...]
    counts: Mapping[str, Counts]
    succeeded: frozenset[ReplicaId]
    departed: Mapping[ReplicaId, PodView] = field(default_factory=dict)

    def count(self, type_: str) -> Counts:
        """Counts of a type's pods by state."""
        return self.counts.get(type_, NO_PODS)

    def without_node(self, job: Job) -> tuple[ReplicaId, ...]:
        """The replicas that have not succeeded and have no node: no pod, or one that has not been scheduled."""
        waiting = (replica for replica in job.replicas if replica not in self.succeeded)
        return tuple(one for one in waiting if (pod := self.current.get(one)) is None or not pod.has_node)

    @property
    def with_node(self) -> Counter[str]:
        """The number of replicas of each type that have a node or have succeeded."""
        found = Counter(replica.type for replica, pod in self.current.items() if pod.has_node)
        found.update(
            replica.type for replica in self.succeeded if (pod := self.current.get(replica)) is None or not pod.has_node
        )
        return found

    def gang_has_nodes(self, job: Job) -> bool:
        """Whether the gang's minimum has nodes or has succeeded."""
        return minimum_met(job, self.with_node)

    def total(self) -> Counts:
        """Counts of the job's pods by state."""
        return Counts(**{one.name: sum(getattr(c, one.name) for c in self.counts.values()) for one in fields(Counts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileContext:
    """The snapshot that one pass decides on: the job, its status, its pods, and everything else observed of it.

    A pass uses the job in two forms: as its document requests it, and as it runs now.
    """

    requested_job: Job
    """The job of the document, with all its replicas."""
    job: Job
    """The job as it runs now, with the fallback and the replica counts of its admission (``current_job``)."""
    status: Status
    facts: PodClassification
    observed: Observed
    before: Status
    """The status at the start of the pass."""
    integration: Integration | None = None
    """The gang scheduler that admits it (None: tf-dist itself)."""
    verdict: Verdict | None = None
    """The verdict of admission, or of the integration, for this pass. It is never replaced within the pass."""

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return self.observed.now

    def next_of(self, *moments: float | None) -> float | None:
        """The earliest of these times that is in the future, or None."""
        return min((moment for moment in moments if moment is not None and moment > self.now), default=None)

    @property
    def standing_resize(self) -> Resize | None:
        """The verdict to resize the gang, while it is valid; None if the pass has no such verdict.

        It uses the capacity of replicas that had succeeded, so it becomes invalid when one of these restarts in the
        pass.
        """
        lapsed = self.before.succeeded - self.status.succeeded
        return self.verdict if isinstance(self.verdict, Resize) and not lapsed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """One gang scheduler, as data. All functions are pure; ``ServedApis`` is never one with something ``missing``.

    ``apis``: its kinds; of several alternatives, the first served one is used. ``pods_first``: it binds pods, so the
    gang waits as pods without nodes (otherwise it decides before any pod is created).

    ``wanted``: the objects that should exist while a job is active. ``updates``: the changes of an existing object.
    ``verdict``: its decision about an active job (None: no news, or none yet). ``takes_pods``: whether pods may be
    created now. ``decorate``: adds what the scheduler needs to a pod. ``scheduler_name``: for pods without one in their
    template ("": Kubernetes' default).
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
    """Replace the job's status. It is the first action; the others are valid only after it is written."""

    status: Document


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object. An existing object of the job is not an error."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EnsureKeys:
    """Create a Secret of the job unless it exists. If it lacks its key pair, one is generated."""

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
    """Delete the object with this uid. A missing object is not an error."""

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

    ``routine``: one of many of its kind, which must not displace others (``cluster/client/event_recorder``).
    ``count``: the number of occurrences.
    """

    type: str
    reason: str
    message: str
    routine: bool = False
    count: int = 1


Action = WriteStatus | Create | EnsureKeys | Update | Delete | PatchJob | DeleteJob | EmitEvent


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of one pass: the new status, the actions, and the time of the next pass (epoch seconds)."""

    status: Status
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observation of one job at one time.

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
      that is another; ``unknown_keys``: those of an accepted spec that no status has yet, as text.
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
    unknown_keys: str = ""

    def __post_init__(self) -> None:
        """Times are stored in microseconds, so times that are compared with stored ones are rounded to them."""
        object.__setattr__(self, "now", round_time(self.now))
