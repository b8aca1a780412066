"""The objects of a job: which of them are created, updated and deleted. The decisions are made in ``transitions``.

A replica gets a pod when no pod of an older attempt exists that could overlap (``AttemptBarrier``). Pods with an old
attempt label are deleted. A job that is not active keeps the pods of its clean-up policy, and their services.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from tf_dist.core.integrations.dispatch import decorate_pod, takes_pods
from tf_dist.core.model.assignment import Placement, replica_nodes, requires_domain, startable_replicas
from tf_dist.core.model.context import Action, Create, Delete, EnsureKeys, PodClassification, ReconcileContext, Update
from tf_dist.core.model.fieldpath import mapping
from tf_dist.core.model.job import CleanPodPolicy, Dialect, Job, ReplicaId, ReplicaSpec, ServiceStyle
from tf_dist.core.model.names import replica_name
from tf_dist.core.model.pods import PodView
from tf_dist.core.model.reasons import Reason, reason_row
from tf_dist.core.model.status import LIVE, STOPPED, Admission, Status
from tf_dist.core.podbuilder import replica_pod, services, tf_config, volcano_plugins

# Tasks that wait for others (Volcano's dependsOn)


def dependencies_met(s: ReconcileContext, spec: ReplicaSpec) -> bool:
    """Whether the tasks that this task depends on are running: enough of their pods are ready or have succeeded."""
    if spec.depends is None:
        return True
    up = (_is_up(s, type_) for type_ in spec.depends.on)
    return any(up) if spec.depends.any else all(up)


def dependencies_unreachable(s: ReconcileContext, spec: ReplicaSpec) -> bool:
    """Whether the tasks that this task depends on can never run, because too many of their pods have failed."""
    if spec.depends is None or dependencies_met(s, spec):
        return False
    lost = (_is_lost(s, type_) for type_ in spec.depends.on)
    return all(lost) if spec.depends.any else any(lost)


def _is_up(s: ReconcileContext, type_: str) -> bool:
    other = s.job.spec(type_)
    counts = s.facts.count(type_)
    return other is None or counts.ready + counts.succeeded >= _needed(other)


def _needed(spec: ReplicaSpec) -> int:
    """The number of pods of a task that must run before dependent tasks start."""
    return spec.min_replicas if spec.min_available is None else spec.min_available


def _is_lost(s: ReconcileContext, type_: str) -> bool:
    other = s.job.spec(type_)
    if other is None:
        return False
    return other.replicas - s.facts.count(type_).failed < _needed(other) or dependencies_unreachable(s, other)


# Creations


def missing_objects(s: ReconcileContext) -> Iterator[Action]:
    """The creations and updates, in order."""
    if s.status.phase in LIVE and takes_pods(s):
        yield from _companions(s)
        yield from _missing_pods(s)
    # Last, so that an error with a budget does not prevent the creation of pods.
    yield from _budgets(s)


def _missing_pods(s: ReconcileContext) -> Iterator[Action]:
    due = creatable_replicas(s)
    if due and s.job.plugins.ssh is not None:
        yield EnsureKeys(volcano_plugins.key_secret(s.job))
    nodes = assign_nodes(s.job, s.status.admission.placement, s.facts, due) if s.status.admission is not None else {}
    hosts = tf_config.cluster_hosts(s.job, s.observed.addresses) if due else {}
    deadline = _pod_deadline(s)
    for replica in due:
        body = replica_pod.build_pod(
            s.job,
            replica,
            s.status.attempts.label(replica),
            hosts,
            nodes.get(replica, ""),
            retries=s.status.retries,
            deadline=deadline,
        )
        decorate_pod(s, replica, body)
        yield Create(body)


def creatable_replicas(s: ReconcileContext) -> tuple[ReplicaId, ...]:
    """The replicas whose pods may be created now."""
    status, facts = s.status, s.facts
    missing = [r for r in s.job.replicas if r not in facts.current and r not in facts.succeeded]
    if not missing:
        return ()
    barrier = AttemptBarrier.of(status, facts.stale)
    startable = startable_replicas(s.job, status)
    placement = status.admission.placement if status.admission is not None else {}
    waiting = waiting_for_leaving_pods(s.job, placement, facts, missing) | replicas_on_closed_nodes(s).keys()
    ready = {spec.type for spec in s.job.replica_specs if dependencies_met(s, spec)}
    return tuple(
        replica
        for replica in missing
        if replica in startable
        and replica.type in ready
        and replica not in waiting
        and replica not in status.observed_replicas
        and not barrier.blocks(replica)
        and backoff_until(status, replica) <= s.now
    )


# Seconds by which a pod's deadline is later than its job's. A running controller decides first, and reports the reason.
_AFTER_JOB_DEADLINE: Final = 60.0
_LONGEST_DEADLINE: Final = 2**31 - 1


def _pod_deadline(s: ReconcileContext) -> int | None:
    """The remaining time of the job's deadline for a new pod, so that a job without a controller frees its nodes.

    A pod's time counts from its start on a node. If a gang was admitted without nodes, the job's time starts again when
    the gang has nodes (``follow_pod_phases``), so the schedule timeout is added. None without a deadline.
    """
    limit, start = s.job.run_policy.active_deadline, s.status.start_time
    if limit is None or start is None:
        return None
    admission = s.status.admission
    may_begin_anew = admission is not None and not admission.placement and admission.complete is None
    left = start + limit - s.now + _AFTER_JOB_DEADLINE + (s.job.schedule_timeout if may_begin_anew else 0.0)
    return min(_LONGEST_DEADLINE, max(1, math.ceil(left)))


def backoff_until(status: Status, replica: ReplicaId) -> float:
    """The end of a replica's back-off (0: none)."""
    keys = ("", replica.type, str(replica))
    return max((status.backoffs[key].until for key in keys if key in status.backoffs), default=0.0)


# The assigned node of each replica


def assign_nodes(
    job: Job, placement: Placement, facts: PodClassification, wanted: Collection[ReplicaId]
) -> dict[ReplicaId, str]:
    """Free assigned nodes for these replicas, which are not bound to a node yet.

    A replica gets the node to which its pod is pinned, otherwise the replica's own node, otherwise any other node of
    its type. ``job`` has its admitted size. Other replicas keep their nodes. A replica without a free node is left out:
    the cluster's scheduler finds a node for it.
    """
    found: dict[ReplicaId, str] = {}
    for type_ in {replica.type for replica in wanted} if placement else ():
        found |= _nodes_of_type(job, placement, facts, type_)
    return {replica: node for replica, node in found.items() if replica in wanted}


def waiting_for_leaving_pods(
    job: Job, placement: Placement, facts: PodClassification, wanted: Collection[ReplicaId]
) -> frozenset[ReplicaId]:
    """Those of these replicas without a pod whose assigned capacity is still used by pods that will be deleted."""
    leaving = Counter((pod.replica.type, node) for pod in facts.stale if (node := pod.node or pod.pinned))
    if not placement or not leaving:
        return frozenset()
    free = Counter({(type_, node): count for type_, nodes in placement.items() for node, count in nodes.items()})
    free.subtract(leaving)
    free.subtract((replica.type, pod.node) for replica, pod in facts.current.items() if pod.node)
    assigned = assign_nodes(job, placement, facts, job.replicas)
    free.subtract((replica.type, node) for replica, node in assigned.items() if replica in facts.current)
    found: set[ReplicaId] = set()
    for replica in sorted(assigned.keys() & set(wanted)):
        pod = replica.type, assigned[replica]
        if free[pod] > 0:
            free[pod] -= 1
        else:
            found.add(replica)
    return frozenset(found)


def _nodes_of_type(job: Job, placement: Placement, facts: PodClassification, type_: str) -> dict[ReplicaId, str]:
    listed = replica_nodes(job, placement, type_)
    free = Counter(listed)
    free.subtract(pod.node for replica, pod in facts.current.items() if replica.type == type_ and pod.node)
    waiting = [replica for replica in facts.without_node(job) if replica.type == type_]
    pinned = {replica: pod.pinned for replica in waiting if (pod := facts.current.get(replica)) and pod.pinned}
    own = {replica: listed[replica.index] for replica in waiting if replica.index < len(listed)}
    found: dict[ReplicaId, str] = {}
    for wished in (pinned, own):
        for replica, node in wished.items():
            if replica not in found and free[node] > 0:
                found[replica] = node
                free[node] -= 1
    for replica in waiting:
        if replica not in found and (node := next((node for node in listed if free[node] > 0), "")):
            found[replica] = node
            free[node] -= 1
    return found


def replicas_on_closed_nodes(s: ReconcileContext) -> dict[ReplicaId, str]:
    """The replicas without a node whose assigned node accepts no such pods, with that node."""
    admission, closed = s.status.admission, s.observed.closed_nodes
    if admission is None or not closed or not may_unpin(s.job, admission):
        return {}
    nodes = assign_nodes(s.job, admission.placement, s.facts, s.facts.without_node(s.job))
    return {replica: node for replica, node in nodes.items() if node in closed.get(replica.type, ())}


def may_unpin(job: Job, admission: Admission) -> bool:
    """Whether pods may go to any node. If a topology domain is required, only after the gang was complete in it."""
    return bool(admission.placement) and (admission.complete is not None or not requires_domain(job))


@dataclass(frozen=True, slots=True)
class AttemptBarrier:
    """The replicas that must not start yet, because an old and a new attempt must not overlap.

    A pod of an older attempt of the job blocks all replicas. A pod of an older attempt of a task blocks the replicas of
    this task, and a pod of an older attempt of a replica blocks this replica.
    """

    job: bool
    types: frozenset[str]
    replicas: frozenset[ReplicaId]

    @classmethod
    def of(cls, status: Status, stale: Collection[PodView]) -> AttemptBarrier:
        """The barrier of these stale pods."""
        job, types = False, set()
        for pod in stale:
            present = status.attempts.label(pod.replica).split(".")
            made = pod.attempt.split(".")
            job = job or made[:1] != present[:1]
            if made[:2] != present[:2]:
                types.add(pod.replica.type)
        return cls(job, frozenset(types), frozenset(pod.replica for pod in stale))

    def blocks(self, replica: ReplicaId) -> bool:
        """Whether the pod of a replica is blocked."""
        return self.job or replica.type in self.types or replica in self.replicas


def _companions(s: ReconcileContext) -> Iterator[Action]:
    """The job's services and objects of its plugins. Host files are updated with the number of replicas."""
    for key, make in services.job_objects(s.job).items():
        if key not in s.observed.objects:
            yield Create(make())
    name = volcano_plugins.config_map_name(s.job.key.name)
    if s.job.plugins.svc and (there := s.observed.objects.get(("ConfigMap", name))) is not None:
        data = volcano_plugins.host_file_data(s.job)
        if there.get("data") != data:
            removed = dict.fromkeys(there.get("data") or {})
            yield Update("ConfigMap", name, {"data": {**removed, **data}})


def _budgets(s: ReconcileContext) -> Iterator[Action]:
    """The disruption budget: created with the pods, resized with the gang, deleted when the job stops or ends."""
    objects, live = s.observed.objects, s.status.phase in LIVE
    if live and s.status.admission is not None:
        for budget in services.build_budgets(s.job):
            if (services.BUDGET, budget["metadata"]["name"]) not in objects:
                yield Create(budget)
    for (kind, name), body in objects.items():
        metadata = body["metadata"]
        if kind != services.BUDGET or "deletionTimestamp" in metadata:
            continue
        if not live or name not in services.budget_names(s.job):
            yield Delete(kind, name, metadata.get("uid", ""))
        elif mapping(body.get("spec")).get("minAvailable") != len(s.job.replicas):
            yield Update(kind, name, {"spec": {"minAvailable": len(s.job.replicas)}})


# Deletions


def effective_clean_pod_policy(job: Job, status: Status) -> CleanPodPolicy:
    """The clean-up policy of a job that is not active."""
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
    """The pod whose container the kubelet restarted until the limit, if the job keeps it for its log."""
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
