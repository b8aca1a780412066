"""Log follower: the logs of all containers of a job at once, through restarts and broken connections."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Self

from tf_dist.client.wait import TRANSIENT_ERRORS, Backoff
from tf_dist.cluster.api import Cluster, LogOptions, Object, Stream
from tf_dist.core.api import names
from tf_dist.core.api.job import Job, ReplicaId
from tf_dist.errors import ClusterError

_SLACK: Final = 5.0  # seconds asked for once more: what was written last may still have been under way
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?[^ ]* ")
_Moment = tuple[bytes, bytes]


class ResumingLogStream:
    """The lines of a container, ``options.timestamps`` or not, each once, through every break of the connection."""

    def __init__(
        self, cluster: Cluster, namespace: str, pod: str, options: LogOptions, *, limit: float = 120.0
    ) -> None:
        self._shown = options.timestamps
        self._options = replace(options, timestamps=True)
        self._open: Callable[[LogOptions], Stream[bytes]] = lambda wanted: cluster.logs(namespace, pod, wanted)
        self._closed = threading.Event()
        self._backoff = Backoff(limit, sleep=self._closed.wait)
        self._last_line_at = time.monotonic()
        self._last: _Moment | None = None  # the stamp of the newest line that was given
        self._given = 0  # how many lines had that stamp
        self._known: tuple[_Moment, int] | None = None  # both, as they were at the last break
        self._lock = threading.Lock()
        self._stream: Stream[bytes] | None = None  # the first line has it opened, so that another thread can close it

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        while not self._closed.is_set():
            try:
                line = next(self._stream or self._opened())
            except TRANSIENT_ERRORS as error:
                self._broken(error)
                continue
            self._backoff.succeeded()
            found = _STAMP.match(line)
            if found is None:
                return line  # a word of the server itself
            if self._new((found[1], (found[2] or b"").ljust(9, b"0"))):
                return line if self._shown else line[found.end() :]
        raise StopIteration

    def _new(self, moment: _Moment) -> bool:
        """Whether a line of this moment was not given before the last break; it is taken for given from now on."""
        if self._known is not None:
            last, count = self._known
            if moment < last:
                return False
            if moment == last and count > 0:
                self._known = last, count - 1
                return False
            self._known = None
        self._given = self._given + 1 if moment == self._last else 1
        self._last, self._last_line_at = moment, time.monotonic()
        return True

    def _opened(self) -> Stream[bytes]:
        """A stream, after a break from a little before it; ClusterError."""
        ago = math.ceil(time.monotonic() - self._last_line_at + _SLACK)
        stream = self._open(replace(self._options, tail=None, since_seconds=ago) if self._last else self._options)
        self._known = (self._last, self._given) if self._last else None
        self._backoff.answered()
        with self._lock:
            self._stream = stream
        if self._closed.is_set():
            stream.close()
        return stream

    def _broken(self, error: ClusterError) -> None:
        """Let go of the stream, and return after a pause; ``error`` when that has gone on for too long."""
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._backoff.failed(error)

    def close(self) -> None:
        """End it; from any thread."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LogLine(NamedTuple):
    """One line. ``source`` is the replica, and the container if it is not the one that trains."""

    replica: ReplicaId
    source: str
    text: str
    trains: bool = True


class ContainerInstance(NamedTuple):
    """One life of a container."""

    pod_uid: str
    container: str
    number: int


class LogEnded(NamedTuple):
    """A container's log has come to its end; ``problem`` if it could not be read."""

    instance: ContainerInstance
    problem: str = ""


LogOpener = Callable[[Object, ContainerInstance], Stream[bytes]]


def log_opener(cluster: Cluster, options: LogOptions) -> LogOpener:
    """Reading through the cluster."""

    def open_log(pod: Object, instance: ContainerInstance) -> Stream[bytes]:
        metadata = pod["metadata"]
        wanted = replace(options, container=instance.container)
        return ResumingLogStream(cluster, metadata["namespace"], metadata["name"], wanted)

    return open_log


def run_in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread of its own."""
    threading.Thread(target=work, daemon=True).start()


class LogFollower:
    """Reads every container that starts and hands lines to ``sink`` (which may block).

    ``start`` has a log read: in a thread of its own, or when one is free.
    """

    def __init__(
        self,
        job: Job,
        open_log: LogOpener,
        sink: Callable[[LogLine | LogEnded], None],
        *,
        start: Callable[[Callable[[], None]], None] = run_in_thread,
    ) -> None:
        self._start = start
        self._job = job
        self._open_log = open_log
        self._sink = sink
        self._lock = threading.Lock()
        self._seen: set[ContainerInstance] = set()
        self._open: dict[ContainerInstance, Stream[bytes] | None] = {}
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
            instance = ContainerInstance(pod["metadata"]["uid"], status["name"], status.get("restartCount") or 0)
            with self._lock:
                if instance in self._seen or self._closed:
                    continue
                self._seen.add(instance)
                self._open[instance] = None
            self._start(partial(self._read, pod, replica, instance))
        return self.count > before

    def pending(self, ended: Callable[[ContainerInstance], bool]) -> bool:
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

    def _read(self, pod: Object, replica: ReplicaId, instance: ContainerInstance) -> None:
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
            self._sink(LogEnded(instance, problem))

    def _keep(self, instance: ContainerInstance, stream: Stream[bytes]) -> None:
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
