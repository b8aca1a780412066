"""Metrics that are read from the drivers when they are scraped, summed up over those of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tf_dist.driver.readings import InformerReading, Readings, WorkReading


class Sampled(Collector):
    """Asks its ``sources`` at each scrape. What a process does not drive has no series there."""

    def __init__(self) -> None:
        self.sources: list[Callable[[], Readings]] = []

    def collect(self) -> Iterator[Metric]:
        """One family after another."""
        read = [source() for source in self.sources]
        yield from _of_work([one.work for one in read])
        yield from _of_jobs(read)
        yield from _of_informers([informer for one in read for informer in one.informers])

    def describe(self) -> Iterable[Metric]:
        """Nothing: else registering would ask the sources."""
        return ()


def _of_work(read: Sequence[WorkReading]) -> Iterator[Metric]:
    running = [seconds for one in read for seconds in one.running.values()]
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield gauge("tf_dist_workqueue_depth", "Jobs that are due and wait for a worker.", sum(one.depth for one in read))
    yield counter(
        "tf_dist_workqueue_adds", "Jobs put into the work queue that were not in it.", sum(one.adds for one in read)
    )
    yield counter(
        "tf_dist_workqueue_retries", "Jobs put back into the work queue to try again.", sum(one.retries for one in read)
    )
    yield gauge(
        "tf_dist_workqueue_unfinished_work_seconds",
        "How long workers have been busy with what they have not finished, together.",
        sum(running),
    )
    yield gauge(
        "tf_dist_workqueue_longest_running_processor_seconds",
        "How long the worker has been busy that began first.",
        max(running, default=0.0),
    )
    yield gauge("tf_dist_active_workers", "Workers that are busy.", len(running))
    yield gauge("tf_dist_max_concurrent_reconciles", "Workers that there are.", sum(one.workers for one in read))


def _of_jobs(read: Sequence[Readings]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("tf_dist_jobs", "Jobs that this process drives, by phase.", labels=["phase"])
    phases = sorted({phase for one in read for phase in one.jobs})
    for phase in phases:
        jobs.add_metric([phase], sum(one.jobs.get(phase, 0) for one in read))
    yield jobs
    pending = GaugeMetricFamily(
        "tf_dist_pending_gangs", "Gangs of this process that wait for their place, by queue.", labels=["queue"]
    )
    admitted = GaugeMetricFamily(
        "tf_dist_admitted_gangs", "Gangs of this process that have their place, by queue.", labels=["queue"]
    )
    for queue in sorted({queue for one in read for queue in one.gangs}):
        found = [one.gangs[queue] for one in read if queue in one.gangs]
        pending.add_metric([queue], sum(gang.pending for gang in found))
        admitted.add_metric([queue], sum(gang.admitted for gang in found))
    yield pending
    yield admitted


def _of_informers(read: Sequence[InformerReading]) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "tf_dist_informer_age_seconds", "Since the API server last said anything about a kind.", labels=["resource"]
    )
    lists = CounterMetricFamily(
        "tf_dist_informer_lists", "How often everything of a kind was listed, from the start.", labels=["resource"]
    )
    for resource in sorted({one.resource for one in read}):
        found = [one for one in read if one.resource == resource]
        age.add_metric([resource], max(one.age for one in found))
        lists.add_metric([resource], sum(one.lists for one in found))
    yield age
    yield lists
