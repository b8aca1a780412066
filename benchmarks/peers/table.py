"""``results-peers.json``, and the table that ``docs/benchmarks.md`` has of it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.scenarios import ROWS
from benchmarks.peers.systems import LEFT_OUT, SYSTEMS

RESULTS: Final = Path(__file__).parents[1] / "results-peers.json"
Stored = dict[str, Any]
_TITLE: Final = "## Beside Kueue, on one API server\n"
_MEASURED: Final = """
{spread} Measured on {date} at commit {commit}, in
turn, each on a fresh control plane with {nodes:,} fake nodes: {versions}; {cpus} CPUs for everything, load {load:g} and
probe {probe} before. One client creates all jobs and watches them. tf-dist and Kueue have a queue with a quota of CPUs.
tf-dist creates pods itself and finds nodes for them. Kueue releases Jobs, whose pods the Job controller creates; with
topology, Kueue finds nodes, too. Kueue runs without webhooks, without leader election, and without its limit of 50
requests a second, which all favours it. No scheduler runs. The writer follows the same objects with tf-dist's client
and writes an admission for each job, but no pods.

{left_out} `make bench-peers` measures on your machine; Go builds Kueue from its module.
"""


def stored() -> Stored:
    """The file; {} before the first measurement."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def dumped(found: Stored) -> str:
    """As it is in the file."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def samples_of(measured: Iterable[tuple[str, Mapping[str, float]]]) -> list[Stored]:
    """Each row with what was found for each system, one figure a turn."""
    rows: dict[str, dict[str, list[float]]] = {row.name: {} for row in ROWS}
    for system, figures in measured:
        for name, value in figures.items():
            rows[name].setdefault(system, []).append(float(f"{value:.4g}"))
    return [{**row.definition(), "systems": rows[row.name]} for row in ROWS]


def section(found: Stored) -> str:
    """The part of the page; "" before the first measurement."""
    if not found:
        return ""
    names = [system.name for system in SYSTEMS]
    lines = [_TITLE, f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for row in found["rows"]:
        cells = [_cell(row["systems"].get(name, ())) for name in names]
        lines.append(f"| `{row['name']}`, {row['unit']} | {' | '.join(cells)} |")
    failed = [f"{name} failed: {reason}." for name, reason in found["failed"].items()]
    left_out = [f"{name[0].upper()}{name[1:]} is left out: {reason}." for name, reason in LEFT_OUT.items()]
    several = f"Cells are the median of {found['turns']} turns, with the least and the most in parentheses."
    spread = several if found["turns"] > 1 else "Each was measured once."
    text = _MEASURED.format(**{**found, "spread": spread, "left_out": " ".join(failed + left_out)})
    return "\n".join(lines) + "\n" + text


def details(found: Stored) -> str:
    """What each row measures; "" before the first measurement."""
    if not found:
        return ""
    lines = [_TITLE, "| | better | what is measured |", "|---|---|---|"]
    lines += [f"| `{row['name']}` | {row['better']} | {row['measures']} |" for row in found["rows"]]
    return "\n".join(lines) + "\n"


def _cell(samples: Iterable[float]) -> str:
    figures = sorted(samples)
    if not figures:
        return ""
    spread = f" ({figures[0]:.3g} to {figures[-1]:.3g})" if len(figures) > 1 else ""
    return f"{statistics.median(figures):.3g}{spread}"
