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
    here ("": it can be used). ``shared``: cluster-wide objects, by (``ApiResource.key``, name). ``priorities``: the
    values of PriorityClasses, by name. ``assume_served``: no cluster was read, so every object that a job names is
    assumed to exist.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    shared: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    assume_served: bool = False


@dataclass(frozen=True, slots=True)
class PodClassification:
    """The pods of a job by attempt, with their counts.

    ``current``: the pod of the current attempt of each replica. ``stale``: every other pod of the job. ``departed``:
    the former pod of a replica without a pod, as last observed, if it is still cached.
    """

    current: Mapping[ReplicaId, PodView]
    stale: tuple[PodView, ...]
    counts: Mapping[str, Counts]
    succeeded: frozenset[ReplicaId]
    departed: Mapping[ReplicaId, PodView] = field(default_factory=dict)

    def count(self, type_: str) -> Counts:
        """The pods of a type, counted by state."""
        return self.counts.get(type_, NO_PODS)

    def without_node(self, job: Job) -> tuple[ReplicaId, ...]:
        """The replicas that have not succeeded and have no pod, or whose pod has not been scheduled."""
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
        """The pods of the job, counted by state."""
        return Counts(**{one.name: sum(getattr(c, one.name) for c in self.counts.values()) for one in fields(Counts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileContext:
    """The snapshot on which a pass decides: the job, its status, its pods, and all other observations.

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

        The verdict uses the capacity of replicas that had succeeded, so it becomes invalid when one of these replicas
        restarts in the pass.
        """
        lapsed = self.before.succeeded - self.status.succeeded
        return self.verdict if isinstance(self.verdict, Resize) and not lapsed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """A gang scheduler, as data. All functions are pure. They never get a ``ServedApis`` with ``missing``.

    ``apis``: its kinds, each with alternatives of which the first served kind is used. ``pods_first``: the scheduler
    binds pods, so the gang waits as pods without nodes (otherwise it decides before any pod is created).

    ``wanted``: the objects that should exist while a job is active. ``updates``: the changes of an existing object.
    ``verdict``: its decision about an active job (None: no change, or no decision yet). ``takes_pods``: whether pods
    may be created now. ``decorate``: adds what the scheduler needs to a pod. ``scheduler_name``: the scheduler of pods
    whose template names no scheduler ("": the default of Kubernetes).
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
    """Replace the job's status. This is the first action; the other actions are valid only after it has succeeded."""

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

    ``kind``: for a gang scheduler's object, with the group (``PodGroup.scheduling.volcano.sh``), as in ``Delete``.
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
    """Patch the job itself (merge patch): fields of its spec that the original controller fills in."""

    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job itself: its time to live has expired."""


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Record a Kubernetes Event on the job. ``type`` is Normal or Warning.

    ``routine``: a frequent Event, which must not displace other Events (``cluster/client/event_recorder``). ``count``:
    the number of occurrences.
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
    - ``pods``: the pods of the job. ``departed``: deleted pods, as last observed, if they are still in the cache.
      ``objects``: the job's other objects, by (kind, name). ``addresses``: see ``Cluster.addresses``.
    - ``unready``: the nodes of its pods that are not ready, if nodes may be read.
    - ``closed_nodes``: by replica type, the assigned nodes that do not accept such pods now because they are cordoned,
      tainted or gone.
    - ``recovery_timeout``: the recovery timeout of the job's queue (None: the queue has none).
    - ``verdict``: the verdict of admission.
    - ``last_status``: the status after the last pass, if the last pass did not write it. ``last_written``: when this
      controller last wrote the status, by its own clock (None: a difference is written now). The time is not stored:
      two controllers with different clocks would each consider a write due, and would alternate endlessly.
    - ``served``: the API of the job's gang scheduler, if that is another system (None: not known yet). The scheduler's
      objects are in ``objects``, with the group in the kind (``PodGroup.scheduling.volcano.sh``).
    - ``gang``: the gang scheduler of jobs that name no scheduler ("": tf-dist itself).
    - ``last_error``: the error of the previous passes, if several in a row failed ("": they did not; None: not known
      yet). ``rejected``: the reason with which the gang gives up its admission, because an early retry cannot succeed.
      ``invalid``: the API server finds an object of the job invalid, so a retry cannot succeed.
    - ``status_only``: the pass writes only the status and Events, because other jobs wait for their verdicts.
    - ``accepted``: the spec from which the job was parsed (None: the spec in its status). ``refused``: the current
      spec, if it is a different spec. ``unknown_keys``: the unknown keys of an accepted spec that no status contains
      yet, as text.
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
        """Round ``now`` to microseconds, because it is compared with stored times, which have microseconds."""
        object.__setattr__(self, "now", round_time(self.now))
