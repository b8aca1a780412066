"""The node agent: watches the pods of its node and drives each one to what it should be."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tf_dist.cluster.api import ALL_LINES, PODS, SERVICES, Cluster, LogOptions, Object, PatchType, Stream
from tf_dist.cluster.node import machine
from tf_dist.cluster.node.client import Supervisor
from tf_dist.cluster.node.devices import Devices
from tf_dist.cluster.node.facts import Decision, DeleteObject
from tf_dist.cluster.node.hosts import entries, hosts_file
from tf_dist.cluster.node.house import House
from tf_dist.cluster.node.lifecycle import OVER, decide
from tf_dist.cluster.node.mirror import Mirror
from tf_dist.cluster.node.network import Addresses
from tf_dist.cluster.node.podlogs import open_log
from tf_dist.cluster.node.probes import Readiness
from tf_dist.cluster.node.problems import PodProblem
from tf_dist.cluster.node.registration import Registration
from tf_dist.cluster.node.settings import NetworkDescription, NetworkMode, NodeSettings
from tf_dist.cluster.node.work import Bell
from tf_dist.cluster.node.workload import Workload
from tf_dist.errors import ClusterError, Conflict, NotFound

_log = logging.getLogger(__name__)
_RETRY = 1.0  # seconds until a refused write is tried again


class NodeAgent:
    """A node of ``cluster`` on this machine. ``start`` returns when it is registered; ``stop`` ends all its threads.

    It is also a log source: ``logs`` has the signature of ``Cluster.logs``.
    """

    def __init__(
        self, cluster: Cluster, *, settings: NodeSettings | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._settings = settings or NodeSettings()
        self._clock = clock
        self._bell = Bell()
        self._supervisor = Supervisor(self._bell.ring, self._lost)
        self._host_ip = machine.host_ip()
        self._house = House(self._settings, self._supervisor, self._host_ip)
        self._pods = Mirror(cluster, PODS, self._bell.ring, fields=f"spec.nodeName={self._settings.name}")
        self._services = Mirror(cluster, SERVICES, lambda uid: self._bell.ring(""))
        self._addresses = Addresses()
        self._devices = Devices(machine.gpus())
        self._workloads: dict[str, Workload] = {}
        self._registration = Registration(cluster, self._settings, self._host_ip)
        self._thread = threading.Thread(target=self._loop, name="node-agent", daemon=True)
        self._shown: object = None
        self._supervisor_lost = False
        self.network = NetworkDescription(NetworkMode.SHARED, "not started")

    # Life

    def start(self) -> None:
        """Take or find the state folder, start the supervisor, register the node, begin to work.

        Unavailable when the mode asked for is not possible or the folder is in use; ClusterError from registering.
        """
        try:
            self._start()
        except BaseException:
            self.stop(kill=self._settings.ephemeral)
            raise

    def _start(self) -> None:
        self._house.build()
        self.network = self._house.network
        self._registration.register(f"{self.network.mode}: {self.network.reason}", self._clock())
        self._pods.start()
        if self.network.mode == NetworkMode.ISOLATED:
            self._services.start()
        self._thread.start()

    def stop(self, *, kill: bool = True) -> None:
        """End. ``kill`` ends every pod, too; without it a lasting (not ephemeral) node goes on for the next agent."""
        self._bell.close()
        for thread in (self._pods, self._services):
            thread.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._house.leave(kill=kill)

    def __enter__(self) -> NodeAgent:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def state_dir(self) -> Path:
        """The folder in use."""
        return self._house.home.state

    @property
    def supervisor_pid(self) -> int:
        """The process that is parent of all pods."""
        return self._supervisor.pid

    def _lost(self) -> None:
        self._supervisor_lost = True
        self._bell.ring("")

    def _replace_supervisor(self) -> None:
        """A new supervisor for the one that ended: its pods ended with it, and ``decide`` says what follows."""
        self._supervisor_lost = False
        _log.warning("the node's supervisor ended; starting another")
        if self._house.rebuild():
            self._workloads.clear()
        self.network = self._house.network
        for workload in self._workloads.values():
            workload.home, workload.stopping = self._house.home, False
        for pod in self._pods.all():
            self._bell.ring(pod["metadata"]["uid"])

    # Logs

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """The lines of a container's log; NotFound (no such pod here), Rejected (no such container, not started)."""
        found = next((item for item in self._pods.all() if _named(item, namespace, pod)), None)
        if found is None:
            raise NotFound(f'pods "{pod}" not found on node {self._settings.name}')
        workload = self._workload(found)
        return open_log(found, workload, self._supervisor, options, self._clock())

    # Work

    def _loop(self) -> None:
        self._pods.synced.wait()
        for uid in self._supervisor.uids():  # of a predecessor
            self._devices.restore(uid, (self._supervisor.record(uid) or {}).get("devices") or {})
            self._bell.ring(uid)
        while (due := self._bell.wait()) is not None:
            self._pass(due)

    def _pass(self, due: set[str]) -> None:
        try:
            if self._supervisor_lost:
                self._replace_supervisor()
            self._registration.beat(self._clock())
            self._show_hosts()
        except (ClusterError, OSError) as error:
            _log.warning("node %s: %s", self._settings.name, error)
            self._bell.ring_in("", _RETRY)
        self._bell.ring_in("", self._settings.heartbeat)
        for uid in due - {""}:
            self._guarded(uid)

    def _guarded(self, uid: str) -> None:
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
        workload, now = self._workload(pod), self._clock()
        record = self._supervisor.record(uid)
        if _wants_plan(pod):
            self._prepare(workload, pod, now)
        facts = workload.facts(pod, record)
        decision = decide(pod, facts, now, self._settings.backoff)
        pod = self._show(pod, decision.status)
        self._act(workload, pod, decision)
        if workload.problem is not None and not workload.problem.permanent:
            self._bell.ring_in(uid, max(workload.retry_at - now, 0.0))
        for at in (decision.wake_at, workload.probe(self._supervisor, pod, facts, now)):
            if at is not None:
                self._bell.ring_in(uid, max(at - now, 0.0))

    def _act(self, workload: Workload, pod: Object, decision: Decision) -> None:
        for action in decision.actions:
            if isinstance(action, DeleteObject):
                self._delete(workload, pod)
                continue
            workload.order(action, self._supervisor, pod)
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
        before = pod.get("status") or {}
        if status == before:
            return pod
        body = {"status": {key: None for key in before if key not in status} | status}
        metadata = pod["metadata"]
        written = self._cluster.patch(
            PODS, metadata["namespace"], metadata["name"], body, kind=PatchType.MERGE, subresource="status"
        )
        self._pods.put(written)
        self._bell.ring(metadata["uid"])
        return written

    def _delete(self, workload: Workload, pod: Object) -> None:
        if workload.deleted:
            return
        self._cluster.delete(PODS, workload.namespace, workload.name, uid=workload.uid, grace_period=0)
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

    def _workload(self, pod: Object) -> Workload:
        metadata = pod["metadata"]
        workload = self._workloads.get(metadata["uid"])
        if workload is None:
            workload = Workload(metadata["uid"], metadata["namespace"], metadata["name"], self._house.home)
            workload.ip = self._address(pod)
            workload.readiness = Readiness(lambda: self._bell.ring(metadata["uid"]))
            self._workloads[metadata["uid"]] = workload
        return workload

    def _address(self, pod: Object) -> str:
        if self.network.mode == NetworkMode.SHARED:
            return "127.0.0.1"
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        known = (pod.get("status") or {}).get("podIP")
        return self._addresses.keep(namespace, name, known) if known else self._addresses.of(namespace, name)

    def _show_hosts(self) -> None:
        """Tell every live pod the names it can reach, when they have changed."""
        if self.network.mode == NetworkMode.SHARED:
            return
        pods = [pod for pod in self._pods.all() if (pod.get("status") or {}).get("phase") not in OVER]
        services = self._services.all()
        state = ({pod["metadata"]["uid"] for pod in pods}, [item["metadata"]["resourceVersion"] for item in services])
        if state == self._shown:
            return
        self._shown = state
        addresses = {pod["metadata"]["uid"]: self._workload(pod).ip for pod in pods}
        found = entries(pods, services, addresses)
        for pod in pods:
            workload = self._workload(pod)
            workload.show_hosts(hosts_file(pod, workload.ip, found), self._supervisor)


def _named(pod: Object, namespace: str, name: str) -> bool:
    return bool(pod["metadata"]["namespace"] == namespace and pod["metadata"]["name"] == name)


def _wants_plan(pod: Object) -> bool:
    over = (pod.get("status") or {}).get("phase") in OVER
    return not over and not pod["metadata"].get("deletionTimestamp")
