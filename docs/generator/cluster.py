"""What an installation brings: metrics, and the rights of each role."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from docs.generator.markdown import code, prose, table
from tf_dist.cli.commands.argo_workflows import documents
from tf_dist.cli.install.manifests import InstallOptions, manifests
from tf_dist.controller.observability.metrics_interface import (
    ControllerStats,
    InformerStats,
    QueueStats,
    WorkQueueStats,
)
from tf_dist.controller.observability.prometheus_metrics import PrometheusRecorder

# One of everything, so that every family has a series.
_SAMPLE = ControllerStats(
    WorkQueueStats(), (InformerStats("pods", 0.0, 0.0, False, 1),), {"Running": 1}, {"": QueueStats()}
)


def metrics() -> str:
    """Every metric of the controller."""
    recorder = PrometheusRecorder()
    recorder.attach(lambda: _SAMPLE)
    labels = {
        name: found._labelnames  # type: ignore[attr-defined]
        for found, names in recorder.registry._collector_to_names.items()
        for name in names
    }
    rows = []
    for family in text_string_to_metric_families(recorder.exposition().decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.startswith("tf_dist_") or name.endswith("_created"):
            continue
        seen = {label for sample in family.samples for label in sample.labels} - {"le"}
        known = labels.get(family.name) or sorted(seen)
        rows.append((code(name), family.type, ", ".join(map(code, known)), prose(family.documentation)))
    return table(("metric", "type", "labels", "meaning"), rows)


_VARIANTS = (
    ("The default: `tf-dist install`", InstallOptions()),
    (
        "Jobs of one namespace only: `tf-dist install --namespaced --namespace research`",
        InstallOptions(namespaced=True, namespace="research"),
    ),
)


def roles() -> str:
    """The rights of each role, and to whom it is bound, of the usual installations."""
    seen: set[str] = set()
    parts = []
    for title, settings in _VARIANTS:
        parts += [f"### {title}", *_of_objects(manifests(settings), seen)]
    parts += [
        "### Steps of Argo workflows: `tf-dist workflows export DIR -n research`",
        *_of_objects(documents("rbac.yaml", "research"), seen),
    ]
    return "\n\n".join(parts)


def _of_objects(objects: Iterable[dict[str, Any]], seen: set[str]) -> Iterable[str]:
    listed = list(objects)
    bound: dict[str, list[str]] = {}
    for one in listed:
        if one["kind"].endswith("Binding"):
            subjects = [
                f"the account `{who['namespace']}/{who['name']}`"
                if who["kind"] == "ServiceAccount"
                else f"the group `{who['name']}`"
                for who in one["subjects"]
            ]
            where = one["metadata"].get("namespace")
            found = bound.setdefault(_key(one["roleRef"]["kind"], one["roleRef"]["name"], where), [])
            found += [f"{who} in `{where}`" if where else f"{who} in the whole cluster" for who in subjects]
    for one in listed:
        if one["kind"] not in ("Role", "ClusterRole"):
            continue
        name, where = one["metadata"]["name"], one["metadata"].get("namespace")
        rules = [
            (
                ", ".join(code(text) for text in rule["resources"]),
                code(rule["apiGroups"][0]) or "core",
                ", ".join(rule["verbs"]),
                ", ".join(map(code, rule.get("resourceNames", ()))),
            )
            for rule in one["rules"]
        ]
        text = table(("resources", "group", "verbs", "only these names"), rules)
        if text in seen:
            continue
        seen.add(text)
        who = bound.get(_key(one["kind"], name, where), [])
        to = f"Bound to {', '.join(dict.fromkeys(who))}." if who else _unbound(one)
        yield f"#### {one['kind']} {name}{f' in {where}' if where else ''}\n\n{to}\n\n{text}"


def _key(kind: str, name: str, where: str | None) -> str:
    return f"{kind}/{name}/{where}" if kind == "Role" else f"{kind}/{name}"


def _unbound(role: dict[str, Any]) -> str:
    into = [label.rpartition("-")[2] for label in role["metadata"].get("labels", {}) if "aggregate-to-" in label]
    if into:
        users = f"every user with {'one of these roles' if len(into) > 1 else 'this role'} has these rights."
        return f"Aggregated into Kubernetes' own {' and '.join(f'`{one}`' for one in into)}: {users}"
    return "The installation binds this role to no account. A cluster administrator can bind it."
