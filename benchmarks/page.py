"""``docs/benchmarks.md`` and ``docs/reference/benchmarks.md``, written from the rows of ``results.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from benchmarks.measure import PROBE_QUIET

GROUPS: Final = {
    "reconcile": "The decision for one job",
    "driver": "The controller",
    "place": "Search for nodes",
    "admit": "Admission, without a controller",
    "preempt": "Preemption, without a controller",
    "gang": "Quotas, without a controller",
    "store": "The embedded cluster",
    "client": "The client",
    "cli": "The command line",
    "run": "tf-dist run",
    "controller": "The end of the controller's process",
    "argo": "The launcher of an Argo step",
    "airflow": "The triggerer of Airflow",
    "api": "Against a real API server",
    "simulate": "Policies on a virtual clock",
}
_SUMMARY: Final = (  # a row, one of its peers, and a sentence with both figures
    (
        "driver.decide_100k",
        "1,000 waiting",
        "A controller admits a new job in {value} while 100,000 gangs wait, and in {peer} while 1,000 gangs wait.",
    ),
    (
        "api.gang8_unscheduled",
        "the same objects, by 16 threads and no driver",
        "On a real API server, tf-dist creates {value}. A program that only writes the same objects creates {peer}.",
    ),
    (
        "airflow.cpu",
        "the Kubernetes provider's",
        "1,000 deferred jobs use {value} in Airflow's triggerer. With the Kubernetes provider, they use {peer}.",
    ),
    (
        "simulate.philly_slowdown",
        "EASY",
        "On a trace like that of Philly, the mean slowdown of jobs is {value}. With EASY backfilling, it is {peer}.",
    ),
    (
        "simulate.storm_stuck",
        "kube-scheduler, pod by pod",
        "Of 200 gangs that arrive together, {value} never finish. With kube-scheduler, pod by pod, {peer} never "
        "finish.",
    ),
)
_HEAD: Final = """# Benchmarks

"""
_READING: Final = """
A *peer* is another program or method that is measured with the same input, in the same process and in the same
minute. A *target* limits the value, or the ratio of the value to a peer. For each row, the
[reference](reference/benchmarks.md) has a description, the worst run, and the conditions of the measurement.
Differences that are smaller than the spread between runs have no meaning. The time of an admission does not depend on
the number of waiting gangs, so it may be shorter with 100,000 gangs than with 1,000.

`make bench` runs the benchmarks on your machine. It writes `benchmarks/results.json`, and generates this page from it.
"""
_DETAILS: Final = f"""# Rows of the benchmarks

This page describes what each row of [the benchmarks](../benchmarks.md) measures, and the conditions of the last run:

```console
$ make bench
```

Each benchmark runs in its own process. The *value* is the median of the runs. The work of a single thread is measured
in processor time, so that other work on the machine does not count. Waits for processes, disks and servers are
measured in elapsed time. If the input of a peer differs, the description of the row mentions this.

The *probe* measures the speed of the machine directly before and after the run. It is the time in milliseconds to push
100,000 numbers through a heap. On the quiet machine for which the targets in seconds were set, it is about
{PROBE_QUIET}. The *load* is the load average of the minute before the run. A `+` after a commit means that there were
uncommitted changes.
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


def page(found: Sequence[Stored], beside_peers: str = "") -> str:
    """The page of the site: a summary against peers, ``beside_peers`` (a section), then a table for each group."""
    measured = [row for row in found if "value" in row]
    missed = [row["name"] for row in measured if row["met"] is False]
    held = sum(row["met"] is True for row in measured)
    counts = f"{len(measured)} of {len(found)} rows are measured. {held} targets are met, {len(missed)} missed"
    parts = [_HEAD + _summary(measured) + _READING, beside_peers]
    parts.append(counts + (f": {', '.join(f'`{name}`' for name in missed)}.\n" if missed else ".\n"))
    for group, members in groupby(found, key=lambda row: row["name"].partition(".")[0]):
        parts.append(_group(GROUPS[group], list(members)))
    parts += [_published(measured), _not_measured(found)]
    return "\n".join(part for part in parts if part)


def details(found: Sequence[Stored], beside_peers: str = "") -> str:
    """The page of the reference: what each row measures, and when and where it was measured."""
    parts = [_DETAILS, *([beside_peers] if beside_peers else [])]
    for group, members in groupby(found, key=lambda row: row["name"].partition(".")[0]):
        lines = [f"## {GROUPS[group]}\n", "| | worst (runs) | what is measured |", "|---|---:|---|"]
        for row in members:
            worst = f"{number(row['worst'])} {row['unit']} ({row['runs']})" if "value" in row else ""
            text = f"{_cell(row['measures'])} {_cell(row.get('note', ''))}".strip()
            lines.append(f"| `{row['name']}` | {worst} | {text} |")
        parts.append("\n".join(lines) + "\n")
    parts.append(_conditions([row for row in found if "value" in row]))
    return "\n".join(parts)


def _summary(measured: Iterable[Stored]) -> str:
    rows = {row["name"]: row for row in measured}
    lines = []
    for name, peer, sentence in _SUMMARY:
        if name in rows and peer in rows[name]["peers"]:
            unit = "" if rows[name]["unit"] in ("times", "gangs") else f" {rows[name]['unit']}"
            value, other = number(rows[name]["value"]), number(rows[name]["peers"][peer])
            lines.append(f"- {sentence.format(value=value + unit, peer=other + unit)}\n")
    return "".join(lines)


def _group(title: str, members: Sequence[Stored]) -> str:
    lines = [f"## {title}\n", "| | value | peers | target | |", "|---|---:|---|---|---|"]
    for row in members:
        if "value" not in row:
            lines.append(f"| `{row['name']}` | | | | not measured |")
            continue
        met = {None: "", True: "met", False: "**missed**"}[row["met"]]
        peers = "; ".join(f"{number(value)}: {_cell(name)}" for name, value in row["peers"].items())
        lines.append(f"| `{row['name']}` | {number(row['value'])} {row['unit']} | {peers} | {_target(row)} | {met} |")
    return "\n".join(lines) + "\n"


def _target(row: Stored) -> str:
    target = row["target"]
    if target is None:
        return ""
    sign = "≤" if row["better"] == "lower" else "≥"
    if not target["of"]:
        return f"{sign} {number(target['bound'])}"
    peer = row["peers"].get(target["of"])
    return f"{number(row['value'] / peer) if peer else '?'} × the peer ({sign} {target['bound']:g})"


def _published(measured: Iterable[Stored]) -> str:
    found = [f"| `{row['name']}` | {_cell(row['published'])} |" for row in measured if row["published"]]
    title = "## Published by others, not reproduced by us\n\n| row | figure and conditions |\n|---|---|\n"
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
