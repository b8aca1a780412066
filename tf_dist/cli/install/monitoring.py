"""What the controller is watched by: a ServiceMonitor, alerts as a PrometheusRule, and the dashboard for Grafana.

What each metric means: docs/metrics.md; its table of alerts is held against ``ALERTS`` by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tf_dist.cli.install.dashboard import dashboard_json
from tf_dist.cli.install.install_options import CONTROLLER, SELECTOR, InstallOptions, Manifest, metadata

_MONITORING: Final = "monitoring.coreos.com/v1"
DASHBOARD_FILE: Final = "tf-dist.json"
_CRITICAL, _WARNING = "critical", "warning"


@dataclass(frozen=True, slots=True)
class Alert:
    """``expression``: PromQL that has a result while something is wrong; ``lasting``: for how long, before it is said.

    ``whole_cluster``: only where the controller drives all namespaces.
    """

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    description: str
    whole_cluster: bool = False


ALERTS: Final = (
    Alert(
        "TFDistNoDriver",
        "absent(tf_dist_leading) or max by (namespace, job) (tf_dist_leading) == 0",
        "2m",
        _CRITICAL,
        "No tf-dist controller drives jobs",
        "No replica runs, or none can hold its Lease. Pods that run go on; nothing starts, restarts or ends.",
    ),
    Alert(
        "TFDistNoAdmissionLeader",
        "max(tf_dist_admission_leader) == 0 and sum(tf_dist_pending_gangs) > 0",
        "5m",
        _CRITICAL,
        "No tf-dist controller decides about places, and gangs wait",
        "Look at the Lease tf-dist-arbiter of the system namespace: who holds it, and whether that driver lives.",
        whole_cluster=True,
    ),
    Alert(
        "TFDistQueueStuck",
        "sum by (namespace, queue) (tf_dist_pending_gangs) > 0 "
        "unless sum by (namespace, queue) (tf_dist_admitted_gangs) > 0",
        "1h",
        _WARNING,
        "Gangs wait in queue {{ $labels.queue }}, and none of it runs",
        "{{ $value }} gangs have waited for an hour in a queue that uses nothing: its quota may be too small for any "
        "of them, or others hold its part. tf-dist explain JOB says what a job lacks.",
    ),
    Alert(
        "TFDistReconcileErrors",
        'sum by (namespace, reason) (rate(tf_dist_reconcile_errors_total{reason!="Conflict"}[5m])) > 0.1',
        "15m",
        _WARNING,
        "tf-dist cannot act for jobs: {{ $labels.reason }}",
        "{{ $value | humanize }} looks at jobs a second end in an error. The log names the jobs and says why.",
    ),
    Alert(
        "TFDistDefect",
        'sum by (namespace, pod) (increase(tf_dist_reconcile_errors_total{reason="defect"}[15m])) > 0',
        "0m",
        _WARNING,
        "A defect of tf-dist in {{ $labels.pod }}",
        "A look at a job ended in an unexpected error. The log has the job and the traceback; other jobs go on.",
    ),
    Alert(
        "TFDistInformerStale",
        "max by (namespace, pod, resource) (tf_dist_informer_age_seconds) > 600",
        "5m",
        _WARNING,
        "tf-dist hears nothing of {{ $labels.resource }}",
        "Neither a list nor a watch has been answered for {{ $value | humanizeDuration }}: decisions of "
        "{{ $labels.pod }} rest on what was true then.",
    ),
    Alert(
        "TFDistHeartbeatsFail",
        'sum by (namespace, pod) (rate(tf_dist_heartbeats_total{result="failed"}[5m])) > 0',
        "10m",
        _WARNING,
        "{{ $labels.pod }} cannot renew its Lease",
        "The API server is slow, or the right to the Lease was taken away. Another replica takes over after 15 s.",
    ),
    Alert(
        "TFDistAPIErrors",
        'sum by (namespace) (rate(tf_dist_api_calls_total{code=~"0|429|5.."}[5m])) '
        "/ sum by (namespace) (rate(tf_dist_api_calls_total[5m])) > 0.05",
        "10m",
        _WARNING,
        "The API server does not answer tf-dist",
        "{{ $value | humanizePercentage }} of its requests fail or are turned away (0: no answer).",
    ),
    Alert(
        "TFDistForbidden",
        'sum by (namespace, verb, resource) (rate(tf_dist_api_calls_total{code="403"}[5m])) > 0',
        "10m",
        _WARNING,
        "tf-dist may not {{ $labels.verb }} {{ $labels.resource }}",
        "A right is missing: a role was changed, or a quota or an admission webhook refuses. The log has the refusal.",
    ),
    Alert(
        "TFDistBacklog",
        "max by (namespace, pod) (tf_dist_workqueue_depth) > 100",
        "10m",
        _WARNING,
        "{{ $labels.pod }} cannot keep up",
        "{{ $value }} jobs are due and wait for a worker. If tf_dist_api_call_seconds is high, the API server is slow.",
    ),
    Alert(
        "TFDistWorkerStuck",
        "max by (namespace, pod) (tf_dist_workqueue_longest_running_processor_seconds) > 600",
        "5m",
        _WARNING,
        "A worker of {{ $labels.pod }} is stuck",
        "It has been busy with one job for {{ $value | humanizeDuration }}; after 30 minutes the pod is started anew.",
    ),
)


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
    rules = [_rule(one) for one in ALERTS if not (one.whole_cluster and settings.namespaces)]
    return {
        "apiVersion": _MONITORING,
        "kind": "PrometheusRule",
        "metadata": metadata(CONTROLLER, settings.into, settings.monitoring_labels),
        "spec": {"groups": [{"name": "tf-dist", "rules": rules}]},
    }


def _rule(alert: Alert) -> Manifest:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }


def _dashboard(settings: InstallOptions) -> Manifest:
    """As the sidecar of Grafana's chart looks for dashboards."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(f"{CONTROLLER}-dashboard", settings.into, {"grafana_dashboard": "1"}),
        "data": {DASHBOARD_FILE: dashboard_json()},
    }
