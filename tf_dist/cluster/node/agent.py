"""The node agent: watches the pods of its node and drives each one to what it should be."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tf_dist.cluster.api import ALL_LINES, NODES, PODS, SERVICES, Cluster, LogOptions, Object, Stream
from tf_dist.cluster.node import folders, machine
from tf_dist.cluster.node.claim import NameTaken
from tf_dist.cluster.node.client import Supervisor
from tf_dist.cluster.node.house import House
from tf_dist.cluster.node.mirror import Mirror
from tf_dist.cluster.node.podkeeper import PodKeeper
from tf_dist.cluster.node.podlogs import open_log
from tf_dist.cluster.node.presence import NODE_LABEL
from tf_dist.cluster.node.registration import Registration
from tf_dist.cluster.node.settings import NetworkDescription, NetworkMode, NodeSettings
from tf_dist.cluster.node.work import Bell
from tf_dist.errors import ClusterError, NotFound

_log = logging.getLogger(__name__)
_RETRY = 1.0  # seconds until a refused write is tried again
_FAREWELL = 20.0  # seconds to tell the cluster that the last process has ended


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
        self._host_ip = self._settings.address or machine.host_ip()
        self._house = House(self._settings, self._supervisor, self._host_ip)
        self._pods = Mirror(cluster, PODS, self._bell.ring, fields=f"spec.nodeName={self._settings.name}")
        self._services = Mirror(cluster, SERVICES, self._ring)
        self._itself = Mirror(cluster, NODES, self._ring, fields=f"metadata.name={self._settings.name}")
        self._kubelets = Mirror(cluster, NODES, self._ring, labels=f"!{NODE_LABEL}")
        self._keeper = PodKeeper(cluster, self._pods, self._supervisor, self._house, self._bell, self._settings, clock)
        self._registration: Registration | None = None
        self._closed = False  # to new pods
        self._empty = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="node-agent", daemon=True)
        self._supervisor_lost = False
        self.failure: NameTaken | None = None
        """Why the agent has given up, and wants to be stopped. ``on_end`` is called when it does."""
        self.on_end: Callable[[], None] = lambda: None
        self.network = NetworkDescription(NetworkMode.SHARED, "not started")

    # Life

    def start(self, stopping: threading.Event | None = None) -> None:
        """Take or find the state folder, start the supervisor, register the node, begin to work.

        Unavailable when the mode asked for is not possible, the folder is in use, or ``stopping`` was set meanwhile;
        NameTaken when another agent runs a node of this name; ClusterError from registering.
        """
        try:
            self._start(stopping)
        except BaseException as error:
            # A predecessor's pods go on if perhaps only the cluster cannot be reached.
            empty = self._settings.ephemeral or not self._supervisor.uids() or isinstance(error, NameTaken)
            self.stop(kill=empty)
            if empty:
                self.retire(keep_node=True)
            raise

    def _start(self, stopping: threading.Event | None) -> None:
        self._house.build()
        self.network = self._house.network
        if self._settings.taints is None:
            self._kubelets.start()
        self._registration = registration = Registration(
            self._cluster,
            self._settings,
            self._host_ip,
            identity="" if self._settings.ephemeral else folders.identity(self.state_dir),
            itself=self._itself,
            among_processes=lambda: self._kubelets.synced() and not self._kubelets.all(),
        )
        registration.register(f"{self.network.mode}: {self.network.reason}", self._clock(), stopping)
        if not self._settings.ephemeral:
            self._itself.start()
        self._pods.start()
        if self.network.mode == NetworkMode.ISOLATED:
            self._services.start()
        self._thread.start()

    def drain(self, hurry: threading.Event) -> bool:
        """Take no more pods, and end all there are as each one says; whether the cluster knows all of them ended.

        ``hurry`` cuts it short; so does a cluster that cannot be told.
        """
        self._keeper.leaving = True
        for uid in ("", *(pod["metadata"]["uid"] for pod in self._pods.all())):
            self._bell.ring(uid)
        quiet = time.monotonic()
        while not self._empty.wait(0.1) and not hurry.is_set() and time.monotonic() - quiet < _FAREWELL:
            if self._supervisor.busy():
                quiet = time.monotonic()
        return self._empty.is_set() and self.failure is None

    def stop(self, *, kill: bool = True) -> None:
        """End. ``kill`` ends every pod, too; without it a lasting (not ephemeral) node goes on for the next agent."""
        self._bell.close()
        for thread in (self._pods, self._services, self._itself, self._kubelets):
            thread.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._house.leave(kill=kill)

    def retire(self, *, keep_node: bool) -> None:
        """After ``stop``: take the Node (or only its heartbeat) away. Not when another agent has the name."""
        if self._registration is not None and self.failure is None:
            self._registration.retire(keep_node=keep_node)

    def __enter__(self) -> NodeAgent:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def settled(self) -> bool:
        """Whether it came as far as having a folder and a supervisor."""
        return self._registration is not None

    @property
    def state_dir(self) -> Path:
        """The folder in use."""
        return self._house.home.state

    @property
    def supervisor_pid(self) -> int:
        """The process that is parent of all pods."""
        return self._supervisor.pid

    @property
    def enforced(self) -> frozenset[str]:
        """The resources whose limits are enforced here."""
        return self._supervisor.enforced

    def _lost(self) -> None:
        self._supervisor_lost = True
        self._bell.ring("")

    def _ring(self, _: str) -> None:
        self._bell.ring("")

    def _replace_supervisor(self) -> None:
        """A new supervisor for the one that ended: its pods ended with it, and ``decide`` says what follows."""
        self._supervisor_lost = False
        _log.warning("the node's supervisor ended; starting another")
        try:
            self._keeper.rehouse(from_nothing=self._house.rebuild())
        except BaseException:
            self._supervisor_lost = True  # once more at the next look
            raise
        self.network = self._house.network

    # Logs

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """The lines of a container's log; NotFound (no such pod here), Rejected (no such container, not started)."""
        found = next((item for item in self._pods.all() if _named(item, namespace, pod)), None)
        if found is None:
            raise NotFound(f'pods "{pod}" not found on node {self._settings.name}')
        workload = self._keeper.workload(found)
        return open_log(found, workload, self._supervisor, options, self._clock())

    # Work

    def _loop(self) -> None:
        while not self._pods.wait_synced(_RETRY):
            if self._bell.closed:
                return
        self._keeper.restore()
        while (due := self._bell.wait()) is not None:
            self._pass(due)

    def _pass(self, due: set[str]) -> None:
        try:
            self._look_after_node()
        except NameTaken as error:
            self._give_up(error)
            return
        except (ClusterError, OSError) as error:
            _log.warning("node %s: %s", self._settings.name, error)
            self._bell.ring_in("", _RETRY)
        self._bell.ring_in("", self._settings.heartbeat)
        for uid in due - {""}:
            self._keep(uid)
        if self._closed and self._keeper.vacated():
            self._empty.set()

    def _keep(self, uid: str) -> None:
        assert self._registration is not None
        if self._registration.valid():
            self._keeper.sync(uid)
        else:  # the name may be another agent's by now; the next heartbeat tells
            self._bell.ring_in(uid, _RETRY)

    def _look_after_node(self) -> None:
        assert self._registration is not None
        if self._supervisor_lost:
            self._replace_supervisor()
        if self._keeper.leaving and not self._closed:
            self._registration.leave(self._clock())
            self._closed = True
        self._registration.beat(self._clock())
        if self.network.mode == NetworkMode.ISOLATED:
            self._keeper.neighbours.show(self._pods.all(), self._services.all(), self._keeper.workload)

    def _give_up(self, error: NameTaken) -> None:
        """Another agent has the name, and the pods with it: here nothing may be done for them any more."""
        _log.error("%s", error)
        self.failure = error
        self._bell.close()
        self._empty.set()
        self.on_end()


def _named(pod: Object, namespace: str, name: str) -> bool:
    return bool(pod["metadata"]["namespace"] == namespace and pod["metadata"]["name"] == name)
