"""The status of a job: everything that cannot be derived again from what is observed.

It is written before any action that depends on it, so one that dies at any point leaves enough for the next.
The phases are Volcano's ten, a superset of those of the TFJob dialects; which may follow which is a table.
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


_LIVE: Final = frozenset({Phase.PENDING, Phase.RUNNING, Phase.RESTARTING})
_ENDS: Final = frozenset({Phase.ABORTING, Phase.COMPLETING, Phase.TERMINATING, Phase.FAILED})

ALLOWED_TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.PENDING: _LIVE | _ENDS,
    Phase.RUNNING: _LIVE | _ENDS,
    Phase.RESTARTING: _LIVE | _ENDS,
    Phase.ABORTING: frozenset({Phase.ABORTED, Phase.PENDING}),  # pods are stopping; a resume may come meanwhile
    Phase.ABORTED: frozenset({Phase.PENDING}),
    Phase.COMPLETING: frozenset({Phase.COMPLETED}),
    Phase.TERMINATING: frozenset({Phase.TERMINATED}),
    Phase.COMPLETED: frozenset(),
    Phase.TERMINATED: frozenset(),
    Phase.FAILED: frozenset(),
}

TERMINAL: Final = frozenset(phase for phase, following in ALLOWED_TRANSITIONS.items() if not following)
LIVE: Final = _LIVE
SUCCESSFUL: Final = frozenset({Phase.COMPLETING, Phase.COMPLETED})
STOPPED: Final = frozenset({Phase.ABORTING, Phase.ABORTED})


@dataclass(frozen=True, slots=True)
class Attempts:
    """Which attempt of the job, of each task and of each replica is the present one.

    A pod is current if its attempt label is exactly ``label(replica)``; every other pod of the job is stale. A restart
    is decided by counting one of them up; once that is written, that old pods go and new ones come follows from it.
    """

    job: int = 1
    tasks: Mapping[str, int] = field(default_factory=dict)
    pods: Mapping[ReplicaId, int] = field(default_factory=dict)

    def label(self, replica: ReplicaId) -> str:
        """The value of the attempt label: job.task.pod."""
        return f"{self.job}.{self.tasks.get(replica.type, 0)}.{self.pods.get(replica, 0)}"

    def next_job(self) -> Attempts:
        """All pods anew."""
        return Attempts(self.job + 1)

    def next_task(self, type_: str) -> Attempts:
        """All pods of a type anew."""
        pods = {replica: count for replica, count in self.pods.items() if replica.type != type_}
        return Attempts(self.job, {**self.tasks, type_: self.tasks.get(type_, 0) + 1}, pods)

    def next_pod(self, replica: ReplicaId) -> Attempts:
        """One pod anew."""
        return Attempts(self.job, self.tasks, {**self.pods, replica: self.pods.get(replica, 0) + 1})


FIRST_ATTEMPTS: Final = Attempts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of pods of one replica type, by what they are doing."""

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
    """Pods that are being deleted, which count as nothing else."""
    restarts: int = 0
    """Restarts of containers in these pods by the kubelet."""


NO_PODS: Final = Counts()


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """A back-off before a restart."""

    count: int
    """Back-offs in a row, this one included."""
    until: float
    """When the restart may happen (epoch seconds)."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The admission of a gang, as admission wrote it. Times are epoch seconds."""

    at: float
    """When the gang was admitted."""
    placement: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The assigned nodes: pods by replica type and node. Empty: no nodes were chosen."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Replicas by type. Empty: as many as the job requests."""
    resized: float | None = None
    """When the sizes changed last."""
    complete: float | None = None
    """Since when every pod has had a node. None: they never all had one."""
    incomplete: float | None = None
    """Since when a pod that should have a node has none. None: no pod lacks its node."""
    by: str = ""
    """The gang scheduler that admitted the gang and decides about it from then on. Empty: tf-dist itself."""
    started: Mapping[str, int] = field(default_factory=dict)
    """Replicas by type that may have pods by now; the others wait for free capacity. Empty: no replica waits."""

    @property
    def admitted_sizes(self) -> Mapping[str, int]:
        """How many pods of each type are admitted by now; empty: as many as the job says."""
        return self.started or self.sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure of a job."""

    event: str
    """The kind of failure, as policies name it (``PodFailed``, ``PodEvicted``)."""
    replica: str = ""
    """The replica that failed (``worker-1``). Empty: the failure is the job's."""
    code: int | None = None
    """The exit code of its container, if the container exited."""
    reason: str = ""
    """The reason that Kubernetes gives for it (``OOMKilled``)."""
    message: str = ""
    """The failure in a sentence."""
    at: float | None = None
    """When it happened (epoch seconds)."""
    node: str = ""
    """The node from which the pod was taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSpec:
    """The last spec that was accepted."""

    generation: int
    """The job's ``metadata.generation`` when it was accepted."""
    digest: str
    """Tells whether another version says the same: annotations that are part of the spec change no generation."""
    runtime_id: str = ""
    """v1alpha1: the ``RuntimeId`` in the names of its pods, for a replacement that leaves it out."""
    document: Document = field(default_factory=dict, repr=False)
    """The spec with its annotations and labels while the present one is refused, if it is known and not too large."""
    unknown: str = field(default="", compare=False)
    """The keys of the spec that nothing reads, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSpec:
    """The present spec, which is not accepted."""

    generation: int
    """The job's ``metadata.generation`` of that spec."""
    digest: str
    """Tells whether another version says the same."""
    message: str = field(default="", compare=False)
    """Why it is not accepted; controllers of two releases may word that differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a job remembers. Times are epoch seconds.

    First the memory: what the next pass decides by. A difference in it is written before anything else is done. Then
    what is only shown, or is observed again in the pods: a difference is written within seconds
    (``core.reconciler.reconcile``). ``core.model.status_codec`` stores them.
    """

    # -- memory --

    phase: Phase = Phase.PENDING
    """The phase; the transition rules set it."""
    reason: str = ""
    """Why the job is in that phase, in one word."""
    since: float | None = None
    """When the phase began."""
    created: float | None = None
    """When a controller first saw the job."""
    start_time: float | None = None
    """When the first pod of this run started; a job that waits for admission again has none."""
    completion_time: float | None = None
    """When the job ended, which is when its last pods were asked to stop."""
    attempts: Attempts = FIRST_ATTEMPTS
    """The present attempts; each restart raises one."""
    survivors: frozenset[ReplicaId] = frozenset()
    """While the job restarts: replicas whose pods of before were left alone. Where failures of the same moment count
    together (Volcano), theirs are part of the restart under way."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts spent, by cause."""
    disruptions: Mapping[str, int] = field(default_factory=dict)
    """Pods that were taken away, by reason (``core.model.pods``)."""
    retries: int = 0
    """Restarts of the job or a part of it by a policy (Volcano's ``retryCount``). Failures of the same moment count
    once; disruptions that a policy answers count."""
    commands: tuple[str, ...] = ()
    """Uids of the last Commands that were carried out, so that none is twice (``core.reconciler.commands``)."""
    policy_timeouts: Mapping[str, float] = field(default_factory=dict)
    """Since when events last that a policy answers after its timeout and that have no other date, by ``event_key``."""
    backoffs: Mapping[str, RestartBackoff] = field(default_factory=dict)
    """Back-offs before restarts, by replica, task or "" (the job)."""
    admission: Admission | None = None
    """The admission of the gang; None while the job waits and once it is over."""
    last_sizes: Mapping[str, int] = field(default_factory=dict)
    """Replicas by type in the last admission, once that is over."""
    fallback: int = 0
    """The fallback that the job was admitted with last (1, 2, …). 0: none, its document."""
    fallback_from: int = 0
    """The fallback that admission tries first, after a disruption. 0: the job's document."""
    requeues: int = 0
    """How often in a row its pods found no nodes in time."""
    not_before: float = 0.0
    """The job is not admitted before that."""
    refused_nodes: Mapping[str, float] = field(default_factory=dict)
    """Nodes that the scheduler refused its pods, and until when admission leaves them out."""
    failure: Failure | None = None
    """The last failure."""
    gang: str = ""
    """The gang scheduler of a job that names none, set when it was first seen. Empty: tf-dist itself."""
    last_error: str = ""
    """Why its passes fail, several in a row; the reconciler sets it. Empty: they do not fail."""
    accepted_spec: AcceptedSpec | None = None
    """The spec in force (``core.reconciler.accepted_spec``)."""
    refused_spec: RefusedSpec | None = None
    """The present spec, if it is another than the one in force and cannot be accepted."""
    unconfirmed: str = ""
    """Pods of earlier attempts that may still run, which keep the job from asking for admission."""

    # -- shown, or observed again --

    message: str = ""
    """Why the job is in its phase, in a sentence."""
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """Pods by replica type."""
    observed_replicas: frozenset[ReplicaId] = frozenset()
    """Replicas whose present pod was observed. If that pod is missing, it was taken away."""
    succeeded: frozenset[ReplicaId] = frozenset()
    """Replicas that have succeeded for good, even when their pods are gone."""
    container_restarts: int = 0
    """Restarts by the kubelet in pods that are gone."""
    usage: Usage = NO_USAGE
    """What the job used, and what of that was lost; accounted once a pass (``core.reconciler.usage_accounting``)."""

    def with_phase(self, phase: Phase, now: float, reason: str, message: str) -> Self:
        """This status in another phase; ValueError if the table of transitions does not allow it."""
        if phase is self.phase:
            return replace(self, reason=reason, message=message)
        if phase not in ALLOWED_TRANSITIONS[self.phase]:
            raise ValueError(f"a job never goes from {self.phase} to {phase}")
        ends = phase in _ENDS and phase is not Phase.ABORTING
        # A job that is over, or stopped by its user, has no admission any more.
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
        """This status with the next attempt of the whole job: every pod is stale, and no backoff of theirs is left.

        Without ``admission`` the job waits again, and its time starts anew. Replicas that have succeeded stay so.
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
        """This status with one restart more of this cause."""
        cause = str(cause)  # it becomes a key of the stored document
        return replace(self, restarts={**self.restarts, cause: self.restarts.get(cause, 0) + 1})

    @property
    def display_message(self) -> str:
        """The message to show: what keeps the job from going on if anything does, else the message of its state."""
        if self.stalled:
            return f"cannot go on: {self.last_error}"
        return self.refusal or self.message

    @property
    def display_reason(self) -> str:
        """The reason of its state in one word, as a list of jobs shows it."""
        if self.stalled:
            return Reason.RECONCILE_FAILED.value
        return Reason.INVALID_SPEC.value if self.refusal else str(self.reason)

    @property
    def stalled(self) -> bool:
        """Whether an error keeps it from going on; of a job that is over it can only delay the clean-up."""
        return bool(self.last_error) and not self.finished

    @property
    def refusal(self) -> str:
        """Why its present spec is not accepted, and what that means for it ("": it is, or the job is over)."""
        if self.refused_spec is None or self.finished:
            return ""
        if self.never_accepted:
            follows = "the job starts once this is mended"
        elif self.accepted_spec is not None and self.accepted_spec.document:
            follows = f"generation {self.accepted_spec.generation} stays in force"
        else:
            follows = "its pods are left as they are, and nothing is restarted until this is mended"
        return f"the spec is not accepted: {self.refused_spec.message}; {follows}"

    @property
    def never_accepted(self) -> bool:
        """Whether no spec of it was ever accepted, so that there never was anything to run."""
        return self.refused_spec is not None and self.accepted_spec is None and self.created is None

    @property
    def admission_holds(self) -> bool:
        """Whether the gang is admitted, and the cluster's scheduler has refused it no node since.

        A controller that sees no nodes admits by quota alone: the scheduler decides later whether capacity is free.
        """
        return self.admission is not None and self.reason != Reason.UNSCHEDULABLE

    @property
    def placed_at(self) -> float | None:
        """Since when it is pending with its place: since its gang has its nodes, or since its last restart."""
        if self.phase is not Phase.PENDING or not self.admission_holds or self.admission is None:
            return None
        return max(self.admission.complete or self.admission.at, self.since or 0.0)

    @property
    def finished(self) -> bool:
        """Whether the job is over and stays so."""
        return self.phase in TERMINAL

    @property
    def charged_restarts(self) -> int:
        """Restarts charged to the job's budget, those by the kubelet not included."""
        return sum(count for cause, count in self.restarts.items() if reason_row(cause).charged)

    @property
    def total_disruptions(self) -> int:
        """How often pods were taken away."""
        return sum(self.disruptions.values())

    @property
    def total_restarts(self) -> int:
        """Restarts so far, those of containers in their pods included; disruptions are counted apart."""
        # From the end of a job on ``container_restarts`` counts those of its last pods, too.
        living = sum(counts.restarts for counts in self.counts.values()) if self.phase in LIVE else 0
        return sum(self.restarts.values()) + self.container_restarts + living


def display_phase(status: Status) -> str:
    """The state in one word, as a list of jobs shows it."""
    if status.phase in STOPPED and status.reason == Reason.SUSPENDED:
        return "Suspended" if status.phase is Phase.ABORTED else "Suspending"
    if status.phase is Phase.COMPLETED:
        return "Succeeded"
    if status.phase is Phase.PENDING and not status.admission_holds and status.reason:
        return "Waiting"
    return status.phase.value


# The reason of a pod's condition where the cluster's scheduler preempted it.
SCHEDULER_PREEMPTION: Final = "PreemptionByScheduler"
_SIGTERM: Final = 143


def outcome_kind(status: Status) -> OutcomeKind | None:
    """How the job ended, from its status alone; None while it goes on."""
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
    # A program ends so when it is asked to stop, and tf-dist did not ask: its pod was about to go.
    if kind is OutcomeKind.FAILED and failure.code == _SIGTERM:
        return OutcomeKind.EVICTED
    return kind


def outcome_reason(status: Status) -> str:
    """Why the job ended so, in one word: of an image that cannot be used the reason of the container that needs it.

    A client may see that reason before the job fails for it, and another client sees the end of the job first.
    """
    if outcome_kind(status) is OutcomeKind.IMAGE_PULL_FAILED and status.failure is not None and status.failure.reason:
        return stable_reason(status.failure.reason)
    return status.display_reason


# What the last failure of a job says belongs to its end only where it ended for that.
_ENDED_FOR_FAILURE: Final = DISRUPTED | {
    OutcomeKind.FAILED,
    OutcomeKind.BACKOFF_LIMIT_EXCEEDED,
    OutcomeKind.IMAGE_PULL_FAILED,
    OutcomeKind.START_TIMEOUT,
}


def ending_failure(status: Status) -> Failure | None:
    """The failure for which the job ended; None if it goes on, or ended for another reason."""
    return status.failure if outcome_kind(status) in _ENDED_FOR_FAILURE else None


def disruptions(status: Status) -> int:
    """How often pods were taken away, the last time included where the job ended for it."""
    ended = status.reason != Reason.PREEMPTED and outcome_kind(status) in DISRUPTED
    return status.total_disruptions + ended


def preemptions(status: Status) -> int:
    """How often the job lost its admission, or a pod of it, to a job of a higher priority; likewise."""
    before = status.restarts.get(Reason.PREEMPTED, 0) + status.disruptions.get(SCHEDULER_PREEMPTION, 0)
    return before + (outcome_kind(status) is OutcomeKind.PREEMPTED)


class StoredDocument(PackedJson):
    """A stored job: its metadata, and packed what else it says. Its status, and whether another controller manages it,
    are read once for every reader of the same object: a controller, and in Airflow the tasks that wait.
    """

    __slots__ = ("_metadata", "managed_elsewhere", "read_as")
    read_as: Status
    managed_elsewhere: bool

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._metadata = stored["metadata"]  # which tells objects and their versions apart: it is read all the time
        super().__init__({key: value for key, value in stored.items() if key != "metadata"})

    def __getitem__(self, key: str) -> Any:
        return self._metadata if key == "metadata" else super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        yield "metadata"
        yield from super().__iter__()

    def __len__(self) -> int:
        return 1 + super().__len__()

    def __bool__(self) -> bool:
        return True  # and nothing is decoded to say so
