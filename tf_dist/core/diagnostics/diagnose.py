"""Diagnosis of a job: why it waits or failed, in sentences that say what to do.

Categories are a contract: tools may rely on them, so they are added to and never renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tf_dist.core.model.assignment import PendingReason, pending_reason, replica_difference_text
from tf_dist.core.model.context import Observed, ReconcileContext
from tf_dist.core.model.fieldpath import list_items, mapping
from tf_dist.core.model.job import Document, Event, Job
from tf_dist.core.model.names import MAX_DISRUPTIONS, STARTUP_TIMEOUT
from tf_dist.core.model.pods import DISRUPTIONS_EXCEEDED, Exit, PodPhase, PodView, disruption_counts, stable_reason
from tf_dist.core.model.status import LIVE, PREEMPTED, START_TIMEOUT, STOPPED, SUSPENDED, Phase, Status
from tf_dist.core.model.status_codec import NewerStatusFormat, check_version
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.model.wording import share_text, times_text
from tf_dist.core.reconciler.job_context import read_context
from tf_dist.core.reconciler.messages import exit_text, room_text, signal_name
from tf_dist.core.reconciler.missing_objects import backoff_until, creatable_replicas
from tf_dist.core.reconciler.node_loss import OUT_OF_SERVICE, overdue_pods
from tf_dist.core.reconciler.restarts import REPLICA_SUCCEEDED
from tf_dist.errors import InvalidJob

__all__ = ["Category", "Diagnosis", "Level", "diagnose", "diagnose_newer_format", "diagnose_unreadable"]


class Level(StrEnum):
    """Severity of a diagnosis."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Category(StrEnum):
    """Category of a diagnosis."""

    ADMISSION = "waits-for-admission"
    NEVER_FITS = "never-fits"
    QUOTA = "quota-exceeded"
    QUEUE = "queue-not-found"
    SCHEDULER_MISSING = "gang-scheduler-missing"
    RESERVED = "room-is-reserved"
    PREEMPTED = "preempted"
    SCHEDULE_TIMEOUT = "not-scheduled-in-time"
    UNSCHEDULABLE = "unschedulable"
    REFUSED = "refused"
    IMAGE = "image"
    CONFIGURATION = "configuration"
    BACKOFF = "waits-to-restart"
    STOPPING = "waits-for-old-pods"
    DEPENDENCY = "waits-for-dependency"
    STARTING = "starting"
    FAILURE = "failure"
    COMMAND = "command"
    MEMORY = "out-of-memory"
    EVICTION = "eviction"
    NODE_LOST = "node-lost"
    DEADLINE = "deadline"
    BUDGET = "restart-budget"
    INVALID = "invalid-spec"
    NEWER_FORMAT = "newer-status-format"
    SUSPENDED = "suspended"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    NO_LEADER = "no-leader"
    MANAGED_ELSEWHERE = "managed-elsewhere"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: ``summary`` for a line, ``detail`` as evidence (log lines, messages), ``resolution`` what to do."""

    level: Level
    category: Category
    summary: str
    detail: str = ""
    resolution: str = ""


_WAITS_FOR_ROOM: Final = (Level.INFO, Category.ADMISSION, "it starts as soon as there is room for its gang")

# Why a job waits -> how grave that is, what it is, and what helps. Every reason has its row.
PENDING_REASONS: Final[Mapping[PendingReason, tuple[Level, Category, str]]] = {
    PendingReason.UNREADABLE: (
        Level.ERROR,
        Category.INVALID,
        "write nodeSelector, affinity and tolerations as Kubernetes has them (kubectl explain pod.spec.affinity)",
    ),
    PendingReason.NEVER_FITS: (
        Level.ERROR,
        Category.NEVER_FITS,
        "ask for less in resources.requests, for fewer replicas, or add nodes (locally: tf-dist run --node cpu=8); a "
        "ResourceQuota that it names has to be raised",
    ),
    PendingReason.QUOTA_EXCEEDED: (
        Level.INFO,
        Category.QUOTA,
        "it starts when jobs of its queue end; tf-dist queues shows who uses what, and its owner may raise the quota",
    ),
    PendingReason.RESOURCE_QUOTA_EXCEEDED: (
        Level.INFO,
        Category.QUOTA,
        "it starts when pods of its namespace end or the quota is raised (kubectl describe resourcequota)",
    ),
    PendingReason.QUEUE_NOT_FOUND: (
        Level.ERROR,
        Category.QUEUE,
        "name a queue that tf-dist queues lists, or have this one made; the job starts as soon as it is there",
    ),
    PendingReason.NAMESPACE_MISMATCH: (
        Level.ERROR,
        Category.QUEUE,
        "name a queue that is open to this namespace (tf-dist queues -o wide), or ask the cluster's administrator to "
        "label the namespace or to change the queue; the job starts as soon as they match",
    ),
    PendingReason.PRIORITY_CLASS_REFUSED: (
        Level.ERROR,
        Category.QUEUE,
        "name a priority class that the queue takes (kubectl get queues -o yaml), or none; it starts as soon as it may",
    ),
    PendingReason.SCHEDULER_MISSING: (
        Level.ERROR,
        Category.SCHEDULER_MISSING,
        "install it, and grant tf-dist its objects (value gangSchedulers of the Helm chart); or name another one",
    ),
    PendingReason.QUEUE_REFUSED: (
        Level.ERROR,
        Category.QUEUE,
        "name a queue that the gang scheduler serves, or have this one made; the job starts as soon as it is there",
    ),
    PendingReason.DEACTIVATED: (
        Level.WARNING,
        Category.ADMISSION,
        "who switched it off can switch it on again; until then it waits outside its queue",
    ),
    PendingReason.NODES_REFUSED: (
        Level.WARNING,
        Category.UNSCHEDULABLE,
        "see why the cluster's scheduler refuses these nodes (anti-affinity, ports, volumes, taints); it tries again",
    ),
    PendingReason.NODES_UNAVAILABLE: (
        Level.WARNING,
        Category.UNSCHEDULABLE,
        "see kubectl get nodes: it starts when they are ready and uncordoned (kubectl uncordon NODE), or others come",
    ),
    PendingReason.RESERVED: (
        Level.INFO,
        Category.RESERVED,
        "the room is kept for a gang that has waited longer; a shorter job may pass if it says how long it runs",
    ),
    PendingReason.PREEMPTING: (
        Level.INFO,
        Category.ADMISSION,
        "it starts when the pods that make room for it are gone",
    ),
    PendingReason.BACKOFF: (
        Level.WARNING,
        Category.SCHEDULE_TIMEOUT,
        "it gave its place back the last time: see why, and what the cluster's scheduler said (kubectl get events)",
    ),
    PendingReason.SCHEDULE_TIMEOUT: (
        Level.WARNING,
        Category.SCHEDULE_TIMEOUT,
        "see what the cluster's scheduler said; a longer scheduleTimeoutSeconds waits for nodes that come late",
    ),
    PendingReason.PODS_REJECTED: (
        Level.ERROR,
        Category.REFUSED,
        "mend the job, which then starts without a pause, or have the cluster allow it: it is tried again by itself",
    ),
    PendingReason.NAME_CONFLICT: (
        Level.ERROR,
        Category.REFUSED,
        "submit the job under another name, or ask the owner of that object to remove it: the job is then tried again",
    ),
    PendingReason.RECOVERY_TIMEOUT: (
        Level.WARNING,
        Category.NODE_LOST,
        "it starts again, with the age it has, when there is room for all of it; fewer workers may do with "
        "tf-dist.dev/min-workers, and tf-dist.dev/recovery-timeout says how long it waits for lost nodes",
    ),
    PendingReason.WAITING_FOR_LOST_NODE: (
        Level.ERROR,
        Category.NODE_LOST,
        f"kubectl delete node NODE, or kubectl taint nodes NODE {OUT_OF_SERVICE}, once it is surely down; a "
        "finalizer is removed by its owner; the job starts elsewhere as soon as the pod is gone",
    ),
    PendingReason.PREEMPTED: (
        Level.WARNING,
        Category.PREEMPTED,
        "it starts again when there is room; a higher priority class protects it, checkpoints save its work",
    ),
    PendingReason.EVICTED: (
        Level.WARNING,
        Category.EVICTION,
        "it starts again when there is room, as its on-eviction policy says; checkpoints save its work",
    ),
    PendingReason.WAITING_FOR_CAPACITY: _WAITS_FOR_ROOM,
    PendingReason.WAITING_IN_QUEUE: _WAITS_FOR_ROOM,
}
_REQUEUED: Final = frozenset(
    {
        PendingReason.PREEMPTED,
        PendingReason.SCHEDULE_TIMEOUT,
        PendingReason.PODS_REJECTED,
        PendingReason.NAME_CONFLICT,
        PendingReason.RECOVERY_TIMEOUT,
    }
)


def pending_reasons(status: Status) -> Iterator[Diagnosis]:
    """Why a job waits for admission: first what holds now, then what took its place away."""
    reason = pending_reason(status)
    level, category, advice = _WAITS_FOR_ROOM if reason is None else PENDING_REASONS[reason]
    yield Diagnosis(level, category, status.message or "waits for admission", resolution=advice)
    # Why it lost its place is soon overwritten in the status by what it waits for now.
    failure = status.failure
    if failure is not None and failure.event in _REQUEUED and status.reason != failure.event:
        level, category, advice = PENDING_REASONS[PendingReason(failure.event)]
        said = f"it {failure.message}" if failure.event == PREEMPTED else failure.message
        yield Diagnosis(level, category, said, resolution=advice)


_MEND: Final = "mend it (kubectl edit, or apply a file that tf-dist validate accepts): that takes effect at once"


def diagnose(job: Job, status: Status, pods: tuple[PodView, ...], now: float) -> tuple[Diagnosis, ...]:
    """The diagnoses of a job at this moment, most important first; never empty."""
    s = read_context(job, status, Observed(now=now, pods=pods))
    of_phase = _of_end(status) if status.phase not in LIVE else _of_life(s)
    found = [*_of_last_error(status), *_of_refusal(status), *of_phase]
    return (*(found or [_all_well(s)]), *_of_disruptions(status))


def diagnose_unreadable(problem: InvalidJob) -> Diagnosis:
    """The diagnosis of a job without a valid spec."""
    return Diagnosis(Level.ERROR, Category.INVALID, "the job's spec is invalid", str(problem), _MEND)


def diagnose_managed_elsewhere(manager: str) -> Diagnosis:
    """The diagnosis of a job that another controller is to run."""
    summary = f"{manager} is to manage the job (spec.runPolicy.managedBy), so tf-dist leaves it alone"
    resolution = (
        "see whether that controller runs in this cluster; managedBy cannot be changed: to have tf-dist run the job,"
        " delete it and submit it anew without managedBy"
    )
    return Diagnosis(Level.INFO, Category.MANAGED_ELSEWHERE, summary, resolution=resolution)


def diagnose_deletion(stored: Document) -> tuple[Diagnosis, ...]:
    """The diagnosis of a raw job that is being deleted; empty if it is not."""
    metadata = mapping(stored.get("metadata"))
    if "deletionTimestamp" not in metadata:
        return ()
    finalizers = ", ".join(map(str, list_items(metadata.get("finalizers"))))
    held = f"; what keeps it: {finalizers} (metadata.finalizers)" if finalizers else ""
    resolution = "see whether the controller that removes it runs" if finalizers else ""
    return (Diagnosis(Level.WARNING, Category.DELETING, f"the job is being deleted{held}", resolution=resolution),)


def diagnose_newer_format(stored: Document) -> tuple[Diagnosis, ...]:
    """The diagnosis of a raw status that a newer release wrote; empty if none did."""
    try:
        check_version(stored)
    except NewerStatusFormat as problem:
        return (Diagnosis(Level.ERROR, Category.NEWER_FORMAT, str(problem), resolution=problem.hint),)
    return ()


_REST_WAITS: Final = "it has more as room appears; gangs that have waited longer go first"


def _all_well(s: ReconcileContext) -> Diagnosis:
    job, status = s.job, s.status
    if status.phase is Phase.RUNNING:
        waiting = room_text(job, status)
        if len(job.replicas) < len(s.requested_job.replicas):
            waiting += f"; {replica_difference_text(s.requested_job, job)} until there is room for more"
        text = f"{share_text(s.facts.total().running, len(job.replicas))} running{waiting}"
        return Diagnosis(Level.INFO, Category.RUNNING, text, resolution=_REST_WAITS if waiting else "")
    return Diagnosis(Level.INFO, Category.STARTING, status.message or "the job has just been accepted")


def _of_disruptions(status: Status) -> Iterator[Diagnosis]:
    if status.phase in LIVE and status.disruptions:
        often = times_text(status.total_disruptions)
        text = f"its pods were taken away {often} ({disruption_counts(status.disruptions)})"
        yield Diagnosis(Level.INFO, Category.EVICTION, text, resolution="that costs none of its restarts")


def _of_last_error(status: Status) -> Iterator[Diagnosis]:
    if status.last_error:
        advice = "mend what is refused; it is tried again at least every 30 s, and goes on as soon as that works"
        text = status.display_message if status.stalled else f"what is left cannot be cleared away: {status.last_error}"
        yield Diagnosis(Level.ERROR, Category.REFUSED, text, resolution=advice)


def _of_refusal(status: Status) -> Iterator[Diagnosis]:
    if status.refusal:
        level = Level.ERROR if status.never_accepted else Level.WARNING
        yield Diagnosis(level, Category.INVALID, status.refusal, resolution=_MEND)


def _of_end(status: Status) -> Iterator[Diagnosis]:
    if status.phase in (Phase.COMPLETING, Phase.COMPLETED):
        yield Diagnosis(Level.INFO, Category.SUCCEEDED, status.message)
    elif status.reason == SUSPENDED:
        yield Diagnosis(Level.INFO, Category.SUSPENDED, status.message, resolution="tf-dist resume starts it again")
    else:
        ended = _end(status)
        again = "; tf-dist resume starts it again" if status.phase in STOPPED else ""
        yield replace(ended, resolution=ended.resolution + again)


ENDS: Final[Mapping[str, tuple[Category, str]]] = {
    START_TIMEOUT: (
        Category.DEADLINE,
        f"see what the message names (an image, a volume, a Secret); {STARTUP_TIMEOUT} says how long it may take",
    ),
    "DeadlineExceeded": (Category.DEADLINE, "raise activeDeadlineSeconds, or find out what takes so long"),
    DISRUPTIONS_EXCEEDED: (
        Category.EVICTION,
        f"see who drains, preempts or deletes its pods; {MAX_DISRUPTIONS} allows more, a higher priority protects it",
    ),
    "BackoffLimitExceeded": (Category.BUDGET, "look at the log of the replica that kept failing, or raise the limit"),
    PendingReason.PODS_REJECTED: (Category.REFUSED, "mend what the message names, and submit the job anew"),
    "InvalidTFJobSpec": (Category.INVALID, "tf-dist validate FILE shows every problem with its place"),
    "PodEvicted": (Category.EVICTION, "give the job a higher priority, or a policy that restarts it"),
    "NodeLost": (Category.EVICTION, "look at the node; a policy for PodEvicted would restart the job"),
    PREEMPTED: (
        Category.EVICTION,
        "its policy for PodEvicted ended it: RestartJob would have it wait for another place",
    ),
}


def _end(status: Status) -> Diagnosis:
    failure = status.failure
    exit_ = Exit(failure.code, failure.reason, failure.message) if failure else None
    category, advice = ENDS.get(status.reason) or _of_exit(exit_)
    if status.reason == "BackoffLimitExceeded" and failure is not None:
        if failure.event == Event.TASK_COMPLETED:
            advice = "nothing failed: let the policy for TaskCompleted complete the job (CompleteJob), or take it out"
        elif failure.event == REPLICA_SUCCEEDED:
            advice = _SUCCEEDED_AGAIN
    detail = exit_.message if exit_ is not None and not exit_.never_runs else ""  # else the summary has it
    return Diagnosis(Level.ERROR, category, status.message, detail, advice)


_CHECK_COMMAND: Final = "check command and args of the container, and that the image has the program"
_START_FAILED: Final = frozenset({126, 127})
_SEGMENTATION: Final = 139
_KILLED: Final = 137
_TERMINATED: Final = 143


def _of_exit(exit_: Exit | None) -> tuple[Category, str]:
    if exit_ is None:
        return Category.FAILURE, "tf-dist logs shows what its replicas wrote"
    if "ModuleNotFoundError" in exit_.message:
        return (
            Category.COMMAND,
            "install it where the container runs (on this machine: with the Python of tf-dist)",
        )
    if exit_.out_of_memory:
        return Category.MEMORY, "raise resources.limits.memory of the container, or use a smaller batch"
    if exit_.never_runs:
        return _of_waiting(exit_.reason)
    if exit_.start_failed or exit_.code in _START_FAILED:
        return Category.COMMAND, _CHECK_COMMAND
    if exit_.code == _KILLED:
        return Category.FAILURE, "something killed it with SIGKILL: often the kernel, for its memory"
    if exit_.code == _TERMINATED:
        return Category.EVICTION, "something asked it to stop: see who deleted the pod or drained the node"
    if exit_.code == _SEGMENTATION:
        return Category.FAILURE, "it crashed in native code: try another TensorFlow build, or look for a core dump"
    name = signal_name(exit_.code)
    return Category.FAILURE, f"it died of {name}" if name else "the end of its log says why"


def _of_life(s: ReconcileContext) -> Iterator[Diagnosis]:
    job, status, facts = s.job, s.status, s.facts
    if status.admission is None:
        yield from pending_reasons(status)
    elif not status.has_place:
        yield Diagnosis(Level.WARNING, Category.UNSCHEDULABLE, status.message, resolution=_WAITS_FOR_NODES)
    for pod in sorted(facts.current.values(), key=lambda pod: pod.replica):
        # With another gang scheduler the gang may wait as pods without nodes: that is diagnosed above.
        if status.admission is not None or pod.has_node:
            yield from _of_pod(pod, s.now)
        if pod.replica not in facts.succeeded:
            yield from _of_sidecar(job, pod)
    for pod in facts.stale:
        if pod.kept_by:
            text = f"pod {pod.name} has stopped and is kept by the finalizer {pod.kept_by}"
            text += "; its replica starts again when it is gone"
            yield Diagnosis(Level.WARNING, Category.STOPPING, text, resolution=_KEPT)
    stopping = sorted(pod.name for pod in facts.stale if not pod.kept_by)
    if stopping:
        names = ", ".join(stopping[:5])
        yield Diagnosis(
            Level.INFO,
            Category.STOPPING,
            f"waits until the pods of the attempt before are gone: {names}",
            resolution="they get their grace period",
        )
    if status.admission is not None:
        yield from _of_overdue(s)
    yield from _of_missing(s)


_KEPT: Final = "its owner removes a finalizer when it is done: see that it runs; kubectl get pod NAME -o yaml shows it"
_WAITS_FOR_NODES: Final = (
    "it has its quota, and no place yet: free or add nodes, or let it begin with fewer pods (minAvailable); after "
    "scheduleTimeoutSeconds it gives its quota back and tries again"
)


def _of_overdue(s: ReconcileContext) -> Iterator[Diagnosis]:
    for pod in overdue_pods(s):
        if pod.kept_by:
            continue  # its node is not the reason
        stopped = f" since {format_time(pod.stops_at)}" if pod.stops_at is not None else ""
        text = f"waits for pod {pod.name} on node {pod.node}, which should have stopped{stopped} and may still run"
        advice = f"see whether the node is up; if it is surely down, delete it, or taint it {OUT_OF_SERVICE}"
        yield Diagnosis(Level.WARNING, Category.NODE_LOST, text, resolution=advice)


# Seconds after which a pod without any word of a scheduler is one that no scheduler will look at.
_SCHEDULER_SILENCE: Final = 30.0


def _of_pod(pod: PodView, now: float) -> Iterator[Diagnosis]:
    who = str(pod.replica)
    if pod.phase is PodPhase.FAILED:
        category, advice = _of_exit(pod.exit)
        text = f"{who} {exit_text(pod.exit)}"
        yield Diagnosis(Level.ERROR, category, text, pod.exit.message if pod.exit else "", advice)
    elif pod.unschedulable:
        advice = "the cluster's scheduler finds no node: see resources, node selector, affinity, taints, cordoned nodes"
        yield Diagnosis(Level.WARNING, Category.UNSCHEDULABLE, f"{who} cannot be scheduled", pod.unschedulable, advice)
    elif pod.scheduler_name and pod.created_at is not None and now - pod.created_at >= _SCHEDULER_SILENCE:
        text = f"no scheduler has looked at {who} yet: its schedulerName is {pod.scheduler_name}"
        advice = "see that a scheduler of this name runs in the cluster, or take schedulerName out of the template"
        yield Diagnosis(Level.WARNING, Category.UNSCHEDULABLE, text, resolution=advice)
    elif pod.waiting is not None and pod.waiting[0] not in ("", "ContainerCreating", "PodInitializing"):
        yield _waiting(pod, *pod.waiting)
    elif pod.node_silent and not pod.deleting:
        advice = f"see kubectl describe node {pod.node}: its pods go on when it reports again, else they are replaced"
        text = f"{who} is on node {pod.node}, which is not ready: it may still run"
        yield Diagnosis(Level.WARNING, Category.NODE_LOST, text, resolution=advice)
    elif pod.phase is PodPhase.PENDING:
        yield Diagnosis(Level.INFO, Category.STARTING, f"{who} is starting{f' on {pod.node}' if pod.node else ''}")


def _of_sidecar(job: Job, pod: PodView) -> Iterator[Diagnosis]:
    """A pod that other containers keep running: TFJob v1 and Volcano judge its phase, as the originals do."""
    spec = job.spec(pod.replica.type)
    if not pod.sidecar_runs or pod.exit is None or pod.deleting or spec is None:
        return
    again = spec.pod_restart_policy == "Always" or (spec.pod_restart_policy == "OnFailure" and pod.exit.code != 0)
    if not again:
        text = f"the container of {pod.replica} that trains {exit_text(pod.exit)}, but others keep its pod running"
        advice = (
            "have the sidecar end with it, or make it an init container with restartPolicy: Always; Istio: the label "
            'sidecar.istio.io/inject: "false" in the template'
        )
        yield Diagnosis(Level.WARNING, Category.RUNNING, text, resolution=advice)


# The kubelet's reason -> category, and what helps.
_WAITING: Final[tuple[tuple[Callable[[str], bool], Category, str], ...]] = (
    (
        lambda r: "Entrypoint" in r,
        Category.IMAGE,
        "set command in the container, or tf-dist run --entrypoint IMAGE='…'",
    ),
    (lambda r: "Image" in r, Category.IMAGE, "check the image's name and tag, and the pull secret"),
    (lambda r: r.startswith("CreateContainer"), Category.CONFIGURATION, "check volumes, config maps and secrets"),
    (lambda r: r == "RunContainerError", Category.COMMAND, _CHECK_COMMAND),
    (
        lambda r: r == "CrashLoopBackOff",
        Category.FAILURE,
        "the log of the run before says why",
    ),
)


def _of_waiting(reason: str) -> tuple[Category, str]:
    found = ((category, advice) for matches, category, advice in _WAITING if matches(reason))
    return next(found, (Category.STARTING, ""))


_SUCCEEDED_AGAIN: Final = "nothing failed: restartPolicy OnFailure or Never lets a replica that has succeeded rest"


def _waiting(pod: PodView, reason: str, message: str) -> Diagnosis:
    category, advice = _of_waiting(reason)
    evidence = message
    if reason == "CrashLoopBackOff" and pod.last_exit is not None:
        if pod.last_exit.start_failed:
            category, advice = _of_exit(pod.last_exit)
        elif pod.last_exit.code == 0:
            advice = _SUCCEEDED_AGAIN
        often = f", {pod.ends} times" if pod.ends > 1 else ""
        evidence = f"it {exit_text(pod.last_exit)}{often}; {message}\n{pod.last_exit.message}".strip()
    return Diagnosis(Level.WARNING, category, f"{pod.replica} waits: {stable_reason(reason)}", evidence, advice)


def _of_missing(s: ReconcileContext) -> Iterator[Diagnosis]:
    if s.status.admission is None:
        return
    due = creatable_replicas(s)
    for replica in s.job.replicas:
        if replica in s.facts.current or replica in s.facts.succeeded or replica in due:
            continue
        wait = backoff_until(s.status, replica) - s.now
        spec = s.job.spec(replica.type)
        if wait > 0:
            yield Diagnosis(Level.INFO, Category.BACKOFF, f"{replica} is restarted in {wait:.0f} s", s.status.message)
        elif spec is not None and spec.depends is not None and not s.facts.stale:
            others = (" or " if spec.depends.any else " and ").join(spec.depends.on)
            yield Diagnosis(Level.INFO, Category.DEPENDENCY, f"{replica} waits until {others} is up (dependsOn)")
