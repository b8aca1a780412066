"""B3: gangs that want to be in one rack, placed by us and by the rule that Kueue calls best fit."""

from __future__ import annotations

import random
import statistics
import time

from benchmarks import naive_place
from benchmarks.gang_place import node, pods
from benchmarks.measure import Figure, benchmark
from tf_dist.core.gang.model import Locality
from tf_dist.core.gang.pack import place
from tf_dist.core.gang.room import Room

Asked = tuple[int, bool]
"""How many pods, two of which fill a node; and whether one rack is required, or only preferred."""


class Ours:
    """Racks of nodes of 96 CPUs, and our way to place gangs in them."""

    def __init__(self, racks: int, each: int) -> None:
        self._room = Room(
            [node(f"n{number:05}", 96, 384, rack=f"r{number // each:03}") for number in range(racks * each)]
        )
        self._shape = self._room.shape(pods("worker", 1, 48, 8))
        self.spent = 0.0

    def place(self, asked: Asked) -> dict[int, int]:
        """How many pods are on which node; empty if they have no room."""
        size, required = asked
        began = time.perf_counter()
        placed = place(self._room, [(self._shape, size)], locality=Locality(label="rack", required=required))
        self.spent += time.perf_counter() - began
        return {} if isinstance(placed, int) else {int(name[1:]): count for name, count in placed[0].items()}

    def give(self, placed: dict[int, int]) -> None:
        """The gang is done."""
        for number, count in placed.items():
            self._room.give(self._shape, f"n{number:05}", count)


class Kueue:
    """The same racks, and Kueue's way."""

    def __init__(self, racks: int, each: int) -> None:
        self._racks = naive_place.BestFit(racks, each, 96)

    def place(self, asked: Asked) -> dict[int, int]:
        """How many pods are on which node; empty if they have no room."""
        return self._racks.place(48, asked[0], required=asked[1])

    def give(self, placed: dict[int, int]) -> None:
        """The gang is done."""
        self._racks.give(48, placed)


def _racks(way: Ours | Kueue, racks: int, each: int, fill: float) -> tuple[int, float]:
    """How many gangs of 12,000 found room, so much being in use, and in how many racks those are that prefer one."""
    dice = random.Random(3)
    running: list[dict[int, int]] = []
    spread: list[int] = []
    found = used = 0
    for number in range(12_000):
        asked = dice.choice((2, 4, 8)), number % 2 == 0
        placed = way.place(asked)
        if placed:
            found += 1
            running.append(placed)
            used += asked[0]
            over = len({at // each for at in placed})
            assert over == 1 or not asked[1]
            if not asked[1]:
                spread.append(over)
        full = not placed
        while running and (full or used > fill * 2 * racks * each):
            leaving = running.pop(dice.randrange(len(running)))
            way.give(leaving)
            used -= sum(leaving.values())
            full = False
    return found, statistics.mean(spread)


@benchmark("place.topology")
def in_racks() -> Figure:
    """Gangs of 2, 4 and 8 pods that want one rack of 256, with 40 nodes each; the same by Kueue's best fit."""
    told = []
    rates = []
    for racks, each, fill in ((256, 40, 0.9), (10, 64, 0.9), (10, 64, 0.98)):
        ours = Ours(racks, each)
        placed, spread = _racks(ours, racks, each, fill)
        rates.append(placed / ours.spent)
        kueue, its_spread = _racks(Kueue(racks, each), racks, each, fill)
        told.append(
            f"{racks} racks of {each}, {fill:.0%} full: {rates[-1]:,.0f}/s, {spread:.3f} racks a gang, {placed} placed;"
            f" best fit {its_spread:.3f}, {kueue}"
        )
    peer = f"{'; '.join(told)}; Kueue's own test: 37 to 61/s"
    return Figure(rates[0], "gangs/s", target=5_000, at_least=True, peer=peer)
