"""Log follower: the logs of all containers of a job at once, across restarts and broken connections."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import cycle, zip_longest
from typing import Any, Final, NamedTuple, Protocol

from tf_dist.client.connection import TRANSIENT_ERRORS, Backoff
from tf_dist.client.stored_jobs import replica_of
from tf_dist.cluster.api import PODS, LogOptions, Object, PodReader, Stream
from tf_dist.cluster.api_errors import StreamSilent
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.timestamps import format_time, parse_time
from tf_dist.errors import ClusterError, Forbidden, NotFound, Rejected


class ContainerInstance(NamedTuple):
    """One run of a container. ``number`` counts its restarts."""

    pod_uid: str
    container: str
    number: int


class InstanceState(Enum):
    """The state of a container instance, which decides where its log is."""

    RUNNING = "running"
    ENDED = "ended"
    REPLACED = "replaced"  # by the next instance: its log is the previous log of the container
    LOST = "lost"  # its log is no longer kept
    GONE = "gone"  # deleted with its pod


def instance_state(pod: Object | None, instance: ContainerInstance) -> InstanceState:
    """The state of an instance, according to its current pod (None: the pod is gone)."""
    if pod is None or pod["metadata"].get("uid") != instance.pod_uid:
        return InstanceState.GONE
    mine: Object = next((one for one in _statuses(pod) if one["name"] == instance.container), {})
    state, later = mine.get("state") or {}, (mine.get("restartCount") or 0) - instance.number
    if later == 0:
        return InstanceState.RUNNING if "running" in state else InstanceState.ENDED
    # While the next instance waits for a restart, the previous log is that of the next instance.
    return InstanceState.REPLACED if later == 1 and "waiting" not in state else InstanceState.LOST


_SLACK: Final = 5.0  # seconds of a log that are read again after a break: the last lines may not have arrived
QUIET: Final = 2.0
"""Seconds without a line after which the log of a container that has ended is read again."""
_SETTLE: Final = 3.0  # seconds by which a pod's status may lag behind the end of a container
_UNSTAMPED: Final = 100  # remembered lines without a time
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ")
_LINES: Final = re.compile(rb"[^\n]*\n|[^\n]+")
# For many lines: the time of each line, and the time and text of each line. Only \n ends a line.
_STAMPS: Final = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ", re.MULTILINE)
_STAMPED_LINES: Final = re.compile(rf"^(?:({_STAMPS.pattern.decode()[1:-1]}) )?(.*)", re.MULTILINE | re.ASCII)
# The text that a kubelet returns in place of a log that its node no longer has.
_NOT_KEPT: Final = re.compile(rb"unable to retrieve container logs for |failed to try resolving symlinks in path ")
_Moment = tuple[float, bytes]


def without_stamp(text: str) -> str:
    """A line without its time. Messages of the server and notes about gaps may have no time."""
    found = _STAMP.match(text.encode())
    return text[found.end() :] if found else text


class _LogPosition:
    """The position in a log. After a break, the log is read again from shortly before its position."""

    def __init__(self) -> None:
        self.last: _Moment | None = None  # the time of the newest delivered line
        self._stamp = b""  # the same time, as text
        self._given = 0  # the number of delivered lines with this time
        self._known: tuple[_Moment, int] | None = None  # both values at the time when the log was opened again
        self._proven = True  # whether the current stream is known to belong to the same log

    @property
    def since(self) -> str:
        """A time just before the position, for a request."""
        assert self.last is not None  # callers have checked that a line was delivered
        return format_time(self.last[0] - 1)

    def resume(self, *, proven: bool) -> None:
        """The log is read again from shortly before. Unless ``proven``, it may be the log of another instance."""
        self._known = (self.last, self._given) if self.last else None
        self._proven = proven

    def unproven(self, moment: _Moment) -> bool:
        """Whether this line is new although no known line was repeated. True at most once for each stream."""
        if self._proven:
            return False
        self._proven = True
        return self._known is None or moment > self._known[0]

    @property
    def read_before(self) -> bool:
        """Whether known lines, or lines of another instance, may arrive."""
        return self._known is not None or not self._proven

    def before(self, stamps: list[bytes]) -> bool:
        """Whether all lines with these times are known, if the times alone can prove it."""
        # Times of equal length sort like their texts.
        if self._known is None or {*map(len, stamps)} != {len(self._stamp)} or max(stamps) >= self._stamp:
            return False
        self._proven = True
        return True

    def skip(self, moment: _Moment, stamp: bytes, count: int, *, others: bool) -> None:
        """New lines were delivered: ``count`` lines of this moment, and ``others`` before them."""
        self._given = self._given + count if moment == self.last and not others else count
        self.last, self._stamp = moment, stamp

    def advance(self, moment: _Moment, stamp: bytes) -> bool:
        """Whether a line of this moment is new. Afterwards it is known."""
        if self._known is not None:
            last, count = self._known
            if moment < last:
                return False
            if moment == last and count > 0:
                self._known = last, count - 1
                return False
            self._known = None
        self.skip(moment, stamp, 1, others=False)
        return True


class ResumingLogStream(Stream[bytes]):
    """The lines of a container, each once, despite broken connections. Lines that arrive together are one item.

    When a kubelet restarts, a followed log ends in the same way as when the container ends. So after each end, the
    stream reads the ``state``. It follows the log of a running container again. Of an ended container, it reads the end
    of the log once more, without following. It reopens a connection that is silent for long, because proxies drop
    connections silently. A line in brackets reports missing lines.
    """

    def __init__(
        self,
        cluster: PodReader,
        namespace: str,
        pod: str,
        options: LogOptions,
        *,
        state: Callable[[], InstanceState],
        limit: float = 120.0,
        settle: float = _SETTLE,
    ) -> None:
        self._shown = options.timestamps
        self._options = replace(options, timestamps=True)
        self._open: Callable[[LogOptions], Stream[bytes]] = lambda wanted: cluster.logs(namespace, pod, wanted)
        self._state, self._settle = state, settle
        self._closed = threading.Event()
        self._backoff = Backoff(limit, sleep=self._closed.wait)
        self._position = _LogPosition()
        self._ready: deque[bytes] = deque()
        self._unstamped: set[bytes] = set()
        self._requests = 0  # answered requests
        self._opened_at = 0.0  # when the log was first opened (monotonic seconds)
        self._heard_at = time.monotonic()  # when the last line arrived, or a stream was opened
        self.line_at = 0.0  # when the last line was read, including repeated lines (monotonic seconds)
        self._judging = self._rereading = self._finished = False
        self._silent = False  # a silent stream was closed, and lines that it had, if any, are unknown
        self._lock = threading.Lock()
        self._stream: Stream[bytes] | None = None  # opened by the first read, so that another thread can close it

    @property
    def written_at(self) -> float:
        """When the newest delivered line was written (whole epoch seconds); 0: unknown."""
        return self._position.last[0] if self._position.last else 0.0

    def __next__(self) -> bytes:
        while not self._closed.is_set():
            if self._ready:
                return self._ready.popleft()
            if self._finished:
                break
            try:
                self._advance()
            except StreamSilent:
                self._silent = True
                self._let_go()
                if self._state() in (InstanceState.ENDED, InstanceState.REPLACED):
                    self._judging = True
            except TRANSIENT_ERRORS as error:
                self._let_go()
                self._backoff.failed(error)
            except (NotFound, Rejected) as error:
                if not self._rereading:
                    raise
                if isinstance(error, Rejected):  # otherwise the pod was deleted
                    self._note(f"the end of this log could not be read again: {error}")
                self._finish()
        raise StopIteration

    def _advance(self) -> None:
        """Read the next lines, or handle the end of a stream; ClusterError."""
        if self._judging:
            self._judge()
            return
        following = self._options.follow
        lines = next(self._stream or self._opened(), None)
        self._heard_at = time.monotonic()
        # A line without \n was cut off, or is the last line of the container: reading it again shows which.
        if lines is not None and (lines.endswith(b"\n") or not following):
            self.line_at = self._heard_at
            self._backoff.succeeded()
            if not self._take_all(lines):
                for line in _LINES.findall(lines):
                    self._take(line)
                    if self._finished:
                        break
            return
        self._let_go()
        if following:
            self._judging = True
        else:
            self._finish()

    def _take_all(self, lines: bytes) -> bool:
        """Deliver or skip all lines at once. False if each must be checked: a line has no time, or may be known."""
        total, stamps = lines.count(b"\n"), _STAMPS.findall(lines)
        if len(stamps) != total:
            return False
        if self._position.read_before:
            return self._position.before(stamps)
        begin = lines.rfind(b"\n", 0, -1) + 1
        found = _STAMP.match(lines, begin)
        seconds = parse_time((found[1] + found[3]).decode()) if found else None
        if found is None or seconds is None:
            return False
        count = 1  # lines at the end that were written at the same moment
        while begin and lines.startswith(found[0], begin := lines.rfind(b"\n", 0, begin - 1) + 1):
            count += 1
        moment = seconds, (found[2] or b"").ljust(9, b"0")
        self._position.skip(moment, found[0], count, others=count < total)
        self._ready.append(lines if self._shown else _STAMPS.sub(b"", lines))
        return True

    def _take(self, line: bytes) -> None:
        """Deliver a line, unless it is known."""
        found = _STAMP.match(line)
        seconds = parse_time((found[1] + found[3]).decode()) if found else None
        if found is None or seconds is None:
            self._take_unstamped(line)
            return
        moment = seconds, (found[2] or b"").ljust(9, b"0")
        if self._position.unproven(moment):
            own = (InstanceState.REPLACED,) if self._options.previous else (InstanceState.RUNNING, InstanceState.ENDED)
            if self._state() not in own:
                self._finish()  # another stream reads the lines of the next instance
                return
            if self._position.last is not None:
                self._note("lines are missing here: the node had dropped them before they could be read", found[0])
        if self._position.advance(moment, found[0]):
            self._ready.append(line if self._shown else line[found.end() :])

    def _take_unstamped(self, line: bytes) -> None:
        """A message of the server, which it may repeat at every request."""
        # A log that was followed to its end is complete, even if the container is removed before it is read again.
        complete = self._rereading and (self._position.last is not None or not self._silent)
        told = complete or line in self._unstamped
        if _NOT_KEPT.match(line):  # eventually, a kubelet only reports that the container was removed
            if not told:
                what = "the rest of this log" if self._position.last is not None else "this log"
                self._note(f"{what} is missing: its node does not keep it any more")
        elif self._requests == 1 or not told:
            self._ready.append(line)
        if len(self._unstamped) < _UNSTAMPED:
            self._unstamped.add(line)

    def _note(self, text: str, stamp: bytes = b"") -> None:
        self._ready.append((stamp if self._shown else b"") + f"[tf-dist: {text}]\n".encode())

    def _opened(self) -> Stream[bytes]:
        """Open a stream: after a break, from shortly before the position; ClusterError."""
        wanted = self._options
        if self._position.last is not None:
            wanted = replace(wanted, tail=None, since_seconds=None, since_time=self._position.since)
        elif self._requests:  # the log had no lines so far
            wanted = replace(wanted, tail=None, since_seconds=time.monotonic() - self._opened_at + _SLACK)
        stream = self._open(wanted)
        self._position.resume(proven=not self._requests)
        self._opened_at = self._opened_at if self._requests else time.monotonic()
        self._requests += 1
        self._heard_at = time.monotonic()
        self._backoff.answered()
        with self._lock:
            self._stream = stream
        if self._closed.is_set():
            stream.close()
        return stream

    def _judge(self) -> None:
        """A followed stream ended: follow again, read the end once more, or finish; ClusterError."""
        state = self._settled_state()
        self._judging = False
        match state:
            case InstanceState.ENDED | InstanceState.REPLACED:
                self._rereading = True
                self._options = replace(self._options, follow=False, previous=state is InstanceState.REPLACED)
            case InstanceState.LOST:
                self._note("the end of this log may be missing: the container was restarted again meanwhile")
                self._finish()
            case InstanceState.GONE:
                self._finish()

    def _settled_state(self) -> InstanceState:
        """The state of the instance, from a status that is not older than the end of the stream; ClusterError."""
        # Random pauses: a hundred logs may end together, and their threads would all run at the same moments.
        until, pause = time.monotonic() + self._settle, random.uniform(0.05, 0.25)
        while (state := self._state()) is InstanceState.RUNNING and not self._closed.is_set():
            left = until - time.monotonic()
            if left <= 0:
                break
            self._closed.wait(min(pause, left))
            pause = min(2 * pause, 1.0)
        return state

    def _finish(self) -> None:
        """End after the lines that are ready have been delivered."""
        self._let_go()
        self._finished = True

    def _let_go(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def reread_if_quiet(self) -> None:
        """Read the log of an ended container again if no line arrived for ``QUIET`` seconds.

        Any thread may call it.
        """
        if time.monotonic() - self._heard_at < QUIET:
            return
        with self._lock:
            if self._stream is not None and self._options.follow:
                self._silent = True
                self._stream.close()  # its reader then reads the state, as after every end

    def close(self) -> None:
        """End the stream. Any thread may call it."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()


class LogLine(NamedTuple):
    """One line."""

    replica: ReplicaId
    """The replica."""
    source: str
    """The replica, and the name of a container that does not train."""
    text: str
    """The text."""
    trains: bool = True
    """Whether the container trains."""
    written: str = ""
    """When the container wrote it (RFC 3339, by the clock of its node); "": unknown."""


class LogLines(NamedTuple):
    """Lines of one container that were read at once, see ``LogLine``. Millions of single objects would be too slow."""

    replica: ReplicaId
    source: str
    texts: Sequence[str]
    trains: bool = True
    written: Sequence[str] = ()
    """The time of each text, or nothing."""
    at: float = 0.0
    """When the newest line was written (epoch seconds, by the clock of its node); 0: unknown."""

    def each(self) -> Iterator[LogLine]:
        """The lines one by one."""
        for text, written in zip_longest(self.texts, self.written, fillvalue=""):
            yield LogLine(self.replica, self.source, text, self.trains, written)


class LogEnded(NamedTuple):
    """The log of a container ended. ``problem``: why it could not be read."""

    instance: ContainerInstance
    problem: str = ""


class LogSink(Protocol):
    """A receiver of lines: a queue, or a ``JobInformer``."""

    def put(self, item: Any, /) -> object:
        """Add ``LogLines`` or a ``LogEnded``; it may block."""


LogOpener = Callable[[Object, ContainerInstance], Stream[bytes]]
InstanceLookup = Callable[[Object, ContainerInstance], InstanceState | None]
"""The state of an instance as an informer knows it; None if the pod is unknown."""


def log_opener(cluster: PodReader, options: LogOptions, lookup: InstanceLookup = lambda *_: None) -> LogOpener:
    """Opens logs of the cluster. Known states (``lookup``) need no request, and ended logs need one."""

    def open_log(pod: Object, instance: ContainerInstance) -> Stream[bytes]:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        wanted = replace(options, container=instance.container)
        state = lookup(pod, instance)
        if state in (InstanceState.ENDED, InstanceState.REPLACED):
            wanted = replace(wanted, follow=False, previous=state is InstanceState.REPLACED)
        read = partial(_read_state, cluster, pod, instance, lookup)
        return ResumingLogStream(cluster, namespace, name, wanted, state=read)

    return open_log


def _read_state(cluster: PodReader, pod: Object, instance: ContainerInstance, lookup: InstanceLookup) -> InstanceState:
    """The state of an instance from the informer, or else from the cluster; ClusterError."""
    if (state := lookup(pod, instance)) is not None:
        return state
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    try:
        return instance_state(cluster.get(PODS, namespace, name), instance)
    except NotFound:
        return InstanceState.GONE
    except Forbidden:
        return InstanceState.ENDED  # without permission to read pods, a log is complete when its stream ends


def run_in_thread(work: Callable[[], None], urgent: bool) -> None:
    """Run the work in a separate thread."""
    threading.Thread(target=work, daemon=True).start()


# Shared by all followers, because there may be thousands. A single lock would delay hundreds of threads.
_LOCKS: Final = cycle(tuple(threading.Lock() for _ in range(64)))


class _Progress(Enum):
    """The progress of a log that neither waits for a thread nor is open."""

    OPENS = "opens"
    READ = "read"


@dataclass(frozen=True, slots=True, eq=False)
class _LogRead:
    """A log to read. Hundreds of them may wait for a thread."""

    follower: LogFollower
    pod: Object
    replica: ReplicaId
    instance: ContainerInstance

    def __call__(self) -> None:
        self.follower.read(self.pod, self.replica, self.instance)


class LogFollower:
    """Reads every container that starts, and passes lines to ``sink``, which may block.

    ``start`` runs the read of a log in a thread, urgent reads first. It may receive a waiting read a second time, as
    urgent. ``stamped``: ``open_log`` requests times, which become ``LogLines.written``.
    """

    def __init__(
        self,
        job: Job,
        open_log: LogOpener,
        sink: LogSink,
        *,
        start: Callable[[Callable[[], None], bool], None] = run_in_thread,
        stamped: bool = False,
    ) -> None:
        self._start, self._stamped = start, stamped
        # Not the job itself, which is out of date after its next change.
        self._containers = {spec.type: spec.container for spec in job.replica_specs}
        self._open_log = open_log
        self._sink = sink
        self._lock = next(_LOCKS)
        self._logs: dict[ContainerInstance, _LogRead | Stream[bytes] | _Progress] = {}
        self._closed = False

    @property
    def count(self) -> int:
        """The number of known containers, including those whose logs are completely read."""
        return len(self._logs)

    def notice(self, pod: Object) -> bool:
        """Start reading the logs of the started containers of a pod; whether any of them is new."""
        replica, before = replica_of(pod), self.count
        if replica is None:
            return False
        for status in _statuses(pod):
            state = status.get("state") or {}
            # A container that waits for a restart has the log of its previous run.
            if not {"running", "terminated"} & state.keys() and not status.get("lastState"):
                continue
            instance = ContainerInstance(pod["metadata"]["uid"], status["name"], status.get("restartCount") or 0)
            with self._lock:
                if instance in self._logs or self._closed:
                    continue
                work = self._logs[instance] = _LogRead(self, pod, replica, instance)
            self._start(work, False)
        return self.count > before

    def expedite(self, ended: Callable[[ContainerInstance], bool]) -> bool:
        """Read logs of containers that have ``ended`` before others; whether any of them still waits for a thread."""
        with self._lock:
            waiting = [log for instance, log in self._logs.items() if isinstance(log, _LogRead) and ended(instance)]
        for work in waiting:
            self._start(work, True)
        return bool(waiting)

    def reread_quiet(self, ended: Callable[[ContainerInstance], bool]) -> None:
        """Read silent logs of containers that have ``ended`` again."""
        with self._lock:
            logs = [(one, log) for one, log in self._logs.items() if isinstance(log, ResumingLogStream)]
        for instance, log in logs:
            if ended(instance):
                log.reread_if_quiet()

    def line_at(self, ended: Callable[[ContainerInstance], bool]) -> float:
        """When the last line of an ended container was read (monotonic seconds), including known lines."""
        with self._lock:
            logs = [(one, log) for one, log in self._logs.items() if isinstance(log, ResumingLogStream)]
        return max((log.line_at for one, log in logs if ended(one)), default=0.0)

    def pending(self, ended: Callable[[ContainerInstance], bool]) -> bool:
        """Whether the log of a container that has ``ended`` is not completely read."""
        with self._lock:
            return any(ended(instance) for instance, log in self._logs.items() if log is not _Progress.READ)

    def close(self) -> None:
        """End all streams and their threads."""
        with self._lock:
            self._closed = True
            streams = [log for log in self._logs.values() if not isinstance(log, _LogRead | _Progress)]
        for stream in streams:
            stream.close()

    def read(self, pod: Object, replica: ReplicaId, instance: ContainerInstance) -> None:
        """Read a log to its end, in a thread of ``start``."""
        with self._lock:
            if not isinstance(self._logs[instance], _LogRead):
                return  # another thread began the read just before it became urgent
            self._logs[instance] = _Progress.OPENS
        problem = ""
        try:
            if self._closed:
                return
            with self._open_log(pod, instance) as lines:
                self._keep(instance, lines)
                trains = instance.container in (self._containers.get(replica.type, instance.container), "")
                source = str(replica) if trains else f"{replica}/{instance.container}"
                for some in lines:
                    text = some.decode(errors="replace").removesuffix("\n")
                    texts: Sequence[str] = text.split("\n")
                    written: Sequence[str] = ()
                    if self._stamped:
                        written, texts = zip(*_STAMPED_LINES.findall(text), strict=True)
                    if "\r" in text:
                        texts = [one.rstrip("\r") for one in texts]
                    at = lines.written_at if isinstance(lines, ResumingLogStream) else 0.0
                    self._sink.put(LogLines(replica, source, texts, trains, written, at))
        except ClusterError as error:
            problem = str(error)
        finally:
            with self._lock:
                self._logs[instance] = _Progress.READ
            self._sink.put(LogEnded(instance, problem))

    def _keep(self, instance: ContainerInstance, stream: Stream[bytes]) -> None:
        with self._lock:
            self._logs[instance] = stream
            closed = self._closed
        if closed:
            stream.close()


def _statuses(pod: Object) -> Iterator[Object]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()
