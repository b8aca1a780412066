"""Numbers about real clusters that traces are drawn from, and how to draw from them."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

HELIOS_SIZES: Final = (
    (72.2, 1), (74.7, 2), (80.5, 4), (94.7, 8), (97.7, 16), (98.1, 24), (99.4, 32), (99.5, 48), (100.0, 64),
)  # fmt: skip
"""Percent of the GPU jobs of Helios with at most so many GPUs (those with more than 64 count as 64)."""

HELIOS_RUN: Final = (206.0, 6652.0)
"""Median and mean seconds that the GPU jobs of Helios run."""

Quantiles = tuple[tuple[float, float], ...]
_WEEK: Final = 604_800.0

PHILLY_RUN: Final[Quantiles] = (
    (0, 10), (5, 48), (10, 61), (25, 131), (50, 1186), (75, 3342), (80, 4699), (90, 12_859), (95, 49_948),
    (99, 287_283), (100, 604_800),
)  # fmt: skip
"""Seconds that the jobs of Philly run, by percent; cut at a week."""


def size(dice: random.Random, most: int) -> int:
    """GPUs of a job, as in Helios, but no more than ``most``."""
    drawn = dice.uniform(0, 100)
    percents = [percent for percent, _ in HELIOS_SIZES]
    return min(most, HELIOS_SIZES[bisect_left(percents, drawn)][1])


def philly_seconds(dice: random.Random) -> float:
    """How long a job runs in Philly."""
    return drawn_from(PHILLY_RUN, dice.uniform(0, 100))


def helios_seconds(dice: random.Random) -> float:
    """How long a GPU job runs in Helios; cut at a week."""
    median, mean = HELIOS_RUN
    sigma = math.sqrt(2 * math.log(mean / median))
    return min(_WEEK, max(1.0, dice.lognormvariate(math.log(median), sigma)))


def drawn_from(table: Sequence[tuple[float, float]], percent: float) -> float:
    """The value at a percent, between the known ones evenly in the logarithm."""
    right = next(number for number, (known, _) in enumerate(table) if known >= percent)
    if right == 0:
        return table[0][1]
    (low, before), (high, after) = table[right - 1], table[right]
    part = (percent - low) / (high - low)
    return math.exp(math.log(before) * (1 - part) + math.log(after) * part)


def estimate(dice: random.Random, seconds: float) -> float | None:
    """What a user says of a job that takes so long: most say too much, one in ten too little, one in five nothing."""
    drawn = dice.random()
    if drawn < 0.2:
        return None
    return seconds * (dice.uniform(0.3, 1.0) if drawn < 0.3 else dice.uniform(1.0, 5.0))


def arrivals(dice: random.Random, count: int, span: float) -> list[float]:
    """When jobs come: by day more than by night, at weekends fewer; ``count`` of them within about ``span`` seconds."""
    steps = 1000
    width = span / steps
    weights = [intensity((step + 0.5) * width) for step in range(steps)]
    scale = count / sum(weights)
    found: list[float] = []
    due = dice.expovariate(1.0)
    passed = 0.0
    for step, weight in enumerate(weights):
        part = weight * scale
        while due <= passed + part:
            found.append((step + (due - passed) / part) * width)
            due += dice.expovariate(1.0)
        passed += part
    while len(found) < count:
        found.append(span + (len(found) - count + 1) * 1e-3)
    return found[:count]


def intensity(seconds: float) -> float:
    """How busy users are at a time, on average about 1."""
    day = 1 + 0.5 * math.sin(2 * math.pi * seconds / 86_400)
    return day * (0.7 if seconds % 604_800 >= 432_000 else 1.0)
