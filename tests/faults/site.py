"""The cluster that drivers work on: its store, true time, the hands of kubelets and users, and what truly happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.driver.harness import START, running, tfjob
from tf_dist.cluster.api import NAMESPACES, NODES, PODS, RESOURCE_QUOTAS, TFJOBS, Object
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.cluster.memory.scheduler import Scheduler
from tf_dist.core import names
from tf_dist.core.dialects.shape import SERVICES_ANNOTATION
from tf_dist.core.status_codec import FIELD
from tf_dist.errors import AlreadyExists, ClusterError, NotFound

TEAM = "team"
OVER = ("Succeeded", "Failed")


@dataclass
class Truth:
    """What became of a job's pods, as the hands that did it know. ``bad``: pods that failed or were taken away."""

    bad: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)
    ended: tuple[str, str] | None = None


class Site:
    """One cluster with nodes of so many CPUs each. ``seconds`` is true time, which only goes forward."""

    def __init__(self, cpus: tuple[str, ...] = ("16",)) -> None:
        self.seconds = 0.0
        self.memory = MemoryCluster(clock=lambda: START + self.seconds)
        self.truth: dict[str, Truth] = defaultdict(Truth)
        self.disrupted: dict[str, set[str]] = defaultdict(set)
        self.limits: dict[str, int | None] = {}
        self.spoiled: dict[str, Object] = {}
        self.log: list[str] = []
        self._scheduler = Scheduler(self.memory)
        self._cpus = {f"n{number}": cpu for number, cpu in enumerate(cpus, start=1)}
        for node in self._cpus:
            self.restore_node(node)
        self.memory.create(NAMESPACES, None, {"metadata": {"name": TEAM}})

    # What is there

    def pods(self) -> list[Object]:
        return sorted(self.memory.list(PODS, TEAM).items, key=lambda pod: str(pod["metadata"]["name"]))

    def jobs(self) -> list[Object]:
        return self.memory.list(TFJOBS, TEAM).items

    def note(self, text: str) -> None:
        """Something happened: told when a rule is broken."""
        self.log.append(f"{self.seconds:6.1f} {text}")

    def pod(self, which: int) -> Object | None:
        pods = self.pods()
        return pods[which % len(pods)] if pods else None

    def again(self, pod: Object) -> Object:
        """The pod as it is now."""
        return self.memory.get(PODS, TEAM, name(pod))

    # Nodes

    def nodes(self) -> list[str]:
        return sorted(self._cpus)

    def restore_node(self, node: str) -> None:
        """The node is there, ready and schedulable, whatever befell it before."""
        with suppress(AlreadyExists):
            self.memory.create(NODES, None, {"metadata": {"name": node}})
        self.memory.patch(NODES, None, node, {"spec": {"unschedulable": None, "taints": None}})
        allocatable = {"cpu": self._cpus[node], "memory": "64Gi", "pods": "110"}
        self._set_node(node, {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]})

    def drain(self, node: str) -> None:
        """As ``kubectl drain`` does: the node takes no more pods, and those it has are evicted."""
        with suppress(NotFound):
            self.memory.patch(NODES, None, node, {"spec": {"unschedulable": True}})
            self.note(f"{node} is drained")
        for pod in self.pods():
            if node_of(pod) == node:
                self._disrupt(pod, "EvictionByEvictionAPI")

    def lose_node(self, node: str) -> None:
        """Its kubelet is silent, and the taint manager deletes its pods: they stay, because no kubelet stops them."""
        with suppress(NotFound):
            self._set_node(node, {"conditions": [{"type": "Ready", "status": "Unknown"}]})
            self.note(f"{node} is lost")
        for pod in self.pods():
            if node_of(pod) == node:
                self._disrupt(pod, "DeletionByTaintManager")

    def remove_node(self, node: str, *, for_good: bool) -> None:
        """The Node is deleted, and the pod garbage collector takes the pods that were on it."""
        if for_good:
            del self._cpus[node]
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
        self.disrupted[owner_uid(pod)].add(uid(pod))
        self.delete_pod(pod)

    def _silent(self, pod: Object) -> bool:
        """Whether no kubelet works for it."""
        with suppress(NotFound):
            conditions = self.memory.get(NODES, None, node_of(pod))["status"].get("conditions") or ()
            return any(one["type"] == "Ready" and one["status"] != "True" for one in conditions)
        return False

    def free(self) -> int:
        """How many more pods of one CPU have room. A job that goes on keeps the places of its failed pods."""
        kept = [pod for pod in self.pods() if phase(pod) not in OVER or self._keeps_place(pod)]
        return sum(int(cpu) for cpu in self._cpus.values()) - len(kept)

    def _keeps_place(self, pod: Object) -> bool:
        going_on = {uid(job) for job in self.jobs() if memory_of(job).get("phase") in ("Running", "Restarting")}
        return phase(pod) == "Failed" and owner_uid(pod) in going_on

    # The kubelet and the scheduler

    def run(self, pod: Object) -> None:
        """Start a pod that waits, if it has a node or there is one for it."""
        if not node_of(pod):
            self._scheduler.step()
            pod = self.again(pod)
        if node_of(pod) and not self._silent(pod) and phase(pod) == "Pending" and not deleting(pod):
            self._set_status(pod, running())

    def run_all(self) -> None:
        for pod in self.pods():
            self.run(pod)

    def end(self, pod: Object, code: int) -> None:
        """Its container exits."""
        if phase(pod) != "Running" or self._silent(pod):
            return
        self.note(f"{name(pod)} {label(pod, names.ATTEMPT)} ends with {code}{' deleting' if deleting(pod) else ''}")
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        status = {"phase": "Failed" if code else "Succeeded"}
        self._set_status(pod, {**status, "containerStatuses": [{"name": "tensorflow", "state": state}]})
        truth = self.truth[owner_uid(pod)]
        if deleting(pod):
            return
        if code:
            truth.bad.add(uid(pod))
            truth.failed.add(uid(pod))
        else:
            truth.succeeded.add(replica(pod))

    def bury(self) -> None:
        """Every pod that was asked to go has stopped."""
        for pod in self.pods():
            if deleting(pod) and not self._silent(pod):
                self.note(f"{name(pod)} {label(pod, names.ATTEMPT)} has stopped")
                self._remove(pod)

    def evict(self, pod: Object) -> None:
        """The pod is gone from one moment to the next."""
        self._taken(pod)
        self._remove(pod)

    def delete_pod(self, pod: Object) -> None:
        """Somebody deletes it, with its grace period."""
        self._taken(pod)
        with suppress(ClusterError):
            self.memory.delete(PODS, TEAM, name(pod))

    def _taken(self, pod: Object) -> None:
        self.note(f"{name(pod)} {label(pod, names.ATTEMPT)} is taken{' deleting' if deleting(pod) else ''}")
        if not deleting(pod):
            self.truth[owner_uid(pod)].bad.add(uid(pod))

    def _remove(self, pod: Object) -> None:
        with suppress(NotFound):
            self.memory.delete(PODS, TEAM, name(pod), grace_period=0)

    def _set_status(self, pod: Object, status: Object) -> None:
        self.memory.replace(PODS, TEAM, name(pod), {**pod, "status": status}, subresource="status")

    # Users

    def submit(self, called: str, *, policy: str, dynamic: bool, per_job: bool, **fields: Any) -> None:
        """Submit a job, unless one of that name is there or there is no place for it."""
        document = tfjob(called, **fields)
        document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
        document["metadata"]["namespace"] = TEAM
        document["spec"]["enableDynamicWorker"] = dynamic
        if per_job:
            document["metadata"]["annotations"] = {SERVICES_ANNOTATION: "per-job"}
        with suppress(ClusterError):
            stored = self.memory.create(TFJOBS, TEAM, document)
            self.limits[uid(stored)] = fields.get("backoffLimit")

    def patch_job(self, called: str, spec: Object) -> None:
        with suppress(NotFound):
            self.memory.patch(TFJOBS, TEAM, called, {"spec": spec})
            self.note(f"{called} becomes {spec}")

    def scale(self, called: str, workers: int) -> None:
        """Only an elastic job may be scaled."""
        with suppress(NotFound):
            if self.memory.get(TFJOBS, TEAM, called)["spec"].get("enableDynamicWorker"):
                self.patch_job(called, {"tfReplicaSpecs": {"Worker": {"replicas": workers}}})

    def delete_job(self, called: str) -> None:
        with suppress(NotFound):
            self.memory.delete(TFJOBS, TEAM, called)

    def spoil(self, called: str, how: Object) -> None:
        """Edit it into something that cannot be read, unless it is so already."""
        if called in self.spoiled:
            return
        with suppress(NotFound):
            self.memory.patch(TFJOBS, TEAM, called, how)
            self.spoiled[called] = how
            self.note(f"{called} is spoiled: {how}")

    def mend(self, called: str) -> None:
        """Take that edit back."""
        how = self.spoiled.pop(called, None)
        if how is not None:
            with suppress(NotFound):
                self.memory.patch(TFJOBS, TEAM, called, without_values(how))
                self.note(f"{called} is mended")

    def submit_unreadable(self, called: str, how: Object) -> None:
        """Submit a job that never was readable."""
        document = tfjob(called, workers=1, ps=0)
        document["metadata"]["namespace"] = TEAM
        with suppress(ClusterError):
            self.memory.create(TFJOBS, TEAM, merged(document, how))
            self.spoiled[called] = how
            self.note(f"{called} is submitted unreadable: {how}")

    def limit_pods(self, count: int | None) -> None:
        """A ResourceQuota of so many pods; None: there is none."""
        with suppress(ClusterError):
            self.memory.delete(RESOURCE_QUOTAS, TEAM, "pods")
        if count is not None:
            hard = {"pods": str(count)}
            quota: Object = {"metadata": {"name": "pods"}, "spec": {"hard": hard}}
            with suppress(ClusterError):
                self.memory.create(RESOURCE_QUOTAS, TEAM, quota)
        self.note(f"a quota of {count} pods")

    def delete_namespace(self) -> None:
        with suppress(ClusterError):
            self.memory.delete(NAMESPACES, None, TEAM)

    def make_namespace(self) -> None:
        """Make it again, if it is gone."""
        with suppress(ClusterError):
            self.memory.create(NAMESPACES, None, {"metadata": {"name": TEAM}})


def merged(document: Object, patch: Object) -> Object:
    """A document after a merge patch."""
    return {**document, **{k: merged(document.get(k) or {}, v) if isinstance(v, dict) else v for k, v in patch.items()}}


def without_values(patch: Object) -> Object:
    """The merge patch that takes back what another one has added."""
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


def owner_uid(pod: Object) -> str:
    return label(pod, names.JOB_UID)


def replica(pod: Object) -> str:
    return f"{label(pod, names.REPLICA_TYPE)}-{label(pod, names.REPLICA_INDEX)}"


def memory_of(job: Object) -> Object:
    """What a job remembers."""
    memory: Object = (job.get("status") or {}).get(FIELD) or {}
    return memory
