"""Prometheus metrics of a controller. Their meaning for users: docs/metrics.md.

Names and units follow Prometheus' conventions; no label has a job's name among its values, which would make a series
per job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tf_dist import __version__
from tf_dist.controller.observability.metrics_interface import (
    MAX_QUEUES,
    OTHER_QUEUES,
    ControllerStats,
    InformerStats,
    MetricsRecorder,
    WorkQueueStats,
)
from tf_dist.core.model.usage import Usage


class StatsCollector(Collector):
    """Asks its ``sources`` at each scrape. What a process does not drive has no series there."""

    def __init__(self) -> None:
        self.sources: list[Callable[[], ControllerStats]] = []

    def collect(self) -> Iterator[Metric]:
        """One family after another."""
        read = [source() for source in self.sources]
        yield from _of_work([one.work for one in read])
        yield from _of_jobs(read)
        yield from _of_informers([informer for one in read for informer in one.informers])

    def describe(self) -> Iterable[Metric]:
        """Nothing: else registering would ask the sources."""
        return ()


def _of_work(read: Sequence[WorkQueueStats]) -> Iterator[Metric]:
    running = [seconds for one in read for seconds in one.running.values()]
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    longest = "Seconds for which the longest-running worker has been busy with its job."
    together = "Seconds for which all workers together have been busy with unfinished jobs."
    yield gauge("tf_dist_workqueue_depth", "Jobs that are due and wait for a worker.", sum(one.depth for one in read))
    added, again = sum(one.adds for one in read), sum(one.retries for one in read)
    yield counter("tf_dist_workqueue_adds", "Jobs added to the work queue.", added)
    yield counter("tf_dist_workqueue_retries", "Jobs added again to the work queue after an error.", again)
    yield gauge("tf_dist_workqueue_unfinished_work_seconds", together, sum(running))
    yield gauge("tf_dist_workqueue_longest_running_processor_seconds", longest, max(running, default=0.0))
    yield gauge("tf_dist_active_workers", "Workers that are busy.", len(running))
    yield gauge("tf_dist_max_concurrent_reconciles", "Workers of this process.", sum(one.workers for one in read))


def _of_jobs(read: Sequence[ControllerStats]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("tf_dist_jobs", "Jobs that this process reconciles, by phase.", labels=["phase"])
    phases = sorted({phase for one in read for phase in one.jobs})
    for phase in phases:
        jobs.add_metric([phase], sum(one.jobs.get(phase, 0) for one in read))
    yield jobs
    pending = GaugeMetricFamily("tf_dist_pending_gangs", "Gangs that wait for admission, by queue.", labels=["queue"])
    admitted = GaugeMetricFamily("tf_dist_admitted_gangs", "Admitted gangs, by queue.", labels=["queue"])
    for queue in sorted({queue for one in read for queue in one.gangs}):
        found = [one.gangs[queue] for one in read if queue in one.gangs]
        pending.add_metric([queue], sum(gang.pending for gang in found))
        admitted.add_metric([queue], sum(gang.admitted for gang in found))
    yield pending
    yield admitted


def _of_informers(read: Sequence[InformerStats]) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "tf_dist_informer_age_seconds",
        "Seconds since the last answer or event of the API server, by kind.",
        labels=["resource"],
    )
    lists = CounterMetricFamily("tf_dist_informer_lists", "Complete lists of a kind.", labels=["resource"])
    for resource in sorted({one.resource for one in read}):
        found = [one for one in read if one.resource == resource]
        age.add_metric([resource], max(one.age for one in found))
        lists.add_metric([resource], sum(one.lists for one in found))
    yield age
    yield lists


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_RECONCILE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_REQUEST_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ADMISSION_WAIT_BUCKETS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)


class Instrument(NamedTuple):
    """A metric that counts what happens."""

    text: str
    """Its meaning for users."""
    labels: tuple[str, ...] = ()
    """The names of its labels."""
    buckets: tuple[float, ...] = ()
    """A histogram has some, a counter none."""


METRICS: Final = {
    "workqueue_queue_duration_seconds": Instrument(
        "Seconds that jobs waited in the work queue.", buckets=_REQUEST_BUCKETS
    ),
    "workqueue_work_duration_seconds": Instrument(
        "Seconds that a worker was busy with a job.", buckets=_REQUEST_BUCKETS
    ),
    "reconcile_errors": Instrument("Reconciles that failed, by reason.", ("reason",)),
    "reconcile_seconds": Instrument("Seconds of a reconcile, including its requests.", buckets=_RECONCILE_BUCKETS),
    "actions": Instrument("Actions taken for jobs, by kind and result.", ("kind", "result")),
    "admission_wait_seconds": Instrument(
        "Seconds that gangs waited for admission. The count is the number of admissions.",
        buckets=_ADMISSION_WAIT_BUCKETS,
    ),
    "undecidable_gangs": Instrument("Gangs that admission left out because they could not be evaluated."),
    "restarts": Instrument("Restarts of replicas, tasks and jobs, by cause.", ("cause",)),
    "disruptions": Instrument("Pods that were disrupted, by reason.", ("reason",)),
    "gpu_seconds": Instrument(
        "Seconds of GPUs: held by admitted gangs, trained in runs that are over, and lost of these.", ("queue", "use")
    ),
    "replica_seconds": Instrument(
        "Seconds of replicas: held by admitted gangs, trained in runs that are over, and lost of these.",
        ("queue", "use"),
    ),
    "api_calls": Instrument(
        "Requests to the API server, by verb, resource and HTTP status (0: no answer).", ("verb", "resource", "code")
    ),
    "api_call_seconds": Instrument(
        "Seconds until the API server answered a request, by verb.", ("verb",), _REQUEST_BUCKETS
    ),
    "watch_restarts": Instrument("Watches that ended early, by resource and cause.", ("resource", "cause")),
    "heartbeats": Instrument("Renewals of the Lease, by result (ok, failed).", ("result",)),
}
"""By name, without the prefix ``tf_dist_``."""


class PrometheusRecorder(MetricsRecorder):
    """Counts into a registry of its own, so that several may live in one process. ``clock``: epoch seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        own = self.registry = CollectorRegistry()
        self._sampled = StatsCollector()
        own.register(self._sampled)
        self._held: set[str] = set()
        self._queues: set[str] = set()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for key, (text, labels, buckets) in METRICS.items():
            name = f"tf_dist_{key}"
            if buckets:
                self._histograms[key] = Histogram(name, text, labels, buckets=buckets, registry=own)
            else:
                self._counters[key] = Counter(name, text, labels, registry=own)
        leading = "1 while this process is the leader of the cluster or of a namespace, else 0."
        Gauge("tf_dist_leading", leading, registry=own).set_function(lambda: bool(self._held))
        self._last_heartbeat = Gauge(
            "tf_dist_last_heartbeat_timestamp_seconds", "Time of the last renewal of the Lease.", registry=own
        )
        Info("tf_dist_build", "The running version.", registry=own).info({"version": __version__})
        ProcessCollector(registry=own)

    def exposition(self) -> bytes:
        """Everything counted so far, in Prometheus' text format (``CONTENT_TYPE``)."""
        return generate_latest(self.registry)

    def attach(self, source: Callable[[], ControllerStats]) -> None:
        """Ask a controller how it stands whenever this is read."""
        self._sampled.sources.append(source)

    def used(self, queue: str, before: Usage, after: Usage) -> None:
        """Count what a job used; users may name any queue, so not every name has a series."""
        if queue not in self._queues:
            queue = queue if len(self._queues) < MAX_QUEUES else OTHER_QUEUES
            self._queues.add(queue)
        super().used(queue, before, after)

    def record(self, metric: str, value: float, *labels: str) -> None:
        """Count into the registry."""
        if metric in self._counters:
            counter = self._counters[metric]
            (counter.labels(*labels) if labels else counter).inc(value)
        else:
            histogram = self._histograms[metric]
            (histogram.labels(*labels) if labels else histogram).observe(value)

    def heartbeat(self, ok: bool) -> None:
        """Count a renewal, and remember the time of one that succeeded."""
        super().heartbeat(ok)
        if ok:
            self._last_heartbeat.set(self._clock())

    def leading(self, lease: str, leads: bool) -> None:
        """Remember which Leases are held."""
        (self._held.add if leads else self._held.discard)(lease)
