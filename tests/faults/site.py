"""The cluster of the controllers: its store, kubelets, scheduler and users, and a record of what happened."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, NamedTuple

from tests.controller.harness import START, running
from tests.faults.documents import TEAM, Shape, queue
from tests.faults.invariants import Invariants
from tests.faults.record import HANDS
from tests.faults.record import owner as owner_uid
from tests.faults.simulation import Simulation
from tf_dist.cluster.api import (
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_QUOTAS,
    TFJOBS,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from tf_dist.cluster.apiserver.scheduler import Scheduler
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.cluster.lease import LeaseRef
from tf_dist.core.model import names
from tf_dist.core.model.status_codec import FIELD
from tf_dist.errors import AlreadyExists, ClusterError, NotFound

OVER = ("Succeeded", "Failed")
PRIORITIES = {"low": -10, "high": 100}
# The maximum number of failed pods of a job. A program that always failed would never end.
_MOST_FAILURES = 3


class Backup(NamedTuple):
    """A backup of etcd, and the truth at its time."""

    version: int
    objects: dict[str, dict[str, dict[str, Object]]]
    uids: dict[str, Any]
    dependents: dict[str, dict[Any, None]]
    truth: Any


class Site:
    """A cluster with a node for each number of CPUs. Kubelets start and stop pods, whose programs end by themselves.

    ``slow`` is the maximum number of seconds that a kubelet takes to start or stop a pod. ``failing`` is the
    probability that a program fails. ``longest`` is the maximum number of seconds for which it runs.
    """

    def __init__(
        self,
        simulation: Simulation,
        cpus: tuple[int, ...],
        *,
        seed: int = 0,
        slow: float = 2.0,
        failing: float = 0.15,
        longest: float = 60.0,
    ) -> None:
        self.simulation = simulation
        uids = count(1)
        self.author = HANDS
        self.invariants = Invariants(self.now, lambda: self.author)
        self.memory = MemoryCluster(
            clock=self.now,
            uids=lambda: f"{next(uids):08x}-0000-4000-8000-000000000000",
            journal=self.invariants,
        )
        self.shapes: dict[str, Shape] = {}
        self.spoiled: dict[str, Object] = {}
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._slow = slow
        self._failing = failing
        self._longest = longest
        self._due: dict[str, float] = {}
        self._scheduler = Scheduler(self.memory)
        self.cpus = {f"n{number}": cpu for number, cpu in enumerate(cpus, start=1)}
        for node in self.cpus:
            self.restore_node(node)
        self.make_namespace()
        for called, value in PRIORITIES.items():
            self.memory.create(PRIORITY_CLASSES, None, {"metadata": {"name": called}, "value": value})
        simulation.every(1.0, self.tick)

    # Stored objects

    def now(self) -> float:
        """True seconds since the epoch."""
        return START + self.simulation.now

    def pods(self) -> list[Object]:
        return sorted(self.memory.list(PODS, TEAM).items, key=lambda pod: str(pod["metadata"]["name"]))

    def jobs(self) -> list[Object]:
        return [*self.memory.list(TFJOBS, TEAM).items, *self.memory.list(VOLCANO_JOBS, TEAM).items]

    def job(self, called: str) -> tuple[Resource, Object] | None:
        for kind in (TFJOBS, VOLCANO_JOBS):
            with suppress(NotFound):
                return kind, self.memory.get(kind, TEAM, called)
        return None

    def note(self, text: str) -> None:
        """Log an event. The log is shown when a rule is violated."""
        self.log.append(f"{self.simulation.now:8.2f} {text}")

    def pod(self, which: int) -> Object | None:
        pods = self.pods()
        return pods[which % len(pods)] if pods else None

    def again(self, pod: Object) -> Object:
        """The current version of the pod."""
        return self.memory.get(PODS, TEAM, name(pod))

    # Nodes

    def nodes(self) -> list[str]:
        return sorted(self.cpus)

    def restore_node(self, node: str) -> None:
        """Make the node exist, ready and schedulable, after any fault."""
        with suppress(AlreadyExists):
            self.memory.create(NODES, None, {"metadata": {"name": node}})
        self.memory.patch(NODES, None, node, {"spec": {"unschedulable": None, "taints": None}})
        allocatable = {"cpu": str(self.cpus[node]), "memory": "64Gi", "pods": "110"}
        self._set_node(node, {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]})

    def close_node(self, node: str) -> None:
        """Cordon the node. Its pods stay."""
        with suppress(NotFound):
            self.memory.patch(NODES, None, node, {"spec": {"unschedulable": True}})
            self.note(f"{node} is closed")

    def drain(self, node: str) -> None:
        """Cordon the node and evict its pods, as ``kubectl drain`` does."""
        self.note(f"{node} is drained")
        self.close_node(node)
        for pod in self.pods():
            if node_of(pod) == node and phase(pod) not in OVER:
                self._disrupt(pod, "EvictionByEvictionAPI")

    def lose_node(self, node: str, *, taint: bool = True) -> None:
        """Silence the kubelet. With ``taint``, delete the pods, which remain because no kubelet stops them."""
        with suppress(NotFound):
            self._set_node(node, {"conditions": [{"type": "Ready", "status": "Unknown"}]})
            self.note(f"{node} is lost")
        for pod in self.pods() if taint else ():
            if node_of(pod) == node and phase(pod) not in OVER:
                self._disrupt(pod, "DeletionByTaintManager")

    def remove_node(self, node: str, *, for_good: bool) -> None:
        """Delete the Node. The pod garbage collector deletes its pods."""
        if for_good:
            del self.cpus[node]
        with suppress(NotFound):
            self.memory.delete(NODES, None, node)
            self.note(f"{node} is removed")
        for pod in self.pods():
            if node_of(pod) == node:
                self._taken(pod)
                self._remove(pod)

    def _set_node(self, node: str, status: Object) -> None:
        stored = self.memory.get(NODES, None, node)
        merged = {**(stored.get("status") or {}), **status}
        self.memory.replace(NODES, None, node, {**stored, "status": merged}, subresource="status")

    def _disrupt(self, pod: Object, reason: str) -> None:
        target = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        status = {**(pod.get("status") or {})}
        status["conditions"] = [*(status.get("conditions") or ()), target]
        self.memory.replace(PODS, TEAM, name(pod), {**pod, "status": status}, subresource="status")
        self.delete_pod(pod)

    def _unready(self, node: Object) -> bool:
        conditions = (node.get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Ready" and one["status"] != "True" for one in conditions)

    def _silent(self, pod: Object) -> bool:
        """Whether the kubelet of the pod is silent."""
        with suppress(NotFound):
            return self._unready(self.memory.get(NODES, None, node_of(pod)))
        return False

    # The kubelet and the scheduler

    def tick(self) -> None:
        """Run the kubelets and the cluster's scheduler, once a second."""
        self._scheduler.step()
        for pod in self.memory.list(PODS, TEAM).items:
            if node_of(pod) and self._silent(pod):
                continue
            if deleting(pod):
                self._when(pod, "stops", self._stopping, self._stop)
            elif phase(pod) == "Pending" and node_of(pod):
                self._when(pod, "starts", self._starting, self.run)
            elif phase(pod) == "Running":
                self._when(pod, "ends", self._running_for, self._end)

    def _when(
        self, pod: Object, what: str, seconds: Callable[[Object], float], act: Callable[[Object], object]
    ) -> None:
        key, now = f"{uid(pod)} {what}", self.simulation.now
        if key not in self._due:
            self._due[key] = now + seconds(pod)
        if now >= self._due[key]:
            act(pod)

    def _dice(self, pod: Object, what: str) -> Random:
        """The random choices for a pod, which do not depend on other pods."""
        return Random(f"{self._seed} {what} {name(pod)} {label(pod, names.ATTEMPT)}")

    def _starting(self, pod: Object) -> float:
        return self._dice(pod, "starts").uniform(0, self._slow)

    def _stopping(self, pod: Object) -> float:
        return self._dice(pod, "stops").uniform(0, self._slow)

    def _running_for(self, pod: Object) -> float:
        if label(pod, names.REPLICA_TYPE) == "ps":
            return 1e9
        return self._dice(pod, "runs").uniform(1.0, self._longest)

    def _stop(self, pod: Object) -> None:
        """Stop the pod after its grace period. Half of the programs exit with 0, which is visible for a moment."""
        if phase(pod) == "Running" and self._dice(pod, "stops politely").random() < 0.5:
            self.end(pod, 0)
        else:
            self._remove(pod)

    def _end(self, pod: Object) -> None:
        dice, truth = self._dice(pod, "ends"), self.invariants.truth[owner_uid(pod)]
        fails = dice.random() < self._failing and len(truth.failed) < _MOST_FAILURES
        self.end(pod, dice.choice((1, 137, 137, 139)) if fails else 0)

    def run(self, pod: Object) -> None:
        """Start a pending pod, if it has a node or the scheduler finds a node."""
        if not node_of(pod):
            self._scheduler.step()
            pod = self.again(pod)
        if node_of(pod) and not self._silent(pod) and phase(pod) == "Pending" and not deleting(pod):
            self._set_status(pod, running())

    def end(self, pod: Object, code: int) -> None:
        """End the container of a pod."""
        if phase(pod) != "Running" or self._silent(pod):
            return
        self.note(f"{name(pod)} {label(pod, names.ATTEMPT)} ends with {code}{' deleting' if deleting(pod) else ''}")
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        status = {"phase": "Failed" if code else "Succeeded"}
        self._set_status(pod, {**status, "containerStatuses": [{"name": "tensorflow", "state": state}]})

    def evict(self, pod: Object) -> None:
        """Remove a pod immediately."""
        self._taken(pod)
        self._remove(pod)

    def delete_pod(self, pod: Object) -> None:
        """Delete a pod with its grace period, as a user does."""
        self._taken(pod)
        with suppress(ClusterError):
            self.memory.delete(PODS, TEAM, name(pod))

    def _taken(self, pod: Object) -> None:
        self.note(f"{name(pod)} {label(pod, names.ATTEMPT)} is taken{' deleting' if deleting(pod) else ''}")

    def _remove(self, pod: Object) -> None:
        with suppress(NotFound):
            self.memory.delete(PODS, TEAM, name(pod), grace_period=0)

    def _set_status(self, pod: Object, status: Object) -> None:
        self.memory.replace(PODS, TEAM, name(pod), {**pod, "status": status}, subresource="status")

    # Users

    def submit(self, called: str, shape: Shape) -> None:
        """Submit a job, unless a job of that name exists or the server refuses it."""
        if self.job(called) is not None:
            return
        with suppress(ClusterError):
            stored = self.memory.create(shape.resource, TEAM, shape.document(called))
            self.shapes[uid(stored)] = shape
            self.note(f"{called} is submitted: {shape}")
            self.counts["jobs"] += 1
            self.counts[shape.dialect] += 1

    def patch_job(self, called: str, patch: Object) -> None:
        found = self.job(called)
        if found is not None:
            with suppress(ClusterError):
                self.memory.patch(found[0], TEAM, called, patch)
                self.note(f"{called} becomes {patch}")

    def suspend(self, called: str, wish: bool) -> None:
        """Suspend or resume a job."""
        self.patch_job(called, {"metadata": {"annotations": {names.SUSPEND: "true" if wish else None}}})

    def suspended(self, job: Object) -> bool:
        return bool((job["metadata"].get("annotations") or {}).get(names.SUSPEND))

    def scale(self, called: str, workers: int) -> None:
        """Scale a job, if it is an elastic v1 job."""
        found = self.job(called)
        if found is not None and found[1]["spec"].get("enableDynamicWorker"):
            self.patch_job(called, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": workers}}}})

    def delete_job(self, called: str) -> None:
        found = self.job(called)
        if found is not None:
            with suppress(NotFound):
                self.memory.delete(found[0], TEAM, called)
                self.note(f"{called} is deleted")

    def spoil(self, called: str, how: Object) -> None:
        """Make the document of a job invalid, unless it is already."""
        found = self.job(called)
        if called in self.spoiled or found is None or found[1]["apiVersion"] != TFJOBS.api_version:
            return
        self.memory.patch(TFJOBS, TEAM, called, how)
        self.spoiled[called] = how
        self.note(f"{called} is spoiled: {how}")

    def mend(self, called: str) -> None:
        """Revert the edit that made the document invalid."""
        how = self.spoiled.pop(called, None)
        if how is not None:
            with suppress(NotFound):
                self.memory.patch(TFJOBS, TEAM, called, without_values(how))
                self.note(f"{called} is mended")

    def limit(self, **hard: int) -> None:
        """Set the ResourceQuota of the namespace. Without arguments, delete it."""
        with suppress(ClusterError):
            self.memory.delete(RESOURCE_QUOTAS, TEAM, "team")
        if hard:
            quota: Object = {
                "metadata": {"name": "team"},
                "spec": {"hard": {key: str(value) for key, value in hard.items()}},
            }
            with suppress(ClusterError):
                self.memory.create(RESOURCE_QUOTAS, TEAM, quota)
        self.note(f"a quota of {hard or 'nothing'}")

    def set_queue(self, called: str, cpu: int, **fields: Any) -> None:
        """Create a queue, or change its quota."""
        document = queue(called, cpu, **fields)
        try:
            self.memory.create(QUEUES, None, document)
        except AlreadyExists:
            self.memory.patch(QUEUES, None, called, {"spec": document["spec"]})
        self.note(f"queue {called} has {document['spec']}")

    def delete_namespace(self) -> None:
        with suppress(ClusterError):
            self.memory.delete(NAMESPACES, None, TEAM)
            self.note("the namespace is deleted")

    def make_namespace(self) -> None:
        """Create the namespace, if it does not exist."""
        with suppress(ClusterError):
            self.memory.create(NAMESPACES, None, {"metadata": {"name": TEAM}})

    def delete_lease(self, ref: LeaseRef) -> None:
        """Delete a Lease. Its holder still considers itself the leader for a while."""
        with suppress(NotFound):
            self.memory.delete(LEASES, *ref)
            self.note(f"Lease {ref} is deleted")
            self.counts["leases deleted"] += 1

    def has_namespace(self) -> bool:
        with suppress(NotFound):
            return not deleting(self.memory.get(NAMESPACES, None, TEAM))
        return False

    # Backups

    def backup(self) -> Backup:
        """A backup of etcd and of the truth. Stored objects are never changed in place."""
        store = self.memory._store
        objects = {
            kind: {space: dict(found) for space, found in spaces.items()} for kind, spaces in store._objects.items()
        }
        dependents = {owner: dict(keys) for owner, keys in store._dependents.items()}
        truth = copy.deepcopy(self.spoiled), self.invariants.saved()
        return Backup(store.version, objects, dict(store._by_uid), dependents, truth)

    def restore(self, backup: Backup) -> None:
        """Restore etcd, including its versions. All watches end."""
        store = self.memory._store
        for kind in tuple(store._feeds):
            store.hang_up(kind)
        kept = copy.deepcopy(backup)
        store._objects, store._by_uid, store._dependents = kept.objects, kept.uids, kept.dependents
        store._sorted.clear()
        store.version = backup.version
        store.compact()
        self.spoiled, known = kept.truth
        there = {
            Key(kind, space, name_): obj
            for kind, spaces in kept.objects.items()
            for space, found in spaces.items()
            for name_, obj in found.items()
        }
        self.invariants.restore(there, known)
        self.note(f"etcd is restored to version {backup.version}")
        for node in self.memory.list(NODES).items:
            if name(node) not in self.cpus:
                self.remove_node(name(node), for_good=False)
        self.counts["etcd restored"] += 1


def without_values(patch: Object) -> Object:
    """The merge patch that reverts the additions of another patch."""
    return {key: without_values(value) if isinstance(value, dict) else None for key, value in patch.items()}


def name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName") or "")


def deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def alive(pods: list[Object]) -> Iterator[Object]:
    """The pods that have not ended."""
    return (pod for pod in pods if phase(pod) not in OVER)


def label(pod: Object, key: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(key, ""))


def memory_of(job: Object) -> Object:
    """The memory of a job."""
    memory: Object = (job.get("status") or {}).get(FIELD) or {}
    return memory
