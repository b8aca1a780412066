"""One pod after the other, driven to what it should be: looks, lets ``decide`` decide, acts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from tf_dist.cluster.api import Cluster, Object
from tf_dist.cluster.node import machine
from tf_dist.cluster.node.client import Supervisor
from tf_dist.cluster.node.devices import Devices
from tf_dist.cluster.node.facts import Decision, DeleteObject
from tf_dist.cluster.node.house import House
from tf_dist.cluster.node.lifecycle import OVER, decide
from tf_dist.cluster.node.mirror import Mirror
from tf_dist.cluster.node.neighbours import Neighbours
from tf_dist.cluster.node.podwrites import PodWriter
from tf_dist.cluster.node.probes import Readiness
from tf_dist.cluster.node.problems import PodProblem
from tf_dist.cluster.node.settings import NetworkMode, NodeSettings
from tf_dist.cluster.node.work import Bell
from tf_dist.cluster.node.workload import Workload
from tf_dist.errors import ClusterError, Conflict, NotFound

_log = logging.getLogger(__name__)
_MOST_WARNINGS = 200
_RETRY = 1.0  # seconds until a refused write is tried again


class PodKeeper:
    """Knows the workload of every pod of the node. ``leaving``: the node is ending, and its pods with it."""

    def __init__(
        self,
        cluster: Cluster,
        pods: Mirror,
        supervisor: Supervisor,
        house: House,
        bell: Bell,
        settings: NodeSettings,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._supervisor = supervisor
        self._house = house
        self._bell = bell
        self._backoff = settings.backoff
        self._clock = clock
        self._writer = PodWriter(cluster, pods, settings.name)
        self._devices = Devices(machine.gpus())
        self._workloads: dict[str, Workload] = {}
        self.neighbours = Neighbours(supervisor)
        self.leaving = False
        self._warned: set[str] = set()

    def restore(self) -> None:
        """Take over what a predecessor left running."""
        for uid in self._supervisor.uids():
            self._devices.restore(uid, (self._supervisor.record(uid) or {}).get("devices") or {})
            self._bell.ring(uid)

    def rehouse(self, *, from_nothing: bool) -> None:
        """After the supervisor's end: all processes are gone (``from_nothing``: logs and volumes, too)."""
        if from_nothing:
            self._workloads.clear()
        for workload in self._workloads.values():
            workload.home, workload.stopping = self._house.home, False
        for pod in self._pods.all():
            self._bell.ring(pod["metadata"]["uid"])

    def vacated(self) -> bool:
        """Whether nothing runs, and every pod's status says so."""
        return all(is_over(pod) for pod in self._pods.all()) and not self._supervisor.uids()

    def sync(self, uid: str) -> None:
        """Look at one pod and do what there is to do; what fails is tried again later."""
        try:
            self._sync(uid)
        except (NotFound, Conflict):
            return  # the watch will tell
        except ClusterError as error:
            _log.info("pod %s: %s; trying again", uid, error)
            self._bell.ring_in(uid, _RETRY)
        except Exception:
            _log.exception("pod %s", uid)
            self._bell.ring_in(uid, 10 * _RETRY)

    def _sync(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            self._forget(uid)
            return
        workload, now = self.workload(pod), self._clock()
        record = self._supervisor.record(uid)
        if _wants_plan(pod) and not self.leaving:
            self._prepare(workload, pod, now)
        facts = replace(workload.facts(pod, record), leaving=self.leaving)
        decision = decide(pod, facts, now, self._backoff)
        pod = self._show(pod, decision.status)
        self._act(workload, pod, decision, now)
        self._warn(workload, pod, now)
        if workload.problem is not None and not workload.problem.permanent:
            self._bell.ring_in(uid, max(workload.retry_at - now, 0.0))
        for at in (decision.wake_at, workload.probe(self._supervisor, pod, facts, now)):
            if at is not None:
                self._bell.ring_in(uid, max(at - now, 0.0))

    def _warn(self, workload: Workload, pod: Object, now: float) -> None:
        """Tell of what is left out, and of a problem when it is a new one: it comes up again every few seconds."""
        while workload.notes:
            note = workload.notes.pop(0)
            self._writer.warn(pod, note, now)
            if note.text not in self._warned and len(self._warned) < _MOST_WARNINGS:
                self._warned.add(note.text)  # the log has it once, however many pods are alike
                _log.warning("%s", note.text)
        if workload.problem is not None and workload.told != workload.problem.text:
            workload.told = workload.problem.text
            self._writer.warn(pod, workload.problem, now)

    def _act(self, workload: Workload, pod: Object, decision: Decision, now: float) -> None:
        for action in decision.actions:
            if isinstance(action, DeleteObject):
                self._delete(workload)
                continue
            workload.order(action, self._supervisor, pod, now)
            if workload.problem is not None:
                self._bell.ring(workload.uid)
                return

    def _prepare(self, workload: Workload, pod: Object, now: float) -> None:
        workload.prepare(self._cluster, pod, now)
        if workload.plans is None:
            return
        devices = self._devices.assign(workload.uid, workload.plans.values())
        if devices is None:
            text = "too few free GPUs on this machine"
            workload.problem = PodProblem("UnexpectedAdmissionError", text, permanent=True)
        else:
            workload.devices = devices

    def _show(self, pod: Object, status: Object) -> Object:
        """Write the status if it says something new; the pod as it is then."""
        written = self._writer.show(pod, status)
        if written is None:
            return pod
        self._bell.ring(pod["metadata"]["uid"])
        return written

    def _delete(self, workload: Workload) -> None:
        if workload.deleted:
            return
        self._writer.delete(workload.namespace, workload.name, workload.uid)
        workload.deleted = True
        workload.purge()

    def _forget(self, uid: str) -> None:
        """A pod whose object is gone: nothing of it may stay."""
        if self._supervisor.record(uid) is not None:
            self._supervisor.remove(uid)
            return
        workload = self._workloads.pop(uid, None)
        self._devices.release(uid)
        if workload is not None:
            workload.purge()

    def workload(self, pod: Object) -> Workload:
        """What is remembered of a pod."""
        metadata = pod["metadata"]
        workload = self._workloads.get(metadata["uid"])
        if workload is None:
            workload = Workload(metadata["uid"], metadata["namespace"], metadata["name"], self._house.home)
            workload.ip = (
                "127.0.0.1" if self._house.network.mode == NetworkMode.SHARED else self.neighbours.address(pod)
            )
            workload.readiness = Readiness(lambda: self._bell.ring(metadata["uid"]))
            self._workloads[metadata["uid"]] = workload
        return workload


def is_over(pod: Object) -> bool:
    """Whether the pod has ended for good."""
    return (pod.get("status") or {}).get("phase") in OVER


def _wants_plan(pod: Object) -> bool:
    return not is_over(pod) and not pod["metadata"].get("deletionTimestamp")
