"""The rows of the benchmarks, the file with their results, and the pages that show them."""

from __future__ import annotations

import pytest

import benchmarks.__main__ as command
from benchmarks.measure import BENCHMARKS
from benchmarks.page import details, page
from benchmarks.peers import table as peers

STORED = command.stored()


def test_pages_are_written_from_results() -> None:
    beside = peers.stored()
    assert command.PAGE.read_text() == page(STORED, peers.section(beside)), "run python -m benchmarks docs"
    assert command.DETAILS.read_text() == details(STORED, peers.details(beside)), "run python -m benchmarks docs"


def test_each_row_has_one_result_or_reason() -> None:
    assert [one["name"] for one in STORED] == [one.name for one in command.rows()], "run python -m benchmarks"
    assert len({one["name"] for one in STORED}) == len(STORED) > 50
    for one in STORED:
        assert one["measures"].endswith(".")
        if "value" in one:
            assert one["commit"]
            assert one["date"]
            assert one["python"]
            assert len(one["heap_ms"]) == 2
            assert one["runs"] > 0
        else:
            assert one["not_measured"]


@pytest.mark.slow
@pytest.mark.parametrize("group", ["place", "gang", "reconcile", "store"])
def test_quick_benchmarks_run(group: str) -> None:
    """Benchmarks are run rarely, so without this test a change could break them unnoticed."""
    found = [row for one in BENCHMARKS if one.rows[0].group == group for row in command.taken(one)]
    assert found
    assert [row["not_measured"] for row in found if "value" not in row] == []
