"""What the controller is watched by: a ServiceMonitor, alerts as a PrometheusRule, and the dashboard for Grafana.

What each metric means: docs/metrics.md; its table of alerts is held against ``alerts.yaml`` by a test.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from tf_dist.cli.install.dashboard import dashboard_json
from tf_dist.cli.install.install_options import CONTROLLER, SELECTOR, InstallOptions, Manifest, metadata

_MONITORING: Final = "monitoring.coreos.com/v1"
DASHBOARD_FILE: Final = "tf-dist.json"


# Only where the controller drives all namespaces does one decide about places for all.
_OF_WHOLE_CLUSTER: Final = "TFDistNoAdmissionLeader"


def alerts() -> list[Manifest]:
    """Every alert, as a PrometheusRule has it."""
    import yaml

    found: list[Manifest] = yaml.safe_load(files(__package__).joinpath("alerts.yaml").read_text(encoding="utf-8"))
    return found


def objects(settings: InstallOptions) -> list[Manifest]:
    """What was asked for of it."""
    found = []
    if settings.service_monitor:
        found.append(_service_monitor(settings))
    if settings.prometheus_rule:
        found.append(_prometheus_rule(settings))
    if settings.grafana_dashboard:
        found.append(_dashboard(settings))
    return found


def _service_monitor(settings: InstallOptions) -> Manifest:
    return {
        "apiVersion": _MONITORING,
        "kind": "ServiceMonitor",
        "metadata": metadata(CONTROLLER, settings.into, settings.monitoring_labels),
        "spec": {
            "selector": {"matchLabels": SELECTOR},
            "endpoints": [{"port": "metrics", "interval": "30s"}],
        },
    }


def _prometheus_rule(settings: InstallOptions) -> Manifest:
    rules = [one for one in alerts() if not (settings.namespaces and one["alert"] == _OF_WHOLE_CLUSTER)]
    return {
        "apiVersion": _MONITORING,
        "kind": "PrometheusRule",
        "metadata": metadata(CONTROLLER, settings.into, settings.monitoring_labels),
        "spec": {"groups": [{"name": "tf-dist", "rules": rules}]},
    }


def _dashboard(settings: InstallOptions) -> Manifest:
    """As the sidecar of Grafana's chart looks for dashboards."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(f"{CONTROLLER}-dashboard", settings.into, {"grafana_dashboard": "1"}),
        "data": {DASHBOARD_FILE: dashboard_json()},
    }
