"""Classification of a job's pods, and the events derived from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tf_dist.core.model.context import PodClassification
from tf_dist.core.model.job import Event, Job, ReplicaId, ReplicaSpec
from tf_dist.core.model.pods import DEADLINE_EXCEEDED, POD_DELETED, Disruption, Exit, PodPhase, PodView
from tf_dist.core.model.status import Attempts, Counts, Status
from tf_dist.core.model.timestamps import end_of_second


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """An event of the policy table: its kind, task, replica, exit and start.

    ``handled``: the kubelet has already restarted the container. ``disruption``: the disruption of the pod, which does
    not count as a failure.
    """

    event: Event
    spec: ReplicaSpec
    replica: ReplicaId | None = None
    exit: Exit | None = None
    since: float | None = None
    handled: bool = False
    disruption: Disruption | None = None


def classify_pods(
    job: Job, status: Status, pods: tuple[PodView, ...], departed: tuple[PodView, ...] = ()
) -> PodClassification:
    """Sort the pods of a job into current and stale, and count."""
    sizes = {spec.type: spec for spec in job.replica_specs}
    current: dict[ReplicaId, PodView] = {}
    stale: list[PodView] = []
    for pod in pods:
        replica = pod.replica
        spec = sizes.get(replica.type)
        outdated = spec is None or replica.index >= spec.replicas or pod.attempt != status.attempts.label(replica)
        # This controller never creates two pods for one replica; wherever the second comes from, one of them must go.
        if outdated or replica in current:
            stale.append(pod)
        else:
            current[replica] = pod
    succeeded = frozenset(replica for replica, pod in current.items() if _succeeded(pod, sizes[replica.type]))
    kept = frozenset(r for r in status.succeeded if r.type in sizes and r.index < sizes[r.type].replicas)
    gone = {
        pod.replica: pod
        for pod in departed
        if pod.replica not in current and pod.attempt == status.attempts.label(pod.replica)
    }
    return PodClassification(
        current, tuple(stale), _count(job, current, stale, kept | succeeded), kept | succeeded, gone
    )


def _succeeded(pod: PodView, spec: ReplicaSpec) -> bool:
    """Whether the replica has succeeded. Exit code 0 of a pod that is being deleted is not a success."""
    if pod.deleting:
        return False
    if pod.phase is PodPhase.SUCCEEDED:
        return True
    judged = _container_end(pod, spec)
    return judged is not None and judged.code == 0


def _container_end(pod: PodView, spec: ReplicaSpec) -> Exit | None:
    """The end of the training container, in any phase of the pod; None if the pod's phase decides.

    As in the v1alpha1 operator (``replicaStatusFromPodList``), its end before a restart by the kubelet has precedence,
    and other containers may still run.
    """
    ends = (exit_ for exit_ in (pod.last_exit, pod.exit) if exit_ is not None and not exit_.container)
    return next(ends, None) if spec.last_exit_counts else None


def _count(
    job: Job, current: Mapping[ReplicaId, PodView], stale: Iterable[PodView], succeeded: frozenset[ReplicaId]
) -> dict[str, Counts]:
    tallies: dict[str, list[int]] = {spec.type: [0, 0, 0, 0, 0, 0, 0] for spec in job.replica_specs}
    for pod in stale:
        # It is deleted in this very pass, or was before.
        if pod.replica.type in tallies:
            tallies[pod.replica.type][5] += 1
    for replica, pod in current.items():
        tally = tallies[replica.type]
        tally[6] += pod.restarts
        if replica in succeeded:
            continue
        # A pod that is being deleted ends with a signal: that is not a failure of the replica.
        if pod.deleting:
            tally[5] += 1
        elif pod.phase is PodPhase.FAILED:
            tally[4] += 1
        elif pod.phase is PodPhase.RUNNING:
            tally[1] += 1
            tally[2] += pod.ready
        else:
            tally[0] += 1
    for replica in succeeded:
        tallies[replica.type][3] += 1
    return {
        type_: Counts(
            pending=t[0], running=t[1], ready=t[2], succeeded=t[3], failed=t[4], terminating=t[5], restarts=t[6]
        )
        for type_, t in tallies.items()
    }


def event_key(occurrence: PodEvent, attempts: Attempts) -> str:
    """The key of an event in ``Status.policy_timeouts``, which differs between attempts."""
    who = occurrence.replica or ReplicaId(occurrence.spec.type, 0)
    label = attempts.label(who)
    if occurrence.replica is None:
        return f"{occurrence.event} {occurrence.spec.type} {label.rpartition('.')[0]}"
    return f"{occurrence.event} {who} {label}"


def eviction_key(replica: ReplicaId, attempts: Attempts) -> str:
    """The ``event_key`` of a replica's eviction."""
    return f"{Event.POD_EVICTED} {replica} {attempts.label(replica)}"


def derive_events(job: Job, status: Status, facts: PodClassification) -> Iterator[PodEvent]:
    """The events of the current attempt that have not been handled yet, in document order.

    Handling an event changes the attempt (or ends the job), so it does not occur again.
    """
    for occurrence in _present_events(job, status, facts):
        began = occurrence.since
        if status.policy_timeouts:
            began = status.policy_timeouts.get(event_key(occurrence, status.attempts), began)
        yield occurrence if began == occurrence.since else replace(occurrence, since=began)
    if status.policy_timeouts:
        yield from _unreturned(job, status, facts)


def _unreturned(job: Job, status: Status, facts: PodClassification) -> Iterator[PodEvent]:
    """Evictions with a pending policy: the pod was created again, and has not run yet."""
    for spec in job.replica_specs:
        for replica in spec.ids:
            pod = facts.current.get(replica)
            going = pod is None or pod.deleting
            back = replica in facts.succeeded or not (going or (pod and pod.phase is PodPhase.PENDING))
            if back or (going and replica in status.observed_replicas):
                continue
            lost = PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=Disruption(POD_DELETED))
            began = status.policy_timeouts.get(event_key(lost, status.attempts))
            if began is not None:
                yield replace(lost, since=began)


def _present_events(job: Job, status: Status, facts: PodClassification) -> Iterator[PodEvent]:
    # A job that waits may have a hundred thousand replicas, and edits that come faster than they are gone through.
    never_ran = not facts.current and not status.observed_replicas
    for spec in job.replica_specs:
        for replica in () if never_ran else spec.ids:
            if replica not in facts.succeeded:
                yield from _of_replica(job, spec, replica, facts, seen=replica in status.observed_replicas)
        if spec.replicas and facts.count(spec.type).succeeded == spec.replicas:
            yield PodEvent(event=Event.TASK_COMPLETED, spec=spec)
        if spec.container_restarts is not None:
            restarts = sum(pod.restarts for pod in facts.current.values() if pod.replica.type == spec.type)
            if restarts and restarts >= spec.container_restarts:
                yield PodEvent(event=Event.TASK_FAILED, spec=spec)
    yield from _of_gang(job, facts)


def _of_replica(
    job: Job, spec: ReplicaSpec, replica: ReplicaId, facts: PodClassification, *, seen: bool
) -> Iterator[PodEvent]:
    pod = facts.current.get(replica)
    if pod is None:
        if seen:
            last = facts.departed.get(replica)
            taken = last.disruption if last is not None else None
            taken = taken or Disruption(POD_DELETED, node=last.node if last is not None else "")
            yield PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=taken)
    elif pod.phase is PodPhase.FAILED and not (pod.deleting and pod.disruption is not None):
        outlived = pod.past_deadline and _has_deadline_of_job(job, spec)
        event = Event.POD_EVICTED if pod.evicted or outlived else Event.POD_FAILED
        since = end_of_second(pod.exit.finished_at) if pod.exit and event is Event.POD_FAILED else None
        taken = Disruption(DEADLINE_EXCEEDED, node=pod.node) if outlived else pod.disruption if pod.evicted else None
        yield PodEvent(event=event, spec=spec, replica=replica, exit=pod.exit, since=since, disruption=taken)
    elif pod.node_lost:
        yield PodEvent(event=Event.NODE_LOST, spec=spec, replica=replica, disruption=pod.disruption)
    elif pod.deleting:
        # However it ends in its grace period. A timeout counts from the end of that at the latest: then it can return.
        # A pod that was being deleted when it was first observed (scaled away, and wanted again) is not a disruption.
        if seen:
            yield PodEvent(
                event=Event.POD_EVICTED, spec=spec, replica=replica, since=pod.stops_at, disruption=pod.disruption
            )
    elif pod.phase is PodPhase.PENDING:
        yield PodEvent(event=Event.POD_PENDING, spec=spec, replica=replica, since=end_of_second(pod.created_at))
    elif (judged := _container_end(pod, spec)) is not None:
        # Where the kubelet does not restart it, the others of its pod may run for ever.
        restarted = judged is pod.last_exit or spec.pod_restart_policy != "Never"
        yield PodEvent(event=Event.POD_FAILED, spec=spec, replica=replica, exit=judged, handled=restarted)


def _has_deadline_of_job(job: Job, spec: ReplicaSpec) -> bool:
    """Whether pods end at the deadline of the job at their creation. It may have been raised since."""
    own = spec.pod_spec.get("activeDeadlineSeconds")
    return job.run_policy.active_deadline is not None and own is None


def _of_gang(job: Job, facts: PodClassification) -> Iterator[PodEvent]:
    """Volcano's Unknown: less than the gang's minimum runs, and another part cannot be scheduled."""
    stuck = next((pod for pod in facts.current.values() if pod.unschedulable), None)
    if stuck is None or facts.gang_has_nodes(job):
        return
    if any(counts.running for counts in facts.counts.values()):
        spec = job.spec(stuck.replica.type)
        if spec is not None:
            yield PodEvent(event=Event.UNKNOWN, spec=spec, replica=stuck.replica)


def held_pods(facts: PodClassification) -> list[PodView]:
    """The current pods that cannot run, in the order of their replicas."""
    return sorted((pod for pod in facts.current.values() if pod.held_by), key=lambda pod: pod.replica)
