"""Pod workers: apply the decisions of pod_lifecycle to one pod after the other, write statuses, and assign GPUs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tf_dist.cluster.api import EVENTS, PODS, Cluster, Object, PatchType, has_ended, new_event
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.client.workqueue import WorkQueue
from tf_dist.cluster.kubelet.node import machine
from tf_dist.cluster.kubelet.node.node_runtime import NodeRuntime
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode, NodeSettings
from tf_dist.cluster.kubelet.node.runtime_client import RuntimeClient
from tf_dist.cluster.kubelet.pod.pod_lifecycle import decide
from tf_dist.cluster.kubelet.pod.pod_network import PodNetwork
from tf_dist.cluster.kubelet.pod.pod_state import PodState
from tf_dist.cluster.kubelet.pod.pod_status import DeletePod, PodDecision, PodStartError
from tf_dist.cluster.kubelet.pod.podspec import ContainerPlan
from tf_dist.cluster.kubelet.pod.readiness_probes import ReadinessProber
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound


class DeviceManager:
    """Assigns GPUs exclusively to the containers that request them."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = list(numbers)
        self._held: dict[str, dict[str, list[int]]] = {}

    def assign(self, uid: str, plans: Iterable[ContainerPlan]) -> Mapping[str, str] | None:
        """CUDA_VISIBLE_DEVICES by container; None when too few GPUs are free. Empty on a machine without GPUs."""
        wanted = {plan.name: plan.gpus for plan in plans if plan.gpus}
        if not self._numbers or not wanted:
            return {}
        if uid not in self._held:
            free = self._free()
            if sum(wanted.values()) > len(free):
                return None
            self._held[uid] = {name: [free.pop(0) for _ in range(count)] for name, count in wanted.items()}
        return {name: ",".join(map(str, numbers)) for name, numbers in self._held[uid].items()}

    def restore(self, uid: str, devices: Mapping[str, str]) -> None:
        """Record the GPUs of a pod that was already running."""
        self._held[uid] = {name: [int(item) for item in text.split(",")] for name, text in devices.items()}

    def release(self, uid: str) -> None:
        """Release a pod's GPUs."""
        self._held.pop(uid, None)

    def _free(self) -> list[int]:
        held = {number for pod in self._held.values() for numbers in pod.values() for number in numbers}
        return [number for number in self._numbers if number not in held]


_log = logging.getLogger(__name__)
_MAX_WARNINGS = 200
_RETRY = 1.0  # seconds until a failed write is retried


class StatusManager:
    """Writes changed statuses. A pod that has replaced the intended pod is not changed."""

    def __init__(self, cluster: Cluster, pods: UidInformer, node: str) -> None:
        self._cluster = cluster
        self._pods = pods
        self._node = node

    def show(self, pod: Object, status: Object) -> Object | None:
        """Write the status. Returns the new pod, or None when nothing changed; Conflict when ``pod`` is outdated."""
        before = pod.get("status") or {}
        if _without_empty(status) == _without_empty(before):
            return None
        metadata = pod["metadata"]
        body = {
            "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
            "status": {key: None for key in before if key not in status} | status,
        }
        written = self._cluster.patch(
            PODS, metadata["namespace"], metadata["name"], body, kind=PatchType.MERGE, subresource="status"
        )
        self._pods.put(written)
        return written if written["metadata"]["resourceVersion"] != metadata["resourceVersion"] else None

    def warn(self, pod: Object, problem: PodStartError, now: float) -> None:
        """Write an Event about the pod, once for each problem. A failed write is logged."""
        metadata = pod["metadata"]
        mark = hashlib.sha256(f"{metadata['uid']} {problem.reason} {problem.text}".encode()).hexdigest()[:16]
        body = new_event(
            PODS,
            pod,
            type="Warning",
            reason=problem.reason,
            message=problem.text[:1000],
            source={"component": "kubelet", "host": self._node},
            now=format_time(now),
        )
        body["metadata"] = {"name": f"{metadata['name'][:200]}.{mark}"}
        try:
            self._cluster.create(EVENTS, metadata["namespace"], body)
        except AlreadyExists:
            pass
        except ClusterError as error:
            _log.info("failed to record event: pod=%s/%s error=%s", metadata["namespace"], metadata["name"], error)

    def delete(self, namespace: str, name: str, uid: str) -> None:
        """Delete the pod object after its processes have ended."""
        self._cluster.delete(PODS, namespace, name, uid=uid, grace_period=0)


_EMPTY: tuple[Any, ...] = (None, "", {}, [])


def _without_empty(value: Any) -> Any:
    """A value without empty fields, because API servers add such fields (``lastProbeTime: null``) and drop others."""
    if isinstance(value, dict):
        said = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in said.items() if item not in _EMPTY}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


class PodWorker:
    """Syncs the pods of the node."""

    def __init__(
        self,
        cluster: Cluster,
        pods: UidInformer,
        services: UidInformer,
        supervisor: RuntimeClient,
        runtime: NodeRuntime,
        queue: WorkQueue[str],
        settings: NodeSettings,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._services = services
        self._supervisor = supervisor
        self._runtime = runtime
        self._queue = queue
        self._backoff = settings.backoff
        self._clock = clock
        self._writer = StatusManager(cluster, pods, settings.name)
        self._devices = DeviceManager(machine.gpu_indices())
        self._workloads: dict[str, PodState] = {}
        self._network = PodNetwork(supervisor)
        self._warned: set[str] = set()

    def restore(self) -> None:
        """Take over the running pods of a predecessor."""
        for uid in self._supervisor.uids():
            self._devices.restore(uid, (self._supervisor.record(uid) or {}).get("devices") or {})
            self._queue.add(uid)

    def on_runtime_restart(self, *, from_nothing: bool) -> None:
        """Queue all pods after the supervisor's end: no process is left (``from_nothing``: no logs or volumes)."""
        if from_nothing:
            self._workloads.clear()
        for workload in self._workloads.values():
            workload.home, workload.stopping = self._runtime.home, False
        for pod in self._pods.items():
            self._queue.add(pod["metadata"]["uid"])

    def update_hosts(self) -> None:
        """Update the names that pods resolve."""
        if self._runtime.network.mode == NetworkMode.ISOLATED:
            self._network.show(self._pods.items(), self._services.items(), self.workload)

    def sync(self, uid: str) -> None:
        """Sync one pod; a failed sync is retried later."""
        try:
            self._sync(uid)
        except (NotFound, Conflict):
            return  # the watch will report the change
        except ClusterError as error:
            _log.info("failed to sync pod, retrying: uid=%s error=%s", uid, error)
            self._queue.add(uid, _RETRY)
        except Exception:
            _log.exception("failed to sync pod: uid=%s", uid)
            self._queue.add(uid, 10 * _RETRY)

    def _sync(self, uid: str) -> None:
        pod = self._pods.by_uid(uid)
        if pod is None:
            self._forget(uid)
            return
        workload, now = self.workload(pod), self._clock()
        record = self._supervisor.record(uid)
        if _needs_plan(pod):
            self._prepare(workload, pod, now)
        facts = workload.facts(pod, record)
        decision = decide(pod, facts, now, self._backoff)
        pod = self._show(pod, decision.status)
        self._act(workload, pod, decision, now)
        self._warn(workload, pod, now)
        if workload.problem is not None and not workload.problem.permanent:
            self._queue.add(uid, max(workload.retry_at - now, 0.0))
        for at in (decision.wake_at, workload.probe(self._supervisor, pod, facts, now)):
            if at is not None:
                self._queue.add(uid, max(at - now, 0.0))

    def _warn(self, workload: PodState, pod: Object, now: float) -> None:
        """Warn about unsupported fields, and about a problem only when it is new, because it recurs every few
        seconds.
        """
        while workload.warnings:
            warning = workload.warnings.pop(0)
            self._writer.warn(pod, warning, now)
            if warning.text not in self._warned and len(self._warned) < _MAX_WARNINGS:
                self._warned.add(warning.text)  # logged once, even if many pods are alike
                _log.warning("%s", warning.text)
        if workload.problem is not None and workload.reported_problem != workload.problem.text:
            workload.reported_problem = workload.problem.text
            self._writer.warn(pod, workload.problem, now)

    def _act(self, workload: PodState, pod: Object, decision: PodDecision, now: float) -> None:
        for action in decision.actions:
            if isinstance(action, DeletePod):
                self._delete(workload)
                continue
            workload.order(action, self._supervisor, pod, now)
            if workload.problem is not None:
                self._queue.add(workload.uid)
                return

    def _prepare(self, workload: PodState, pod: Object, now: float) -> None:
        planned = workload.plans is not None
        workload.prepare(self._cluster, pod, now)
        if workload.plans is None:
            return
        if not planned:
            self.update_hosts()  # its peers are known now, and it resolves their names as soon as it runs
        devices = self._devices.assign(workload.uid, workload.plans.values())
        if devices is None:
            text = "too few free GPUs on this machine"
            workload.problem = PodStartError("UnexpectedAdmissionError", text, permanent=True)
        else:
            workload.devices = devices

    def _show(self, pod: Object, status: Object) -> Object:
        """Write the status if it changed. Returns the pod after that."""
        written = self._writer.show(pod, status)
        if written is None:
            return pod
        self._queue.add(pod["metadata"]["uid"])
        return written

    def _delete(self, workload: PodState) -> None:
        if workload.deleted:
            return
        self._writer.delete(workload.namespace, workload.name, workload.uid)
        workload.deleted = True
        workload.purge()

    def _forget(self, uid: str) -> None:
        """Remove everything of a pod whose object was deleted."""
        if self._supervisor.record(uid) is not None:
            self._supervisor.remove(uid)
            return
        workload = self._workloads.pop(uid, None)
        self._devices.release(uid)
        if workload is not None:
            workload.purge()

    def workload(self, pod: Object) -> PodState:
        """The state of a pod."""
        metadata = pod["metadata"]
        workload = self._workloads.get(metadata["uid"])
        if workload is None:
            workload = PodState(metadata["uid"], metadata["namespace"], metadata["name"], self._runtime.home)
            workload.ip = (
                "127.0.0.1" if self._runtime.network.mode == NetworkMode.SHARED else self._network.address(pod)
            )
            workload.readiness = ReadinessProber(lambda: self._queue.add(metadata["uid"]))
            self._workloads[metadata["uid"]] = workload
        return workload


def _needs_plan(pod: Object) -> bool:
    return not has_ended(pod) and not pod["metadata"].get("deletionTimestamp")
