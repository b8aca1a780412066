"""``results-peers.json``, and the table that ``docs/benchmarks.md`` has of it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Row
from benchmarks.peers.binding import BINDERS, GANGS, LIMIT, NODE_CPUS, NODES
from benchmarks.peers.scenarios import ROWS
from benchmarks.peers.systems import LEFT_OUT, SYSTEMS, TfDist, Volcano, Writer

RESULTS: Final = Path(__file__).parents[1] / "results-peers.json"
Stored = dict[str, Any]
_TITLE: Final = "## Compared with other controllers, on one API server\n"
_MEASURED: Final = """
{spread} Measured on {date} at commit {commit}, in
turn, each on a fresh control plane with {nodes:,} fake nodes: {versions}; {cpus} CPUs for everything, load {load:g} and
probe {probe} before. One client creates all jobs and watches them. tf-dist and Kueue have a queue with a quota of CPUs.
tf-dist creates pods itself and finds nodes for them. Kueue releases Jobs, whose pods the Job controller creates; with
topology, Kueue also finds nodes. Kueue runs without webhooks, without leader election, and without its limit of 50
requests a second. All three settings make Kueue faster. {volcano}The writer follows the same objects with tf-dist's
client, and writes an admission for each job, but no pods.

{left_out} `make bench-peers` measures on your machine. Go builds the peers from their modules.
"""
_STANDING: Final = """
tf-dist is ahead of each other controller in {ahead}, and behind one of them in {behind}. In the
other rows, the spreads overlap. Kueue and Volcano are compiled programs: they start sooner, and need less processor
time for the same requests. The decision about [speed](decisions/speed.md) names the rows in which tf-dist may be
behind."""
_VOLCANO: Final = """Volcano runs its controllers and its scheduler, with the settings of its chart and without
webhooks. A gang counts as admitted when Volcano has put it in the queue. Volcano's scheduler also binds the pods. For
the other controllers, no pods are bound. """
_BINDING: Final = "## Gangs that compete for nodes\n"
_BOUND: Final = f"""
{GANGS} gangs arrive together on {NODES} nodes with {NODE_CPUS} CPUs each. A third of the gangs fit at the same time. A
gang that has all its nodes ends after a few seconds, so that the next gang can start. The figures show the first
{LIMIT:.0f} s. Kubernetes' own gang scheduling is an alpha feature of the version above. Coscheduling is a plugin of
kube-scheduler. With tf-dist and Kueue, kube-scheduler binds the pods. In the second column, kube-scheduler does not
see the nodes that tf-dist has chosen.
"""


def stored() -> Stored:
    """The file; {} before the first measurement."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def dumped(found: Stored) -> str:
    """As it is in the file."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def samples_of(measured: Iterable[tuple[str, Mapping[str, float]]], of: Sequence[Row] = ROWS) -> list[Stored]:
    """Each row with what was found for each system, one figure a turn."""
    rows: dict[str, dict[str, list[float]]] = {row.name: {} for row in of}
    for system, figures in measured:
        for name, value in figures.items():
            rows[name].setdefault(system, []).append(float(f"{value:.4g}"))
    return [{**row.definition(), "systems": rows[row.name]} for row in of]


def section(found: Stored) -> str:
    """The part of the page; "" before the first measurement."""
    if not found:
        return ""
    failed = [f"{name} failed: {reason}." for name, reason in found["failed"].items()]
    left_out = [f"{name[0].upper()}{name[1:]} is left out: {reason}." for name, reason in LEFT_OUT.items()]
    several = f"Cells are the median of {found['turns']} turns, with the least and the most in parentheses."
    spread = several if found["turns"] > 1 else "Each was measured once."
    volcano = _VOLCANO if any(Volcano.name in row["systems"] for row in found["rows"]) else ""
    text = _MEASURED.format(**{**found, "spread": spread, "left_out": " ".join(failed + left_out), "volcano": volcano})
    parts = [_TITLE, *_cells([system.name for system in SYSTEMS], found["rows"]), _standing(found["rows"]), text]
    if found.get("binding"):
        parts += [_BINDING, *_cells([binder.name for binder in BINDERS], found["binding"]), _BOUND]
    return "\n".join(parts)


def _standing(rows: Iterable[Stored]) -> str:
    """In which rows tf-dist is ahead of all other controllers, and in which it is behind one, beyond the spreads."""
    ahead, behind = list[str](), list[str]()
    for row in rows:
        ranges = {
            name: (min(found), max(found)) if row["better"] == "lower" else (-max(found), -min(found))
            for name, found in row["systems"].items()
            if found and name != Writer.name
        }
        mine = ranges.pop(TfDist.name, None)
        if mine is None:
            continue
        if ranges and all(mine[1] < other[0] for other in ranges.values()):
            ahead.append(f"`{row['name']}`")
        elif any(other[1] < mine[0] for other in ranges.values()):
            behind.append(f"`{row['name']}`")
    return _STANDING.format(ahead=", ".join(ahead) or "no row", behind=", ".join(behind) or "no row")


def _cells(names: Iterable[str], rows: Sequence[Stored]) -> list[str]:
    names = [name for name in names if any(name in row["systems"] for row in rows)]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for row in rows:
        cells = [_cell(row["systems"].get(name, ())) for name in names]
        lines.append(f"| `{row['name']}`, {row['unit']} | {' | '.join(cells)} |")
    return lines


def details(found: Stored) -> str:
    """What each row measures; "" before the first measurement."""
    if not found:
        return ""
    lines = [_TITLE, "| | better | what is measured |", "|---|---|---|"]
    rows = [*found["rows"], *found.get("binding", ())]
    lines += [f"| `{row['name']}` | {row['better']} | {row['measures']} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(samples: Iterable[float]) -> str:
    figures = sorted(samples)
    if not figures:
        return ""
    spread = f" ({figures[0]:.3g} to {figures[-1]:.3g})" if len(figures) > 1 else ""
    return f"{statistics.median(figures):.3g}{spread}"
