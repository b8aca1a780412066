"""What a benchmark is, and what is written down of it: rows, peers in the same run, the machine it ran on."""

from __future__ import annotations

import heapq
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

# Milliseconds that the probe takes on the quiet machine for which the absolute targets were set.
PROBE_QUIET: Final = 50
Samples = float | Sequence[float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """A bound, from above where lower is better, for the value, or for its ratio to the peer ``of``."""

    bound: float
    of: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. ``measures``: from where to where the timing goes, or what is counted.

    ``published``: what others say of themselves, with their conditions: never measured here.
    """

    name: str
    measures: str
    unit: str
    better: Literal["lower", "higher"] = "lower"
    target: Target | None = None
    published: str = ""

    @property
    def group(self) -> str:
        """The first part of its name."""
        return self.name.partition(".")[0]

    def definition(self) -> dict[str, Any]:
        """What a stored figure must have in common with this row to be of the same kind."""
        return {"name": self.name, "measures": self.measures, "unit": self.unit, "better": self.better}


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one row in its unit, one for each run; ``peers`` were measured in the same process, just now."""

    samples: Samples
    peers: Mapping[str, Samples] | None = None
    note: str = ""

    def as_row(self, row: Row) -> dict[str, Any]:
        """As it is stored: medians, the worst run, and whether the target is met."""
        value, worst = _median(self.samples), (max if row.better == "lower" else min)
        peers = {name: _rounded(_median(found)) for name, found in (self.peers or {}).items()}
        samples = _list(self.samples)
        figures = {"value": _rounded(value), "runs": len(samples), "worst": _rounded(worst(samples)), "peers": peers}
        return judged(row, {**row.definition(), **figures, "note": self.note})


def judged(row: Row, stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored figure by the target of today."""
    return {
        **stored,
        "target": None if row.target is None else {"bound": row.target.bound, "of": row.target.of},
        "met": met(row, stored["value"], stored["peers"]),
        "published": row.published,
    }


def met(row: Row, value: float, peers: Mapping[str, float]) -> bool | None:
    """Whether the target is met; None without one, or without the peer that it needs."""
    if row.target is None or (row.target.of and row.target.of not in peers):
        return None
    found = value / peers[row.target.of] if row.target.of else value
    return found <= row.target.bound if row.better == "lower" else found >= row.target.bound


def _list(samples: Samples) -> list[float]:
    found = [float(samples)] if isinstance(samples, int | float) else [float(one) for one in samples]
    if not found:
        raise AssertionError("nothing was measured")
    return found


def _median(samples: Samples) -> float:
    return statistics.median(_list(samples))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Measures rows in a process of its own. ``lacks``: what is not here and it needs ("": nothing)."""

    rows: tuple[Row, ...]
    run: Callable[[], Mapping[str, Measured] | Measured]
    lacks: Callable[[], str]

    def measure(self) -> dict[str, Measured]:
        """What it found, by the name of the row."""
        found = self.run()
        by_name = {self.rows[0].name: found} if isinstance(found, Measured) else dict(found)
        assert set(by_name) == {row.name for row in self.rows}, f"{sorted(by_name)} are not the rows it is to measure"
        return by_name


BENCHMARKS: list[Benchmark] = []
Function = Callable[[], Mapping[str, Measured] | Measured]


def benchmark(*rows: Row, lacks: Callable[[], str] = str) -> Callable[[Function], Function]:
    """Register a function that measures these rows."""

    def register(run: Function) -> Function:
        BENCHMARKS.append(Benchmark(rows, run, lacks))
        return run

    return register


def rounds(
    call: Callable[[], Any],
    *,
    repeat: int = 5,
    number: int = 1,
    scale: float = 1.0,
    warm: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds (times ``scale``) of one call in ``repeat`` rounds of ``number`` calls, after one that does not count.

    ``warm``: there was such a one already. ``clock``: ``time.thread_time`` for what is computed in this thread, so that
    other work on the machine is left out.
    """
    if not warm:
        call()
    found = []
    for _ in range(repeat):
        start = clock()
        for _ in range(number):
            call()
        found.append((clock() - start) / number * scale)
    return found


def in_turn(ours: Callable[[], T], peer: Callable[[T], float], *, pairs: int) -> tuple[list[T], list[float]]:
    """What ours and its peer find in so many pairs of runs, the first of which is the other one each time.

    So a server that gets slower from one run to the next favours neither. The peer gets what ours has found last.
    """
    mine: list[T] = []
    others: list[float] = []
    for number in range(pairs):
        if number % 2 == 0:
            mine.append(ours())
        others.append(peer(mine[-1]))
        if number % 2 == 1:
            mine.append(ours())
    return mine, others


def until(condition: Callable[[], bool], seconds: float = 600.0, every: float = 0.05) -> None:
    """Return when ``condition`` holds; TimeoutError."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {seconds:g} s")
        time.sleep(every)


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process so far (Linux)."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int | str = "self") -> float:
    """MiB of memory that a process holds now (Linux)."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def probe() -> int:
    """How fast this machine is just now: milliseconds for 100,000 numbers through a heap.

    Virtual machines vary by a factor of two within minutes, and other work takes its share.
    """
    dice = random.Random(7)
    numbers = [dice.random() for _ in range(100_000)]
    heap: list[float] = []
    start = time.perf_counter()
    for number in numbers:
        heapq.heappush(heap, number)
    while heap:
        heapq.heappop(heap)
    return round((time.perf_counter() - start) * 1e3)


def machine() -> dict[str, Any]:
    """Where figures are taken."""
    return {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count()}
