"""Input and output of ``reconcile``: what is observed of a job, the context its rules see, and the plan with its
actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tf_dist.core.api.assignment import Verdict
from tf_dist.core.api.job import Document, Job, ReplicaId
from tf_dist.core.api.lifecycle_policy import next_policy_timeout
from tf_dist.core.api.pod_events import PodClassification
from tf_dist.core.api.status import AcceptedSpec, RefusedSpec, Status
from tf_dist.core.api.timestamps import round_time

if TYPE_CHECKING:
    from tf_dist.core.api.pods import PodView, UnreadyNode


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
    PriorityClasses.
    ``assume_served``: nobody has looked: whatever a job names is taken to be there.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    shared: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    assume_served: bool = False


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """What a rule decides on: the job, its memory, what its pods say, and what surrounds it.

    ``job`` has the size that it was granted, ``asked`` the one its document asks for.
    """

    job: Job
    status: Status
    facts: PodClassification
    observed: Observed
    asked: Job

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return self.observed.now

    def next_of(self, *moments: float | None) -> float | None:
        """The earliest of these moments that is yet to come; None if none is."""
        return min((moment for moment in moments if moment is not None and moment > self.now), default=None)

    @property
    def policy_pending(self) -> bool:
        """Whether a policy is only waiting for its timeout: what it will do is not to be forestalled."""
        return next_policy_timeout(self.job, self.status, self.facts, self.now) is not None


def matching_replicas(job: Job, type_: str, index: int | None) -> tuple[ReplicaId, ...]:
    """Replica ``index`` of a type, or all of them; none if the job has no such replica."""
    spec = job.spec(type_)
    if spec is None:
        return ()
    return tuple(ReplicaId(type_, i) for i in range(spec.replicas) if index is None or i == index)


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the job's status. Comes first: what follows depends on its having been written."""

    status: Document


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object; that it exists already is as good, if it is the job's."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """Give an object of the job other data (merge patch), or its ``subresource``.

    ``kind``: with the group where it is a gang scheduler's (``PodGroup.scheduling.volcano.sh``), as for ``Delete``.
    """

    kind: str
    name: str
    patch: dict[str, Any]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this very object (the uid fences it); that it is gone already is as good."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job itself: its time to live is over."""


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Tell people: a Kubernetes Event on the job. ``type`` is Normal or Warning."""

    type: str
    reason: str
    message: str


Action = WriteStatus | Create | Update | Delete | DeleteJob | EmitEvent


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of one pass: the status that holds now, what to do, and when to look again (epoch seconds)."""

    status: Status
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The surroundings of one job at one moment.

    ``gone``: pods that are not there any more, as they were seen last, if they are still remembered. ``unready_node``:
    of the nodes of its pods those that are not ready, as far as nodes may be seen. ``recovery_timeout``: that of the
    job's queue (None: it has none).

    ``stored_status`` is the job's raw status; ``objects`` the other objects it owns, by (kind, name); ``verdict`` what
    admission says now; ``addresses`` see ``Cluster.addresses``; ``now`` epoch seconds. ``driver`` is who asks, and
    becomes the job's driver. ``remembered`` is the memory as the last pass left it, where that was not worth a write.
    ``served``: what there is of the gang scheduler that the job asks for, where that is another system (None: not known
    yet); its objects are among ``objects``, their kinds with the group (``PodGroup.scheduling.volcano.sh``).
    ``gang``: the one that the asking driver has for jobs which name none ("": tf-dist itself; None: the job is another
    driver's). ``last_error``: why passes before this one failed, several in a row ("": they did not; None: that is
    still to be seen); ``rejected``: the cluster refuses an object of the job, and would refuse it again.
    ``accepted``: the spec that the job was read from (None: that of its memory); ``refused``: the present one, if
    that is another.
    ``verdict_only``: it is another driver's, and is only to have the verdict in its memory.
    """

    now: float
    stored_status: Document = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    gone: tuple[PodView, ...] = ()
    unready: Mapping[str, UnreadyNode] = field(default_factory=dict)
    recovery_timeout: float | None = None
    objects: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    verdict: Verdict | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    driver: str = ""
    remembered: Status | None = None
    served: ServedApis | None = None
    gang: str | None = None
    last_error: str | None = None
    rejected: bool = False
    accepted: AcceptedSpec | None = None
    refused: RefusedSpec | None = None
    verdict_only: bool = False

    def __post_init__(self) -> None:
        """Times are stored to the microsecond: one that is compared with a stored one must be no finer."""
        object.__setattr__(self, "now", round_time(self.now))
