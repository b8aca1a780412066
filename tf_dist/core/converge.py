"""From what is to what should be: the creations and deletions that follow from a status and the objects there are.

Nothing is decided here. A pod whose attempt label is not the present one goes; a replica without a pod gets one, once
nothing of an older attempt that it could meet is left (``Barrier``); a job that is not live keeps what its clean-up
policy lets it keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tf_dist.core import dependencies, render, volcano_plugins
from tf_dist.core.actions import Action, Create, Delete, Update
from tf_dist.core.facts import Facts
from tf_dist.core.model import CleanPodPolicy, Job, ReplicaId, ServiceStyle
from tf_dist.core.names import replica_name
from tf_dist.core.observed import Observed
from tf_dist.core.schedulers.consult import Consultation
from tf_dist.core.seats import assigned
from tf_dist.core.status import LIVE, STOPPED, Status
from tf_dist.core.stopping import clean_policy, doomed


def converge(job: Job, status: Status, facts: Facts, observed: Observed) -> Iterator[Action]:
    """What to do, in order: pods that go, objects, pods that come."""
    for pod in doomed(job, status, facts):
        if not pod.deleting:
            yield Delete("Pod", pod.name, pod.uid)
    yield from _unwanted_services(job, status, facts, observed)
    consultation = Consultation(job, status, facts, observed)
    yield from consultation.objects()
    if status.phase in LIVE and consultation.takes_pods():
        yield from _objects(job, observed)
        due = due_replicas(job, status, facts, observed.now)
        nodes = assigned(job, status.admission.placement, facts, due) if status.admission is not None else {}
        for replica in due:
            label = status.attempts.label(replica)
            body = render.pod(job, replica, label, observed.addresses, nodes.get(replica, ""))
            consultation.decorate(replica, body)
            yield Create(body)


def due_replicas(job: Job, status: Status, facts: Facts, now: float) -> tuple[ReplicaId, ...]:
    """The replicas whose pods may be created at this moment."""
    missing = [r for r in job.replicas if r not in facts.current and r not in facts.succeeded]
    if not missing:
        return ()
    barrier = Barrier.of(status, facts)
    ready = {spec.type for spec in job.replica_specs if dependencies.met(job, spec, facts)}
    return tuple(
        replica
        for replica in missing
        if replica.type in ready and replica not in status.seen and not barrier.blocks(replica)
        if paused_until(status, replica) <= now
    )


def paused_until(status: Status, replica: ReplicaId) -> float:
    """Until when a replica's restart waits (0: it does not)."""
    keys = ("", replica.type, str(replica))
    return max((status.pauses[key].until for key in keys if key in status.pauses), default=0.0)


@dataclass(frozen=True, slots=True)
class Barrier:
    """What must be gone before a new pod may come: an old and a new attempt never overlap.

    While a pod of an older attempt of the job is there nobody comes; of a task's older attempt, nobody of that task; of
    a replica's own, not that replica.
    """

    job: bool
    types: frozenset[str]
    replicas: frozenset[ReplicaId]

    @classmethod
    def of(cls, status: Status, facts: Facts) -> Barrier:
        """What the stale pods that are there keep from coming."""
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
    wanted = render.object_names(job)
    if any(key not in observed.objects for key in wanted):
        for body in render.objects(job):
            if (body["kind"], body["metadata"]["name"]) not in observed.objects:
                yield Create(body)
    if job.plugins.svc:
        yield from _host_files(job, observed)


def _host_files(job: Job, observed: Observed) -> Iterator[Action]:
    """The host files follow the number of replicas."""
    for key in volcano_plugins.object_names(job):
        there = observed.objects.get(key)
        data = volcano_plugins.host_files(job)
        if key[0] == "ConfigMap" and there is not None and there.get("data") != data:
            removed = dict.fromkeys(there.get("data") or {})
            yield Update(*key, {"data": {**removed, **data}})


def _unwanted_services(job: Job, status: Status, facts: Facts, observed: Observed) -> Iterator[Action]:
    """A service of one replica goes with it: scaled away, or its pod cleaned up. A job's own service stays."""
    if job.services is not ServiceStyle.PER_REPLICA:
        return
    wanted = _wanted_services(job, status, facts)
    for (kind, name), body in observed.objects.items():
        metadata = body.get("metadata") or {}
        if kind == "Service" and name not in wanted and "deletionTimestamp" not in metadata:
            yield Delete(kind, name, metadata.get("uid", ""))


def _wanted_services(job: Job, status: Status, facts: Facts) -> frozenset[str]:
    if status.phase in LIVE or status.phase in STOPPED:
        return frozenset(render.service_names(job))
    match clean_policy(job, status):
        case CleanPodPolicy.NONE:
            return frozenset(render.service_names(job))
        case CleanPodPolicy.ALL:
            return frozenset()
        case CleanPodPolicy.RUNNING:
            kept = (replica for replica, pod in facts.current.items() if pod.finished)
            return frozenset(replica_name(job, replica) for replica in kept)
