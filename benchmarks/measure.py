"""The frame of a benchmark: a name, how to measure it, its target, and what is measured beside it in the same run."""

from __future__ import annotations

import heapq
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``target`` is an upper bound unless ``at_least``; ``peer`` what it is compared with."""

    value: float
    unit: str
    target: float | None = None
    at_least: bool = False
    peer: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


Benchmark = Callable[[], Figure]
REGISTRY: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    """Register a benchmark under a name."""

    def register(run: Benchmark) -> Benchmark:
        REGISTRY[name] = run
        return run

    return register


def median_seconds(call: Callable[[], Any], *, repeat: int = 5, number: int = 1) -> float:
    """Seconds of one call: the median of ``repeat`` rounds of ``number`` calls, after one that does not count."""
    call()
    rounds = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):
            call()
        rounds.append((time.perf_counter() - start) / number)
    return statistics.median(rounds)


def machine() -> dict[str, Any]:
    """Where a figure was taken, and how fast that was just then: virtual machines vary by a factor of two in minutes.

    ``heap_ms``: milliseconds for 100,000 numbers through a heap.
    """
    dice = random.Random(7)
    numbers = [dice.random() for _ in range(100_000)]
    heap: list[float] = []
    start = time.perf_counter()
    for number in numbers:
        heapq.heappush(heap, number)
    while heap:
        heapq.heappop(heap)
    heap_ms = round((time.perf_counter() - start) * 1e3)
    system = {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count()}
    return {**system, "heap_ms": heap_ms}
