"""Placing gangs on many nodes and in racks, beside the ways that come to mind first (``benchmarks/naive_place.py``).

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
from benchmarks.measure import Measured, Row, Target, benchmark
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot, NodeTable
from tf_dist.core.gang.placement.pod_sets import ABSENT, PodClass
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import Node, PodSet, TopologyRequest

GPU = "nvidia.com/gpu"
Wants = list[tuple[PodClass, int]]
SIZES = {8: 6.0, 64: 10.0, 512: 25.0}
"""Pods of a gang, and the target: so many times one bare scan of the nodes."""
_SCAN, _VECTOR = "scan, pod by pod", "numpy, pod by pod"
_BARE = "one bare scan of the nodes in numpy"


def node(name: str, cpu: int, memory: int, gpu: int = 0, **labels: str) -> Node:
    """An empty node; memory in GiB."""
    whole = {"cpu": Decimal(cpu), "memory": Decimal(memory << 30), "pods": Decimal(110)}
    whole |= {GPU: Decimal(gpu)} if gpu else {}
    return Node(name=name, allocatable=whole, free=whole, labels=labels)


def pods(type_: str, count: int, cpu: int, memory: int, gpu: int = 0) -> PodSet:
    """Equal pods; memory in GiB."""
    asked = {"cpu": Decimal(cpu), "memory": Decimal(memory << 30), "pods": Decimal(1), GPU: Decimal(gpu)}
    return PodSet(type=type_, count=count, requests=asked)


@lru_cache(maxsize=1)
def mixed(count: int) -> tuple[Node, ...]:
    """So many nodes of three kinds."""
    kinds = [(64, 256, 0)] * 4 + [(48, 192, 4)] * 3 + [(96, 384, 8)] * 3
    return tuple(node(f"n{number:05}", *kinds[number % 10]) for number in range(count))


class Gangs:
    """Gangs of a number of pods, with workers of 20 shapes."""

    def __init__(self, room: NodeSnapshot, seed: int = 7) -> None:
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

    room: NodeSnapshot
    gangs: Gangs
    running: list[tuple[Wants, list[dict[str, int]]]]

    def start(self, count: int) -> tuple[float, bool]:
        """Place the next gang; how many seconds that took, and whether there was room."""
        wants = self.gangs.next(count)
        began = time.thread_time()
        placed = place_gang(self.room, wants)
        took = time.thread_time() - began
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
    room = NodeSnapshot(mixed(nodes))
    cluster = Filled(room, Gangs(room), [])
    for size in (8, 4, 3):
        failures = 0
        while failures < 100 and cluster.gpus_used < gpus:
            failures += not cluster.start(size)[1]
    return cluster


def steady(cluster: Filled, size: int, attempts: int = 300) -> tuple[list[float], list[float]]:
    """Microseconds of every attempt to place a gang in a cluster that stays as full as it is; of those that failed.

    Attempts that fail count among all: finding that out is part of the work.
    """
    took: list[float] = []
    failed: list[float] = []
    background = len(cluster.running)
    for attempt in range(-20, attempts):
        seconds, placed = cluster.start(size)
        if attempt >= 0:
            took.append(seconds * 1e6)
            failed += [] if placed else [seconds * 1e6]
        if not placed or len(cluster.running) > background + 8:
            cluster.end(background)
    while len(cluster.running) > background:
        cluster.end(background)
    assert len(failed) < 0.6 * attempts, f"{len(failed)} of {attempts} gangs of {size} found no room"
    return took, failed


def _p99(took: list[float]) -> float:
    return sorted(took)[len(took) * 99 // 100]


def _failures(failed: list[float], took: list[float]) -> str:
    if not failed:
        return "all found room"
    return f"{len(failed)} of {len(took)} found no room, which took {statistics.median(failed):.0f}"


def _naive(cluster: Filled, size: int) -> dict[str, list[float]]:
    """Microseconds of the naive ways for gangs of the same kind, in the same state; what takes seconds is left out."""
    columns = _counted(cluster.room.table)
    free = cluster.room.table.free[columns].astype(int).T.tolist()
    ways = {_VECTOR: naive_place.Vector(free)} | ({_SCAN: naive_place.Scan(free)} if size < 100 else {})
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5 if size < 100 else 3):
        gang = [([dict(s.requests).get(column, 0) for column in columns], n) for s, n in cluster.gangs.next(size)]
        for name, way in ways.items():
            began = time.thread_time()
            placed = way.place(gang)
            took[name].append((time.thread_time() - began) * 1e6)
            assert sum(1 for _ in placed) in (0, size)
            way.give(placed)  # type: ignore[arg-type]
    return took


def _counted(table: NodeTable) -> list[int]:
    """The columns of CPU, memory, pods and GPUs."""
    return [column for column in range(table.columns) if column != ABSENT]


def _bare_scan(table: NodeTable) -> list[float]:
    """Microseconds for no more than the count of one shape's pods on every node, as floats of half the size."""
    free = np.ascontiguousarray(table.free[_counted(table)], np.float32)
    asked = np.float32([[2000], [1 << 33], [1], [1]])
    took = []
    for _ in range(220):
        began = time.thread_time()
        np.floor(np.minimum.reduce(free / asked))
        took.append((time.thread_time() - began) * 1e6)
    return took[20:]


@benchmark(
    *(
        Row(
            f"place.gang{size}",
            f"One search for the nodes of a gang of {size} pods of up to three shapes, on 10,000 nodes with 62 % of "
            "their GPUs in use; attempts that find no room included.",
            "us",
            target=Target(bound, of=_BARE),
        )
        for size, bound in SIZES.items()
    ),
    Row(
        "place.p99",
        "The 99th percentile of those searches in medians of the same size; the size for which that is most.",
        "times",
        target=Target(3.0),
    ),
)
def gangs() -> dict[str, Measured]:
    """The targets are those of the one simple engine: it may take twice what two special ones took."""
    found: dict[str, Measured] = {}
    slow: dict[int, float] = {}  # the 99th percentile in medians
    for size in SIZES:
        cluster = filled(10_000)
        took, failed = steady(cluster, size)
        bare = _bare_scan(cluster.room.table)
        slow[size] = _p99(took) / statistics.median(took)
        others = (f"{n // 1000}k {statistics.median(steady(filled(n), size)[0]):.0f}" for n in (1_000, 5_000, 15_000))
        note = f"p99 {_p99(took):.0f}; {_failures(failed, took)}; other numbers of nodes: {', '.join(others)}."
        found[f"place.gang{size}"] = Measured(took, {_BARE: bare, **_naive(cluster, size)}, note)
    note = ", ".join(f"{size} pods {value:.1f}" for size, value in slow.items())
    return found | {"place.p99": Measured(max(slow.values()), note=f"{note}.")}


@benchmark(
    Row(
        "place.nearly_full",
        "What a search takes with 96 % of the GPUs in use, in medians of what it takes with 62 %; the worse of gangs "
        "of 8 and of 64 pods.",
        "times",
        target=Target(1.5),
    )
)
def nearly_full() -> Measured:
    """Both in the same process."""
    ratios, failures = {}, []
    for size in (8, 64):
        full, failed = steady(filled(10_000, 0.96), size)
        ratios[size] = statistics.median(full) / statistics.median(steady(filled(10_000), size)[0])
        failures += failed
    note = ", ".join(f"{size} pods {value:.2f}" for size, value in ratios.items())
    return Measured(max(ratios.values()), note=f"{note}; {len(failures)} of 600 found no room.")


def _identical(gangs: int, pods_each: int) -> tuple[list[float], list[float]]:
    """Microseconds a gang, ours and naive, on 5,000 empty nodes of 4 CPUs, as kube-scheduler's benchmark has it."""
    whole = {"cpu": Decimal(4), "memory": Decimal(32 << 30), "pods": Decimal(110)}
    room = NodeSnapshot([Node(name=f"n{number:04}", allocatable=whole, free=whole) for number in range(5_000)])
    asked = {"cpu": Decimal("0.1"), "memory": Decimal(500 << 20), "pods": Decimal(1)}
    shape = room.shape(PodSet(type="pod", count=1, requests=asked))
    columns = _counted(room.table)
    naive = naive_place.Vector(room.table.free[columns].astype(int).T.tolist())
    gang = [([dict(shape.requests).get(column, 0) for column in columns], pods_each)]
    place_gang(room, [(shape, pods_each)])  # what is made on first use
    ours, theirs = [], []
    for number in range(gangs):
        began = time.thread_time()
        placed = place_gang(room, [(shape, pods_each)])
        ours.append((time.thread_time() - began) * 1e6)
        assert not isinstance(placed, int), f"gang {number} found no room"
        if len(theirs) < 9:
            began = time.thread_time()
            assert len(naive.place(gang)) == pods_each
            theirs.append((time.thread_time() - began) * 1e6)
    return ours, theirs


@benchmark(
    Row(
        "place.k8s_gang3",
        "One search for a gang of 3 equal pods: 3,000 of them, one after the other, on 5,000 nodes that are "
        "empty before.",
        "us",
        target=Target(0.05, of=_VECTOR),
        published="kube-scheduler's scheduler_perf (gangscheduling, 5,000 nodes, Kubernetes 1.37): 3.7 to 5.7 ms for "
        "a pod group attempt: a whole cycle with every plugin, in Go, on another machine. Ours is the search.",
    ),
    Row(
        "place.k8s_gang1000",
        "The same for 9 gangs of 1,000 pods.",
        "us",
        target=Target(0.005, of=_VECTOR),
    ),
)
def equal_pods() -> dict[str, Measured]:
    """The naive way fills nodes of its own with the same gangs; 9 of them."""
    small, small_naive = _identical(3_000, 3)
    large, large_naive = _identical(9, 1_000)
    return {
        "place.k8s_gang3": Measured(small, {_VECTOR: small_naive}),
        "place.k8s_gang1000": Measured(large, {_VECTOR: large_naive}),
    }


# -- Racks --

Asked = tuple[int, bool]
"""How many pods, two of which fill a node; and whether one rack is required, or only preferred."""
_BEST_FIT = "best fit in numpy, CPUs alone"
_RACKS = ((256, 40, 0.9), (10, 64, 0.9), (10, 64, 0.98))


class Ours:
    """Racks of nodes of 96 CPUs, and our way to place gangs in them."""

    def __init__(self, racks: int, each: int) -> None:
        self._room = NodeSnapshot(
            [node(f"n{number:05}", 96, 384, rack=f"r{number // each:03}") for number in range(racks * each)]
        )
        self._shape = self._room.shape(pods("worker", 1, 48, 8))

    def place(self, asked: Asked) -> dict[int, int]:
        """How many pods are on which node; empty if they have no room."""
        size, required = asked
        placed = place_gang(
            self._room, [(self._shape, size)], locality=TopologyRequest(label="rack", required=required)
        )
        return {} if isinstance(placed, int) else {int(name[1:]): count for name, count in placed[0].items()}

    def give(self, placed: dict[int, int]) -> None:
        """The gang is done."""
        for number, count in placed.items():
            self._room.give(self._shape, f"n{number:05}", count)


class BestFit:
    """The same racks, and the rule that Kueue calls best fit."""

    def __init__(self, racks: int, each: int) -> None:
        self._racks = naive_place.BestFit(racks, each, 96)

    def place(self, asked: Asked) -> dict[int, int]:
        """How many pods are on which node; empty if they have no room."""
        return self._racks.place(48, asked[0], required=asked[1])

    def give(self, placed: dict[int, int]) -> None:
        """The gang is done."""
        self._racks.give(48, placed)


def _racks(way: Ours | BestFit, racks: int, each: int, fill: float) -> tuple[list[float], int, float]:
    """Microseconds of 12,000 searches, so much being in use; how many found room, and in how many racks they are."""
    dice = random.Random(3)
    running: list[dict[int, int]] = []
    spread: list[int] = []
    took: list[float] = []
    found = used = 0
    for number in range(12_000):
        asked = dice.choice((2, 4, 8)), number % 2 == 0
        began = time.thread_time()
        placed = way.place(asked)
        took.append((time.thread_time() - began) * 1e6)
        if placed:
            assert sum(placed.values()) == asked[0]
            found += 1
            running.append(placed)
            used += asked[0]
            over = len({at // each for at in placed})
            assert over == 1 or not asked[1], "a rack was required"
            if not asked[1]:
                spread.append(over)
        full = not placed
        while running and (full or used > fill * 2 * racks * each):
            leaving = running.pop(dice.randrange(len(running)))
            way.give(leaving)
            used -= sum(leaving.values())
            full = False
    return took, found, statistics.mean(spread)


@benchmark(
    Row(
        "place.topology",
        "One search for gangs of 2, 4 and 8 pods that want, or prefer, one rack of 256 with 40 nodes each, 90 % full.",
        "us",
        target=Target(4.0, of=_BEST_FIT),
    ),
    Row(
        "place.topology_racks",
        "Racks over which a gang is spread that prefers one: 10 racks of 64 nodes, 98 % full.",
        "racks",
        target=Target(1.01, of=_BEST_FIT),
    ),
)
def in_racks() -> dict[str, Measured]:
    """The same gangs by both ways; what found room differs a little where it is full."""
    notes = []
    for racks, each, fill in reversed(_RACKS):
        took, placed, spread = _racks(Ours(racks, each), racks, each, fill)
        theirs, their_placed, their_spread = _racks(BestFit(racks, each), racks, each, fill)
        notes.append(f"{racks} racks of {each}, {fill:.0%} full: {placed} of 12,000 placed, best fit {their_placed}")
        assert placed >= 0.99 * their_placed, notes[-1]
        if fill == 0.98:
            quality = Measured(spread, {_BEST_FIT: their_spread}, f"{notes[-1]}.")
    return {
        "place.topology": Measured(took, {_BEST_FIT: theirs}, f"{'; '.join(notes)}."),
        "place.topology_racks": quality,
    }
