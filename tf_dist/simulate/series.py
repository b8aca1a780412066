"""What happened over time, in equal steps: what curves and heat maps are drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from tf_dist.simulate.world import Piece


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces of a job that follow each other on a node without a change, as one; in order of node and start."""
    found: list[Piece] = []
    ordered = sorted(pieces, key=lambda p: (p.node, p.run, p.start))
    for _, group in groupby(ordered, key=lambda p: (p.node, p.run)):
        last: Piece | None = None
        for piece in group:
            if last is not None and (last.end, last.units, last.works) == (piece.start, piece.units, piece.works):
                last = Piece(last.run, last.node, last.units, last.start, piece.end, last.works)
                found[-1] = last
            else:
                found.append(piece)
                last = piece
    return sorted(found, key=lambda p: (p.node, p.start, p.run))


def binned(pieces: Iterable[Piece], end: float, bins: int) -> list[float]:
    """Units of these pieces in each of so many equal steps until ``end``, on average."""
    width = end / bins
    found = [0.0] * bins
    for piece in pieces:
        first, last = int(piece.start / width), min(int(piece.end / width), bins - 1)
        for step in range(first, last + 1):
            overlap = min(piece.end, (step + 1) * width) - max(piece.start, step * width)
            found[step] += piece.units * max(0.0, overlap) / width
    return found


def highest(samples: Sequence[tuple[float, int]], end: float, bins: int) -> list[int]:
    """Of a value that was noted when it changed, the highest in each of so many equal steps until ``end``."""
    found: list[int] = []
    number, value = 0, 0
    for step in range(bins):
        most = value
        while number < len(samples) and samples[number][0] <= (step + 1) * end / bins:
            value = samples[number][1]
            most = max(most, value)
            number += 1
        found.append(most)
    return found
