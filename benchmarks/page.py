"""``docs/benchmarks.md``, written from the rows of ``results.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from benchmarks.measure import PROBE_QUIET

_WIDTH: Final = 40  # characters of the longest bar
GROUPS: Final = {
    "reconcile": "The decision for one job",
    "driver": "The driver",
    "place": "Placement alone",
    "admit": "Admission alone",
    "preempt": "Preemption alone",
    "gang": "Quotas alone",
    "store": "The embedded cluster",
    "client": "The client",
    "cli": "The command line",
    "run": "tf-dist run",
    "controller": "The controller's process",
    "argo": "The launcher of an Argo step",
    "airflow": "The triggerer of Airflow",
    "api": "Against a real API server",
    "simulate": "Policies on a virtual clock",
}
_HEAD: Final = f"""# Benchmarks

Written by `python -m benchmarks docs` from `benchmarks/results.json`, which is what `make bench` writes. Each benchmark
runs in a process of its own. *Value* is the median of the runs, *worst* the worst of them. A *peer* was measured in the
same process in the same minute, on the same input, unless its row says what differs. A target is a bound for the value,
or for its ratio to a peer; **missed** is said in the table. What one thread computes is timed in its processor time, so
that other work on the machine does not count; what waits for processes, disks or servers, by the clock. What others
publish about themselves was never measured here: it stands apart, with its conditions.

*Probe* is how fast the machine was just before and just after: milliseconds for 100,000 numbers through a heap, about
{PROBE_QUIET} on the quiet machine for which targets in seconds were set. *Load* is the load average of one minute
before. A commit with a `+` had changes that were not committed.
"""
Stored = Mapping[str, Any]


def shown(row: Stored) -> str:
    """One line for a terminal."""
    if "value" not in row:
        return f"{row['name']:<28} not measured: {row['not_measured']}"
    bound = f"  target {_target(row)}{'' if row['met'] else ': MISSED'}" if row["target"] else ""
    peers = "".join(f"; {name}: {number(value)}" for name, value in row["peers"].items())
    note = f"; {row['note']}" if row["note"] else ""
    return f"{row['name']:<28} {number(row['value']):>9} {row['unit']}{bound}{peers}{note}"


def number(value: float) -> str:
    """With as many digits as tell something."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def page(found: Sequence[Stored]) -> str:
    """The whole page."""
    measured = [row for row in found if "value" in row]
    missed = [row["name"] for row in measured if row["met"] is False]
    held = sum(row["met"] is True for row in measured)
    parts = [_HEAD, f"{len(measured)} of {len(found)} rows are measured; {held} targets are met, {len(missed)} missed"]
    parts[-1] += f": {', '.join(f'`{name}`' for name in missed)}.\n" if missed else ".\n"
    for group, members in groupby(found, key=lambda row: row["name"].partition(".")[0]):
        parts.append(_group(GROUPS[group], list(members)))
    parts += [_published(measured), _not_measured(found), _conditions(measured)]
    return "\n".join(part for part in parts if part)


def _group(title: str, members: Sequence[Stored]) -> str:
    measured = [row for row in members if "value" in row]
    lines = [
        f"## {title}\n",
        "| | value | worst (runs) | target | | what is measured |",
        "|---|---:|---:|---:|---|---|",
    ]
    for row in members:
        if "value" not in row:
            lines.append(f"| `{row['name']}` | | | | not measured | {_cell(row['measures'])} |")
            continue
        met = {None: "", True: "met", False: "**missed**"}[row["met"]]
        lines.append(
            f"| `{row['name']}` | {number(row['value'])} {row['unit']} | {number(row['worst'])} ({row['runs']}) "
            f"| {_target(row)} | {met} | {_cell(row['measures'])} {_cell(row['note'])} |".replace("  |", " |")
        )
    bars = [_bars(row) for row in measured if row["peers"]]
    if bars:
        lines += ["", "```text", "\n\n".join(bars), "```"]
    return "\n".join(lines) + "\n"


def _target(row: Stored) -> str:
    target = row["target"]
    if target is None:
        return ""
    sign = "≤" if row["better"] == "lower" else "≥"
    if not target["of"]:
        return f"{sign} {number(target['bound'])}"
    peer = row["peers"].get(target["of"])
    return f"{number(row['value'] / peer) if peer else '?'} × {target['of']} ({sign} {target['bound']:g})"


def _bars(row: Stored) -> str:
    """The value and its peers as bars on one scale that begins at nought."""
    values = {row["name"]: row["value"], **row["peers"]}
    longest = max(abs(value) for value in values.values()) or 1.0
    better = "less is better" if row["better"] == "lower" else "more is better"
    lines = [f"{row['name']} in {row['unit']}, {better}"]
    for name, value in values.items():
        label = "tf-dist" if name == row["name"] else name
        bar = "█" * round(_WIDTH * abs(value) / longest) or "▏"
        lines.append(f"  {label:<44} {bar} {number(value)}")
    return "\n".join(lines)


def _published(measured: Iterable[Stored]) -> str:
    found = [f"| `{row['name']}` | {_cell(row['published'])} |" for row in measured if row["published"]]
    title = "## Published by others, not measured here\n\n| beside | what, and under which conditions |\n|---|---|\n"
    return title + "\n".join(found) + "\n" if found else ""


def _not_measured(found: Iterable[Stored]) -> str:
    lines = [f"- `{row['name']}`: {row['not_measured']}" for row in found if "value" not in row]
    return "## Not measured\n\n" + "\n".join(lines) + "\n" if lines else ""


def _conditions(measured: Sequence[Stored]) -> str:
    """When and where each figure was taken."""
    lines = [
        "## When and where\n",
        "| | date | commit | probe | load | Python | CPUs |",
        "|---|---|---|---:|---:|---|---:|",
    ]
    for row in measured:
        speed = " to ".join(map(str, sorted(set(row["heap_ms"]))))
        lines.append(
            f"| `{row['name']}` | {row['date']} | {row['commit']} | {speed} | {row['load']:g} | {row['python']} "
            f"| {row['cpus']} |"
        )
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
