"""Metrics of a controller: the interface that counts, and the statistics that are read when metrics are scraped.

What is read then is never out of date: nothing has to be set back when jobs are deleted or the Lease is lost.

A controller calls these wherever something happens; ``prometheus_metrics`` turns them into Prometheus metrics. They are
called from any thread, often, and must neither block nor raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tf_dist.cluster.api import Resource
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE
from tf_dist.core.model.usage import Usage

# Queues that have series of their own; users may name any, so all that do not exist share one.
MAX_QUEUES: Final = 200
OTHER_QUEUES: Final = "other"


@dataclass(frozen=True, slots=True)
class InformerStats:
    """One informer. ``age``: seconds since the server last said anything; ``idle``: since its thread came round.

    ``dead``: its thread has ended by itself. ``lists``: how often it has listed everything.
    """

    resource: str
    age: float
    idle: float
    dead: bool
    lists: int


@dataclass(frozen=True, slots=True)
class WorkQueueStats:
    """The work queue and its workers. ``running``: what workers are busy with, and for how many seconds."""

    depth: int = 0
    adds: int = 0
    retries: int = 0
    running: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The gangs of a queue: those that wait for admission, and those that are admitted."""

    pending: int = 0
    admitted: int = 0


@dataclass(frozen=True, slots=True)
class ControllerStats:
    """One controller. ``jobs`` by phase and ``gangs`` by queue: of jobs that it leads now.

    ``loop_age``: seconds since the admission loop began its last round.
    """

    work: WorkQueueStats
    informers: tuple[InformerStats, ...] = ()
    jobs: Mapping[str, int] = field(default_factory=dict)
    gangs: Mapping[str, QueueStats] = field(default_factory=dict)
    loop_age: float = 0.0


def jobs_by_phase(jobs: Mapping[JobMetricsKey, int]) -> dict[str, int]:
    """How many jobs are in each phase."""
    found: Counter[str] = Counter()
    for metrics_key, number in jobs.items():
        found[metrics_key.phase] += number
    return dict(found)


def gangs_by_queue(jobs: Mapping[JobMetricsKey, int], queues: Iterable[str]) -> dict[str, QueueStats]:
    """The gangs of each queue that there is ("": jobs without one, where there is no default queue)."""
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


class MetricsRecorder:
    """What happens, as metrics (``prometheus_metrics.METRICS``). Counts nothing: override ``record`` to count."""

    def record(self, metric: str, value: float, *labels: str) -> None:
        """Add to a counter, observe a value, or set a gauge."""

    def attach(self, source: Callable[[], ControllerStats]) -> None:
        """A controller says how it stands whenever it is asked."""

    def worked(self, waited: float, seconds: float) -> None:
        """A worker has dealt with a key of the work queue, which had waited for it, in so many seconds."""
        self.record("workqueue_queue_duration_seconds", waited)
        self.record("workqueue_work_duration_seconds", seconds)

    def reconcile_failed(self, reason: str) -> None:
        """Reconciling a job failed: ``Conflict``, ``Unavailable``, …, or a ``defect`` of ours."""
        self.record("reconcile_errors", 1, reason)

    def reconciled(self, seconds: float) -> None:
        """One job was looked at, decided on and acted for, which took ``seconds``."""
        self.record("reconcile_seconds", seconds)

    def acted(self, kind: str, result: str) -> None:
        """An action was taken: its kind (``Create``, ``WriteStatus``, …) and how it went (``ok``, or the error)."""
        self.record("actions", 1, kind, result)

    def admitted(self, waited: float) -> None:
        """A gang was admitted after ``waited`` seconds."""
        self.record("admission_wait_seconds", waited)

    def undecidable(self, gangs: int) -> None:
        """Of so many gangs more it turned out that they cannot be counted or decided about."""
        self.record("undecidable_gangs", gangs)

    def restarted(self, cause: str) -> None:
        """A job, task or replica was restarted because of ``cause`` (``PodFailed``, ``Preempted``, …)."""
        self.record("restarts", 1, cause)

    def disrupted(self, reason: str) -> None:
        """A pod was taken away, for a ``reason`` (``EvictionByEvictionAPI``, …)."""
        self.record("disruptions", 1, reason)

    def used(self, queue: str, before: Usage, after: Usage) -> None:
        """The usage of a job of a queue ("": of none) grew."""
        for metric, was, now in (
            ("gpu_seconds", before.gpus, after.gpus),
            ("replica_seconds", before.replicas, after.replicas),
        ):
            for use in ("held", "trained", "lost"):
                if (seconds := getattr(now, use) - getattr(was, use)) > 0:
                    self.record(metric, seconds, queue, use)

    def called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """The API server was asked: Kubernetes' verb, the plural, the HTTP status (0: no answer), and how long."""
        self.record("api_calls", 1, verb, resource, str(code))
        self.record("api_call_seconds", seconds, verb)

    def watch_restarted(self, resource: str, cause: str) -> None:
        """A watch had to begin anew: ``ended``, ``gone``, ``broken``, ``stalled``, …"""
        self.record("watch_restarts", 1, resource, cause)

    def heartbeat(self, ok: bool) -> None:
        """A Lease was renewed, or could not be."""
        self.record("heartbeats", 1, "ok" if ok else "failed")

    def leading(self, lease: str, leads: bool) -> None:
        """This process leads by a Lease (``namespace/name``) from now on, or no longer."""


class JobMetricsKey(NamedTuple):
    """How a job stands, as far as metrics tell jobs apart: those that stand alike are counted together.

    ``queue``: the one it names; None: it is not a gang of any, for it is over or cannot be read.
    """

    resource: Resource
    phase: str
    queue: str | None
    waits: bool
    admitted: bool
