"""Why a gang has no place, as findings: the words are admission's own, what helps is said here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tf_dist.core.diagnosis import Category, Diagnosis, Level
from tf_dist.core.gang.model import NAMESPACE_MISMATCH, NODES_REFUSED, PREEMPTING, RESOURCE_QUOTA
from tf_dist.core.recovery import OUT_OF_SERVICE, WAITS_FOR_NODE
from tf_dist.core.requeue import PODS_REJECTED, SCHEDULE_TIMEOUT
from tf_dist.core.schedulers.model import DEACTIVATED, QUEUE_REFUSED, SCHEDULER_MISSING
from tf_dist.core.status import PREEMPTED, RECOVERY_TIMEOUT, Status

# Why a gang waits -> how grave that is, what it is, and what helps.
_WAITS: Final[Mapping[str, tuple[Level, Category, str]]] = {
    "Unreadable": (
        Level.ERROR,
        Category.INVALID,
        "write nodeSelector, affinity and tolerations as Kubernetes has them (kubectl explain pod.spec.affinity)",
    ),
    "NeverFits": (
        Level.ERROR,
        Category.NEVER_FITS,
        "ask for less in resources.requests, for fewer replicas, or add nodes (locally: tf-dist run --node cpu=8); a "
        "ResourceQuota that it names has to be raised",
    ),
    "QuotaExceeded": (
        Level.INFO,
        Category.QUOTA,
        "it starts when jobs of its queue end; tf-dist queues shows who uses what, and its owner may raise the quota",
    ),
    RESOURCE_QUOTA: (
        Level.INFO,
        Category.QUOTA,
        "it starts when pods of its namespace end or the quota is raised (kubectl describe resourcequota)",
    ),
    "QueueNotFound": (
        Level.ERROR,
        Category.QUEUE,
        "name a queue that tf-dist queues lists, or have this one made; the job starts as soon as it is there",
    ),
    NAMESPACE_MISMATCH: (
        Level.ERROR,
        Category.QUEUE,
        "name a queue that is open to this namespace (tf-dist queues -o wide), or ask the cluster's administrator to "
        "label the namespace or to change the queue; the job starts as soon as they match",
    ),
    SCHEDULER_MISSING: (
        Level.ERROR,
        Category.SCHEDULER_MISSING,
        "install it, and grant tf-dist its objects (tf-dist install --gang-scheduler NAME); or name another one",
    ),
    QUEUE_REFUSED: (
        Level.ERROR,
        Category.QUEUE,
        "name a queue that the gang scheduler serves, or have this one made; the job starts as soon as it is there",
    ),
    DEACTIVATED: (
        Level.WARNING,
        Category.ADMISSION,
        "whoever switched it off can switch it on again; until then it waits outside its queue",
    ),
    NODES_REFUSED: (
        Level.WARNING,
        Category.UNSCHEDULABLE,
        "see why the cluster's scheduler refuses these nodes (anti-affinity, ports, volumes, taints); it tries again",
    ),
    "Reserved": (
        Level.INFO,
        Category.RESERVED,
        "the room is kept for a gang that has waited longer; a shorter job may pass if it says how long it runs",
    ),
    PREEMPTING: (Level.INFO, Category.ADMISSION, "it starts when the pods that make room for it are gone"),
    "Backoff": (
        Level.WARNING,
        Category.SCHEDULE_TIMEOUT,
        "it gave its place back the last time: see why, and what the cluster's scheduler said (kubectl get events)",
    ),
    SCHEDULE_TIMEOUT: (
        Level.WARNING,
        Category.SCHEDULE_TIMEOUT,
        "see what the cluster's scheduler said; a longer scheduleTimeoutSeconds waits for nodes that come late",
    ),
    PODS_REJECTED: (
        Level.ERROR,
        Category.REFUSED,
        "mend the job, which then starts without a pause, or have the cluster allow it: it is tried again by itself",
    ),
    RECOVERY_TIMEOUT: (
        Level.WARNING,
        Category.NODE_LOST,
        "it starts again, with the age it has, when there is room for all of it; fewer workers may do with "
        "tf-dist.dev/min-workers, and tf-dist.dev/recovery-timeout says how long it waits for lost nodes",
    ),
    WAITS_FOR_NODE: (
        Level.ERROR,
        Category.NODE_LOST,
        f"kubectl delete node NODE, or kubectl taint nodes NODE {OUT_OF_SERVICE}, once it is surely down; the job "
        "starts elsewhere as soon as the pod is gone",
    ),
    PREEMPTED: (
        Level.WARNING,
        Category.PREEMPTED,
        "it starts again when there is room; a higher priority class protects it, checkpoints save its work",
    ),
}
_PATIENCE: Final = (Level.INFO, Category.ADMISSION, "it starts as soon as there is room for all of it")


def waits(status: Status) -> Iterator[Diagnosis]:
    """Why a job that waits has no place; first what holds now."""
    level, category, advice = _WAITS.get(status.reason, _PATIENCE)
    yield Diagnosis(level, category, status.message or "waits for admission", resolution=advice)
    # Why it has no place any more is soon overwritten in the status by what it waits for now.
    failure = status.failure
    lost = (PREEMPTED, SCHEDULE_TIMEOUT, PODS_REJECTED, RECOVERY_TIMEOUT)
    if failure is not None and failure.event in lost and status.reason != failure.event:
        level, category, advice = _WAITS[failure.event]
        said = f"it {failure.message}" if failure.event == PREEMPTED else failure.message
        yield Diagnosis(level, category, said, resolution=advice)
