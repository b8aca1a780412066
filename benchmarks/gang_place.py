"""Placing gangs on many nodes, beside the two ways that come to mind first (``benchmarks/naive_place.py``).

The cluster: 40 % nodes of 64 CPUs, 30 % of 48 CPUs and 4 GPUs, 30 % of 96 CPUs and 8 GPUs. The gangs: a chief, a
parameter server for every 8 pods, and workers of 20 different shapes. The cluster is filled with gangs of 8 and less
until 62 % of the GPUs are in use (96 % for the nearly full one), and then stays so: gangs come and go.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import numpy as np

from benchmarks import naive_place
from benchmarks.measure import Figure, benchmark
from tf_dist.core.gang.model import Member, Node
from tf_dist.core.gang.pack import place
from tf_dist.core.gang.room import Room
from tf_dist.core.gang.shapes import Shape
from tf_dist.core.gang.table import Table

GPU = "nvidia.com/gpu"
Wants = list[tuple[Shape, int]]


def node(name: str, cpu: int, memory: int, gpu: int = 0, **labels: str) -> Node:
    """An empty node; memory in GiB."""
    whole = {"cpu": Decimal(cpu), "memory": Decimal(memory << 30), "pods": Decimal(110)}
    whole |= {GPU: Decimal(gpu)} if gpu else {}
    return Node(name=name, allocatable=whole, free=whole, labels=labels)


def pods(type_: str, count: int, cpu: int, memory: int, gpu: int = 0) -> Member:
    """Equal pods; memory in GiB."""
    asked = {"cpu": Decimal(cpu), "memory": Decimal(memory << 30), "pods": Decimal(1), GPU: Decimal(gpu)}
    return Member(type=type_, count=count, requests=asked)


@lru_cache(maxsize=1)
def mixed(count: int) -> tuple[Node, ...]:
    """So many nodes of three kinds."""
    kinds = [(64, 256, 0)] * 4 + [(48, 192, 4)] * 3 + [(96, 384, 8)] * 3
    return tuple(node(f"n{number:05}", *kinds[number % 10]) for number in range(count))


class Gangs:
    """Gangs of a number of pods, with workers of 20 shapes."""

    def __init__(self, room: Room, seed: int = 7) -> None:
        self.dice = random.Random(seed)
        self.chief = room.shape(pods("chief", 1, 4, 16))
        self.server = room.shape(pods("ps", 1, 4, 32))
        gpus = (1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 8, 1, 1, 0, 0, 0, 0)
        sizes = [pods("worker", 1, (2 + at % 5) * max(1, gpu), 8 * (1 + at % 3), gpu) for at, gpu in enumerate(gpus)]
        self.workers = [room.shape(size) for size in sizes]

    def next(self, count: int) -> Wants:
        """A gang of so many pods."""
        servers = max(1, count // 8) if count > 2 else 0
        wants = [(self.chief, 1), (self.server, servers), (self.dice.choice(self.workers), count - 1 - servers)]
        return [want for want in wants if want[1]]


@dataclass
class Filled:
    """A room with gangs in it."""

    room: Room
    gangs: Gangs
    running: list[tuple[Wants, list[dict[str, int]]]]

    def start(self, count: int) -> tuple[float, bool]:
        """Place the next gang; how many seconds that took, and whether there was room."""
        wants = self.gangs.next(count)
        began = time.perf_counter()
        placed = place(self.room, wants)
        took = time.perf_counter() - began
        if isinstance(placed, int):
            return took, False
        self.running.append((wants, placed))
        return took, True

    def end(self, at: int) -> None:
        """A gang is done."""
        if at < len(self.running):
            wants, placed = self.running.pop(at)
            for (shape, _), share in zip(wants, placed, strict=True):
                for name, count in share.items():
                    self.room.give(shape, name, count)

    @property
    def gpus_used(self) -> float:
        """The part of the GPUs that is in use."""
        column = self.room.catalogue.columns[GPU]
        return 1 - float(self.room.table.free[column].sum() / self.room.table.whole[column].sum())


def filled(nodes: int, gpus: float = 0.62) -> Filled:
    """A cluster with gangs of 8 and less, until so much of its GPUs is in use."""
    room = Room(mixed(nodes))
    cluster = Filled(room, Gangs(room), [])
    for size in (8, 4, 3):
        failures = 0
        while failures < 100 and cluster.gpus_used < gpus:
            failures += not cluster.start(size)[1]
    return cluster


def steady(cluster: Filled, size: int, rounds: int = 300) -> list[float]:
    """Microseconds, sorted, that placing gangs takes in a cluster that stays as full as it is."""
    took: list[float] = []
    background = len(cluster.running)
    for attempt in range(10 * rounds):
        seconds, placed = cluster.start(size)
        if placed and attempt > 20:
            took.append(seconds * 1e6)
        if not placed or len(cluster.running) > background + 8:
            cluster.end(background)
        if len(took) == rounds:
            break
    while len(cluster.running) > background:
        cluster.end(background)
    return sorted(took)


def _p99(took: list[float]) -> float:
    return took[len(took) * 99 // 100]


def _naive(cluster: Filled, size: int) -> str:
    """Microseconds of the naive ways for the same gangs, in the same state: the median of a few."""
    room = cluster.room
    free = room.table.free.astype(int).T.tolist()
    scan, vector = naive_place.Scan(free), naive_place.Vector(free)
    columns = range(room.table.columns)
    took: dict[str, list[float]] = {"scan": [], "numpy per pod": []}
    for _ in range(3 if size < 100 else 1):
        gang = [([dict(s.requests).get(column, 0) for column in columns], n) for s, n in cluster.gangs.next(size)]
        for name, way in (("scan", scan), ("numpy per pod", vector)):
            if name == "scan" and size > 100:
                continue  # takes seconds
            began = time.perf_counter()
            way.give(way.place(gang))  # type: ignore[attr-defined]
            took[name].append((time.perf_counter() - began) * 1e6)
    return ", ".join(f"{name} {statistics.median(each):,.0f}" for name, each in took.items() if each)


def _bare_scan(table: Table) -> float:
    """Microseconds for no more than the count of one shape's pods on every node, as floats of half the size."""
    free = np.ascontiguousarray(table.free, np.float32)
    asked = np.float32([2000, 1 << 33, 1, 1])[: len(free), None]
    took = []
    for _ in range(200):
        began = time.perf_counter()
        np.floor(np.minimum.reduce(free / asked))
        took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took)


def _gang(size: int, target: float) -> Figure:
    others = {nodes: statistics.median(steady(filled(nodes), size)) for nodes in (1_000, 5_000, 15_000)}
    cluster = filled(10_000)
    took = steady(cluster, size)
    sizes = ", ".join(f"{nodes // 1000}k nodes {value:.0f}" for nodes, value in others.items())
    peer = f"p99 {_p99(took):.0f}; {sizes}; {_naive(cluster, size)}; a bare scan {_bare_scan(cluster.room.table):.1f}"
    return Figure(statistics.median(took), "us", target=target, peer=peer)


@benchmark("place.gang8")
def gangs_of_8() -> Figure:
    """A gang of 8 pods on 10,000 nodes."""
    return _gang(8, target=30)


@benchmark("place.gang64")
def gangs_of_64() -> Figure:
    """A gang of 64 pods on 10,000 nodes."""
    return _gang(64, target=100)


@benchmark("place.gang512")
def gangs_of_512() -> Figure:
    """A gang of 512 pods on 10,000 nodes."""
    return _gang(512, target=100)


@benchmark("place.p99")
def slow_ones() -> Figure:
    """The slowest of 100, of whatever size, on 10,000 nodes."""
    worst = {size: _p99(steady(filled(10_000), size)) for size in (8, 64, 512)}
    peer = ", ".join(f"{size} pods {value:.0f}" for size, value in worst.items())
    return Figure(max(worst.values()), "us", target=200, peer=peer)


@benchmark("place.nearly_full")
def nearly_full() -> Figure:
    """With 96 % of the GPUs in use, for 8 and 64 pods: how many times what it takes with 62 %."""
    ratios = {}
    for size in (8, 64):
        ratios[size] = statistics.median(steady(filled(10_000, 0.96), size))
        ratios[size] /= statistics.median(steady(filled(10_000), size))
    peer = ", ".join(f"{size} pods {value:.2f}" for size, value in ratios.items())
    return Figure(max(ratios.values()), "times", target=1.5, peer=peer)


def _identical(gangs: int, pods_each: int) -> float:
    """Milliseconds a gang: so many on 5,000 empty nodes of 4 CPUs, as kube-scheduler's own benchmark has it."""
    whole = {"cpu": Decimal(4), "memory": Decimal(32 << 30), "pods": Decimal(110)}
    room = Room([Node(name=f"n{number:04}", allocatable=whole, free=whole) for number in range(5_000)])
    asked = {"cpu": Decimal("0.1"), "memory": Decimal(500 << 20), "pods": Decimal(1)}
    shape = room.shape(Member(type="pod", count=1, requests=asked))
    place(room, [(shape, pods_each)])  # what is made on first use
    began = time.perf_counter()
    for _ in range(gangs):
        assert not isinstance(place(room, [(shape, pods_each)]), int)
    return (time.perf_counter() - began) / gangs * 1e3


@benchmark("place.k8s_gang3")
def gangs_of_3() -> Figure:
    """3,000 gangs of 3 pods on 5,000 nodes."""
    return Figure(_identical(3_000, 3), "ms", target=0.05, peer="kube-scheduler publishes 3.7 to 5.7, all plugins on")


@benchmark("place.k8s_gang1000")
def gangs_of_1000() -> Figure:
    """9 gangs of 1,000 pods on 5,000 nodes."""
    return Figure(_identical(9, 1_000), "ms", target=0.5)
