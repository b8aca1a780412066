"""The Kubelet: watches the pods of its node, syncs each pod, maintains its Node, and reads container logs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tf_dist.cluster.api import ALL_LINES, NODES, PODS, SERVICES, Cluster, LogOptions, Object, Stream
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.client.workqueue import WorkQueue
from tf_dist.cluster.concurrency import Service
from tf_dist.cluster.kubelet.node import machine
from tf_dist.cluster.kubelet.node.node_runtime import NodeRuntime
from tf_dist.cluster.kubelet.node.node_settings import NetworkDescription, NetworkMode, NodeSettings
from tf_dist.cluster.kubelet.node.registration import NodeRegistration
from tf_dist.cluster.kubelet.node.runtime_client import RuntimeClient
from tf_dist.cluster.kubelet.pod.container_logs import ContainerLogStream
from tf_dist.cluster.kubelet.pod.pod_state import PodState
from tf_dist.cluster.kubelet.pod.pod_worker import PodWorker
from tf_dist.core.model.timestamps import parse_time
from tf_dist.errors import ClusterError, NotFound, Rejected


def open_container_log(
    pod: Object, workload: PodState, supervisor: RuntimeClient, options: LogOptions, now: float
) -> ContainerLogStream:
    """The log of the current (or previous) instance of the named container; Rejected when there is none."""
    name = options.container
    attempt = _latest_attempt(pod, workload, supervisor, name)
    if options.previous:
        attempt = -1 if attempt is None else attempt - 1
    path = workload.log(name, attempt if attempt is not None else 0)
    if attempt is None or (not path.exists() and not _alive(workload, supervisor, name, attempt)):
        raise Rejected(_no_log_message(pod, name, options.previous))
    since = 0.0 if options.since_seconds is None else now - options.since_seconds
    since = parse_time(options.since_time) or since
    shown = replace(options, follow=options.follow and not options.previous)
    return ContainerLogStream(path, shown, lambda: _alive(workload, supervisor, name, attempt), since=since)


def _latest_attempt(pod: Object, workload: PodState, supervisor: RuntimeClient, name: str) -> int | None:
    record = supervisor.record(workload.uid)
    for item in record["containers"] if record else ():
        if item["name"] == name:
            return int(item["attempt"])
    status = _container_status(pod, name)
    known = status.get("containerID") or status.get("restartCount")
    return int(status["restartCount"]) if known else None


def _alive(workload: PodState, supervisor: RuntimeClient, name: str, attempt: int) -> bool:
    record = supervisor.record(workload.uid)
    runs = record["containers"] if record else ()
    return any(run["name"] == name and run["attempt"] == attempt and run["state"] != "exited" for run in runs)


def _no_log_message(pod: Object, name: str, previous: bool) -> str:
    where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
    if previous:
        return f"previous terminated {where} not found"
    waiting = (_container_status(pod, name).get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason") or "ContainerCreating"
    message = f": {waiting['message']}" if waiting.get("message") else ""
    return f"{where} is waiting to start: {reason}{message}"


def _container_status(pod: Object, name: str) -> Object:
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next((item for item in every if item["name"] == name), {})


_log = logging.getLogger(__name__)
_RETRY = 1.0  # seconds until a failed write is retried


class Kubelet(Service):
    """A node of ``cluster`` on this machine. ``start`` returns when the node is registered; ``stop`` ends all threads.

    It is also a log source: ``logs`` has the signature of ``Cluster.logs``.
    """

    def __init__(
        self, cluster: Cluster, *, settings: NodeSettings | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._settings = settings or NodeSettings()
        self._clock = clock
        self._queue: WorkQueue[str] = WorkQueue()  # uids of pods; "": the node
        self._supervisor = RuntimeClient(self._queue.add, self._lost)
        self._host_ip = machine.host_ip()
        self._runtime = NodeRuntime(self._settings, self._supervisor, self._host_ip)
        self._pods = UidInformer(cluster, PODS, self._queue.add, fields=f"spec.nodeName={self._settings.name}")
        self._services = UidInformer(cluster, SERVICES, self._queue_node)
        self._node_informer = UidInformer(
            cluster, NODES, self._queue_node, fields=f"metadata.name={self._settings.name}"
        )
        self._pod_worker = PodWorker(
            cluster, self._pods, self._services, self._supervisor, self._runtime, self._queue, self._settings, clock
        )
        self._registration: NodeRegistration | None = None
        self._thread = threading.Thread(target=self._loop, name="kubelet", daemon=True)
        self._supervisor_lost = False
        self.network = NetworkDescription(NetworkMode.SHARED, "not started")

    # Lifecycle

    def start(self) -> None:
        """Create or find the state folder, start the supervisor, register the node, and start the workers.

        Unavailable when the requested mode is not possible or the folder is in use; ClusterError from registering.
        """
        try:
            self._start()
        except BaseException:
            # A predecessor's pods continue, because perhaps only the cluster is unreachable.
            self.stop(kill=self._settings.ephemeral or not self._supervisor.uids())
            raise

    def _start(self) -> None:
        self._runtime.build()
        self.network = self._runtime.network
        self._registration = registration = NodeRegistration(
            self._cluster,
            self._settings,
            self._host_ip,
            node_informer=self._node_informer,
        )
        registration.register(f"{self.network.mode}: {self.network.reason}", self._clock())
        if not self._settings.ephemeral:
            self._node_informer.start()
        self._pods.start()
        if self.network.mode == NetworkMode.ISOLATED:
            self._services.start()
        self._thread.start()

    def stop(self, *, kill: bool = True) -> None:
        """Stop. ``kill`` also ends every pod. Without it, the pods of a persistent (not ephemeral) node continue for
        the next kubelet.
        """
        self._queue.close()
        for thread in (self._pods, self._services, self._node_informer):
            thread.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._runtime.leave(kill=kill)

    @property
    def state_dir(self) -> Path:
        """The folder in use."""
        return self._runtime.home.state

    @property
    def supervisor_pid(self) -> int:
        """The process id of the supervisor, the parent of all pods."""
        return self._supervisor.pid

    @property
    def enforced(self) -> frozenset[str]:
        """The resources whose limits are enforced here."""
        return self._supervisor.enforced

    def _lost(self) -> None:
        self._supervisor_lost = True
        self._queue.add("")

    def _queue_node(self, _: str) -> None:
        self._queue.add("")

    def _replace_supervisor(self) -> None:
        """Start a new supervisor after the previous one ended with its pods. ``decide`` then handles the pods."""
        self._supervisor_lost = False
        _log.warning("restarting runtime supervisor after its end")
        try:
            self._pod_worker.on_runtime_restart(from_nothing=self._runtime.rebuild())
        except BaseException:
            self._supervisor_lost = True  # retried in the next pass
            raise
        self.network = self._runtime.network

    # Logs

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """The lines of a container's log; NotFound (no such pod here), Rejected (no such container, not started)."""
        found = next((item for item in self._pods.items() if _named(item, namespace, pod)), None)
        if found is None:
            raise NotFound(f'pods "{pod}" not found on node {self._settings.name}')
        workload = self._pod_worker.workload(found)
        return open_container_log(found, workload, self._supervisor, options, self._clock())

    # Work

    def _loop(self) -> None:
        while not self._pods.wait_synced(_RETRY):
            if self._queue.closed:
                return
        self._pod_worker.restore()
        while True:
            due = self._queue.get_all(self._settings.heartbeat)
            if self._queue.closed:
                return
            self._pass(due)

    def _pass(self, due: Iterable[str]) -> None:
        try:
            self._look_after_node()
        except (ClusterError, OSError) as error:
            _log.warning("failed to renew node: node=%s error=%s", self._settings.name, error)
            self._queue.add("", _RETRY)
        for uid in filter(None, due):
            self._pod_worker.sync(uid)

    def _look_after_node(self) -> None:
        assert self._registration is not None
        if self._supervisor_lost:
            self._replace_supervisor()
        self._registration.beat(self._clock())
        self._pod_worker.update_hosts()


def _named(pod: Object, namespace: str, name: str) -> bool:
    return bool(pod["metadata"]["namespace"] == namespace and pod["metadata"]["name"] == name)
