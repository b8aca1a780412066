"""Creations and deletions that follow from a job's status and its objects. Nothing is decided here.

A pod whose attempt label is not the current one is deleted; a replica without a pod gets one, once no pod of an older
attempt that it could meet is left (``AttemptBarrier``); a job that is not live keeps the pods that its clean-up policy
names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tf_dist.core.api.assignment import PendingReason, assign_nodes, startable_replicas, waiting_for_leaving_pods
from tf_dist.core.api.context import Action, Create, Delete, EnsureKeys, Observed, Update
from tf_dist.core.api.fieldpath import mapping
from tf_dist.core.api.job import CleanPodPolicy, Dialect, Job, ReplicaId, ReplicaSpec, ServiceStyle
from tf_dist.core.api.names import replica_name
from tf_dist.core.api.pod_events import PodClassification
from tf_dist.core.api.pods import DISRUPTIONS_EXCEEDED, PodView
from tf_dist.core.api.status import LIVE, START_TIMEOUT, STOPPED, Status
from tf_dist.core.integrations.dispatch import IntegrationPass
from tf_dist.core.podbuilder import replica_pod, services, ssh_plugin, volcano_plugins

# Reasons for which running pods stop at the end though the policy would keep them: the limit was set for that.
_CUT_SHORT: Final = frozenset(
    {
        "DeadlineExceeded",
        "BackoffLimitExceeded",
        DISRUPTIONS_EXCEEDED,
        PendingReason.PODS_REJECTED.value,
        START_TIMEOUT,
    }
)


def effective_clean_pod_policy(job: Job, status: Status) -> CleanPodPolicy:
    """The clean-up policy in a phase in which the job is not live."""
    if status.phase in STOPPED:
        return CleanPodPolicy.RUNNING
    policy = job.run_policy.clean_pods
    if policy is CleanPodPolicy.NONE and status.reason in _CUT_SHORT:
        return CleanPodPolicy.RUNNING
    return policy


def pods_to_delete(job: Job, status: Status, facts: PodClassification) -> tuple[PodView, ...]:
    """The pods that must go, those that are being deleted already included."""
    if status.phase in LIVE:
        return facts.stale
    match effective_clean_pod_policy(job, status):
        case CleanPodPolicy.ALL:
            return (*facts.stale, *facts.current.values())
        case CleanPodPolicy.RUNNING:
            kept = _crashing_pod(job, status, facts)
            running = (pod for pod in (*facts.stale, *facts.current.values()) if not pod.finished)
            return tuple(pod for pod in running if pod is not kept)
        case CleanPodPolicy.NONE:
            return ()


def _crashing_pod(job: Job, status: Status, facts: PodClassification) -> PodView | None:
    """The pod whose container the kubelet restarted until the budget was spent; None if all pods are to be kept or go.

    It is never finished. A job that wants its pods kept wants it for the log of this one.
    """
    if job.run_policy.clean_pods is not CleanPodPolicy.NONE or status.reason != "BackoffLimitExceeded":
        return None
    culprit = status.failure.replica if status.failure is not None else ""
    return next((pod for replica, pod in facts.current.items() if str(replica) == culprit and pod.ends), None)


def dependencies_met(job: Job, spec: ReplicaSpec, facts: PodClassification) -> bool:
    """Whether the tasks that this one depends on are up: as many of their pods as they need are ready or succeeded."""
    if spec.depends is None:
        return True
    up = [_is_up(job, type_, facts) for type_ in spec.depends.on]
    return any(up) if spec.depends.any else all(up)


def dependencies_unreachable(job: Job, spec: ReplicaSpec, facts: PodClassification) -> bool:
    """Whether the tasks that this one depends on can never be up: too many of their pods have failed for good."""
    if spec.depends is None or dependencies_met(job, spec, facts):
        return False
    lost = [_is_lost(job, type_, facts) for type_ in spec.depends.on]
    return all(lost) if spec.depends.any else any(lost)


def _is_up(job: Job, type_: str, facts: PodClassification) -> bool:
    other = job.spec(type_)
    counts = facts.count(type_)
    return other is None or counts.ready + counts.succeeded >= _needed(other)


def _needed(spec: ReplicaSpec) -> int:
    """So many of a task must be up for the tasks that depend on it."""
    return spec.min_replicas if spec.min_available is None else spec.min_available


def _is_lost(job: Job, type_: str, facts: PodClassification) -> bool:
    other = job.spec(type_)
    if other is None:
        return False
    return other.replicas - facts.count(type_).failed < _needed(other) or dependencies_unreachable(job, other, facts)


def sync_job(
    job: Job, status: Status, facts: PodClassification, observed: Observed, deadline: int | None = None
) -> Iterator[Action]:
    """The actions, in order: pods to delete, objects, pods to create; ``deadline``: seconds that these may run."""
    for pod in pods_to_delete(job, status, facts):
        if not pod.deleting:
            yield Delete("Pod", pod.name, pod.uid)
    yield from _unwanted_services(job, status, facts, observed)
    consultation = IntegrationPass(job, status, facts, observed)
    yield from consultation.objects()
    if status.phase in LIVE and consultation.takes_pods():
        yield from _objects(job, observed)
        due = creatable_replicas(job, status, facts, observed.now)
        if due and job.plugins.ssh is not None:
            yield EnsureKeys(ssh_plugin.key_secret(job, replica_pod.object_metadata))
        nodes = assign_nodes(job, status.admission.placement, facts, due) if status.admission is not None else {}
        for replica in due:
            label = status.attempts.label(replica)
            body = replica_pod.build_pod(
                job,
                replica,
                label,
                observed.addresses,
                nodes.get(replica, ""),
                retries=status.retries,
                deadline=deadline,
            )
            consultation.decorate(replica, body)
            yield Create(body)
    # Last, so that a cluster that refuses a budget does not keep the pods from being made.
    yield from _budgets(job, status, observed)


def creatable_replicas(job: Job, status: Status, facts: PodClassification, now: float) -> tuple[ReplicaId, ...]:
    """The replicas whose pods may be created at this moment."""
    missing = [r for r in job.replicas if r not in facts.current and r not in facts.succeeded]
    if not missing:
        return ()
    barrier = AttemptBarrier.of(status, facts)
    startable = startable_replicas(job, status)
    placement = status.admission.placement if status.admission is not None else {}
    waiting = waiting_for_leaving_pods(job, placement, facts, missing)
    ready = {spec.type for spec in job.replica_specs if dependencies_met(job, spec, facts)}
    return tuple(
        replica
        for replica in missing
        if replica in startable
        and replica.type in ready
        and replica not in waiting
        and replica not in status.observed_replicas
        and not barrier.blocks(replica)
        if backoff_until(status, replica) <= now
    )


def backoff_until(status: Status, replica: ReplicaId) -> float:
    """Until when a replica's restart is backed off (0: it is not)."""
    keys = ("", replica.type, str(replica))
    return max((status.backoffs[key].until for key in keys if key in status.backoffs), default=0.0)


@dataclass(frozen=True, slots=True)
class AttemptBarrier:
    """Which replicas must not be started yet, because an old and a new attempt never overlap.

    While there is a pod of an older attempt of the job, no replica; of an older attempt of a task, no replica of that
    task; of an older attempt of a replica, not that replica.
    """

    job: bool
    types: frozenset[str]
    replicas: frozenset[ReplicaId]

    @classmethod
    def of(cls, status: Status, facts: PodClassification) -> AttemptBarrier:
        """The barrier of the stale pods that are still there."""
        job, types = False, set()
        for pod in facts.stale:
            present = status.attempts.label(pod.replica).split(".")
            made = pod.attempt.split(".")
            job = job or made[:1] != present[:1]
            if made[:2] != present[:2]:
                types.add(pod.replica.type)
        return cls(job, frozenset(types), frozenset(pod.replica for pod in facts.stale))

    def blocks(self, replica: ReplicaId) -> bool:
        """Whether the pod of a replica may not come yet."""
        return self.job or replica.type in self.types or replica in self.replicas


def _objects(job: Job, observed: Observed) -> Iterator[Action]:
    wanted = services.object_names(job)
    if any(key not in observed.objects for key in wanted):
        for body in services.build_objects(job):
            if (body["kind"], body["metadata"]["name"]) not in observed.objects:
                yield Create(body)
    if job.plugins.svc:
        yield from _host_files(job, observed)


def _host_files(job: Job, observed: Observed) -> Iterator[Action]:
    """The host files follow the number of replicas."""
    for key in volcano_plugins.plugin_object_names(job):
        there = observed.objects.get(key)
        data = volcano_plugins.host_file_data(job)
        if key[0] == "ConfigMap" and there is not None and there.get("data") != data:
            removed = dict.fromkeys(there.get("data") or {})
            yield Update(*key, {"data": {**removed, **data}})


def _unwanted_services(job: Job, status: Status, facts: PodClassification, observed: Observed) -> Iterator[Action]:
    """Delete services of replicas that were scaled away, or whose pods were cleaned up. A job's own service stays.

    While a TFJob is suspended it has none, as with the training operator.
    """
    if job.services is not ServiceStyle.PER_REPLICA and not _sleeps(job, status):
        return
    wanted = _wanted_services(job, status, facts)
    for (kind, name), body in observed.objects.items():
        metadata = body.get("metadata") or {}
        if kind == "Service" and name not in wanted and "deletionTimestamp" not in metadata:
            yield Delete(kind, name, metadata.get("uid", ""))


def _budgets(job: Job, status: Status, observed: Observed) -> Iterator[Action]:
    """A disruption budget comes with the pods, follows the size of the gang, and goes when the job stops or ends."""
    if status.phase in LIVE and status.admission is not None:
        for budget in services.build_budgets(job):
            if (services.BUDGET, budget["metadata"]["name"]) not in observed.objects:
                yield Create(budget)
    for (kind, name), body in observed.objects.items():
        metadata = body["metadata"]
        if kind != services.BUDGET or "deletionTimestamp" in metadata:
            continue
        if status.phase not in LIVE or name not in services.budget_names(job):
            yield Delete(kind, name, metadata.get("uid", ""))
        elif mapping(body.get("spec")).get("minAvailable") != len(job.replicas):
            yield Update(kind, name, {"spec": {"minAvailable": len(job.replicas)}})


def _sleeps(job: Job, status: Status) -> bool:
    return job.dialect is not Dialect.VOLCANO and status.phase in STOPPED


def _wanted_services(job: Job, status: Status, facts: PodClassification) -> frozenset[str]:
    if _sleeps(job, status):
        return frozenset()
    if status.phase in LIVE or status.phase in STOPPED:
        return frozenset(services.service_names(job))
    match effective_clean_pod_policy(job, status):
        case CleanPodPolicy.NONE:
            return frozenset(services.service_names(job))
        case CleanPodPolicy.ALL:
            return frozenset()
        case CleanPodPolicy.RUNNING:
            kept = (replica for replica, pod in facts.current.items() if pod.finished)
            return frozenset(replica_name(job, replica) for replica in kept)
