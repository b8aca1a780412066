"""Time steps of the HTML report: the used units and the waiting jobs in each step."""

from __future__ import annotations

from tf_dist.simulate.engine import Interval
from tf_dist.simulate.html_report import binned, highest, joined


def test_consecutive_intervals_are_joined() -> None:
    pieces = [
        Interval(1, 0, 2, 5, 9, True),
        Interval(1, 0, 2, 0, 5, True),
        Interval(1, 0, 3, 9, 10, True),
        Interval(2, 0, 1, 0, 1, True),
    ]
    assert joined(pieces) == [
        Interval(1, 0, 2, 0, 9, True),
        Interval(2, 0, 1, 0, 1, True),
        Interval(1, 0, 3, 9, 10, True),
    ]


def test_units_are_averaged_over_each_step() -> None:
    assert binned([Interval(0, 0, 4, 5, 20, True), Interval(1, 1, 2, 0, 10, True)], 20, 2) == [4, 4]


def test_highest_value_of_each_step_is_kept() -> None:
    assert highest([(1, 3), (2, 1), (12, 0)], 30, 3) == [3, 1, 0]
