"""The dashboard for Grafana: rows of panels, each a title, a unit and its queries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

# Which of the controllers that a Prometheus scrapes: a variable of the dashboard.
_JOB: Final = 'job=~"$job"'
_WIDTH: Final = 24  # columns of Grafana's grid
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and what its series are called (Grafana's ``{{label}}``)."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """``unit``: Grafana's name of it; ``kind``: ``timeseries`` or ``stat``; ``stacked``: the sum means something."""

    title: str
    meaning: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beside each other."""

    title: str
    panels: tuple[Panel, ...]


def _quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}}: " if by else ""
    return tuple(
        Query(f"histogram_quantile({part}, sum by ({labels}) (rate({metric}_bucket{{{_JOB}}}[5m])))", f"{legend}{name}")
        for part, name in ((0.5, "half"), (0.99, "99 of 100"))
    )


def _one(expression: str, legend: str) -> tuple[Query, ...]:
    return (Query(expression, legend),)


ROWS: Final = (
    Row(
        "Is it alive?",
        (
            Panel(
                "Drivers",
                "Replicas that drive jobs: one for each controller. 0: nothing starts, restarts or ends.",
                _one(f"sum(tf_dist_leading{{{_JOB}}})", "driving"),
                kind="stat",
            ),
            Panel(
                "Admission leader",
                "Whether a controller decides about places for all.",
                _one(f"max(tf_dist_admission_leader{{{_JOB}}})", "deciding"),
                kind="stat",
            ),
            Panel("Running jobs", "", _one(f'sum(tf_dist_jobs{{{_JOB}, phase="Running"}})', "running"), kind="stat"),
            Panel("Waiting gangs", "", _one(f"sum(tf_dist_pending_gangs{{{_JOB}}})", "waiting"), kind="stat"),
        ),
    ),
    Row(
        "Jobs and queues",
        (
            Panel(
                "Jobs by phase",
                "All that are stored and driven here.",
                _one(f"sum by (phase) (tf_dist_jobs{{{_JOB}}})", "{{phase}}"),
                stacked=True,
            ),
            Panel(
                "Gangs that wait, by queue",
                "",
                _one(f"sum by (queue) (tf_dist_pending_gangs{{{_JOB}}})", "{{queue}}"),
                stacked=True,
            ),
            Panel(
                "Admitted gangs, by queue",
                "",
                _one(f"sum by (queue) (tf_dist_admitted_gangs{{{_JOB}}})", "{{queue}}"),
                stacked=True,
            ),
        ),
    ),
    Row(
        "What happens to jobs",
        (
            Panel("Wait for a place", "Of gangs that got one.", _quantiles("tf_dist_admission_wait_seconds"), unit="s"),
            Panel(
                "Admissions an hour",
                "",
                _one(f"sum(increase(tf_dist_admission_wait_seconds_count{{{_JOB}}}[1h]))", "admitted"),
            ),
            Panel(
                "Restarts an hour, by cause",
                "",
                _one(f"sum by (cause) (increase(tf_dist_restarts_total{{{_JOB}}}[1h]))", "{{cause}}"),
                stacked=True,
            ),
            Panel(
                "Pods taken away an hour, by reason",
                "",
                _one(f"sum by (reason) (increase(tf_dist_disruptions_total{{{_JOB}}}[1h]))", "{{reason}}"),
                stacked=True,
            ),
        ),
    ),
    Row(
        "The controller's work",
        (
            Panel("A look at a job", "", _quantiles("tf_dist_reconcile_seconds"), unit="s"),
            Panel(
                "Errors a second, by reason",
                "Conflicts are part of the work; a defect is a mistake of tf-dist.",
                _one(f"sum by (reason) (rate(tf_dist_reconcile_errors_total{{{_JOB}}}[5m]))", "{{reason}}"),
                stacked=True,
            ),
            Panel(
                "Jobs that are due",
                "They wait for a worker.",
                (
                    Query(f"max by (pod) (tf_dist_workqueue_depth{{{_JOB}}})", "{{pod}}: waiting"),
                    Query(f"max by (pod) (tf_dist_active_workers{{{_JOB}}})", "{{pod}}: workers busy"),
                ),
            ),
            Panel("Wait for a worker", "", _quantiles("tf_dist_workqueue_queue_duration_seconds"), unit="s"),
        ),
    ),
    Row(
        "The API server",
        (
            Panel(
                "Requests a second, by status",
                "0: no answer.",
                _one(f"sum by (code) (rate(tf_dist_api_calls_total{{{_JOB}}}[5m]))", "{{code}}"),
                unit="reqps",
                stacked=True,
            ),
            Panel("Time of a request", "", _quantiles("tf_dist_api_call_seconds", "verb"), unit="s"),
            Panel(
                "Last heard of a kind",
                "Some minutes are normal for a kind that does not change.",
                _one(f"max by (resource) (tf_dist_informer_age_seconds{{{_JOB}}})", "{{resource}}"),
                unit="s",
            ),
            Panel(
                "Watches that broke, an hour",
                "",
                _one(
                    f"sum by (resource, cause) (increase(tf_dist_watch_restarts_total{{{_JOB}}}[1h]))",
                    "{{resource}}: {{cause}}",
                ),
                stacked=True,
            ),
        ),
    ),
    Row(
        "The process",
        (
            Panel(
                "Memory",
                "",
                _one(f"max by (pod) (process_resident_memory_bytes{{{_JOB}}})", "{{pod}}"),
                unit="bytes",
            ),
            Panel("CPU", "Cores.", _one(f"max by (pod) (rate(process_cpu_seconds_total{{{_JOB}}}[5m]))", "{{pod}}")),
            Panel(
                "Renewals of the Lease a minute",
                "",
                _one(f"sum by (result) (rate(tf_dist_heartbeats_total{{{_JOB}}}[5m])) * 60", "{{result}}"),
            ),
        ),
    ),
)


@cache
def dashboard_json() -> str:
    """The dashboard as Grafana imports it, from version 10 on."""
    whole = {
        "title": "tf-dist",
        "uid": "tf-dist",
        "tags": ["tf-dist"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels(ROWS)),
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    query = "label_values(tf_dist_build_info, job)"
    yield {
        "name": "job",
        "label": "Controller",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "job"},
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number = down = 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": down, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        down += 1
        width, height = _WIDTH // len(row.panels), _HEIGHT if row.panels[0].kind != "stat" else _HEIGHT // 2
        for column, panel in enumerate(row.panels):
            number += 1
            yield _panel(panel, number, {"x": column * width, "y": down, "w": width, "h": height})
        down += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 25} if panel.stacked else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": one.expression, "legendFormat": one.legend}
            for index, one in enumerate(panel.queries)
        ],
    }
