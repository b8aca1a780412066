"""Scenarios: jobs with an amount of work, equal nodes, and how fast workers are where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_dist.core.model.gang_queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job of a trace: ``ps`` parameter servers and ``workers`` workers, which may be ``least`` to ``most``.

    ``submit``: when it comes (seconds from the start of the trace). ``duration``: how long it runs with ``workers``
    workers beside its parameter servers, in seconds; that says how much work it is. ``gpus`` and ``cpu``: of one
    worker; ``ps_cpu``: of one parameter server. ``estimate``: what its user says it takes (None: nothing).
    ``checkpoint``: seconds between two checkpoints (None: it has none, and starts again from the beginning).
    ``annotations``: further ones of its document, such as fallbacks; only ``tf_dist_reconcile`` has documents.
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
        """Whether it can run at more than one size."""
        return self.least < self.workers or self.most > self.workers


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the pods of a job are: workers and parameter servers per node (its number)."""

    workers: Mapping[int, int] = field(default_factory=dict)
    ps: Mapping[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many workers there are."""
        return sum(self.workers.values())

    @property
    def home(self) -> Mapping[int, int]:
        """The nodes on which workers are near: those of the parameter servers, else the one with most workers."""
        if self.ps or not self.workers:
            return self.ps
        most = max(self.workers, key=lambda node: (self.workers[node], -node))
        return {most: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a job is. A worker away from the parameter servers does ``remote`` of what one beside them does; each
    worker more slows all of them down by ``overhead``; a job that grows or comes back pauses for ``restart`` seconds.
    """

    remote: float = 0.6
    overhead: float = 0.03
    restart: float = 15.0

    def rate(self, local: int, remote: int = 0) -> float:
        """Work a second, in units of what a single worker beside its parameter servers does."""
        size = local + remote
        return (local + self.remote * remote) / (1 + self.overhead * (size - 1)) if size else 0.0

    def at(self, layout: Layout) -> float:
        """Work a second of a job that stands so."""
        home = layout.home
        local = sum(count for node, count in layout.workers.items() if node in home)
        return self.rate(local, layout.size - local)

    def work(self, job: SimJob) -> float:
        """All the work of a job."""
        return job.duration * self.rate(job.workers)


@dataclass(frozen=True, slots=True)
class Cluster:
    """``nodes`` equal nodes with ``gpus`` GPUs and ``cpu`` cores each. Without GPUs, cores are what is counted."""

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
        """What ``units`` are called."""
        return "GPU" if self.gpus else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace on a cluster: everything a simulation depends on besides the policy.

    ``rate``: how many gangs can be admitted a second (None: as many as there are).
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
        """Until when jobs come."""
        return max((job.submit for job in self.jobs), default=0.0)
