"""Alerts and dashboard: each query uses metrics and labels that a controller exposes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.controller.observability.test_metrics import busy_recorder
from tests.deploy.manifests import CHART, of_kind, rendered

ROOT = Path(__file__).parents[2]
ALERTS = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
DASHBOARD = (CHART / "files/dashboard.json").read_text()
# Labels that Prometheus adds to the targets of a ServiceMonitor.
OF_TARGETS = {"job", "namespace", "pod", "instance", "service"}


def exposed() -> dict[str, tuple[str, set[str]]]:
    """The type and the labels of the series that a controller exposes, by name."""
    recorder = busy_recorder()
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(recorder.exposition().decode()):
        for sample in family.samples:
            _, labels = found.get(sample.name, ("", set()))
            found[sample.name] = (family.type, labels | sample.labels.keys())
    return found


EXPOSED = exposed()
_METRIC = re.compile(r"\b((?:tf_dist|process)_\w+)(\{[^}]*\})?(\[\w+\])?")
_MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"')
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


def problems(expression: str) -> list[str]:
    """Problems of a query that can be found without a Prometheus engine."""
    found = []
    known: set[str] = set()
    for name, matchers, window in _METRIC.findall(expression):
        if name not in EXPOSED:
            found.append(f"no metric {name}")
            continue
        kind, labels = EXPOSED[name]
        known |= labels
        found += [f"{name} has no label {one}" for one in _MATCHER.findall(matchers) if one not in labels | OF_TARGETS]
        counts = kind in ("counter", "histogram")
        if bool(window) != counts:
            found.append(f"{name} is a {kind}: {'rate' if counts else 'no window'}")
        if window and not re.search(rf"\b(rate|increase)\({re.escape(name)}", expression):
            found.append(f"{name} needs rate or increase")
    if not _METRIC.search(expression):
        found.append("no metric at all")
    for grouping in _GROUPING.findall(expression):
        found += [f"no label {one} to group by" for one in re.split(r",\s*", grouping) if one not in known | OF_TARGETS]
    if "histogram_quantile" in expression and not re.search(r"by \([^)]*\ble\b", expression):
        found.append("a quantile needs le")
    if expression.count("(") != expression.count(")") or expression.count("{") != expression.count("}"):
        found.append("brackets")
    return found


@pytest.mark.parametrize("alert", ALERTS, ids=lambda one: one["alert"])
def test_alert_uses_existing_metrics_and_labels(alert: dict[str, Any]) -> None:
    assert problems(alert["expr"]) == []
    assert re.fullmatch(r"\d+[mh]", alert["for"])
    grouped = {one for found in _GROUPING.findall(alert["expr"]) for one in re.split(r",\s*", found)}
    assert set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values()))) <= grouped


PANELS = [one for one in json.loads(DASHBOARD)["panels"] if one["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda one: one["title"])
def test_panel_uses_existing_metrics_and_labels(panel: Any) -> None:
    assert panel["targets"]
    for query in panel["targets"]:
        assert problems(query["expr"]) == []
        assert 'job=~"$job"' in query["expr"]
        named = set(re.findall(r"\{\{(\w+)\}\}", query["legendFormat"]))
        assert named <= {one for found in _GROUPING.findall(query["expr"]) for one in re.split(r",\s*", found)}


def test_dashboard_layout_and_variables_are_consistent() -> None:
    dashboard = json.loads(DASHBOARD)
    panels = dashboard["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for one in panels:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        taken |= cells
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) == variables.keys()
    (metric,) = re.findall(r"label_values\((\w+), job\)", variables["job"]["definition"])
    assert metric in EXPOSED


def test_documented_alerts_equal_shipped_alerts() -> None:
    text = (ROOT / "docs/metrics.md").read_text().partition("## Alerts")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(.+)` \| (\w+) \|", text, flags=re.MULTILINE)
    assert rows == [(one["alert"], one["expr"].replace("|", r"\|"), one["for"]) for one in ALERTS]


def test_chart_installs_alerts_and_dashboard() -> None:
    objects = rendered("prometheusRule=true", "grafanaDashboard=true", "monitoringLabels.release=stack")
    (rule,), (dashboard,) = of_kind(objects, "PrometheusRule"), of_kind(objects, "ConfigMap")
    assert rule["spec"]["groups"] == [{"name": "tf-dist", "rules": ALERTS}]
    assert rule["metadata"]["labels"]["release"] == "stack"
    assert dashboard["data"] == {"tf-dist.json": DASHBOARD}
