"""What a job's pods say at this moment, and what has happened to them, derived afresh in every pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tf_dist.core.disruptions import DELETED, Disruption
from tf_dist.core.model import Job, ReplicaId, ReplicaSpec, Role
from tf_dist.core.observed import Exit, PodPhase, PodView
from tf_dist.core.policy_model import Event
from tf_dist.core.status import NO_PODS, Counts, Status


@dataclass(frozen=True, slots=True)
class Facts:
    """``current``: the pod of the present attempt of each replica; ``stale``: every other pod of the job.

    ``gone``: the pod that a replica without one has had, as it was seen last, if it is still remembered.
    """

    current: Mapping[ReplicaId, PodView]
    stale: tuple[PodView, ...]
    counts: Mapping[str, Counts]
    succeeded: frozenset[ReplicaId]
    gone: Mapping[ReplicaId, PodView] = field(default_factory=dict)

    def count(self, type_: str) -> Counts:
        """Pods of a type by what they do."""
        return self.counts.get(type_, NO_PODS)

    def total(self) -> Counts:
        """Pods of the whole job by what they do."""
        every = list(self.counts.values())
        return Counts(
            pending=sum(c.pending for c in every),
            running=sum(c.running for c in every),
            ready=sum(c.ready for c in every),
            succeeded=sum(c.succeeded for c in every),
            failed=sum(c.failed for c in every),
            terminating=sum(c.terminating for c in every),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An event of the policy table: what, to which task and replica, how it ended, since when.

    ``handled``: the kubelet has restarted the container already, so a restart needs nothing more. ``disruption``: what
    took the pod away; then it is no failure, and is not charged as one.
    """

    event: Event
    spec: ReplicaSpec
    replica: ReplicaId | None = None
    exit: Exit | None = None
    since: float | None = None
    handled: bool = False
    disruption: Disruption | None = None


def gather(job: Job, status: Status, pods: tuple[PodView, ...], departed: tuple[PodView, ...] = ()) -> Facts:
    """Sort the pods of a job into current and stale, and count."""
    sizes = {spec.type: spec for spec in job.replica_specs}
    current: dict[ReplicaId, PodView] = {}
    stale: list[PodView] = []
    for pod in pods:
        replica = pod.replica
        spec = sizes.get(replica.type)
        outdated = spec is None or replica.index >= spec.replicas or pod.attempt != status.attempts.label(replica)
        # Two pods for one replica cannot come from this driver; whoever made the second, one of them must go.
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
    return Facts(current, tuple(stale), _count(job, current, kept | succeeded), kept | succeeded, gone)


def _succeeded(pod: PodView, spec: ReplicaSpec) -> bool:
    """Whether the replica has done its work. One that was told to stop and then exits with 0 has only been polite."""
    if pod.deleting:
        return False
    if pod.phase is PodPhase.SUCCEEDED:
        return True
    return spec.last_exit_counts and pod.last_exit is not None and pod.last_exit.code == 0


def _count(job: Job, current: Mapping[ReplicaId, PodView], succeeded: frozenset[ReplicaId]) -> dict[str, Counts]:
    tallies: dict[str, list[int]] = {spec.type: [0, 0, 0, 0, 0, 0] for spec in job.replica_specs}
    for replica, pod in current.items():
        tally = tallies[replica.type]
        if replica in succeeded:
            continue
        # A pod that was told to stop ends with a signal: that is no failure of the replica.
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
        type_: Counts(pending=t[0], running=t[1], ready=t[2], succeeded=t[3], failed=t[4], terminating=t[5])
        for type_, t in tallies.items()
    }


def occurrences(job: Job, status: Status, facts: Facts) -> Iterator[Occurrence]:
    """Everything that has happened to the present attempt and has not been answered yet, in document order.

    An answer changes the attempt (or ends the job), so an event is gone once it has been answered.
    """
    for spec in job.replica_specs:
        for index in range(spec.replicas):
            replica = ReplicaId(spec.type, index)
            if replica not in facts.succeeded:
                yield from _of_replica(spec, replica, facts, seen=replica in status.seen)
        yield from _of_task(spec, facts)
    yield from _of_gang(job, facts)


def _of_replica(spec: ReplicaSpec, replica: ReplicaId, facts: Facts, *, seen: bool) -> Iterator[Occurrence]:
    pod = facts.current.get(replica)
    if pod is None:
        if seen:
            last = facts.gone.get(replica)
            taken = last.disruption if last is not None else None
            taken = taken or Disruption(DELETED, node=last.node if last is not None else "")
            yield Occurrence(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=taken)
    elif pod.phase is PodPhase.FAILED and not (pod.deleting and pod.disruption is not None):
        event = Event.POD_EVICTED if pod.evicted else Event.POD_FAILED
        since = pod.exit.finished_at if pod.exit else None
        taken = pod.disruption if pod.evicted else None
        yield Occurrence(event=event, spec=spec, replica=replica, exit=pod.exit, since=since, disruption=taken)
    elif pod.node_lost:
        yield Occurrence(event=Event.NODE_LOST, spec=spec, replica=replica, disruption=pod.disruption)
    elif pod.deleting:
        # However it ends in its grace period: it was told to. One that was on its way out when it came in sight (scaled
        # away, and wanted again) is no disruption.
        if seen:
            yield Occurrence(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=pod.disruption)
    elif pod.phase is PodPhase.PENDING:
        yield Occurrence(event=Event.POD_PENDING, spec=spec, replica=replica, since=pod.created_at)
    elif spec.last_exit_counts and pod.last_exit is not None:
        yield Occurrence(event=Event.POD_FAILED, spec=spec, replica=replica, exit=pod.last_exit, handled=True)


def _of_task(spec: ReplicaSpec, facts: Facts) -> Iterator[Occurrence]:
    if spec.replicas and facts.count(spec.type).succeeded == spec.replicas:
        yield Occurrence(event=Event.TASK_COMPLETED, spec=spec)
    if spec.container_restarts is not None:
        restarts = sum(pod.restarts for pod in facts.current.values() if pod.replica.type == spec.type)
        if restarts and restarts >= spec.container_restarts:
            yield Occurrence(event=Event.TASK_FAILED, spec=spec)


def _of_gang(job: Job, facts: Facts) -> Iterator[Occurrence]:
    """Volcano's Unknown: part of the gang runs while another part cannot be placed."""
    stuck = next((pod for pod in facts.current.values() if pod.unschedulable), None)
    if stuck is not None and any(counts.running for counts in facts.counts.values()):
        spec = job.spec(stuck.replica.type)
        if spec is not None:
            yield Occurrence(event=Event.UNKNOWN, spec=spec, replica=stuck.replica, since=stuck.created_at)


def trainers(job: Job) -> tuple[ReplicaSpec, ...]:
    """The replica specs whose end ends the job: all but parameter servers, which serve until they are stopped."""
    return tuple(spec for spec in job.replica_specs if spec.role is not Role.PS) or job.replica_specs
