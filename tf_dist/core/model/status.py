"""The status of a job: everything that cannot be derived from observation.

The status is written before any action that depends on it, so the next controller can continue after a crash at any
point. The phases are the ten phases of Volcano, a superset of the phases of the TFJob dialects. A table lists the
allowed transitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self

from tf_dist.core.model.fieldpath import PackedJson
from tf_dist.core.model.job import Document, ReplicaId
from tf_dist.core.model.reasons import DISRUPTED, Category, OutcomeKind, Reason, reason_row, stable_reason
from tf_dist.core.model.usage import NO_USAGE, Usage


class Phase(StrEnum):
    """The phase of a job."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"


LIVE: Final = frozenset({Phase.PENDING, Phase.RUNNING, Phase.RESTARTING})
_ENDS: Final = frozenset({Phase.ABORTING, Phase.COMPLETING, Phase.TERMINATING, Phase.FAILED})

ALLOWED_TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.PENDING: LIVE | _ENDS,
    Phase.RUNNING: LIVE | _ENDS,
    Phase.RESTARTING: LIVE | _ENDS,
    Phase.ABORTING: frozenset({Phase.ABORTED, Phase.PENDING}),  # while pods stop, a user may resume the job
    Phase.ABORTED: frozenset({Phase.PENDING}),
    Phase.COMPLETING: frozenset({Phase.COMPLETED}),
    Phase.TERMINATING: frozenset({Phase.TERMINATED}),
    Phase.COMPLETED: frozenset(),
    Phase.TERMINATED: frozenset(),
    Phase.FAILED: frozenset(),
}

TERMINAL: Final = frozenset(phase for phase, following in ALLOWED_TRANSITIONS.items() if not following)
SUCCESSFUL: Final = frozenset({Phase.COMPLETING, Phase.COMPLETED})
STOPPED: Final = frozenset({Phase.ABORTING, Phase.ABORTED})


@dataclass(frozen=True, slots=True)
class Attempts:
    """The current attempts of the job, of each task and of each replica.

    A pod is current if its attempt label is exactly ``label(replica)``; every other pod of the job is stale. A restart
    raises one of the attempts. After the status is written, old pods are deleted and new pods are created.
    """

    job: int = 1
    tasks: Mapping[str, int] = field(default_factory=dict)
    pods: Mapping[ReplicaId, int] = field(default_factory=dict)

    def label(self, replica: ReplicaId) -> str:
        """The value of the attempt label: job.task.pod."""
        return f"{self.job}.{self.tasks.get(replica.type, 0)}.{self.pods.get(replica, 0)}"

    def next_job(self) -> Attempts:
        """The attempts after a restart of all pods."""
        return Attempts(self.job + 1)

    def next_task(self, type_: str) -> Attempts:
        """The attempts after a restart of all pods of a type."""
        pods = {replica: count for replica, count in self.pods.items() if replica.type != type_}
        return Attempts(self.job, {**self.tasks, type_: self.tasks.get(type_, 0) + 1}, pods)

    def next_pod(self, replica: ReplicaId) -> Attempts:
        """The attempts after a restart of one pod."""
        return Attempts(self.job, self.tasks, {**self.pods, replica: self.pods.get(replica, 0) + 1})


FIRST_ATTEMPTS: Final = Attempts()
MAX_COUNT: Final = 2**31 - 1
"""The largest number in a stored status. Sums of numbers that others report are limited to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of pods of a replica type, by state."""

    pending: int = 0
    """Pods that wait for a node, an image or a container."""
    running: int = 0
    """Pods whose containers run, ready or not."""
    ready: int = 0
    """Running pods that are ready."""
    succeeded: int = 0
    """Pods whose containers have all exited with 0."""
    failed: int = 0
    """Pods that have failed."""
    terminating: int = 0
    """Pods that are being deleted; they count only here."""
    restarts: int = 0
    """Restarts of containers in these pods by the kubelet."""


NO_PODS: Final = Counts()


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """A back-off before a restart."""

    count: int
    """Consecutive back-offs, including this one."""
    until: float
    """When the restart may happen (epoch seconds)."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The admission of a gang. Times are epoch seconds."""

    at: float
    """When the gang was admitted."""
    placement: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The assigned nodes: pods by replica type and node. Empty: no nodes were chosen."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Replicas by type. Empty: as many as the job requests."""
    resized: float | None = None
    """When the sizes last changed."""
    complete: float | None = None
    """The time since which every pod has had a node. None: never."""
    incomplete: float | None = None
    """The time since which a pod lacks its node. None: every pod has its node."""
    by: str = ""
    """The gang scheduler that admitted the gang and decides about it. Empty: tf-dist itself."""
    started: Mapping[str, int] = field(default_factory=dict)
    """Replicas by type that may have pods; the others wait for free capacity. Empty: no replica waits."""

    @property
    def admitted_sizes(self) -> Mapping[str, int]:
        """The number of admitted pods of each type; empty: as many as the job requests."""
        return self.started or self.sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure of a job."""

    event: str
    """The kind of failure, by its name in policies (``PodFailed``, ``PodEvicted``)."""
    replica: str = ""
    """The replica that failed (``worker-1``). Empty: the whole job failed."""
    code: int | None = None
    """The exit code of its container, if the container exited."""
    reason: str = ""
    """The reason in Kubernetes (``OOMKilled``)."""
    message: str = ""
    """The failure as a sentence."""
    at: float | None = None
    """When the failure happened (epoch seconds)."""
    node: str = ""
    """The node of the disrupted pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSpec:
    """The last spec that was accepted."""

    generation: int
    """The job's ``metadata.generation`` when the spec was accepted."""
    digest: str
    """A digest that identifies the spec, because annotations that are part of it do not change the generation."""
    runtime_id: str = ""
    """v1alpha1: the ``RuntimeId`` in the names of the job's pods, in case a replacement of the job lacks it."""
    document: Document = field(default_factory=dict, repr=False)
    """While the current spec is refused: this spec with its annotations and labels, if known and not too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSpec:
    """The current spec, which is not accepted."""

    generation: int
    """The job's ``metadata.generation`` of that spec."""
    digest: str
    """A digest that identifies the spec."""
    message: str = field(default="", compare=False)
    """Why the spec is not accepted; the wording may differ between releases of the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a job. Times are epoch seconds.

    The first part is the memory, on which the next pass bases its decisions. A difference in the memory is written
    before any other action. The other fields are only shown, or are observed again in the pods. A difference in them is
    written within seconds (``core.reconciler.reconcile``). ``core.model.status_codec`` stores the fields.
    """

    # -- memory --

    phase: Phase = Phase.PENDING
    """The phase; the transition rules set it."""
    reason: str = ""
    """The reason of the phase, in one word."""
    since: float | None = None
    """When the phase began."""
    created: float | None = None
    """When a controller first saw the job."""
    start_time: float | None = None
    """When the first pod of this run started. None while the job waits for admission."""
    completion_time: float | None = None
    """When the job ended, which is when tf-dist began to stop its remaining pods."""
    attempts: Attempts = FIRST_ATTEMPTS
    """The current attempts; each restart raises one."""
    survivors: frozenset[ReplicaId] = frozenset()
    """While the job restarts: replicas with pods of an earlier attempt that continue. If simultaneous failures count
    together (Volcano), failures of these pods are part of the current restart.
    """
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts spent, by cause."""
    disruptions: Mapping[str, int] = field(default_factory=dict)
    """Disruptions of pods, by reason (``core.model.pods``)."""
    retries: int = 0
    """Restarts of the job or of a part of it by a policy (Volcano's ``retryCount``). Simultaneous failures count once.
    Disruptions count if a policy reacts to them.
    """
    commands: tuple[str, ...] = ()
    """Uids of the last executed Commands, so that no Command is executed twice (``core.reconciler.commands``)."""
    policy_timeouts: Mapping[str, float] = field(default_factory=dict)
    """The start times of events with a policy timeout, by ``event_key``, if no object contains the time."""
    backoffs: Mapping[str, RestartBackoff] = field(default_factory=dict)
    """Back-offs before restarts, by replica, task or "" (the job)."""
    admission: Admission | None = None
    """The admission of the gang; None while the job waits, and after the job has ended."""
    last_sizes: Mapping[str, int] = field(default_factory=dict)
    """Replicas by type in the last admission, after that admission has ended."""
    fallback: int = 0
    """The fallback of the last admission (1, 2, …). 0: the document itself."""
    fallback_from: int = 0
    """The fallback that admission tries first, after a disruption. 0: the job's document."""
    requeues: int = 0
    """How many consecutive times its pods got no nodes in time."""
    not_before: float = 0.0
    """The job is not admitted before this time."""
    refused_nodes: Mapping[str, float] = field(default_factory=dict)
    """Nodes that the scheduler rejected for its pods, and the time until which admission excludes them."""
    failure: Failure | None = None
    """The last failure."""
    gang: str = ""
    """The gang scheduler of a job that names no scheduler, set when a controller first saw the job. Empty: tf-dist
    itself."""
    last_error: str = ""
    """The error of several consecutive passes. Empty: passes succeed."""
    accepted_spec: AcceptedSpec | None = None
    """The spec in force (``core.reconciler.accepted_spec``)."""
    refused_spec: RefusedSpec | None = None
    """The current spec, if it differs from the spec in force and is not accepted."""
    unconfirmed: str = ""
    """Pods of earlier attempts that may still run, and prevent another admission."""

    # -- shown, or observed again --

    message: str = ""
    """The message of the phase, as a sentence."""
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """Pods by replica type."""
    observed_replicas: frozenset[ReplicaId] = frozenset()
    """Replicas whose current pod was observed. If that pod is missing later, it was disrupted."""
    succeeded: frozenset[ReplicaId] = frozenset()
    """Replicas that have succeeded, even if their pods are deleted."""
    container_restarts: int = 0
    """Restarts by the kubelet in deleted pods."""
    usage: Usage = NO_USAGE
    """The usage of resources, and its lost part; updated in each pass (``core.reconciler.usage_accounting``)."""

    def with_phase(self, phase: Phase, now: float, reason: str, message: str) -> Self:
        """This status in another phase; ValueError if the table of transitions does not allow it."""
        if phase is self.phase:
            return replace(self, reason=reason, message=message)
        if phase not in ALLOWED_TRANSITIONS[self.phase]:
            raise ValueError(f"a job never goes from {self.phase} to {phase}")
        ends = phase in _ENDS and phase is not Phase.ABORTING
        # A job that has ended, or that its user has stopped, has no admission.
        gives_back = phase in TERMINAL or phase is Phase.ABORTED
        return replace(
            self,
            phase=phase,
            since=now,
            reason=reason,
            message=message,
            survivors=frozenset(),
            completion_time=now if ends else self.completion_time,
            admission=None if gives_back else self.admission,
            last_sizes=self.admission.sizes if gives_back and self.admission is not None else self.last_sizes,
        )

    def next_attempt(self, admission: Admission | None) -> Self:
        """This status with the next attempt of the whole job: every pod is stale, and back-offs are cleared.

        Without ``admission``, the job waits again, and its ``start_time`` is cleared. Replicas that have succeeded do
        not run again.
        """
        return replace(
            self,
            attempts=self.attempts.next_job(),
            admission=admission,
            start_time=None if admission is None else self.start_time,
            observed_replicas=frozenset(),
            survivors=frozenset(),
            backoffs={},
        )

    def with_restart(self, cause: str) -> Self:
        """This status with one more restart of this cause."""
        cause = str(cause)  # a key of the stored document
        return replace(self, restarts={**self.restarts, cause: self.restarts.get(cause, 0) + 1})

    @property
    def display_message(self) -> str:
        """The message to show: the error that prevents progress, or the message of the job's state."""
        if self.stalled:
            return f"cannot continue: {self.last_error}"
        return self.refusal or self.message

    @property
    def display_reason(self) -> str:
        """The reason of the job's state, as shown in a list of jobs."""
        if self.stalled:
            return Reason.RECONCILE_FAILED.value
        return Reason.INVALID_SPEC.value if self.refusal else str(self.reason)

    @property
    def stalled(self) -> bool:
        """Whether an error prevents progress. After the job's end, an error can only delay the clean-up."""
        return bool(self.last_error) and not self.finished

    @property
    def refusal(self) -> str:
        """Why the current spec is not accepted, with the consequences ("": it is accepted, or the job has ended)."""
        if self.refused_spec is None or self.finished:
            return ""
        if self.never_accepted:
            follows = "the job starts when this is corrected"
        elif self.accepted_spec is not None and self.accepted_spec.document:
            follows = f"generation {self.accepted_spec.generation} stays in force"
        else:
            follows = "its pods are not changed, and nothing is restarted until this is corrected"
        return f"the spec is not accepted: {self.refused_spec.message}; {follows}"

    @property
    def never_accepted(self) -> bool:
        """Whether no spec of the job was ever accepted, so that the job never ran."""
        return self.refused_spec is not None and self.accepted_spec is None and self.created is None

    @property
    def admission_holds(self) -> bool:
        """Whether the gang is admitted, and its pods have not become unschedulable since.

        A controller that sees no nodes admits by quota alone. The scheduler decides later whether capacity is free.
        """
        return self.admission is not None and self.reason != Reason.UNSCHEDULABLE

    @property
    def placed_at(self) -> float | None:
        """The start of the job's pending time: when its gang got its nodes, or its last restart."""
        if self.phase is not Phase.PENDING or not self.admission_holds or self.admission is None:
            return None
        return max(self.admission.complete or self.admission.at, self.since or 0.0)

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.phase in TERMINAL

    @property
    def charged_restarts(self) -> int:
        """Restarts that count against the job's budget, without restarts by the kubelet."""
        return sum(count for cause, count in self.restarts.items() if reason_row(cause).charged)

    @property
    def total_disruptions(self) -> int:
        """The total number of disruptions."""
        return sum(self.disruptions.values())

    @property
    def total_restarts(self) -> int:
        """Restarts so far, including those of containers in their pods. Disruptions are counted separately."""
        # After a job has ended, ``container_restarts`` also contains the restarts in its last pods.
        living = sum(counts.restarts for counts in self.counts.values()) if self.phase in LIVE else 0
        return sum(self.restarts.values()) + self.container_restarts + living


def display_phase(status: Status) -> str:
    """The state in one word, as shown in a list of jobs."""
    if status.phase in STOPPED and status.reason == Reason.SUSPENDED:
        return "Suspended" if status.phase is Phase.ABORTED else "Suspending"
    if status.phase is Phase.COMPLETED:
        return "Succeeded"
    if status.phase is Phase.PENDING and not status.admission_holds and status.reason:
        return "Waiting"
    return status.phase.value


# The reason in the condition of a pod that the cluster's scheduler preempted.
SCHEDULER_PREEMPTION: Final = "PreemptionByScheduler"
_SIGTERM: Final = 143


def outcome_kind(status: Status) -> OutcomeKind | None:
    """How the job ended, from its status alone; None while it continues."""
    if status.phase in LIVE:
        return None
    if status.phase in SUCCESSFUL:
        return OutcomeKind.SUCCEEDED
    kind, failure = reason_row(status.reason).outcome, status.failure
    if failure is None:
        return kind
    held = reason_row(stable_reason(failure.reason))
    if kind is OutcomeKind.EVICTED and failure.reason == SCHEDULER_PREEMPTION:
        return OutcomeKind.PREEMPTED
    waits = status.reason == Reason.START_TIMEOUT or (kind is OutcomeKind.FAILED and held.permanent)
    if held.category is Category.IMAGE and waits:
        return OutcomeKind.IMAGE_PULL_FAILED
    # The program ended after a SIGTERM that tf-dist did not cause: its pod was about to be removed.
    if kind is OutcomeKind.FAILED and failure.code == _SIGTERM:
        return OutcomeKind.EVICTED
    return kind


def outcome_reason(status: Status) -> str:
    """The reason of the end. For an unusable image, the container's reason, which a client may see before the end."""
    if outcome_kind(status) is OutcomeKind.IMAGE_PULL_FAILED and status.failure is not None and status.failure.reason:
        return stable_reason(status.failure.reason)
    return status.display_reason


# The outcomes of jobs that ended because of their last failure.
_ENDED_FOR_FAILURE: Final = DISRUPTED | {
    OutcomeKind.FAILED,
    OutcomeKind.BACKOFF_LIMIT_EXCEEDED,
    OutcomeKind.IMAGE_PULL_FAILED,
    OutcomeKind.START_TIMEOUT,
}


def ending_failure(status: Status) -> Failure | None:
    """The failure that ended the job; None if it continues, or ended for another reason."""
    return status.failure if outcome_kind(status) in _ENDED_FOR_FAILURE else None


def disruptions(status: Status) -> int:
    """The number of disruptions, including a disruption that ended the job."""
    ended = status.reason != Reason.PREEMPTED and outcome_kind(status) in DISRUPTED
    return status.total_disruptions + ended


def preemptions(status: Status) -> int:
    """The number of preemptions of the job or of its pods, including a preemption that ended the job."""
    before = status.restarts.get(Reason.PREEMPTED, 0) + status.disruptions.get(SCHEDULER_PREEMPTION, 0)
    return before + (outcome_kind(status) is OutcomeKind.PREEMPTED)


class StoredDocument(PackedJson):
    """A stored job: its metadata, and the other fields in packed form.

    The status, and whether another controller manages the job, are parsed once for all readers of the object: a
    controller, or the waiting tasks in Airflow.
    """

    __slots__ = ("_metadata", "managed_elsewhere", "read_as")
    read_as: Status
    managed_elsewhere: bool

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._metadata = stored["metadata"]  # not packed: it identifies the object and its version, and is read often
        super().__init__({key: value for key, value in stored.items() if key != "metadata"})

    def __getitem__(self, key: str) -> Any:
        return self._metadata if key == "metadata" else super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        yield "metadata"
        yield from super().__iter__()

    def __len__(self) -> int:
        return 1 + super().__len__()

    def __bool__(self) -> bool:
        return True  # without decoding
