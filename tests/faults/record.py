"""What there is in a store, and what is true of it: kept from the writes of all clients.

``Record`` is the store's journal, so that no write escapes it. What is true of pods (which failed by themselves, which
were taken away, what succeeded) is derived from the writes of those who do not drive.
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
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.model.status import LIVE, NO_PODS, Phase, Status
from tf_dist.core.model.status_codec import load_status, stored_status
from tf_dist.core.reconciler.accepted_spec import StoredSpec, read_stored_spec

KEYS: Final = {TFJOBS: "tfjobs.kubeflow.org", VOLCANO_JOBS: "jobs.batch.volcano.sh"}
"""The kinds of jobs, as keys of the store have them."""
JOBS: Final = tuple(KEYS.values())
_KINDS: Final = {key: kind for kind, key in KEYS.items()}
LEASES: Final = "leases.coordination.k8s.io"
QUEUES: Final = "queues.tf-dist.dev"
OWNED: Final = ("pods", "services", "configmaps", "networkpolicies.networking.k8s.io")
ENDED: Final = ("Succeeded", "Failed")
TERMINAL: Final = (Phase.COMPLETED, Phase.FAILED, Phase.TERMINATED)


class Author(NamedTuple):
    """The author of a write: ``process``, as it calls itself in Leases ("": a user, a kubelet, Kubernetes itself).

    ``leases``: it leads by Leases; ``kinds``: the kinds of jobs that it believes to lead; ``late``: it sent the request
    long ago; ``sees_nodes``: it knows how much is free; ``unserved``: kinds that it was told are not served."""

    process: str = ""
    leases: bool = False
    kinds: frozenset[str] = frozenset(JOBS)
    late: bool = False
    sees_nodes: bool = False
    unserved: frozenset[str] = frozenset()


HANDS: Final = Author()


@dataclass
class Truth:
    """What became of a job's pods: ``failed`` by themselves, ``taken`` away; which replicas ``succeeded``, which were
    ever ``ready``."""

    failed: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    succeeded: set[tuple[str, int]] = field(default_factory=set)
    ready: set[tuple[str, int]] = field(default_factory=set)
    ended: tuple[str, str] | None = None


class Record:
    """Follows one store. ``now``: true seconds since the epoch; ``author``: whose write is being made."""

    def __init__(self, now: Callable[[], float], author: Callable[[], Author]) -> None:
        self.objects: dict[Key, Object] = {}
        self.truth: dict[str, Truth] = defaultdict(Truth)
        self.now = now
        self.written: dict[Key, float] = {}
        self._lease_deleted: dict[Key, float] = {}  # when a person did
        self.restored = float("-inf")  # when the store was set back
        self._author = author
        self._read: dict[str, tuple[object, Object, StoredSpec]] = {}

    # A journal

    def load(self) -> tuple[int, Iterable[tuple[Key, Object]]]:
        """What there is: nothing in the beginning, and what was saved after a restoration."""
        version = max((int(obj["metadata"]["resourceVersion"]) for obj in self.objects.values()), default=0)
        return version, list(self.objects.items())

    def saved(self) -> Mapping[str, Truth]:
        """What is true now, for ``restore``."""
        return copy.deepcopy(dict(self.truth))

    def restore(self, objects: Mapping[Key, Object], saved: Mapping[str, Truth]) -> None:
        """The store has been set back to this. What was written since did happen all the same: no process has renewed
        a Lease since it was renewed last, whatever the store says of that."""
        gone, self.objects = self.objects, dict(objects)
        before, self.truth = self.truth, defaultdict(Truth, copy.deepcopy(dict(saved)))
        for job, truth in before.items():  # what the store has forgotten did happen: a controller may still say so
            self.truth[job].failed |= truth.failed
            self.truth[job].taken |= truth.taken
            self.truth[job].succeeded |= truth.succeeded
        # A controller that knew a pod misses it; so does one that knew of its end, and reads a job that still had it.
        there, back = ({uid(obj): obj for key, obj in one.items() if key.kind == "pods"} for one in (gone, objects))
        for one in there.keys() ^ back.keys():
            self.truth[owner((there | back)[one])].taken.add(one)
        self._read.clear()
        self.restored = self.now()

    def write(self, key: Key, version: int, obj: Object | None) -> None:
        """A write, just before any client sees it."""
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
        """For those who judge it; ``objects`` are as they were before."""

    def close(self) -> None:
        """Nothing to let go of."""

    # What there is

    def of(self, *kinds: str) -> Iterator[tuple[Key, Object]]:
        """All objects of some kinds."""
        return ((key, obj) for key, obj in list(self.objects.items()) if key.kind in kinds)

    def pods_of(self, uid: str) -> list[Object]:
        """The pods that a job controls."""
        return [pod for _, pod in self.of("pods") if owner(pod) == uid]

    def job(self, stored: Object) -> Job | None:
        """What a stored job asks for; the last spec that could be read, if the present one cannot."""
        status = self.memory(stored)
        version = stored["metadata"].get("generation"), stored["metadata"].get("annotations"), status.accepted_spec
        known = self._read.get(uid(stored))
        if known is None or known[0] != version:
            # A controller that was away when the spec was edited does not know what was accepted: its status says so.
            previous = None if known is None or status.refused_spec is not None else known[1:]
            known = self._read[uid(stored)] = version, stored, read_stored_spec(stored, status, previous)
        return known[2].job

    def forgotten(self, stored: Object) -> bool:
        """Whether a controller that was away when a job's spec was edited cannot know what the job asks for."""
        return read_stored_spec(stored, self.memory(stored), None).job is None

    def memory(self, stored: Object) -> Status:
        """What a stored job remembers."""
        return load_status(stored_status(stored))

    def leaders(self, kind: str, namespace: str) -> list[str]:
        """The processes whose Leases give them the jobs of a kind (a key of the store) in a namespace now."""
        found = []
        for scope in (None, namespace):
            key = Key(LEASES, *leader_lease(_KINDS[kind], scope))
            record = LeaseRecord.of(self.objects.get(key) or {})
            if record.holder and self.now() - self.written.get(key, float("-inf")) <= record.duration:
                found.append(record.holder)
        return found

    def excused(self, kind: str, namespace: str) -> bool:
        """Whether a person has deleted a Lease lately whose holder may be sure of it yet."""
        refs = (leader_lease(_KINDS[kind], scope) for scope in (None, namespace))
        since = max(self._lease_deleted.get(Key(LEASES, *ref), float("-inf")) for ref in refs)
        return self.now() - since <= LEASE_DURATION

    # What is true of pods

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
        """No client sees its pods any more."""
        for _, pod in self.of("pods"):
            if pod["spec"].get("nodeName") == node and owner(pod):
                self.truth[owner(pod)].taken.add(uid(pod))

    # What is taken, and what there may be

    def holds(self, stored: Object) -> Decimal:
        """The CPUs of the place that a job was given by tf-dist, without the replicas that are done."""
        return sum((count * cpu for count, cpu in self.parts(stored)), Decimal(0))

    def wanted(self, stored: Object) -> int:
        return sum(count for count, _ in self.parts(stored))

    def to_come(self, stored: Object) -> Iterator[tuple[str, Decimal]]:
        """The pods of a job's place that have no node yet: the one where each is to be ("": anywhere), and its CPUs."""
        place, pods = self.memory(stored).admission, self.pods_of(uid(stored))
        for spec, count in self._parts(stored):
            there = Counter(pod["spec"]["nodeName"] for pod in pods if type_of(pod) == spec.type and on_a_node(pod))
            nodes = Counter(place.placement.get(spec.type, {}) if place is not None else {}) - there
            named = [*nodes.elements()][: max(0, count - there.total())]
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
            # That a replica is done shows in its pod before it is in the status.
            known = {(one.type, one.index) for one in memory.succeeded} | self.truth[uid(stored)].succeeded
            done = sum(1 for type_, _ in known if type_ == spec.type)
            if not policy_may_restart(job, spec):
                done += memory.counts.get(spec.type, NO_PODS).failed
            yield spec, max(0, place.admitted_sizes.get(spec.type, spec.replicas) - done)

    def on_nodes(self, stored: Object, *, again: bool) -> dict[str, Decimal]:
        """The CPUs of each node that a job surely holds there: its pods, and those still to come.

        ``again``: with the replicas that were done, and run again since the job has started anew.
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
            # Which node is empty is not written down, and the controller does not know it either (see schedule 3189).
            to_come = (
                max(0, place.admitted_sizes.get(spec.type, spec.replicas) - over - there.total()) if not over else 0
            )
            for node, count in place.placement.get(spec.type, {}).items():
                found[node] = found.get(node, Decimal(0)) + min(count, there[node] + to_come) * pod_cpus(spec)
        return found

    def queue_of(self, stored: Object) -> str:
        """The queue that a job is in."""
        job = self.job(stored)
        return (job.scheduling.queue if job is not None else "") or "default"

    def open_to(self, stored: Object) -> bool:
        """Whether the queue that a job names is there, and of its own: what several share is not reckoned here."""
        queue = self.queue_of(stored)
        documents = [(key.name, obj.get("spec") or {}) for key, obj in self.of(QUEUES)]
        shared = any(queue in (called, spec.get("parent")) and spec.get("parent") for called, spec in documents)
        return (queue == "default" or any(called == queue for called, _ in documents)) and not shared

    def nominal(self, queue: str) -> Decimal | None:
        """The CPUs of a queue that shares with no other; None: there is no limit that is so simple."""
        found = next((obj for key, obj in self.of(QUEUES) if key.name == queue), None)
        spec = (found or {}).get("spec") or {}
        said = ((spec.get("quotas") or {}).get("cpu") or {}).get("nominal")
        shared = spec.get("parent") or any((one.get("spec") or {}).get("parent") == queue for _, one in self.of(QUEUES))
        return None if said is None or shared else parse_quantity(str(said))

    def most(self, what: str, namespace: str) -> int | None:
        """How much of something (``pods``, ``requests.cpu``) the ResourceQuotas of a namespace allow."""
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
    """The uid of the job that controls it; "": none does."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next(
        (str(one["uid"]) for one in owners if one.get("controller") and one.get("kind") in ("TFJob", "Job")), ""
    )


def kind_of_owner(obj: Object) -> str:
    """The kind of the job that controls it."""
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
