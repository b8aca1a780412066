"""Following the logs of all containers of a job at once, through restarts, each line with the replica that wrote it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tf_dist.client.lasting_logs import LastingLog
from tf_dist.cluster.api import Cluster, LogOptions, Object, Stream
from tf_dist.core import names
from tf_dist.core.model import Job, ReplicaId
from tf_dist.errors import ClusterError


class LogLine(NamedTuple):
    """One line. ``source`` is the replica, and the container if it is not the one that trains."""

    replica: ReplicaId
    source: str
    text: str
    trains: bool = True


class Instance(NamedTuple):
    """One life of a container."""

    pod_uid: str
    container: str
    number: int


class Ended(NamedTuple):
    """A container's log has come to its end; ``problem`` if it could not be read."""

    instance: Instance
    problem: str = ""


Opener = Callable[[Object, Instance], Stream[bytes]]


def opener(cluster: Cluster, options: LogOptions) -> Opener:
    """Reading through the cluster."""

    def open_log(pod: Object, instance: Instance) -> Stream[bytes]:
        metadata = pod["metadata"]
        wanted = replace(options, container=instance.container)
        return LastingLog(cluster, metadata["namespace"], metadata["name"], wanted)

    return open_log


def in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread of its own."""
    threading.Thread(target=work, daemon=True).start()


class Following:
    """Reads every container that starts and hands lines to ``sink`` (which may block).

    ``start`` has a log read: in a thread of its own, or when one is free.
    """

    def __init__(
        self,
        job: Job,
        open_log: Opener,
        sink: Callable[[LogLine | Ended], None],
        *,
        start: Callable[[Callable[[], None]], None] = in_thread,
    ) -> None:
        self._start = start
        self._job = job
        self._open_log = open_log
        self._sink = sink
        self._lock = threading.Lock()
        self._seen: set[Instance] = set()
        self._open: dict[Instance, Stream[bytes] | None] = {}
        self._closed = False

    @property
    def count(self) -> int:
        """How many containers have been read, or are."""
        return len(self._seen)

    def notice(self, pod: Object) -> bool:
        """Begin to read the containers of a pod that have started since it was last noticed; whether any has."""
        replica, before = replica_of(pod), self.count
        if replica is None:
            return False
        for status in _statuses(pod):
            state = status.get("state") or {}
            if "running" not in state and "terminated" not in state:
                continue
            instance = Instance(pod["metadata"]["uid"], status["name"], status.get("restartCount") or 0)
            with self._lock:
                if instance in self._seen or self._closed:
                    continue
                self._seen.add(instance)
                self._open[instance] = None
            self._start(partial(self._read, pod, replica, instance))
        return self.count > before

    def pending(self, ended: Callable[[Instance], bool]) -> bool:
        """Whether the log of a container that has ``ended`` is not read to its end yet."""
        with self._lock:
            return any(ended(instance) for instance in self._open)

    def close(self) -> None:
        """End every stream; the threads end with them."""
        with self._lock:
            self._closed = True
            streams = [stream for stream in self._open.values() if stream is not None]
        for stream in streams:
            stream.close()

    def _read(self, pod: Object, replica: ReplicaId, instance: Instance) -> None:
        problem = ""
        try:
            if self._closed:
                return
            with self._open_log(pod, instance) as lines:
                self._keep(instance, lines)
                spec = self._job.spec(replica.type)
                trains = spec is None or instance.container in (spec.container, "")
                source = str(replica) if trains else f"{replica}/{instance.container}"
                for line in lines:
                    self._sink(LogLine(replica, source, line.decode(errors="replace").rstrip("\r\n"), trains))
        except ClusterError as error:
            problem = str(error)
        finally:
            with self._lock:
                self._open.pop(instance, None)
            self._sink(Ended(instance, problem))

    def _keep(self, instance: Instance, stream: Stream[bytes]) -> None:
        with self._lock:
            self._open[instance] = stream
            closed = self._closed
        if closed:
            stream.close()


def replica_of(pod: Object) -> ReplicaId | None:
    """Which replica of its job a pod is."""
    labels = pod["metadata"].get("labels") or {}
    index = labels.get(names.REPLICA_INDEX, "")
    return ReplicaId(labels[names.REPLICA_TYPE], int(index)) if index.isdecimal() else None


def _statuses(pod: Object) -> Iterator[Object]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()
