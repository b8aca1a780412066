"""Job monitor: follows a job, its pods and its logs, keeps a snapshot, and shows it."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from tf_dist.client.connection import TRANSIENT_ERRORS, backoff_seconds
from tf_dist.client.log_follower import (
    QUIET,
    ContainerInstance,
    InstanceState,
    LogEnded,
    LogFollower,
    LogLines,
    LogOpener,
    instance_state,
)
from tf_dist.client.stored_jobs import StoredJob, now, pods_of, replica_of
from tf_dist.cluster.api import PODS, Cluster, LogOptions, Object, Resource
from tf_dist.cluster.client.indexer import resource_version_of
from tf_dist.cluster.client.informer import Informer
from tf_dist.cluster.concurrency import SignalSafeQueue
from tf_dist.cluster.signals import Signals
from tf_dist.core.diagnostics.diagnose import diagnose, diagnose_logs
from tf_dist.core.diagnostics.display_text import format_number, table_html
from tf_dist.core.diagnostics.metrics_parser import Progress, combine_progress
from tf_dist.core.diagnostics.outcome import Outcome, outcome_word, with_observations
from tf_dist.core.diagnostics.replicas import ReplicaState, leaders_first, replica_states
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.names import CHECKPOINT_AT
from tf_dist.core.model.pods import PodView, pod_views
from tf_dist.core.model.reasons import Category, Level
from tf_dist.core.model.status import Status, display_phase, ending_failure
from tf_dist.core.model.timestamps import format_micro_time
from tf_dist.errors import ClusterError, InvalidJob, NotFound

NO_PROGRESS = Progress()
_TAIL: Final = 20  # lines of each log that are kept for the outcome


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a client stops a job that has not ended."""

    text: str
    """The state of the job: ``interrupted by SIGINT``."""
    stops_at: float
    """When the grace period of its pods ends (monotonic seconds)."""
    again: str
    """The effect of another signal: ``kill`` or ``leave``."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job and its replicas at one moment."""

    job: Job
    status: Status = field(default_factory=Status)
    pods: tuple[PodView, ...] = ()
    replicas: tuple[ReplicaState, ...] = ()
    progress: Mapping[ReplicaId, Progress] = field(default_factory=dict)
    last_line_at: Mapping[ReplicaId, float] = field(default_factory=dict)
    """When each replica wrote its last line (monotonic seconds)."""
    tails: Mapping[ReplicaId, tuple[str, ...]] = field(default_factory=dict)
    """The last lines of each replica."""
    kept_lines: int = _TAIL
    """The maximum number of these lines."""
    ending: Ending | None = None
    """Why the client stops the job; None if it does not."""

    @property
    def state(self) -> str:
        """The state of the job in one word."""
        return display_phase(self.status)

    @property
    def result(self) -> Progress:
        """The reports of the whole job. Reports of the leader take precedence."""
        return combine_progress(self.progress.get(replica, NO_PROGRESS) for replica in leaders_first(self.job))

    @property
    def logs(self) -> Mapping[str, tuple[str, ...]]:
        """The last lines of each replica, by its name."""
        return {str(replica): lines for replica, lines in self.tails.items()}

    def _repr_html_(self) -> str:
        metrics = sorted({name for progress in self.progress.values() for name in progress.metrics})
        rows = []
        for row in self.replicas:
            progress = self.progress.get(row.replica)
            numbers = [format_number(progress.metrics.get(name)) if progress else "" for name in metrics]
            rows.append([str(row.replica), row.state, row.node, str(row.restarts or ""), *numbers, row.detail])
        message = f": {self.status.display_message}" if self.status.display_message else ""
        state = self.ending.text if self.ending else f"{outcome_word(self.status)}{message}"
        title = f"{self.job.key.name} is {state}"
        return table_html(title, ["replica", "state", "node", "restarts", *metrics, "detail"], rows)

    def with_objects(self, status: Status, pods: list[Object], job: Job | None = None) -> JobSnapshot:
        """The snapshot with a changed job (``job``: its spec, if it was parsed again) and changed pods."""
        job = job or self.job
        seen = pod_views(job, pods)
        return replace(self, job=job, status=status, pods=seen, replicas=replica_states(job, status, seen))

    def with_lines(self, lines: list[LogLines], now: float) -> JobSnapshot:
        """The snapshot with more log lines."""
        if not lines:
            return self
        progress, last_line_at = dict(self.progress), dict(self.last_line_at)
        new: dict[ReplicaId, deque[str]] = {}
        trained: dict[ReplicaId, list[str]] = {}
        for some in lines:
            last_line_at[some.replica] = now
            new.setdefault(some.replica, deque(maxlen=self.kept_lines)).extend(some.texts)
            if some.trains:
                trained.setdefault(some.replica, []).extend(some.texts)
        for replica, texts in trained.items():
            progress[replica] = progress.get(replica, NO_PROGRESS).after_all(texts)
        tails = {replica: (*self.tails.get(replica, ()), *texts)[-self.kept_lines :] for replica, texts in new.items()}
        return replace(self, progress=progress, last_line_at=last_line_at, tails={**self.tails, **tails})

    def observed(self, outcome: Outcome) -> Outcome:
        """The outcome with the reports of the replicas: metrics, checkpoint, the end of the failed replica's log."""
        culprit = next((lines for replica, lines in self.tails.items() if str(replica) == outcome.replica), ())
        return with_observations(outcome, self.result, "\n".join(culprit[-_TAIL:]))


_MAX_LINES: Final = 10_000
_BATCH: Final = 2_000
_UNAVAILABLE_LIMIT: Final = 120.0  # seconds without an answer


class ObjectsListed(NamedTuple):
    """All existing objects of a kind."""

    resource: Resource
    items: list[Object]


class ObjectChanged(NamedTuple):
    """One object changed. DELETED: it is gone."""

    resource: Resource
    type: str
    object: Object


class SignalReceived(NamedTuple):
    """This process received a signal."""

    number: int


JobEvent = LogLines | LogEnded | ObjectsListed | ObjectChanged | SignalReceived | ClusterError

_T = TypeVar("_T")
WaitStep = float | Callable[[], object] | None
WaitSteps = Generator[WaitStep, list[JobEvent], _T]
"""A wait: yields how long to wait for an event (None: without limit) and gets the events, or yields blocking work.

``wait.run_in_thread`` and ``wait.run_on_loop`` run it.
"""


class ObjectWatcher:
    """Puts every change of some objects into a mailbox, from a thread, until it is closed.

    Short interruptions of the cluster are retried. Other errors are put into the mailbox.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        namespace: str | None,
        put: Callable[[Any], None],
        *,
        labels: str = "",
        fields: str = "",
    ) -> None:
        self._resource = resource
        self._put = put
        self._informer = Informer(
            cluster,
            resource,
            changed=self._changed,
            namespace=namespace,
            labels=labels,
            fields=fields,
            restarted=self._restarted,
            relisted=self._relisted,
            pause=backoff_seconds,
        )
        self._informer.start()

    def close(self) -> None:
        """End the watch and its thread."""
        self._informer.end()

    def _relisted(self) -> None:
        self._put(ObjectsListed(self._resource, self._informer.items()))

    def _changed(self, old: Object | None, new: Object | None) -> None:
        stored = new or old
        if stored is not None:
            type_ = "DELETED" if new is None else "ADDED" if old is None else "MODIFIED"
            self._put(ObjectChanged(self._resource, type_, stored))

    def _restarted(self, _: str, cause: str) -> None:
        problem = self._informer.problem
        if self._informer.absent:
            problem = NotFound(f"the cluster does not serve {self._resource.plural}")
        if problem is None:
            return
        silent = time.monotonic() - self._informer.last_response_at
        if not isinstance(problem, TRANSIENT_ERRORS) or silent > _UNAVAILABLE_LIMIT:
            self._informer.end()
            self._put(problem)


class JobInformer:
    """A job and its pods. ``take`` updates them with the events that others ``put``.

    ``job`` is None once the job is gone, and ``last`` is its last version. When about ``most_lines`` lines are queued,
    their readers wait on ``roomy``, a condition that several informers may share. ``batch``: the approximate maximum
    number of events and lines that are taken at once.
    """

    def __init__(
        self,
        job: StoredJob,
        *,
        most_lines: int = _MAX_LINES,
        batch: int = _BATCH,
        roomy: threading.Condition | None = None,
    ) -> None:
        self.uid, self.name = job.uid, job.name
        self.job: StoredJob | None = job
        self.last = job
        self.pods: dict[str, Object] = {}
        self._resource = job.resource
        self._batch = batch
        self._items = SignalSafeQueue[JobEvent]()
        self._most_lines, self._lines = most_lines, 0  # queued lines
        self._counting = threading.Lock()
        self._roomy, self._blocked = roomy or threading.Condition(), 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release waiting readers, because nothing takes events anymore."""
        with self._roomy:
            self._closed = True
            self._roomy.notify_all()

    @property
    def over(self) -> bool:
        """Whether the job has ended, or is gone."""
        return self.job is None or self.job.status.finished

    def put(self, item: JobEvent) -> None:
        """Add an event. Safe in a signal handler, except for lines, which may wait."""
        if isinstance(item, LogLines):
            # Use the shared condition only if the queue is full: otherwise the readers of many logs would contend.
            if not self._has_room():
                with self._roomy:
                    self._blocked += 1
                    self._roomy.wait_for(self._has_room)
                    self._blocked -= 1
            with self._counting:
                self._lines += len(item.texts)
        self._items.put(item)

    def _has_room(self) -> bool:
        return self._lines < self._most_lines or self._closed

    def take(self, timeout: float | None = None) -> list[JobEvent]:
        """The events, after waiting up to ``timeout`` seconds for the first. The state includes them."""
        found: list[JobEvent] = []
        lines = others = 0
        with suppress(queue.Empty):
            item = self._items.get(timeout)
            while True:
                found.append(item)
                if isinstance(item, LogLines):
                    lines += len(item.texts)
                else:
                    others += 1
                if lines + others >= self._batch:
                    break
                item = self._items.get_nowait()
        if lines:
            with self._counting:
                self._lines -= lines
        if self._blocked:
            with self._roomy:
                self._roomy.notify_all()
        for item in found:
            self.learn(item)
        return found

    def learn(self, item: JobEvent) -> None:
        """Update the state with one event."""
        match item:
            case ClusterError():
                raise item
            case ObjectsListed() if item.resource is PODS:
                self.pods = {pod["metadata"]["uid"]: pod for pod in item.items}
            case ObjectChanged() if item.resource is PODS and item.type == "DELETED":
                self.pods.pop(item.object["metadata"]["uid"], None)
            case ObjectChanged() if item.resource is PODS:
                known = self.pods.setdefault(item.object["metadata"]["uid"], item.object)
                if resource_version_of(item.object) >= resource_version_of(known):  # a list may be newer than the watch
                    self.pods[item.object["metadata"]["uid"]] = item.object
            case ObjectsListed():
                mine = [stored for stored in item.items if stored["metadata"]["uid"] == self.uid]
                self.job = StoredJob(self._resource, mine[0]) if mine else None
                self.last = self.job or self.last
            case ObjectChanged() if item.object["metadata"]["uid"] == self.uid:
                self.last = StoredJob(self._resource, item.object)
                self.job = None if item.type == "DELETED" else self.last

    def ended(self, instance: ContainerInstance) -> bool:
        """Whether a container has ended, so that its log will end."""
        return instance_state(self.pods.get(instance.pod_uid), instance) is not InstanceState.RUNNING


class WatchingJobInformer(JobInformer):
    """A job informer that watches a job and its ``pods``.

    ``on_change`` is called, from any thread, after each event.
    """

    def __init__(
        self, cluster: Cluster, job: StoredJob, *, pods: bool = True, on_change: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(job)
        self._on_change = on_change
        fields = f"metadata.name={job.name}"
        self._watchers = [ObjectWatcher(cluster, job.resource, job.namespace, self.put, fields=fields)]
        if pods:
            self._watchers.append(ObjectWatcher(cluster, PODS, job.namespace, self.put, labels=job.selector))

    def put(self, item: JobEvent) -> None:
        """Add an event, see ``JobInformer``."""
        super().put(item)
        self._on_change()

    def close(self) -> None:
        """End the watches."""
        for watcher in self._watchers:
            watcher.close()
        super().close()


def changed_pods(items: list[JobEvent]) -> Iterator[Object]:
    """The pods that changed in a batch."""
    for item in items:
        if isinstance(item, ObjectsListed) and item.resource is PODS:
            yield from item.items
        elif isinstance(item, ObjectChanged) and item.resource is PODS:
            yield item.object


_DRAIN: Final = 15.0  # seconds without a line after which the log of an ended container is abandoned
_TURN: Final = 60.0  # seconds after which logs are abandoned, even logs that wait for a thread or are read again


class JobView(Protocol):
    """Shows a job. ``tick``: seconds between calls if nothing happens (None: no calls)."""

    tick: float | None

    def show(self, snapshot: JobSnapshot, lines: list[LogLines]) -> None:
        """Show a changed snapshot, or new lines."""

    def say(self, text: str, style: str = "") -> None:
        """Show a message of tf-dist."""

    def close(self) -> None:
        """End the view before the summary is shown."""


_REPORT_EVERY: Final = 30.0  # seconds between two reports of checkpoints: each report writes the job

_NOTHING: Final[frozenset[str]] = frozenset()  # shared by all monitors, because few jobs have warnings


class JobMonitor:
    """Keeps a ``snapshot`` of a job. ``signal``: the first signal; ``signals``: their number.

    ``decided``: the end of the job is known. From then on the snapshot takes only lines.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: StoredJob,
        view: JobView,
        watch: JobInformer,
        following: LogFollower,
        kept_lines: int = _TAIL,
    ) -> None:
        self.snapshot = JobSnapshot(job.job, job.status, kept_lines=kept_lines)
        self.watch = watch
        self.signal = 0
        self.signals = 0
        self.decided = False
        self._cluster = cluster
        # Not the job itself: a process may have a thousand monitors, and the stored object is soon out of date.
        self._namespace, self._selector, self._uid = job.namespace, job.selector, job.uid
        self._view = view
        self._following = following
        self._warned = _NOTHING
        self._checkpoint_at = self._reported_at = 0.0  # epoch seconds
        self._report_due = 0.0  # monotonic seconds

    def show(self, batch: list[JobEvent]) -> bool:
        """Add and show events; whether there were any."""
        lines = [item for item in batch if isinstance(item, LogLines)]
        for pod in changed_pods(batch):
            self._following.notice(pod)
        self._note(batch)
        snapshot = self.snapshot.with_lines(lines, time.monotonic())
        if len(lines) < len(batch) and not self.decided:
            job = self.watch.last  # the last version of a deleted job may show that the job had ended
            snapshot = snapshot.with_objects(job.status, list(self.watch.pods.values()), job.known_job)
        for some in lines:
            before, after = (shown.progress.get(some.replica, NO_PROGRESS) for shown in (self.snapshot, snapshot))
            if some.trains and after.saves > before.saves:
                self._checkpoint_at = max(self._checkpoint_at, some.at or now())
        self.snapshot = snapshot
        self._view.show(snapshot, lines)
        self._warn(snapshot, lines)
        return bool(batch)

    def _note(self, batch: list[JobEvent]) -> None:
        for item in batch:
            match item:
                case SignalReceived():
                    self.signal = self.signal or item.number
                    self.signals += 1
                # After Ctrl-C, pods are deleted, including pods whose containers never ran.
                case LogEnded() if item.problem and not self.signal and item.problem not in self._warned:
                    self._warned |= {item.problem}
                    self._view.say(f"no more lines of {item.instance.container}: {item.problem}", "yellow")

    def _warn(self, snapshot: JobSnapshot, lines: list[LogLines]) -> None:
        """Show once why a replica does not start or train well. If the cluster refuses it, show what to do."""
        logs: dict[str, list[str]] = {}
        for some in lines:
            if some.trains:
                logs.setdefault(str(some.replica), []).extend(some.texts)
        found = [(one.summary, one) for one in diagnose(snapshot.job, snapshot.status, snapshot.pods, now())]
        found += [(one.resolution, one) for one in diagnose_logs(snapshot.job, logs)]  # once for all replicas
        for key, one in found:
            if one.level is Level.WARNING and key not in self._warned and one.category is not Category.FAILURE:
                self._warned |= {key}
                self._view.say(": ".join(filter(None, (one.summary, one.detail, one.resolution))), "yellow")
            elif one.category is Category.REFUSED and one.resolution not in self._warned:
                self._warned |= {one.resolution}  # the state of the job shows why
                self._view.say(f"what to do: {one.resolution}", "yellow")

    @property
    def has_checkpoint_to_report(self) -> bool:
        """Whether replicas have reported a checkpoint since the last report, and the next report is due."""
        unreported = self._checkpoint_at > self._reported_at and not self.decided
        return unreported and time.monotonic() >= self._report_due

    def report_checkpoint(self) -> None:
        """Annotate the job with the time of its last checkpoint: a restart loses the work since then.

        A transient error skips one report. Other errors, such as a missing permission, end the reports.
        """
        self._reported_at, self._report_due = self._checkpoint_at, time.monotonic() + _REPORT_EVERY
        annotations = {CHECKPOINT_AT: format_micro_time(self._checkpoint_at)}
        patch = {"metadata": {"annotations": annotations, "uid": self._uid}}
        try:
            self._cluster.patch(self.watch.last.resource, self._namespace, self.watch.name, patch)
        except TRANSIENT_ERRORS:
            pass
        except ClusterError:
            self._report_due = math.inf

    def sync_pods(self) -> None:
        """List the pods: the watch of the job may be ahead of the watch of its pods."""
        with suppress(*TRANSIENT_ERRORS):
            pods = self._cluster.list(PODS, self._namespace, labels=self._selector).items
            self.watch.learn(ObjectsListed(PODS, pods))
            for pod in pods:
                self._following.notice(pod)

    @property
    def has_unread_logs(self) -> bool:
        """Whether lines of ended containers may still arrive."""
        return self._following.pending(self.watch.ended)

    def drain(
        self, before: int = 0, *, quiet: float = _DRAIN, busy_until: Callable[[], float] = lambda: 0.0
    ) -> WaitSteps[None]:
        """Read the last lines of ended containers, and other events, until more than ``before`` signals have arrived.

        The drain ends if no line arrives for ``quiet`` seconds. Logs that wait for a thread, or whose end is read
        again, do not count as silent. ``busy_until``: until when (monotonic seconds) other events may arrive.
        """
        begun = time.monotonic()
        until = begun + quiet
        while self.signals == before:
            if self._following.expedite(self.watch.ended):
                until = max(until, min(time.monotonic() + quiet, begun + _TURN))
            until = max(until, min(self._following.line_at(self.watch.ended) + quiet, begun + _TURN))
            left = max(until if self.has_unread_logs else 0.0, busy_until()) - time.monotonic()
            if left <= 0:
                break
            if not self.show((yield min(left, QUIET))):
                self._following.reread_quiet(self.watch.ended)
            else:
                until = time.monotonic() + quiet
        if self.signals == before and self.has_unread_logs:  # the results may be incomplete
            self._view.say(
                "the last lines of a container could not be read in time (is its node up?): step, metrics and "
                "checkpoint are as of the lines that could",
                "yellow",
            )

        while self.show((yield 0.0)) and self.signals == before:
            pass


@contextmanager
def monitoring(
    cluster: Cluster,
    job: StoredJob,
    view: JobView,
    signals: Signals,
    open_log: Callable[[WatchingJobInformer], LogOpener],
    kept_lines: int = _TAIL,
) -> Iterator[JobMonitor]:
    """Monitor a job. Signals become events."""
    with WatchingJobInformer(cluster, job) as watch:
        signals.listen(lambda number: watch.put(SignalReceived(number)))
        following = LogFollower(job.job, open_log(watch), watch)
        try:
            yield JobMonitor(cluster, job, view, watch, following, kept_lines)
        finally:
            following.close()


# The job was not followed: the ends of the logs that determine its results are read once.

_END_LINES: Final = 5_000


def read_log_ends(cluster: Cluster, job: StoredJob, pods: list[Object]) -> JobSnapshot:
    """A job and its replicas, with the last log lines of the leader and of the failed replica.

    A log that is gone, or that cannot be read, has no lines. InvalidJob if the spec of the job is invalid.
    """
    snapshot = JobSnapshot(job.job, kept_lines=_END_LINES).with_objects(job.status, pods)
    there = {replica: pod for pod in pods if (replica := replica_of(pod)) is not None}
    lines = [LogLines(one, str(one), _read_end(cluster, job.job, one, there[one])) for one in _deciding(job, there)]
    return snapshot.with_lines([some for some in lines if some.texts], 0.0)


def observed_outcome(cluster: Cluster, job: StoredJob, outcome: Outcome) -> Outcome:
    """The outcome of a job with the reports of its replicas, if they can be read."""
    try:
        return read_log_ends(cluster, job, pods_of(cluster, job)).observed(outcome)
    except (ClusterError, InvalidJob):  # its pods cannot be listed, or its spec is invalid
        return outcome


def _deciding(job: StoredJob, there: Iterable[ReplicaId]) -> list[ReplicaId]:
    there = {*there}
    failure = ending_failure(job.status)
    ordered = [one for one in leaders_first(job.job) if one in there]
    return [*ordered[:1], *(one for one in ordered[1:] if failure is not None and failure.replica == str(one))]


def _read_end(cluster: Cluster, job: Job, replica: ReplicaId, pod: Object) -> list[str]:
    spec = job.spec(replica.type)
    options = LogOptions(container=spec.container if spec else "", tail=_END_LINES)
    found: list[str] = []
    try:
        with closing(cluster.logs(pod["metadata"]["namespace"], pod["metadata"]["name"], options)) as stream:
            for some in stream:
                found += some.decode(errors="replace").splitlines()
    except ClusterError:
        return found
    return found
