"""``python -m benchmarks [NAME…]``: measure the rows whose names start so (all without a name), and write the page.

Each benchmark runs in a process of its own. ``python -m benchmarks docs`` measures nothing: it judges ``results.json``
by the targets of today, and writes the pages from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import (
    admission,
    admitting,
    airflow,
    control_plane,
    deciding,
    driver,
    large_cluster,
    placement,
    processes,
    simulations,
    store,
)
from benchmarks.measure import BENCHMARKS, Benchmark, Row, judged, machine, probe
from benchmarks.page import GROUPS, details, page, shown
from benchmarks.peers import table as peers

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "benchmarks.md"
DETAILS = ROOT / "docs" / "reference" / "benchmarks.md"
MODULES = (  # which register their benchmarks
    driver,
    deciding,
    large_cluster,
    placement,
    admission,
    store,
    processes,
    airflow,
    control_plane,
    admitting,
    simulations,
)
_LONGEST: Final = 3600.0  # seconds for one benchmark
Stored = dict[str, Any]


def rows() -> list[Row]:
    """Every row there is, in the order of the table."""
    order = list(GROUPS)
    return sorted((row for one in BENCHMARKS for row in one.rows), key=lambda row: order.index(row.group))


def main(wanted: list[str]) -> int:
    """1 if a target was missed or a benchmark failed, 2 for an unknown name."""
    if wanted == ["docs"]:
        RESULTS.write_text(dumped(merged(rows(), stored(), [])))
        write_pages()
        return 0
    if wanted[:1] == ["--in-this-process"]:
        return measure(next(one for one in BENCHMARKS if one.rows[0].name == wanted[1]), Path(wanted[2]))
    chosen = [row.name for row in rows() if not wanted or any(row.name.startswith(start) for start in wanted)]
    if not chosen:
        print(f"no row is called {' '.join(wanted)}; there are: {', '.join(r.name for r in rows())}", file=sys.stderr)
        return 2
    good = True
    order = list(GROUPS)
    for one in sorted(BENCHMARKS, key=lambda one: order.index(one.rows[0].group)):
        names = {row.name for row in one.rows} & set(chosen)
        if not names:
            continue
        found = [row for row in taken(one) if row["name"] in names]
        RESULTS.write_text(dumped(merged(rows(), stored(), found)))
        write_pages()
        for row in found:
            print(shown(row), flush=True)
            good = good and row.get("met") is not False and "failed" not in row
    return 0 if good else 1


def write_pages() -> None:
    """Both pages of the documentation, from the files."""
    PAGE.write_text(page(stored(), peers.section(peers.stored())))
    DETAILS.write_text(details(stored(), peers.details(peers.stored())))


def stored() -> list[Stored]:
    """The rows as they are in the file."""
    return list(json.loads(RESULTS.read_text())) if RESULTS.exists() else []


def dumped(found: Iterable[Stored]) -> str:
    """As it is in the file."""
    return json.dumps(list(found), indent=1, ensure_ascii=False) + "\n"


def merged(wanted: Iterable[Row], before: Iterable[Stored], found: Iterable[Stored]) -> list[Stored]:
    """Every row once: as measured now; else as it was before, if that was the same measure; else not measured.

    What could not be measured for want of something leaves an older figure, which has its own commit and date. What
    failed does not.
    """
    now = {row["name"]: row for row in found}
    kept = {row["name"]: row for row in before if "value" in row}
    return [_merged(row, now.get(row.name), kept.get(row.name)) for row in wanted]


def _merged(row: Row, now: Stored | None, before: Stored | None) -> Stored:
    if now is not None and ("value" in now or "failed" in now):
        return now
    if before is not None and before.items() >= row.definition().items() and before.get("commit"):
        return judged(row, before)
    return now or not_measured(row, "it was not run")


def not_measured(row: Row, reason: str, *, failed: bool = False) -> Stored:
    """A row without a figure."""
    return {**row.definition(), "not_measured": reason, **({"failed": True} if failed else {})}


def taken(one: Benchmark) -> list[Stored]:
    """Measure in a process of its own."""
    if lacks := one.lacks():
        return [not_measured(row, lacks) for row in one.rows]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks", "--in-this-process", one.rows[0].name, str(file)]
        try:
            code = subprocess.run(command, cwd=ROOT, timeout=_LONGEST, check=False).returncode
        except subprocess.TimeoutExpired:
            code = f"more than {_LONGEST:g} s"
        if file.exists():
            return list(json.loads(file.read_text()))
    return [not_measured(row, f"its process failed: {code}", failed=True) for row in one.rows]


def measure(one: Benchmark, file: Path) -> int:
    """Write the rows of one benchmark into a file, in the process that is there for it."""
    load, before, begun = os.getloadavg()[0], probe(), time.monotonic()
    try:
        found = one.measure()
    except Exception as error:
        if not isinstance(error, AssertionError | TimeoutError):
            raise
        reason = f"it failed: {error or type(error).__name__}"
        file.write_text(json.dumps([not_measured(row, reason, failed=True) for row in one.rows]))
        return 1
    where = {
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": round(time.monotonic() - begun),
        "load": round(load, 1),
        "heap_ms": [before, probe()],
        **machine(),
    }
    file.write_text(json.dumps([found[row.name].as_row(row) | where for row in one.rows]))
    return 0


def commit() -> str:
    """What is measured; with a "+" where the code differs from that commit."""
    try:
        git = ["git", "-C", str(ROOT)]
        head = subprocess.check_output([*git, "rev-parse", "--short=10", "HEAD"], text=True).strip()
        changed = subprocess.check_output(
            [*git, "status", "--porcelain", "--", "tf_dist", "benchmarks/*.py"], text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed.strip() else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
