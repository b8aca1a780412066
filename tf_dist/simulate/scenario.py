"""Scenarios: jobs with an amount of work, equal nodes, and the speed of workers on their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_dist.core.model.gang_queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job of a trace with ``ps`` parameter servers and ``workers`` workers; it can run with ``least`` to ``most``.

    ``submit``: arrival in seconds from the start of the trace. ``duration``: run time in seconds with ``workers``
    workers on the nodes of its parameter servers; it defines the amount of work. ``gpus`` and ``cpu``: requests of one
    worker. ``ps_cpu``: request of one parameter server. ``estimate``: run time that the user expects (None: unknown).
    ``checkpoint``: seconds between two checkpoints (None: no checkpoints, a restart begins from the start).
    ``annotations``: additional annotations of its document, such as fallbacks. Only ``tf_dist_reconcile`` uses
    documents.
    """

    name: str
    submit: float
    duration: float
    workers: int = 1
    least: int = 1
    most: int = 1
    gpus: int = 1
    cpu: int = 4
    ps: int = 0
    ps_cpu: int = 4
    estimate: float | None = None
    checkpoint: float | None = None
    queue: str = ""
    priority: int = 0
    kind: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def elastic(self) -> bool:
        """Whether the job can run with different numbers of workers."""
        return self.least < self.workers or self.most > self.workers


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of the pods of a job: numbers of workers and of parameter servers by node number."""

    workers: Mapping[int, int] = field(default_factory=dict)
    ps: Mapping[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of workers."""
        return sum(self.workers.values())

    @property
    def home(self) -> Mapping[int, int]:
        """Nodes on which workers are local: those of the parameter servers, else the node with most workers."""
        if self.ps or not self.workers:
            return self.ps
        most = max(self.workers, key=lambda node: (self.workers[node], -node))
        return {most: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of jobs.

    ``remote``: speed of a worker on a node without parameter servers of its job, relative to a local worker.
    ``overhead``: slowdown of all workers by each additional worker. ``restart``: seconds that a job pauses when it
    grows or starts again.
    """

    remote: float = 0.6
    overhead: float = 0.03
    restart: float = 15.0

    def rate(self, local: int, remote: int = 0) -> float:
        """Work per second. The unit is the work of a single worker on the node of its parameter servers."""
        size = local + remote
        return (local + self.remote * remote) / (1 + self.overhead * (size - 1)) if size else 0.0

    def at(self, layout: Layout) -> float:
        """Work per second of a job with this layout."""
        home = layout.home
        local = sum(count for node, count in layout.workers.items() if node in home)
        return self.rate(local, layout.size - local)

    def work(self, job: SimJob) -> float:
        """The total work of a job."""
        return job.duration * self.rate(job.workers)


@dataclass(frozen=True, slots=True)
class Cluster:
    """``nodes`` equal nodes with ``gpus`` GPUs and ``cpu`` cores each. Without GPUs, units are cores."""

    nodes: int
    gpus: int
    cpu: int

    @property
    def units(self) -> int:
        """GPUs (or cores) of the whole cluster."""
        return self.nodes * (self.gpus or self.cpu)

    def units_of(self, job: SimJob) -> int:
        """GPUs (or cores) of one worker of the job."""
        return job.gpus if self.gpus else job.cpu

    @property
    def unit(self) -> str:
        """The name of ``units``."""
        return "GPU" if self.gpus else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace on a cluster: all inputs of a simulation except the policy.

    ``rate``: maximum number of admissions per second (None: unlimited).
    """

    name: str
    cluster: Cluster
    jobs: tuple[SimJob, ...]
    speed: Speed = field(default_factory=Speed)
    queues: tuple[Queue, ...] = ()
    rate: float | None = None
    seed: int = 0

    @property
    def span(self) -> float:
        """The time of the last arrival."""
        return max((job.submit for job in self.jobs), default=0.0)
