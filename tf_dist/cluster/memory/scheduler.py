"""The embedded cluster's scheduler: binds pending pods to nodes, or says on the pod why it cannot.

It is woken by changes of pods and nodes, and then looks at everything: a change is a doorbell, a list is the truth.
"""

from __future__ import annotations

import logging
import threading
import zlib
from contextlib import suppress
from functools import partial

from tf_dist.cluster.api import EVENTS, NODES, PODS, Object, PatchType, Resource, Stream, WatchEvent
from tf_dist.cluster.memory.cluster import MemoryCluster
from tf_dist.cluster.memory.fitting import Amounts, Neighbours, choose, free_on, take
from tf_dist.cluster.memory.objects import timestamp
from tf_dist.core.gang.demand import requests
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, Gone, NotFound, Rejected

_log = logging.getLogger(__name__)
_ENDED = ("Succeeded", "Failed")


class Scheduler:
    """Binds every pod that has no node and no gates, whatever scheduler it asks for. ``start`` it, ``stop`` it."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._stopped = False
        self._streams: dict[str, Stream[WatchEvent]] = {}
        self._threads: list[threading.Thread] = []
        self._known: dict[str, Amounts] = {}

    def start(self) -> None:
        """Schedule in the background from now on."""
        jobs = (self._run, partial(self._listen, PODS), partial(self._listen, NODES))
        self._threads = [threading.Thread(target=job, name="tf-dist-scheduler", daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the background threads and wait for them."""
        with self._lock:
            self._stopped = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        self._bell.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            self._bell.wait()
            self._bell.clear()
            if self._stopped:
                return
            try:
                self.step()
            except Exception:  # a scheduler that ended here would leave every pod pending, and say nothing
                _log.exception("scheduling failed; the next change is the next try")

    def _listen(self, resource: Resource) -> None:
        since = ""
        while stream := self._opened(resource, since):
            self._bell.set()
            with suppress(Gone):
                for event in stream:
                    since = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self._bell.set()
                continue
            since = ""

    def _opened(self, resource: Resource, since: str) -> Stream[WatchEvent] | None:
        with self._lock:
            if self._stopped:
                return None
            try:
                stream = self._cluster.watch(resource, since=since)
            except Gone:
                stream = self._cluster.watch(resource)
            self._streams[resource.plural] = stream
            return stream

    def step(self) -> int:
        """Look at all pods once; how many were bound."""
        pods = self._cluster.list(PODS).items
        pending = [pod for pod in pods if _waits(pod)]
        if not pending:
            return 0
        nodes = self._cluster.list(NODES).items
        bound = [pod for pod in pods if pod["spec"].get("nodeName") and _phase(pod) not in _ENDED]
        self._known = {pod["metadata"]["uid"]: self._wanted(pod) for pod in (*bound, *pending)}
        free = free_on(nodes, ((pod["spec"]["nodeName"], self._wanted(pod)) for pod in bound))
        neighbours = Neighbours(nodes, bound)
        return sum(self._place(pod, nodes, free, neighbours) for pod in sorted(pending, key=_turn))

    def _wanted(self, pod: Object) -> Amounts:
        # A pod's requests never change, and reading quantities is the slow part.
        return self._known.get(pod["metadata"]["uid"]) or requests(pod["spec"])

    def _place(self, pod: Object, nodes: list[Object], free: dict[str, Amounts], neighbours: Neighbours) -> bool:
        metadata = pod["metadata"]
        choice = choose(pod, self._wanted(pod), nodes, free, neighbours)
        with suppress(NotFound, Conflict, Rejected):  # it went, or was bound, or is another one by now
            if choice.node:
                self._cluster.bind(metadata["namespace"], metadata["name"], choice.node)
                take(free[choice.node], self._wanted(pod))
                neighbours.add(pod, choice.node)
                return True
            self._explain(pod, choice.message)
        return False

    def _explain(self, pod: Object, message: str) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        now = timestamp(self._cluster.clock())
        said: Object = next((one for one in conditions if one.get("type") == "PodScheduled"), {})
        if (said.get("reason"), said.get("message")) == ("Unschedulable", message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": said.get("lastTransitionTime", now) if said.get("status") == "False" else now,
        }
        metadata = pod["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}}
        self._cluster.patch(
            PODS, metadata["namespace"], metadata["name"], patch, kind=PatchType.STRATEGIC, subresource="status"
        )
        with suppress(AlreadyExists, ClusterError):
            self._cluster.create(EVENTS, metadata["namespace"], _event(pod, message, now))


def _waits(pod: Object) -> bool:
    spec = pod["spec"]
    leaving = pod["metadata"].get("deletionTimestamp")
    return not (spec.get("nodeName") or spec.get("schedulingGates") or leaving or _phase(pod) in _ENDED)


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _turn(pod: Object) -> tuple[int, str, str, str]:
    metadata = pod["metadata"]
    priority = int(pod["spec"].get("priority") or 0)
    return -priority, metadata["creationTimestamp"], metadata["namespace"], metadata["name"]


def _event(pod: Object, message: str, now: str) -> Object:
    metadata = pod["metadata"]
    # The same sentence about the same pod is one event, however often it is found again.
    mark = zlib.crc32(f"{metadata['uid']} {message}".encode())
    return {
        "metadata": {"name": f"{metadata['name'][:240]}.{mark:08x}"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "reason": "FailedScheduling",
        "message": message,
        "type": "Warning",
        "source": {"component": "default-scheduler"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
