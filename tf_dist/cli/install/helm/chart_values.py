"""Values of the Helm chart: one table from which ``values.yaml`` and ``values.schema.json`` are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.cli.install.install_options import CONFIG_KEY, RESOURCES
from tf_dist.cli.options import PullPolicy
from tf_dist.client.yaml_files import to_yaml
from tf_dist.core.api.gang_scheduler import GangScheduler
from tf_dist.core.api.names import SYSTEM_NAMESPACE

_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = f"{_LABEL}(\\.{_LABEL})*"
_NAMESPACE: Final = {"type": "string", "pattern": f"^{_LABEL}$"}
_NAMESPACES: Final = {"type": "array", "items": _NAMESPACE, "uniqueItems": True}
_BOOLEAN: Final = {"type": "boolean"}
_QUANTITIES: Final = {
    "type": "object",
    "additionalProperties": {
        "type": ["string", "number"],
        "pattern": "^[0-9]+(\\.[0-9]+)?([eE][0-9]+|[numkKMGTPE]i?)?$",
    },
}
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}


def _optional(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^({pattern})?$"}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


_TOLERATION: Final = _object(
    {
        "key": {"type": "string"},
        "operator": _one_of("Exists", "Equal"),
        "value": {"type": "string"},
        "effect": _one_of("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
        "tolerationSeconds": {"type": "integer"},
    }
)


@dataclass(frozen=True, slots=True)
class ChartValue:
    """One value. ``option``: that of ``tf-dist install`` which does the same ("": what Helm does itself)."""

    name: str
    default: Any
    meaning: str
    schema: Mapping[str, Any]
    option: str = ""
    parts: tuple[ChartValue, ...] = field(default=())


def _group(name: str, meaning: str, *parts: ChartValue) -> ChartValue:
    return ChartValue(name, {one.name: one.default for one in parts}, meaning, {}, "", parts)


VALUES: Final = (
    _group(
        "image",
        "The controller's image. No registry has it: build it from the checkout (make images) and push it to yours.",
        ChartValue(
            "repository", "tf-dist", "With its registry.", {"type": "string", "pattern": "^[\\w./:-]+$"}, "--image"
        ),
        ChartValue("tag", "", 'By default the version of the chart ("appVersion").', _optional("[\\w.-]+"), "--image"),
        ChartValue("digest", "", "Instead of a tag: sha256:…", _optional("sha256:[0-9a-f]{64}"), "--image"),
        ChartValue("pullPolicy", "", "Always, IfNotPresent or Never.", _one_of("", *PullPolicy), "--image-pull-policy"),
    ),
    ChartValue(
        "imagePullSecrets",
        [],
        "Secrets of the controller's namespace with which nodes may pull the image: [{name: my-registry}].",
        {"type": "array", "items": _object({"name": {"type": "string", "pattern": f"^{_NAME}$"}}, "name")},
        "--image-pull-secret",
    ),
    ChartValue(
        "controller",
        True,
        "Whether there is a controller. Without one, programs drive the jobs that they submit (drivers).",
        _BOOLEAN,
        "--no-controller",
    ),
    ChartValue("replicas", 2, "Controllers; one of them drives.", {"type": "integer", "minimum": 1}, "--replicas"),
    ChartValue(
        "namespaces",
        [],
        "Drive jobs of these namespaces only, with rights in no others. By default: of all.",
        _NAMESPACES,
        "--namespace",
    ),
    ChartValue(
        "systemNamespace",
        SYSTEM_NAMESPACE,
        "Where all drivers of the cluster meet: one for the whole cluster. Made, and kept, if it is not the release's.",
        _NAMESPACE,
        "--system-namespace",
    ),
    ChartValue(
        "crds",
        True,
        "Whether the definitions belong to this release. They stay when it is uninstalled.",
        _BOOLEAN,
        "--no-crds",
    ),
    ChartValue(
        "resources",
        RESOURCES,
        "Of the controller. With a limit of CPU it may lose its Lease while it is throttled.",
        _object({"requests": _QUANTITIES, "limits": _QUANTITIES}),
        "--requests, --limits",
    ),
    ChartValue("nodeSelector", {}, "Labels of the nodes that controllers run on.", _TEXTS, "--node-selector"),
    ChartValue(
        "tolerations", [], "Taints that they tolerate.", {"type": "array", "items": _TOLERATION}, "--toleration"
    ),
    ChartValue(
        "priorityClassName",
        "",
        "By default system-cluster-critical in kube-system, elsewhere none.",
        _optional(_NAME),
        "--priority-class",
    ),
    ChartValue("podDisruptionBudget", True, "Drains take one controller at a time.", _BOOLEAN, "--no-pod-budget"),
    _group(
        "networkPolicy",
        "Nothing reaches the controllers but scrapes of their metrics. What they send is not limited.",
        ChartValue("enabled", False, "Whether there is one.", _BOOLEAN, "--network-policy"),
        ChartValue("from", [], "Namespaces that may scrape. By default: all.", _NAMESPACES, "--metrics-from"),
    ),
    ChartValue(
        "volcanoJobs",
        False,
        "Drive Volcano Jobs, too, in a cluster without Volcano.",
        _BOOLEAN,
        "--volcano-jobs",
    ),
    ChartValue(
        "gangSchedulers",
        [],
        "Other gang schedulers that jobs may ask for: volcano, coscheduling, kueue, workload.",
        {"type": "array", "items": _one_of(*GangScheduler), "uniqueItems": True},
        "--gang-scheduler",
    ),
    ChartValue(
        "defaultScheduler",
        GangScheduler.BUILTIN.value,
        "The gang scheduler of jobs which name none.",
        _one_of(*GangScheduler),
        "--default-scheduler",
    ),
    ChartValue(
        "clusterDomain",
        "",
        "What addresses in the TF_CONFIG of TFJobs v1 end in: example.local.",
        _optional(_NAME),
        "--cluster-domain",
    ),
    ChartValue(
        "disruptionBudgets",
        False,
        "A PodDisruptionBudget for each gang of a TFJob v1alpha1: drains wait for its end.",
        _BOOLEAN,
        "--disruption-budgets",
    ),
    _group(
        "controllerConfig",
        "A ConfigMap with accelerators for TFJobs v1alpha1, such as tf-job-operator-config.",
        ChartValue("name", "", "By default: none.", _optional(_NAME), "--controller-config"),
        ChartValue(
            "key",
            CONFIG_KEY,
            "The file in it.",
            {"type": "string", "pattern": "^\\.?[\\w-][\\w.-]*$"},
            "--controller-config",
        ),
    ),
    ChartValue(
        "drivers",
        [],
        "Let programs drive jobs in these namespaces without a controller: an account in each, with its role.",
        _NAMESPACES,
        "--drivers",
    ),
    ChartValue(
        "seeNodes",
        False,
        "Without a controller: these programs read nodes and pods, and decide about places by them.",
        _BOOLEAN,
        "--see-nodes",
    ),
    ChartValue("serviceMonitor", False, "A ServiceMonitor for the Prometheus operator.", _BOOLEAN, "--service-monitor"),
    ChartValue("prometheusRule", False, "Alerts for it (docs/metrics.md).", _BOOLEAN, "--prometheus-rule"),
    ChartValue(
        "grafanaDashboard",
        False,
        "A ConfigMap with the dashboard, labelled as Grafana's sidecar looks for it.",
        _BOOLEAN,
        "--grafana-dashboard",
    ),
    ChartValue(
        "monitoringLabels",
        {},
        "Labels by which your Prometheus selects monitors and rules: {release: kube-prometheus-stack}.",
        _TEXTS,
        "--monitoring-label",
    ),
)


def values_yaml() -> str:
    """The defaults, each with what it means."""
    lines = ["# Written by tf-dist install --chart. What each value does in full: docs/install.md."]
    for one in VALUES:
        lines += ["", f"# {one.meaning}"]
        if one.parts:
            lines.append(f"{one.name}:")
            for part in one.parts:
                lines += [f"  # {part.meaning}", *_assigned(part, "  ")]
        else:
            lines += _assigned(one)
    return "\n".join(lines) + "\n"


def _assigned(value: ChartValue, indent: str = "") -> list[str]:
    return [indent + line for line in to_yaml({value.name: value.default}).splitlines()]


def values_schema() -> str:
    """What Helm refuses before it renders anything."""
    properties: dict[str, Any] = {one.name: _schema(one) for one in VALUES}
    # Helm itself adds it where the chart is a part of another one.
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", **_object({**properties, "global": {}})}
    return json.dumps(whole, indent=2) + "\n"


def _schema(value: ChartValue) -> dict[str, Any]:
    found = _object({one.name: _schema(one) for one in value.parts}) if value.parts else dict(value.schema)
    return {"description": value.meaning, **found}
