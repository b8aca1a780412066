"""What a driver tells about itself, as Prometheus metrics. What they mean for people: docs/metrics.md.

Names and units follow Prometheus' conventions; no label has a job's name among its values, which would make a series
per job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from tf_dist import __version__
from tf_dist.driver.readings import Readings
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.sampled import Sampled

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PASS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CALL: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAIT: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)


class PrometheusRecorder(Recorder):
    """Counts into a registry of its own, so that several may live in one process. ``clock``: epoch seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        own = self.registry = CollectorRegistry()
        self._sampled = Sampled()
        own.register(self._sampled)
        self._waits = Histogram(
            "tf_dist_workqueue_queue_duration_seconds",
            "How long jobs waited in the work queue until a worker took them.",
            buckets=_CALL,
            registry=own,
        )
        self._works = Histogram(
            "tf_dist_workqueue_work_duration_seconds",
            "How long a worker was busy with a job that it took.",
            buckets=_CALL,
            registry=own,
        )
        self._failures = Counter(
            "tf_dist_reconcile_errors",
            "Looks at jobs that did not come to their end, by reason.",
            ["reason"],
            registry=own,
        )
        self._leading = Gauge("tf_dist_leading", "1 while this process holds its lease, else 0.", registry=own)
        self._reconciles = Histogram(
            "tf_dist_reconcile_seconds",
            "Looking at one job, deciding and acting for it.",
            buckets=_PASS,
            registry=own,
        )
        self._actions = Counter(
            "tf_dist_actions", "Actions taken for jobs, by kind and result.", ["kind", "result"], registry=own
        )
        self._admissions = Histogram(
            "tf_dist_admission_wait_seconds",
            "How long gangs waited for their place; the count is that of admissions.",
            buckets=_WAIT,
            registry=own,
        )
        self._undecidable = Counter(
            "tf_dist_undecidable_gangs", "Gangs that could not be counted or decided about.", registry=own
        )
        self._restarts = Counter(
            "tf_dist_restarts", "Restarts of replicas, tasks and jobs, by cause.", ["cause"], registry=own
        )
        self._disruptions = Counter(
            "tf_dist_disruptions", "Pods that were taken away, by reason.", ["reason"], registry=own
        )
        self._calls = Counter(
            "tf_dist_api_calls",
            "Requests to the API server, by verb, resource and HTTP status (0: no answer).",
            ["verb", "resource", "code"],
            registry=own,
        )
        self._call_seconds = Histogram(
            "tf_dist_api_call_seconds",
            "Requests to the API server until their answer, by verb.",
            ["verb"],
            buckets=_CALL,
            registry=own,
        )
        self._watches = Counter(
            "tf_dist_watch_restarts",
            "Watches that did not end as agreed, by resource and cause.",
            ["resource", "cause"],
            registry=own,
        )
        self._heartbeats = Counter(
            "tf_dist_heartbeats", "Renewals of this process's lease, by result (ok, failed).", ["result"], registry=own
        )
        self._last_heartbeat = Gauge(
            "tf_dist_last_heartbeat_timestamp_seconds", "When the lease was renewed last.", registry=own
        )
        Info("tf_dist_build", "The version that runs.", registry=own).info({"version": __version__})
        ProcessCollector(registry=own)

    def exposition(self) -> bytes:
        """Everything counted so far, in Prometheus' text format (``CONTENT_TYPE``)."""
        return generate_latest(self.registry)

    def attach(self, source: Callable[[], Readings]) -> None:
        """Ask a driver how it stands whenever this is read."""
        self._sampled.sources.append(source)

    def worked(self, waited: float, seconds: float) -> None:
        """Count what a worker did."""
        self._waits.observe(waited)
        self._works.observe(seconds)

    def reconcile_failed(self, reason: str) -> None:
        """Count a failure."""
        self._failures.labels(reason).inc()

    def reconciled(self, seconds: float) -> None:
        """Count a pass."""
        self._reconciles.observe(seconds)

    def acted(self, kind: str, result: str) -> None:
        """Count an action."""
        self._actions.labels(kind, result).inc()

    def admitted(self, waited: float) -> None:
        """Count an admission."""
        self._admissions.observe(waited)

    def undecidable(self, gangs: int) -> None:
        """Count gangs that cannot be decided about."""
        self._undecidable.inc(gangs)

    def restarted(self, cause: str) -> None:
        """Count a restart."""
        self._restarts.labels(cause).inc()

    def called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request."""
        self._calls.labels(verb, resource, code).inc()
        self._call_seconds.labels(verb).observe(seconds)

    def disrupted(self, reason: str) -> None:
        """Count a disruption."""
        self._disruptions.labels(reason).inc()

    def watch_restarted(self, resource: str, cause: str) -> None:
        """Count a restart of a watch."""
        self._watches.labels(resource, cause).inc()

    def heartbeat(self, ok: bool) -> None:
        """Count a renewal."""
        self._heartbeats.labels("ok" if ok else "failed").inc()
        if ok:
            self._last_heartbeat.set(self._clock())

    def leading(self, leads: bool) -> None:
        """Set whether we lead."""
        self._leading.set(leads)
