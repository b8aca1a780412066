"""``python -m benchmarks [NAME…]``: run the benchmarks whose names start so (all without a name)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import (
    admitting,
    airflow,
    argo,
    client,
    control_plane,
    core,
    ending,
    gang_admit,
    gang_place,
    gang_queues,
    gang_racks,
    memory,
    overhead,
    simulations,
    start_up,
    store,
    watches,
)
from benchmarks.measure import REGISTRY, Figure, machine

RESULTS = Path(__file__).with_name("results.json")
MODULES = (
    core,
    gang_place,
    gang_admit,
    gang_queues,
    gang_racks,
    memory,
    start_up,
    ending,
    store,
    client,
    overhead,
    airflow,
    argo,
    control_plane,
    admitting,
    simulations,
    watches,
)


def main(wanted: list[str]) -> int:
    """Run, print, write; 1 if a target was missed, 2 for an unknown name."""
    chosen = [name for name in REGISTRY if not wanted or any(name.startswith(start) for start in wanted)]
    if not chosen:
        print(f"no benchmark is called {' '.join(wanted)}; there are: {', '.join(REGISTRY)}", file=sys.stderr)
        return 2
    print(f"{'name':<28} {'value':>12} {'unit':<10} {'target':>12}  peer in the same run")
    away = [name for name in chosen if name.startswith("api.") and not control_plane.at_hand()]
    for name in away:
        print(f"{name:<28} skipped: it needs an API server; set {control_plane.VARIABLE}")
    taken = {name: (machine(), _run(name)) for name in chosen if name not in away}
    _write(taken)
    speeds = sorted(where["heap_ms"] for where, _ in taken.values())
    if speeds:
        print(f"this machine: 100,000 numbers through a heap in {speeds[0]} to {speeds[-1]} ms, before each of them")
    return 0 if all(figure.met is not False for _, figure in taken.values()) else 1


def _run(name: str) -> Figure:
    figure = REGISTRY[name]()
    bound = "" if figure.target is None else f"{'>=' if figure.at_least else '<='} {figure.target:g}"
    missed = "  MISSED" if figure.met is False else ""
    print(f"{name:<28} {figure.value:>12.4g} {figure.unit:<10} {bound:>12}  {figure.peer}{missed}", flush=True)
    return figure


def _write(taken: dict[str, tuple[dict[str, Any], Figure]]) -> None:
    """Replace the figures that were taken now; keep the others."""
    kept: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = {row["name"]: row for row in kept}
    for name, (where, figure) in taken.items():
        measured = {"value": figure.value, "unit": figure.unit, "target": figure.target, "peer": figure.peer}
        rows[name] = {"name": name, **measured, "machine": where}
    RESULTS.write_text(json.dumps([rows[name] for name in sorted(rows)], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
