"""Deletes pods and services that are no longer needed. No decisions are made here.

Pods with an old attempt label are deleted. A job that is not active keeps the pods of its clean-up policy, and their
services.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tf_dist.core.model.context import Action, Delete, ReconcileContext
from tf_dist.core.model.job import CleanPodPolicy, Dialect, Job, ServiceStyle
from tf_dist.core.model.names import replica_name
from tf_dist.core.model.pods import PodView
from tf_dist.core.model.reasons import Reason, reason_row
from tf_dist.core.model.status import LIVE, STOPPED, Status
from tf_dist.core.podbuilder import services


def effective_clean_pod_policy(job: Job, status: Status) -> CleanPodPolicy:
    """The clean-up policy in a phase in which the job is not active."""
    if status.phase in STOPPED:
        return CleanPodPolicy.RUNNING
    policy = job.run_policy.clean_pods
    if policy is CleanPodPolicy.NONE and reason_row(status.reason).cuts_pods_short:
        return CleanPodPolicy.RUNNING
    return policy


def pods_to_delete(s: ReconcileContext) -> tuple[PodView, ...]:
    """The pods to delete, including those that are being deleted."""
    if s.status.phase in LIVE:
        return s.facts.stale
    match effective_clean_pod_policy(s.job, s.status):
        case CleanPodPolicy.ALL:
            return (*s.facts.stale, *s.facts.current.values())
        case CleanPodPolicy.RUNNING:
            kept = _crashing_pod(s)
            running = (pod for pod in (*s.facts.stale, *s.facts.current.values()) if not pod.finished)
            return tuple(pod for pod in running if pod is not kept)
        case CleanPodPolicy.NONE:
            return ()


def _crashing_pod(s: ReconcileContext) -> PodView | None:
    """The pod whose container the kubelet restarted until the limit; None if all pods are kept or deleted.

    It never ends by itself. A job that keeps its pods keeps it for its log.
    """
    if s.job.run_policy.clean_pods is not CleanPodPolicy.NONE or s.status.reason != Reason.BACKOFF_LIMIT_EXCEEDED:
        return None
    culprit = s.status.failure.replica if s.status.failure is not None else ""
    return next((pod for replica, pod in s.facts.current.items() if str(replica) == culprit and pod.ends), None)


def cleanup(s: ReconcileContext) -> Iterator[Action]:
    """The deletions: pods first, then services."""
    for pod in pods_to_delete(s):
        if not pod.deleting:
            yield Delete("Pod", pod.name, pod.uid)
    yield from _unwanted_services(s)


def _unwanted_services(s: ReconcileContext) -> Iterator[Action]:
    """Delete services of removed replicas, and of replicas whose pods were cleaned up. A job's own service stays.

    A suspended TFJob has no services, as with the training operator.
    """
    if s.job.services is not ServiceStyle.PER_REPLICA and not _sleeps(s):
        return
    there = {key: body["metadata"] for key, body in s.observed.objects.items() if key[0] == "Service"}
    wanted = _wanted_services(s) if there else ()
    for key, metadata in there.items():
        if key not in wanted and "deletionTimestamp" not in metadata:
            yield Delete(*key, metadata.get("uid", ""))


def _sleeps(s: ReconcileContext) -> bool:
    return s.job.dialect is not Dialect.VOLCANO and s.status.phase in STOPPED


def _wanted_services(s: ReconcileContext) -> Collection[services.ObjectKey]:
    """The services that stay. Services of finished pods with a cluster address are deleted at the job's end."""
    if _sleeps(s):
        return ()
    if s.status.phase in LIVE or s.status.phase in STOPPED:
        return services.job_objects(s.job).keys()
    policy, frees_addresses = effective_clean_pod_policy(s.job, s.status), not services.are_headless(s.job)
    if policy is CleanPodPolicy.NONE and not frees_addresses:
        return services.job_objects(s.job).keys()
    deleted = {pod.uid for pod in pods_to_delete(s)}
    kept = (
        replica
        for replica, pod in s.facts.current.items()
        if pod.uid not in deleted and not (pod.finished and frees_addresses)
    )
    return {("Service", replica_name(s.job, replica)) for replica in kept}
