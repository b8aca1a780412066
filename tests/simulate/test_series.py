"""Steps of time: what was used in each, and what waited."""

from __future__ import annotations

from tf_dist.simulate.series import binned, highest, joined
from tf_dist.simulate.world import Piece


def test_pieces_that_follow_each_other_become_one() -> None:
    pieces = [
        Piece(1, 0, 2, 5, 9, True),
        Piece(1, 0, 2, 0, 5, True),
        Piece(1, 0, 3, 9, 10, True),
        Piece(2, 0, 1, 0, 1, True),
    ]
    assert joined(pieces) == [Piece(1, 0, 2, 0, 9, True), Piece(2, 0, 1, 0, 1, True), Piece(1, 0, 3, 9, 10, True)]


def test_units_are_averaged_over_each_step() -> None:
    assert binned([Piece(0, 0, 4, 5, 20, True), Piece(1, 1, 2, 0, 10, True)], 20, 2) == [4, 4]


def test_the_highest_value_of_each_step_is_kept() -> None:
    assert highest([(1, 3), (2, 1), (12, 0)], 30, 3) == [3, 1, 0]
