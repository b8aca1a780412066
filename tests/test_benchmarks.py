"""The rows of the benchmarks, the file they are kept in, and the page that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as command
from benchmarks.measure import Benchmark, Measured, Row, Target, met
from benchmarks.page import details, page, shown

WHEN = {"commit": "abc", "date": "2026-01-01 00:00 UTC", "load": 0.1, "heap_ms": [50, 52], "python": "3.11", "cpus": 2}
STORED = command.stored()


def row(name: str, **fields: Any) -> Row:
    return Row(name, "From here to there.", "ms", **fields)


def measured(of: Row, figure: Measured, **where: Any) -> dict[str, Any]:
    return figure.as_row(of) | WHEN | where


TABLE = [row("cli.a", target=Target(10)), row("cli.b"), row("store.c")]


def test_pages_are_written_from_results() -> None:
    assert command.PAGE.read_text() == page(STORED), "run python -m benchmarks docs"
    assert command.DETAILS.read_text() == details(STORED), "run python -m benchmarks docs"


def test_every_row_is_in_the_results_once_with_its_conditions_or_the_reason_why_not() -> None:
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


def test_what_is_stored_was_judged_by_the_targets_of_today() -> None:
    rows = {one.name: one for one in command.rows()}
    for one in STORED:
        if "value" in one:
            assert one.items() >= rows[one["name"]].definition().items()
            assert one["met"] == met(rows[one["name"]], one["value"], one["peers"]), one["name"]


@pytest.mark.parametrize(
    ("better", "target", "value", "expected"),
    [
        ("lower", Target(10), 10, True),
        ("lower", Target(10), 10.1, False),
        ("higher", Target(10), 10, True),
        ("higher", Target(10), 9.9, False),
        ("lower", Target(0.5, of="naive"), 50, True),
        ("lower", Target(0.5, of="naive"), 51, False),
        ("higher", Target(2, of="naive"), 200, True),
        ("higher", Target(2, of="naive"), 199, False),
        ("higher", Target(2, of="a peer that was not there"), 1, None),
        ("lower", None, 1, None),
    ],
)
def test_a_target_bounds_the_value_or_its_ratio_to_a_peer(
    better: Any, target: Target | None, value: float, expected: bool | None
) -> None:
    assert met(row("cli.a", better=better, target=target), value, {"naive": 100}) is expected


def test_the_value_is_the_median_and_the_worst_run_is_told() -> None:
    lower = Measured([3, 1, 9], {"peer": [4, 6, 20]}).as_row(row("cli.a"))
    assert (lower["value"], lower["worst"], lower["runs"], lower["peers"]) == (3, 9, 3, {"peer": 6})
    assert Measured([3, 1, 9]).as_row(row("cli.a", better="higher"))["worst"] == 1
    with pytest.raises(AssertionError, match="nothing was measured"):
        Measured([]).as_row(row("cli.a"))


def test_only_what_was_measured_now_is_replaced_and_the_rest_keeps_its_commit_and_date() -> None:
    before = [measured(one, Measured(1), commit="old", date="then") for one in TABLE]
    found = command.merged(TABLE, before, [measured(TABLE[1], Measured(2), commit="new", date="now")])
    assert [(one["name"], one["value"], one["commit"], one["date"]) for one in found] == [
        ("cli.a", 1, "old", "then"),
        ("cli.b", 2, "new", "now"),
        ("store.c", 1, "old", "then"),
    ]


def test_an_older_figure_is_judged_by_the_target_of_today() -> None:
    before = measured(row("cli.a", target=Target(20)), Measured(15))
    assert (before["met"], command.merged(TABLE, [before], [])[0]["met"]) == (True, False)


def test_a_figure_of_another_measure_or_without_a_commit_or_of_a_failed_benchmark_is_not_kept() -> None:
    changed = measured(TABLE[0], Measured(1)) | {"measures": "From here to somewhere else."}
    nameless = measured(TABLE[1], Measured(1), commit="")
    failed = command.not_measured(TABLE[2], "it failed: nothing was placed", failed=True)
    gone = measured(row("cli.gone"), Measured(1))
    found = command.merged(TABLE, [changed, nameless, measured(TABLE[2], Measured(1)), gone], [failed])
    assert [one.get("not_measured") for one in found] == [
        "it was not run",
        "it was not run",
        "it failed: nothing was placed",
    ]


def test_what_cannot_be_measured_here_says_why_and_leaves_an_older_figure() -> None:
    found = command.taken(Benchmark((TABLE[2],), dict, lambda: "no server"))
    assert found == [command.not_measured(TABLE[2], "no server")]
    assert command.merged(TABLE, [], found)[2]["not_measured"] == "no server"
    assert command.merged(TABLE, [measured(TABLE[2], Measured(7))], found)[2]["value"] == 7


def test_a_benchmark_has_to_measure_all_its_rows_and_no_others() -> None:
    with pytest.raises(AssertionError, match="are not the rows"):
        Benchmark((row("cli.a"), row("cli.b")), lambda: {"cli.a": Measured(1)}, str).measure()


def test_a_failed_check_is_no_figure(tmp_path: Path) -> None:
    def nothing_placed() -> Measured:
        raise AssertionError("nothing was placed")

    assert command.measure(Benchmark((TABLE[2],), nothing_placed, str), tmp_path / "rows") == 1
    assert json.loads((tmp_path / "rows").read_text()) == [
        command.not_measured(TABLE[2], "it failed: nothing was placed", failed=True)
    ]


def test_pages_show_missed_targets_peers_and_what_is_not_measured() -> None:
    missed = measured(TABLE[0], Measured(11, {"by hand": 22}, "Two of it."))
    published = row("driver.d", target=Target(0.5, of="by hand"), published="Others: 5 ms on their machine.")
    rows = [measured(published, Measured(3, {"by hand": 10})), missed, command.not_measured(TABLE[2], "no server")]
    found = page(rows)
    assert "1 targets are met, 1 missed: `cli.a`" in found
    assert "| `cli.a` | 11 ms | 22: by hand | ≤ 10 | **missed** |" in found
    assert "| `driver.d` | 3 ms | 10: by hand | 0.3 × the peer (≤ 0.5) | met |" in found
    assert "- `store.c`: no server" in found
    assert "| `driver.d` | Others: 5 ms on their machine. |" in found
    described = details(rows)
    assert "| `cli.a` | 11 ms (1) | From here to there. Two of it. |" in described
    assert "| `cli.a` | 2026-01-01 00:00 UTC | abc | 50 to 52 | 0.1 | 3.11 | 2 |" in described
    assert "MISSED" in shown(missed)


def test_summary_has_figures_of_rows_and_their_peers() -> None:
    waits = row("simulate.storm_stuck")
    found = page([measured(waits, Measured(0, {"kube-scheduler, pod by pod": 180})) | {"unit": "gangs"}])
    assert "- Of 200 gangs that arrive at once, 0 never finish; with kube-scheduler pod by pod, 180.\n" in found
    assert page(STORED).count("\n- ") >= 5


def test_an_unknown_name_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nothing.of.that.name"]) == 2
    assert "driver.decide_100k" in capsys.readouterr().err
