"""The dashboard for Grafana: rows of panels (``dashboard.yaml``), each a title, a unit and its queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Final

# Which of the controllers that a Prometheus scrapes: a variable of the dashboard.
_JOB: Final = 'job=~"$job"'
_WIDTH: Final = 24  # columns of Grafana's grid
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_QUANTILES: Final = {0.5: "half", 0.99: "99 of 100"}


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
        "panels": list(_panels()),
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


def _panels() -> Iterator[dict[str, Any]]:
    import yaml

    number = down = 0
    for row in yaml.safe_load(files(__package__).joinpath("dashboard.yaml").read_text(encoding="utf-8")):
        number += 1
        place = {"x": 0, "y": down, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row["title"], "collapsed": False, "gridPos": place, "panels": []}
        down += 1
        panels = row["panels"]
        width, height = _WIDTH // len(panels), _HEIGHT // 2 if panels[0].get("kind") == "stat" else _HEIGHT
        for column, panel in enumerate(panels):
            number += 1
            yield _panel(panel, number, {"x": column * width, "y": down, "w": width, "h": height})
        down += height


def _panel(panel: dict[str, Any], number: int, place: dict[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 25} if panel.get("stacked") else {}
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel.get("meaning", ""),
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.get("unit", "short"), "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if kind == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(_queries(panel).items())
        ],
    }


def _queries(panel: dict[str, Any]) -> dict[str, str]:
    """PromQL by what its series are called."""
    if metric := panel.get("quantiles"):
        by = panel.get("by")
        labels, legend = (f"le, {by}", f"{{{{{by}}}}}: ") if by else ("le", "")
        rate = f"sum by ({labels}) (rate({metric}_bucket{{{_JOB}}}[5m]))"
        return {f"{legend}{name}": f"histogram_quantile({part}, {rate})" for part, name in _QUANTILES.items()}
    return {legend: query.replace("$JOB", _JOB) for legend, query in panel["queries"].items()}
