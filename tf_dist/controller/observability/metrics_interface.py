"""Metrics of a controller: the table of metrics that are recorded at each event, and statistics that each scrape reads.

``prometheus_metrics`` exposes both as Prometheus metrics. Statistics are never out of date: nothing has to be reset
when a job is deleted or the Lease is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from tf_dist.cluster.api import Resource
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE
from tf_dist.core.model.usage import Usage

# The maximum number of queues with their own series. Jobs may name any queue, so all other queues share a series.
MAX_QUEUES: Final = 200
OTHER_QUEUES: Final = "other"
_RECONCILE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_REQUEST_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ADMISSION_WAIT_BUCKETS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)


class Instrument(NamedTuple):
    """How a metric is exposed."""

    text: str  # the meaning for users
    labels: tuple[str, ...] = ()  # the names of the labels
    buckets: tuple[float, ...] = ()  # the buckets of a histogram; empty for a counter


class Metric(Enum):
    """All recorded metrics. The name of a metric is ``tf_dist_`` and its member's name in lower case."""

    WORKQUEUE_QUEUE_DURATION_SECONDS = Instrument(
        "Seconds that jobs waited in the work queue.", buckets=_REQUEST_BUCKETS
    )
    WORKQUEUE_WORK_DURATION_SECONDS = Instrument("Seconds that a worker was busy with a job.", buckets=_REQUEST_BUCKETS)
    RECONCILE_ERRORS = Instrument("Reconciles that failed, by reason.", ("reason",))
    RECONCILE_SECONDS = Instrument("Seconds of a reconcile, including its requests.", buckets=_RECONCILE_BUCKETS)
    ACTIONS = Instrument("Actions taken for jobs, by kind and result.", ("kind", "result"))
    ADMISSION_WAIT_SECONDS = Instrument(
        "Seconds that gangs waited for admission. The count is the number of admissions.",
        buckets=_ADMISSION_WAIT_BUCKETS,
    )
    UNDECIDABLE_GANGS = Instrument("Gangs that admission left out because they could not be evaluated.")
    RESTARTS = Instrument("Restarts of replicas, tasks and jobs, by cause.", ("cause",))
    DISRUPTIONS = Instrument("Pods that were disrupted, by reason.", ("reason",))
    GPU_SECONDS = Instrument(
        "Seconds of GPUs: held by admitted gangs, trained in runs that are over, and lost of these.", ("queue", "use")
    )
    REPLICA_SECONDS = Instrument(
        "Seconds of replicas: held by admitted gangs, trained in runs that are over, and lost of these.",
        ("queue", "use"),
    )
    API_CALLS = Instrument(
        "Requests to the API server, by verb, resource and HTTP status (0: no answer).", ("verb", "resource", "code")
    )
    API_CALL_SECONDS = Instrument(
        "Seconds until the API server answered a request, by verb.", ("verb",), _REQUEST_BUCKETS
    )
    WATCH_RESTARTS = Instrument("Watches that ended early, by resource and cause.", ("resource", "cause"))
    HEARTBEATS = Instrument("Renewals of the Lease, by result (ok, failed).", ("result",))


class MetricsRecorder:
    """The base class of recorders, which counts nothing. Any thread calls its methods: they must not block or raise."""

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        """Add ``value`` to a counter, or observe it in a histogram."""

    def attach(self, source: Callable[[], ControllerStats]) -> None:
        """Read the statistics of a controller at each scrape."""

    def used(self, queue: str, before: Usage, after: Usage) -> None:
        """Count the growth of the usage of a job in a queue ("": in no queue)."""
        for metric, was, now in (
            (Metric.GPU_SECONDS, before.gpus, after.gpus),
            (Metric.REPLICA_SECONDS, before.replicas, after.replicas),
        ):
            for use in ("held", "trained", "lost"):
                if (seconds := getattr(now, use) - getattr(was, use)) > 0:
                    self.record(metric, queue, use, value=seconds)

    def called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server: the verb, the plural, the HTTP status (0: no answer) and the duration."""
        self.record(Metric.API_CALLS, verb, resource, str(code))
        self.record(Metric.API_CALL_SECONDS, verb, value=seconds)

    def heartbeat(self, ok: bool) -> None:
        """Count a successful or failed renewal of a Lease."""
        self.record(Metric.HEARTBEATS, "ok" if ok else "failed")

    def leading(self, lease: str, leads: bool) -> None:
        """Record whether this process holds a Lease (``namespace/name``) from now on."""


@dataclass(frozen=True, slots=True)
class InformerStats:
    """The statistics of an informer."""

    resource: str
    age: float  # seconds since the server's last response or event
    idle: float  # seconds since the last cycle of its thread
    dead: bool  # whether its thread has ended unexpectedly
    lists: int  # the number of complete lists


@dataclass(frozen=True, slots=True)
class WorkQueueStats:
    """The statistics of the work queue and its workers."""

    depth: int = 0  # jobs that wait for a worker
    adds: int = 0
    retries: int = 0
    running: Mapping[str, float] = field(default_factory=dict)  # the job of each busy worker, and its seconds so far
    workers: int = 0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The numbers of gangs of a queue that wait for admission, and that are admitted."""

    pending: int = 0
    admitted: int = 0


@dataclass(frozen=True, slots=True)
class ControllerStats:
    """The statistics of a controller. They include only jobs and gangs that it leads now."""

    work: WorkQueueStats
    informers: tuple[InformerStats, ...] = ()
    jobs: Mapping[str, int] = field(default_factory=dict)  # by phase
    gangs: Mapping[str, QueueStats] = field(default_factory=dict)  # by queue
    loop_age: float = 0.0  # seconds since the admission loop began its last cycle


def gangs_by_queue(jobs: Mapping[JobMetricsKey, int], queues: Iterable[str]) -> dict[str, QueueStats]:
    """The gangs of each existing queue ("": jobs that name no queue if no default queue exists)."""
    there = sorted(set(queues))[:MAX_QUEUES]
    found = {name: QueueStats() for name in there}
    for one, number in jobs.items():
        if one.queue is None:
            continue
        named = one.queue or (DEFAULT_QUEUE if DEFAULT_QUEUE in found else "")
        name = named if named in found or not named else OTHER_QUEUES
        before = found.get(name, QueueStats())
        found[name] = QueueStats(before.pending + one.waits * number, before.admitted + one.admitted * number)
    return found


class JobMetricsKey(NamedTuple):
    """The properties of a job that metrics distinguish. Jobs with the same key are counted together."""

    resource: Resource
    phase: str
    queue: str | None  # the queue that the job names; None if the job has finished or cannot be read
    waits: bool
    admitted: bool
