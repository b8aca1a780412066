"""The internal job: every dialect is parsed into it, and all decisions use it.

A job has replica specs, which are called tasks in Volcano. Each replica spec has a *type* (``worker``), and replicas
with an index: ``worker-1`` is a replica. Differences between dialects are data here, never branches in the code that
decides: restart behaviour is a list of rules, success is a list of conditions, and running is a threshold. Times are
seconds; absolute times are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tf_dist.core.model.fieldpath import PackedJson, mapping, shared
from tf_dist.core.model.gang_scheduler import GangScheduler


class Event(StrEnum):
    """An event of a job, derived from the observed state, never from a watch event."""

    POD_FAILED = "PodFailed"
    POD_EVICTED = "PodEvicted"
    POD_PENDING = "PodPending"
    NODE_LOST = "NodeLost"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    UNKNOWN = "Unknown"


class Action(StrEnum):
    """The action of a policy on an event."""

    RESTART_POD = "RestartPod"
    RESTART_TASK = "RestartTask"
    RESTART_JOB = "RestartJob"
    ABORT_JOB = "AbortJob"
    RESUME_JOB = "ResumeJob"
    COMPLETE_JOB = "CompleteJob"
    TERMINATE_JOB = "TerminateJob"
    FAIL_JOB = "FailJob"
    # Only in tf-dist: actions of ``on_eviction`` and ``on_preemption``.
    REQUEUE_JOB = "RequeueJob"
    FALL_BACK = "FallBack"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCodes:
    """A set of exit codes.

    ``ranges``: inclusive. ``unknown``: whether an unknown exit code is in the set. ``oom``: whether an out-of-memory
    kill is in the set (None: its code, 137, decides). ``start_failures``: whether a container that could not be started
    may be in the set, by its code.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    unknown: bool = False
    oom: bool | None = None
    start_failures: bool = True

    def __contains__(self, exit_: tuple[int | None, bool]) -> bool:
        """Whether (exit code or None, killed for memory) is in the set."""
        code, out_of_memory = exit_
        if out_of_memory and self.oom is not None:
            return self.oom
        if code is None:
            return self.unknown
        return any(low <= code <= high for low, high in self.ranges)


ANY_EXIT = ExitCodes(ranges=((-(2**31), 2**31),), unknown=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the policy table: if one of ``events`` happens, with an exit code of ``codes``, do ``action``.

    ``timeout``: seconds that the event must last (required for PodPending). ``index``: the replica of the group to
    which the rule applies (None: all replicas).
    """

    events: frozenset[Event]
    action: Action
    codes: ExitCodes = ANY_EXIT
    timeout: float = 0.0
    index: int | None = None


Document = Mapping[str, Any]

MAX_REPLICAS: Final = 100_000
"""The maximum number of pods of a job over all types, because each pod costs time in a pass. No cluster runs more."""
_DIGITS: Final = len(str(MAX_REPLICAS))


class Dialect(StrEnum):
    """The supported document formats; the value is the ``apiVersion``."""

    TFJOB_V1 = "kubeflow.org/v1"
    TFJOB_V1ALPHA1 = "kubeflow.org/v1alpha1"
    VOLCANO = "batch.volcano.sh/v1alpha1"

    @property
    def kind(self) -> str:
        """The document's ``kind``."""
        return "Job" if self is Dialect.VOLCANO else "TFJob"


class Role(StrEnum):
    """The role of a replica in TensorFlow; the value is its task type in TF_CONFIG."""

    CHIEF = "chief"
    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    EVALUATOR = "evaluator"
    OTHER = ""

    @property
    def leads(self) -> bool:
        """Whether a replica of this role decides the job's success (chief, master)."""
        return self in (Role.CHIEF, Role.MASTER)


class DisruptionPolicy(StrEnum):
    """The reaction to disruptions of a job's pods. The values are a contract of all interfaces.

    ``RESTART``: the policies of the job's format decide. ``REQUEUE``: the job gives up its admission and waits again,
    with its original age. ``FAIL``: the job fails. ``FALLBACK``: the job waits again, and admission tries its next
    fallback first.
    """

    RESTART = "restart"
    REQUEUE = "requeue"
    FAIL = "fail"
    FALLBACK = "fallback"


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when a job has finished."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


@dataclass(frozen=True, slots=True, order=True)
class ReplicaId:
    """One replica of a job: ``worker-1``."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}-{self.index}"


@lru_cache(maxsize=65_536)
def replica_id(type_: str, index: int) -> ReplicaId:
    """One object for each name, because replicas of thousands of jobs share a few names."""
    return ReplicaId(type_, index)


_FEW: Final = 512  # replicas of a type; larger tuples are not cached, because a job may name any number


def _replica_ids(type_: str, count: int) -> tuple[ReplicaId, ...]:
    return tuple(replica_id(type_, index) for index in range(count))


_kept_replica_ids: Final = lru_cache(maxsize=256)(_replica_ids)  # a pass over a job uses them several times


def stored_index(written: str) -> int:
    """The index of a replica from its text; ValueError if it is not valid."""
    if not (written.isascii() and written.isdecimal() and len(written) <= _DIGITS) or int(written) >= MAX_REPLICAS:
        raise ValueError(f"{written[:_DIGITS]!r} is not an index of a replica")
    return int(written)


def parse_ranges(written: str) -> Iterator[int]:
    """The numbers of ``0-2,5``. ValueError if they are not ascending, or not below the maximum of a job."""
    least = 0
    for part in written.split(","):
        low, dash, high = part.partition("-")
        first, last = stored_index(low), stored_index(high if dash else low)
        if not least <= first <= last:
            raise ValueError(f"{part!r} does not come after what is before it")
        yield from range(first, last + 1)
        least = last + 1


def format_ranges(indexes: Iterable[int]) -> str:
    """Sorted numbers as ``0-2,5``."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in runs)


class JobKey(NamedTuple):
    """A job's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRule:
    """The job has succeeded when the replica ``index`` of ``type`` (None: every replica of the type) has succeeded."""

    type: str
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionByCounts:
    """Volcano's rule for the end of a job: when all pods have finished, the gang's minimum must have succeeded."""

    min_success: int | None = None
    """The number of successes that completes the job at once, and that replaces the gang's minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Pods of a task wait until the named tasks run (Volcano ``dependsOn``): ``any`` of them or all."""

    on: tuple[str, ...]
    any: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """One group of equal replicas.

    ``name`` is the key in the document (``Worker``, ``PS``, a Volcano task name), ``type`` the form used in names and
    labels. ``min_replicas``: the size to which an elastic job may shrink (equal to ``replicas``: the job is not
    elastic). ``max_replicas``: the size to which it may grow (None: ``replicas``). ``min_available``: the replicas that
    are part of the gang's minimum (Volcano's tasks; None: not given). ``template`` is the pod template (v1: with the
    port that the defaulter adds). ``container`` is the training container: it gets TF_CONFIG, and its exit code counts.
    ``last_exit_counts``: its end before a restart by the kubelet also counts (v1alpha1). ``container_restarts``: the
    number of restarts by the kubelet, over all replicas, that causes the event TaskFailed (Volcano; None: never).
    ``server_image``: the image of the standard gRPC server, which the pod runs instead of the user's program ("": it
    runs the program). ``batches``: the total number of batches of all replicas (0: each template has its own).
    """

    name: str
    type: str
    role: Role
    replicas: int
    min_replicas: int
    max_replicas: int | None = None
    min_available: int | None = None
    template: Document
    container: str
    port: int
    pod_restart_policy: str = "Never"
    rules: tuple[Rule, ...] = ()
    depends: Dependency | None = None
    server_image: str = ""
    last_exit_counts: bool = False
    container_restarts: int | None = None
    batches: int = 0

    @property
    def most(self) -> int:
        """The maximum number of replicas."""
        return self.replicas if self.max_replicas is None else max(self.replicas, self.max_replicas)

    @property
    def pod_spec(self) -> Document:
        """The spec of its pod template; empty if the template is empty."""
        return mapping(self.template.get("spec"))

    @property
    def ids(self) -> tuple[ReplicaId, ...]:
        """The replicas, by index."""
        make = _kept_replica_ids if self.replicas <= _FEW else _replica_ids
        return make(self.type, self.replicas)


class TFConfigStyle(StrEnum):
    """The style of TF_CONFIG; NONE if the job sets its own TF_CONFIG."""

    V1ALPHA1 = auto()
    V1 = auto()
    SPARSE = auto()
    VOLCANO = auto()
    NONE = auto()


class ServiceStyle(StrEnum):
    """The Services of the replicas' host names: one for each replica, one headless Service for the job, or none."""

    PER_REPLICA = auto()
    PER_JOB = "per-job"  # the value of the annotation
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SSHPlugin:
    """Volcano's ssh plugin: the mount path of the keys, the port of the servers, and the user's own keys."""

    path: str = "/root/.ssh"
    port: int = 22
    private_key: str = field(default="", repr=False)
    public_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """The supported job plugins of Volcano: env (index variables), svc (Services and host files) and ssh.

    ``publish_not_ready``, ``network_policy`` and ``hosts_env`` are options of svc. ``ssh``: None: no SSH between pods.
    """

    env: bool = False
    svc: bool = False
    publish_not_ready: bool = False
    network_policy: bool = True
    hosts_env: bool = True
    ssh: SSHPlugin | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The plugins of the job, by Volcano's names."""
        known = (("env", self.env), ("svc", self.svc), ("ssh", self.ssh is not None))
        return tuple(name for name, there in known if there)


DEFAULT_SCHEDULE_TIMEOUT: Final = 300.0
"""Seconds that pods of an admitted gang may lack nodes, if the job does not set a timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """The settings for admission: the gang's minimum, its queue and priority, and its timeouts.

    ``min_available``: the number of pods that must be admitted before any pod starts (``minimum_met``); it is not the
    size of the gang. ``timeout``: seconds (None or 0: the default, see ``DEFAULT_SCHEDULE_TIMEOUT``).
    ``recovery_timeout``: seconds (see ``gang_rules``). ``patience``: seconds after which capacity is reserved for the
    gang (None: the policy's default). ``preemptable``: whether others may preempt the gang. ``topology``: the node
    label whose value should be equal on its nodes, unless an annotation names another label ("": none). ``gang``: the
    gang scheduler (None: the controller's default). ``admission_timeout``: seconds after which admission also tries the
    fallbacks (None: only after a disruption).
    """

    min_available: int
    queue: str = ""
    priority_class: str = ""
    scheduler_name: str = ""
    timeout: float | None = None
    recovery_timeout: float | None = None
    patience: float | None = None
    preemptable: bool = True
    topology: str = ""
    gang: GangScheduler | None = None
    admission_timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The pause before a restart of a replica: none before the first, then ``base`` seconds, doubling up to ``cap``.

    After ``healthy`` seconds of running, the count starts again. The rule and the defaults are those of the kubelet.
    """

    base: float = 10.0
    cap: float = 300.0
    healthy: float = 600.0

    def delay(self, restarts: int) -> float:
        """Seconds to wait before restart number ``restarts`` (1, 2, …)."""
        return 0.0 if restarts <= 1 else min(self.cap, self.base * 2.0 ** min(restarts - 2, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """Limits and housekeeping of a run.

    ``max_restarts`` limits restarts after failures (None: no limit), including restarts by the kubelet inside a pod if
    ``container_restarts_count`` is set. ``failures_count_together``: simultaneous failures count as one restart,
    independent of the number of restarted replicas or tasks (Volcano). ``max_disruptions``: see ``core.model.pods``
    (None: the default). ``active_deadline``, ``startup_timeout`` (from admission until the job runs) and ``ttl`` are
    seconds. ``resume_keeps_succeeded``: replicas that have succeeded do not run again when a suspended job is resumed;
    otherwise all replicas run again, because the others need their peers. ``on_eviction``, ``on_preemption``: the
    reactions to evicted pods, and to a preemption of the gang.
    """

    clean_pods: CleanPodPolicy = CleanPodPolicy.NONE
    max_restarts: int | None = None
    max_disruptions: int | None = None
    container_restarts_count: bool = True
    failures_count_together: bool = False
    active_deadline: float | None = None
    startup_timeout: float | None = None
    ttl: float | None = None
    suspend: bool = False
    resume_keeps_succeeded: bool = False
    on_eviction: DisruptionPolicy = DisruptionPolicy.RESTART
    on_preemption: DisruptionPolicy = DisruptionPolicy.RESTART
    backoff: Backoff = Backoff()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in the form that all decisions use: identity, replica specs in document order, and policies.

    ``running_types``: the job is running when a replica of one of these types runs (empty: when ``min_available`` pods
    run). ``runtime_id``: the part of v1alpha1 names that differs between runs. ``spec_defaults``: fields that the
    stored spec lacks and that the original controller fills in. ``cluster_domain``: the end of addresses of a v1 TFJob
    (``cluster.local``; "": none). ``disruption_budget``: its pods have a PodDisruptionBudget. ``fallbacks``: the same
    job with fewer replicas, in another queue or on other nodes, in the order in which admission tries them
    (``assignment.current_job``).
    """

    dialect: Dialect
    key: JobKey
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    replica_specs: tuple[ReplicaSpec, ...]
    rules: tuple[Rule, ...] = ()
    success: tuple[SuccessRule, ...] = ()
    counting: CompletionByCounts | None = None
    running_types: tuple[str, ...] = ()
    run_policy: RunPolicy = RunPolicy()
    scheduling: Scheduling
    tf_config: TFConfigStyle = TFConfigStyle.V1
    services: ServiceStyle = ServiceStyle.PER_REPLICA
    plugins: Plugins = Plugins()
    volumes: tuple[Document, ...] = ()
    runtime_id: str = ""
    cluster_domain: str = ""
    disruption_budget: bool = False
    spec_defaults: Mapping[str, Any] = field(default_factory=dict)
    managed_elsewhere: bool = False
    fallbacks: tuple[Job, ...] = ()

    def spec(self, type_: str) -> ReplicaSpec | None:
        """The replica spec of a type; None if the job does not have the type."""
        return next((spec for spec in self.replica_specs if spec.type == type_), None)

    @property
    def replicas(self) -> tuple[ReplicaId, ...]:
        """Every replica the job wants, in document order."""
        return tuple(replica for spec in self.replica_specs for replica in spec.ids)

    @property
    def schedule_timeout(self) -> float:
        """Seconds that pods of the admitted gang may lack a node, until all its pods have had nodes."""
        timeout = self.scheduling.timeout or DEFAULT_SCHEDULE_TIMEOUT
        limit = self.scheduling.admission_timeout if self.fallbacks else None
        return timeout if limit is None else min(timeout, limit)

    @property
    def training_specs(self) -> tuple[ReplicaSpec, ...]:
        """The replica specs that decide when the job ends: all except parameter servers, which run until stopped."""
        return tuple(spec for spec in self.replica_specs if spec.role is not Role.PS) or self.replica_specs


# Kueue's ``OrderedReplicaTypes`` of a TFJob, because the replica specs of v1 are a mapping without an order.
_PRIORITY_ORDER: Final = (Role.CHIEF, Role.MASTER, Role.PS, Role.WORKER, Role.EVALUATOR, Role.OTHER)


def priority_class(job: Job) -> str:
    """The PriorityClass of the job, or of the first pod template that names a class; "" for none."""
    specs = job.replica_specs
    if job.dialect is Dialect.TFJOB_V1:
        specs = tuple(sorted(specs, key=lambda spec: _PRIORITY_ORDER.index(spec.role)))
    named = (spec.pod_spec.get("priorityClassName") for spec in specs)
    return job.scheduling.priority_class or next((str(name) for name in named if name), "")


def compact_job(job: Job) -> Job:
    """The same job with packed templates and shared equal policies, because thousands of jobs are kept in memory."""
    specs = (replace(spec, template=PackedJson(spec.template), rules=shared(spec.rules)) for spec in job.replica_specs)
    return replace(
        job,
        replica_specs=tuple(specs),
        rules=shared(job.rules),
        success=shared(job.success),
        running_types=shared(job.running_types),
        run_policy=shared(job.run_policy),
        scheduling=shared(job.scheduling),
        fallbacks=tuple(map(compact_job, job.fallbacks)),
    )
