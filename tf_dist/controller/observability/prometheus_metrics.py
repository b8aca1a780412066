"""Prometheus metrics of a controller. docs/metrics.md describes them for users.

Names and units follow Prometheus' conventions. No label contains a job's name, because each job would then have its own
series.
"""

from __future__ import annotations

import time
from collections import Counter as Totals
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as MetricFamily
from prometheus_client.registry import Collector

from tf_dist import __version__
from tf_dist.controller.observability.metrics_interface import (
    MAX_QUEUES,
    OTHER_QUEUES,
    ControllerStats,
    Metric,
    MetricsRecorder,
)
from tf_dist.core.model.usage import Usage

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class StatsCollector(Collector):
    """Reads its ``sources`` at each scrape. Jobs that this process does not lead have no series."""

    def __init__(self) -> None:
        self.sources: list[Callable[[], ControllerStats]] = []

    def collect(self) -> Iterator[MetricFamily]:
        """The families of metrics, from the current statistics."""
        read = [source() for source in self.sources]
        work = [one.work for one in read]
        running = [seconds for one in work for seconds in one.running.values()]
        yield _gauge("workqueue_depth", "Jobs that are due and wait for a worker.", sum(one.depth for one in work))
        yield _counter("workqueue_adds", "Jobs added to the work queue.", sum(one.adds for one in work))
        yield _counter(
            "workqueue_retries", "Jobs added again to the work queue after an error.", sum(one.retries for one in work)
        )
        yield _gauge(
            "workqueue_unfinished_work_seconds",
            "Seconds for which all workers together have been busy with unfinished jobs.",
            sum(running),
        )
        yield _gauge(
            "workqueue_longest_running_processor_seconds",
            "Seconds for which the longest-running worker has been busy with its job.",
            max(running, default=0.0),
        )
        yield _gauge("active_workers", "Workers that are busy.", len(running))
        yield _gauge("max_concurrent_reconciles", "Workers of this process.", sum(one.workers for one in work))
        yield _gauge(
            "jobs", "Jobs that this process reconciles, by phase.", _totals(one.jobs for one in read), label="phase"
        )
        pending = _totals({queue: gangs.pending for queue, gangs in one.gangs.items()} for one in read)
        yield _gauge("pending_gangs", "Gangs that wait for admission, by queue.", pending, label="queue")
        admitted = _totals({queue: gangs.admitted for queue, gangs in one.gangs.items()} for one in read)
        yield _gauge("admitted_gangs", "Admitted gangs, by queue.", admitted, label="queue")
        informers = sorted((one for each in read for one in each.informers), key=lambda one: one.age)
        yield _gauge(
            "informer_age_seconds",
            "Seconds since the last answer or event of the API server, by kind.",
            {one.resource: one.age for one in informers},  # the oldest informer of a kind comes last
            label="resource",
        )
        lists = _totals({one.resource: one.lists} for one in informers)
        yield _counter("informer_lists", "Complete lists of a kind.", lists, label="resource")

    def describe(self) -> Iterable[MetricFamily]:
        """No families, because otherwise the registration would read the sources."""
        return ()


def _totals(parts: Iterable[Mapping[str, int]]) -> Mapping[str, float]:
    found: Totals[str] = Totals()
    for part in parts:
        found.update(part)
    return found


def _gauge(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> MetricFamily:
    return _with_samples(GaugeMetricFamily(f"tf_dist_{name}", text, labels=[label] if label else []), value)


def _counter(name: str, text: str, value: float | Mapping[str, float], label: str = "") -> MetricFamily:
    return _with_samples(CounterMetricFamily(f"tf_dist_{name}", text, labels=[label] if label else []), value)


def _with_samples(family: GaugeMetricFamily | CounterMetricFamily, value: float | Mapping[str, float]) -> MetricFamily:
    """The family with a single value, or with a value for each value of its label."""
    if not isinstance(value, Mapping):
        family.add_metric([], value)
        return family
    for label, number in sorted(value.items()):
        family.add_metric([label], number)
    return family


class PrometheusRecorder(MetricsRecorder):
    """Counts into its own registry, so that a process can have several. ``clock``: epoch seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        own = self.registry = CollectorRegistry()
        self._sampled = StatsCollector()
        own.register(self._sampled)
        self._held: set[str] = set()
        self._queues: set[str] = set()
        self._counted: dict[Metric, Counter | Histogram] = {}
        for metric in Metric:
            name, (text, labels, buckets) = f"tf_dist_{metric.name.lower()}", metric.value
            self._counted[metric] = (
                Histogram(name, text, labels, buckets=buckets, registry=own)
                if buckets
                else Counter(name, text, labels, registry=own)
            )
        leading = "1 while this process is the leader of the cluster or of a namespace, else 0."
        Gauge("tf_dist_leading", leading, registry=own).set_function(lambda: bool(self._held))
        self._last_heartbeat = Gauge(
            "tf_dist_last_heartbeat_timestamp_seconds", "Time of the last renewal of the Lease.", registry=own
        )
        Info("tf_dist_build", "The running version.", registry=own).info({"version": __version__})
        ProcessCollector(registry=own)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format (``CONTENT_TYPE``)."""
        return generate_latest(self.registry)

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        """Count or observe in the registry."""
        counted = self._counted[metric]
        counted = counted.labels(*labels) if labels else counted
        if isinstance(counted, Counter):
            counted.inc(value)
        else:
            counted.observe(value)

    def attach(self, source: Callable[[], ControllerStats]) -> None:
        """Read the statistics of a controller at each scrape."""
        self._sampled.sources.append(source)

    def used(self, queue: str, before: Usage, after: Usage) -> None:
        """Count the usage of a job. Jobs may name any queue, so only a limited number of names has its own series."""
        if queue not in self._queues:
            queue = queue if len(self._queues) < MAX_QUEUES else OTHER_QUEUES
            self._queues.add(queue)
        super().used(queue, before, after)

    def heartbeat(self, ok: bool) -> None:
        """Count a renewal, and store the time of a successful renewal."""
        super().heartbeat(ok)
        if ok:
            self._last_heartbeat.set(self._clock())

    def leading(self, lease: str, leads: bool) -> None:
        """Store which Leases are held."""
        (self._held.add if leads else self._held.discard)(lease)
