"""``place`` beside a search that leaves out no possibility, on clusters that are small and nearly full."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from tests.core.gang.rooms import member, node, wants
from tf_dist.core.gang.model import Member, Node
from tf_dist.core.gang.pack import place
from tf_dist.core.gang.room import Room

Free = tuple[tuple[int, int], ...]


def fits(nodes: Sequence[tuple[int, int]], pods: Sequence[tuple[int, int]]) -> bool:
    """Whether pods of (cpu, gpu) have room, all possibilities tried."""

    @cache
    def search(free: Free, at: int) -> bool:
        if at == len(pods):
            return True
        cpu, gpu = pods[at]
        for row, (has_cpu, has_gpu) in enumerate(free):
            if has_cpu >= cpu and has_gpu >= gpu and free[row] not in free[:row]:
                left = (*free[:row], (has_cpu - cpu, has_gpu - gpu), *free[row + 1 :])
                if search(left, at + 1):
                    return True
        return False

    return search(tuple(nodes), 0)


def drawn(dice: random.Random) -> tuple[list[Node], list[Member], bool]:
    """A cluster of at most 4 nodes, a gang of at most 5 pods in at most 3 members, and whether it fits."""
    free = [(dice.randint(0, 8), dice.choice((0, 0, 1, 2, 4))) for _ in range(dice.randint(1, 4))]
    counts = dice.choice(((1, 4), (2, 3), (1, 1, 3), (1, 2, 2), (5,), (2, 2), (1, 3), (1, 1, 1)))
    asks = [(dice.randint(1, 5), dice.choice((0, 0, 1, 2))) for _ in counts]
    pods = [ask for ask, count in zip(asks, counts, strict=True) for _ in range(count)]
    nodes = [node(f"n{number}", cpu=cpu, gpu=gpu) for number, (cpu, gpu) in enumerate(free)]
    gang = [
        member(f"w{at}", count, cpu=ask[0], gpu=ask[1])
        for at, (ask, count) in enumerate(zip(asks, counts, strict=True))
    ]
    return nodes, gang, fits(free, pods)


def test_what_is_placed_fits_and_of_what_fits_hardly_anything_is_not_placed() -> None:
    dice = random.Random(4)
    possible = missed = 0
    for _ in range(6000):
        nodes, gang, fitting = drawn(dice)
        room = Room(nodes)
        placed = not isinstance(place(room, wants(room, *gang)), int)
        assert fitting or not placed
        possible += fitting
        missed += fitting and not placed
    assert possible > 1000
    assert missed / possible < 0.02
