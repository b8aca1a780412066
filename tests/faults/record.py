"""The objects of a store and the truth about them, derived from the writes of all clients.

``Record`` is the journal of the store, so it sees every write. The truth about pods (which failed by themselves, which
were taken away, and which succeeded) is derived from the writes of users, kubelets and Kubernetes.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Object
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.cluster.lease import LEASE_DURATION, LeaseRecord, leader_lease
from tf_dist.core.gang.gang_builder import policy_may_restart
from tf_dist.core.model import names
from tf_dist.core.model.job import Job, ReplicaSpec
from tf_dist.core.model.pods import required_node
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.model.status import LIVE, NO_PODS, Phase, Status
from tf_dist.core.model.status_codec import load_status, stored_status
from tf_dist.core.reconciler.accepted_spec import StoredSpec, read_stored_spec

KEYS: Final = {TFJOBS: "tfjobs.kubeflow.org", VOLCANO_JOBS: "jobs.batch.volcano.sh"}
"""The kinds of jobs, with their names in the keys of the store."""
JOBS: Final = tuple(KEYS.values())
_KINDS: Final = {key: kind for kind, key in KEYS.items()}
LEASES: Final = "leases.coordination.k8s.io"
QUEUES: Final = "queues.tf-dist.dev"
OWNED: Final = ("pods", "services", "configmaps", "networkpolicies.networking.k8s.io")
ENDED: Final = ("Succeeded", "Failed")
TERMINAL: Final = (Phase.COMPLETED, Phase.FAILED, Phase.TERMINATED)


class Author(NamedTuple):
    """The author of a write. ``process`` is its identity in Leases, or "" for a user, a kubelet or Kubernetes.

    ``leases``: the author leads by Leases. ``kinds``: the kinds of jobs that it led, by its own knowledge, when it sent
    the request. ``late``: that was long ago. ``sees_nodes``: it knows the free capacity. ``unserved``: kinds that the
    server refused to serve.
    """

    process: str = ""
    leases: bool = False
    kinds: frozenset[str] = frozenset(JOBS)
    late: bool = False
    sees_nodes: bool = False
    unserved: frozenset[str] = frozenset()


HANDS: Final = Author()


@dataclass
class Truth:
    """The truth about a job: pods that ``failed`` by themselves or were ``taken`` away, and replicas that ``succeeded``
    or were ever ``ready``."""

    failed: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    succeeded: set[tuple[str, int]] = field(default_factory=set)
    ready: set[tuple[str, int]] = field(default_factory=set)
    ended: tuple[str, str] | None = None


class Record:
    """Follows a store. ``now`` returns the true seconds since the epoch, ``author`` the author of the current write."""

    def __init__(self, now: Callable[[], float], author: Callable[[], Author]) -> None:
        self.objects: dict[Key, Object] = {}
        self.truth: dict[str, Truth] = defaultdict(Truth)
        self.now = now
        self.written: dict[Key, float] = {}
        self._lease_deleted: dict[Key, float] = {}  # when a user deleted it
        self.restored = float("-inf")  # when the store was restored
        self.clocks_stepped = False  # whether all clocks have jumped ahead since the jobs were submitted
        self._author = author
        self._read: dict[str, tuple[object, Object, StoredSpec]] = {}
        self._memories: dict[str, tuple[Object, Status]] = {}

    # A journal

    def load(self) -> tuple[int, Iterable[tuple[Key, Object]]]:
        """The stored objects: none at the beginning, and the saved objects after a restore."""
        version = max((int(obj["metadata"]["resourceVersion"]) for obj in self.objects.values()), default=0)
        return version, list(self.objects.items())

    def saved(self) -> Mapping[str, Truth]:
        """A copy of the current truth, for ``restore``."""
        return copy.deepcopy(dict(self.truth))

    def restore(self, objects: Mapping[Key, Object], saved: Mapping[str, Truth]) -> None:
        """The store has been restored to these objects.

        Writes since then did happen. For example, the times of the last renewals of Leases do not change.
        """
        gone, self.objects = self.objects, dict(objects)
        before, self.truth = self.truth, defaultdict(Truth, copy.deepcopy(dict(saved)))
        for job, truth in before.items():  # lost writes did happen, and a controller may still report them
            self.truth[job].failed |= truth.failed
            self.truth[job].taken |= truth.taken
            self.truth[job].succeeded |= truth.succeeded
        # A pod that exists only before or only after the restore counts as taken, because controllers miss it.
        there, back = ({uid(obj): obj for key, obj in one.items() if key.kind == "pods"} for one in (gone, objects))
        for one in there.keys() ^ back.keys():
            self.truth[owner((there | back)[one])].taken.add(one)
        self._read.clear()
        self.restored = self.now()

    def write(self, key: Key, version: int, obj: Object | None) -> None:
        """Record a write just before any client sees it."""
        before, author = self.objects.get(key), self._author()
        if key.kind == "pods":
            self._happens(before, obj, author)
        elif key.kind == "nodes" and (obj is None or not is_ready(obj)):
            self._lost(key.name)
        elif key.kind == LEASES and obj is None and not author.process:
            self._lease_deleted[key] = self.now()
        self.wrote(key, before, obj, author)
        self.written[key] = self.now()
        if obj is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = obj

    def wrote(self, key: Key, before: Object | None, after: Object | None, author: Author) -> None:
        """A hook for checks of a write. ``objects`` do not contain the write yet."""

    def close(self) -> None:
        """Do nothing."""

    # Stored objects

    def of(self, *kinds: str) -> Iterator[tuple[Key, Object]]:
        """All objects of some kinds."""
        return ((key, obj) for key, obj in list(self.objects.items()) if key.kind in kinds)

    def pods_of(self, uid: str) -> list[Object]:
        """The pods that a job controls."""
        return [pod for _, pod in self.of("pods") if owner(pod) == uid]

    def job(self, stored: Object) -> Job | None:
        """The parsed job. If its current spec is invalid, the last valid spec is used."""
        status = self.memory(stored)
        version = stored["metadata"].get("generation"), stored["metadata"].get("annotations"), status.accepted_spec
        known = self._read.get(uid(stored))
        if known is None or known[0] != version:
            # A controller that did not run during the edit does not know the accepted spec, and the status says so.
            previous = None if known is None or status.refused_spec is not None else known[1:]
            known = self._read[uid(stored)] = version, stored, read_stored_spec(stored, status, previous)
        return known[2].job

    def forgotten(self, stored: Object) -> bool:
        """Whether a controller that did not run during an edit of the job cannot know a valid spec."""
        return read_stored_spec(stored, self.memory(stored), None).job is None

    def memory(self, stored: Object) -> Status:
        """The memory of a stored job."""
        known = self._memories.get(uid(stored))
        if known is None or known[0] is not stored:  # a stored object never changes, a write replaces it
            known = self._memories[uid(stored)] = stored, load_status(stored_status(stored))
        return known[1]

    def leaders(self, kind: str, namespace: str) -> list[str]:
        """The current leaders, by their Leases, of a kind of jobs (a kind in keys of the store) in a namespace."""
        found = []
        for scope in (None, namespace):
            key = Key(LEASES, *leader_lease(_KINDS[kind], scope))
            record = LeaseRecord.of(self.objects.get(key) or {})
            if record.holder and self.now() - self.written.get(key, float("-inf")) <= record.duration:
                found.append(record.holder)
        return found

    def excused(self, kind: str, namespace: str) -> bool:
        """Whether a user recently deleted a Lease that its holder may still believe to hold."""
        refs = (leader_lease(_KINDS[kind], scope) for scope in (None, namespace))
        since = max(self._lease_deleted.get(Key(LEASES, *ref), float("-inf")) for ref in refs)
        return self.now() - since <= LEASE_DURATION

    # The truth about pods

    def _happens(self, before: Object | None, after: Object | None, author: Author) -> None:
        there = after or before
        assert there is not None
        if not owner(there):
            return
        truth, hands = self.truth[owner(there)], not author.process
        if hands and before is not None and not deleting(before) and (after is None or deleting(after)):
            truth.taken.add(uid(before))
        if after is None:
            return
        status = after.get("status") or {}
        was = phase(before) if before is not None else "Pending"
        disrupted = _condition(after, "DisruptionTarget") or status.get("reason") in ("Evicted", "NodeLost", "Shutdown")
        if disrupted or phase(after) == "Unknown":
            truth.taken.add(uid(after))
        elif phase(after) == "Failed" and was != "Failed" and not deleting(after):
            truth.failed.add(uid(after))
        if phase(after) == "Succeeded" and was != "Succeeded" and not deleting(after):
            truth.succeeded.add(replica(after))
        if _condition(after, "Ready"):
            truth.ready.add(replica(after))

    def _lost(self, node: str) -> None:
        """The pods of a lost node count as taken."""
        for _, pod in self.of("pods"):
            if pod["spec"].get("nodeName") == node and owner(pod):
                self.truth[owner(pod)].taken.add(uid(pod))

    # Used capacity and limits

    def holds(self, stored: Object) -> Decimal:
        """The CPUs of the admission of a job by tf-dist, without replicas that are done."""
        return sum((count * cpu for count, cpu in self.parts(stored)), Decimal(0))

    def wanted(self, stored: Object) -> int:
        return sum(count for count, _ in self.parts(stored))

    def to_come(self, stored: Object) -> Iterator[tuple[str, Decimal]]:
        """The future pods of an admission: for each pod, its assigned node ("": any node) and its CPUs."""
        place, pods = self.memory(stored).admission, self.pods_of(uid(stored))
        for spec, count in self._parts(stored):
            there = Counter(pod["spec"]["nodeName"] for pod in pods if type_of(pod) == spec.type and on_a_node(pod))
            nodes = Counter(place.placement.get(spec.type, {}) if place is not None else {}) - there
            waiting = [
                pod for pod in pods if type_of(pod) == spec.type and not on_a_node(pod) and phase(pod) not in ENDED
            ]
            pinned = nodes & Counter(required_node(pod["spec"]) for pod in waiting)
            named = [*pinned.elements(), *(nodes - pinned).elements()][: max(0, count - there.total())]
            rest = max(0, count - there.total() - len(named))
            yield from ((node, pod_cpus(spec)) for node in [*named, *[""] * rest])

    def parts(self, stored: Object) -> Iterator[tuple[int, Decimal]]:
        return ((count, pod_cpus(spec)) for spec, count in self._parts(stored))

    def _parts(self, stored: Object) -> Iterator[tuple[ReplicaSpec, int]]:
        memory, job = self.memory(stored), self.job(stored)
        place = memory.admission
        if place is None or place.by or job is None or memory.phase not in LIVE:
            return
        for spec in job.replica_specs:
            # The pod shows that a replica is done before the status does.
            known = {(one.type, one.index) for one in memory.succeeded} | self.truth[uid(stored)].succeeded
            done = sum(1 for type_, _ in known if type_ == spec.type)
            if not policy_may_restart(job, spec):
                done += memory.counts.get(spec.type, NO_PODS).failed
            yield spec, max(0, place.admitted_sizes.get(spec.type, spec.replicas) - done)

    def on_nodes(self, stored: Object, *, again: bool) -> dict[str, Decimal]:
        """The CPUs that a job certainly uses on each node, by its existing pods and its future pods.

        ``again`` includes replicas that were done, and run again because the job has restarted.
        """
        memory, job = self.memory(stored), self.job(stored)
        place, found = memory.admission, dict[str, Decimal]()
        if place is None or place.by or job is None or memory.phase not in LIVE:
            return found
        pods = [pod for pod in self.pods_of(uid(stored)) if attempt(pod)[0] == str(memory.attempts.job)]
        done = {(one.type, one.index) for one in memory.succeeded} | {
            replica(pod) for pod in pods if phase(pod) in ENDED
        }
        done |= set() if again else self.truth[uid(stored)].succeeded
        for spec in job.replica_specs:
            there = Counter(pod["spec"]["nodeName"] for pod in pods if type_of(pod) == spec.type and on_a_node(pod))
            over = sum(type_ == spec.type for type_, _ in done) + memory.counts.get(spec.type, NO_PODS).failed
            # The status does not contain the nodes of done replicas, so no controller can know them (schedule 3189).
            to_come = (
                max(0, place.admitted_sizes.get(spec.type, spec.replicas) - over - there.total()) if not over else 0
            )
            for node, count in place.placement.get(spec.type, {}).items():
                found[node] = found.get(node, Decimal(0)) + min(count, there[node] + to_come) * pod_cpus(spec)
        return found

    def queue_of(self, stored: Object) -> str:
        """The queue of a job."""
        job = self.job(stored)
        return (job.scheduling.queue if job is not None else "") or "default"

    def open_to(self, stored: Object) -> bool:
        """Whether the queue of a job exists and shares no quota. Shared quotas are not checked here."""
        queue = self.queue_of(stored)
        documents = [(key.name, obj.get("spec") or {}) for key, obj in self.of(QUEUES)]
        shared = any(queue in (called, spec.get("parent")) and spec.get("parent") for called, spec in documents)
        return (queue == "default" or any(called == queue for called, _ in documents)) and not shared

    def nominal(self, queue: str) -> Decimal | None:
        """The CPU quota of a queue that shares with no other queue. None means that there is no such limit."""
        found = next((obj for key, obj in self.of(QUEUES) if key.name == queue), None)
        spec = (found or {}).get("spec") or {}
        said = ((spec.get("quotas") or {}).get("cpu") or {}).get("nominal")
        shared = spec.get("parent") or any((one.get("spec") or {}).get("parent") == queue for _, one in self.of(QUEUES))
        return None if said is None or shared else parse_quantity(str(said))

    def most(self, what: str, namespace: str) -> int | None:
        """The limit of a resource (``pods``, ``requests.cpu``) by the ResourceQuotas of a namespace."""
        hard = (
            (obj.get("spec") or {}).get("hard") or {}
            for key, obj in self.of("resourcequotas")
            if key.namespace == namespace
        )
        said = [int(one[what]) for one in hard if what in one]
        return min(said, default=None)


# Reading objects


def name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def owner(obj: Object) -> str:
    """The uid of the job that owns the object, or "" if no job does."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next(
        (str(one["uid"]) for one in owners if one.get("controller") and one.get("kind") in ("TFJob", "Job")), ""
    )


def kind_of_owner(obj: Object) -> str:
    """The kind of the job that owns the object."""
    return next(
        key
        for key, kind in _KINDS.items()
        if any(one.get("kind") == kind.kind and one.get("controller") for one in obj["metadata"]["ownerReferences"])
    )


def deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def type_of(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.REPLICA_TYPE, ""))


def replica(pod: Object) -> tuple[str, int]:
    return type_of(pod), int((pod["metadata"].get("labels") or {}).get(names.REPLICA_INDEX, 0))


def attempt(pod: Object) -> list[str]:
    return str((pod["metadata"].get("labels") or {}).get(names.ATTEMPT, "")).split(".")


def on_a_node(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) and phase(pod) not in ENDED


def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = all(one["status"] == "True" for one in conditions if one["type"] == "Ready")
    return ready and not (node.get("spec") or {}).get("unschedulable")


def cpus(node: Object) -> Decimal:
    return parse_quantity(str(((node.get("status") or {}).get("allocatable") or {}).get("cpu", "0")))


def pod_cpus(spec: ReplicaSpec) -> Decimal:
    return requested(spec.template.get("spec") or {})


def requested(spec: Mapping[str, Any]) -> Decimal:
    requests = (((one.get("resources") or {}).get("requests") or {}) for one in spec.get("containers") or ())
    return sum((parse_quantity(str(one.get("cpu", "0"))) for one in requests), Decimal(0))


def _condition(obj: Object, type_: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == type_ and one.get("status") == "True" for one in conditions)
