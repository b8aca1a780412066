"""The Helm chart: the manifests of ``tf-dist install`` under all of its options, as templates.

Each option is a value of the chart (``chart_values``). Options that are on or off are switches: the manifests are made
with each of them on and off, and merged (``helm_templates``). Names, numbers and lists are expressions in these
manifests. So an object that changes, changes in both; what is said here is how Helm asks for an option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import combinations
from typing import Any, Final

from tf_dist import __version__
from tf_dist.cli.install import install_checks
from tf_dist.cli.install.dashboard import dashboard_json
from tf_dist.cli.install.helm.chart_values import values_schema, values_yaml
from tf_dist.cli.install.helm.helm_templates import (
    SPREAD,
    Case,
    Conditions,
    Expression,
    Switch,
    TemplateWriter,
    inserted,
    merge,
    place_of,
)
from tf_dist.cli.install.install_options import (
    CEL_SINCE,
    KUBERNETES_OWN,
    DisruptionBudgetVersion,
    InstallOptions,
    Manifest,
)
from tf_dist.cli.install.workload import manifest_files
from tf_dist.client.connection import VOLCANO_JOBS_DEFINITION
from tf_dist.controller.leases.lease import CONTROLLER_NAME
from tf_dist.core.api.gang_scheduler import GangScheduler
from tf_dist.core.api.names import SYSTEM_NAMESPACE

_INTO: Final = inserted("$.Release.Namespace")
_SYSTEM: Final = inserted("$.Values.systemNamespace")
_NAMESPACE, _DRIVER, _OTHER = inserted("$namespace"), inserted("$driver"), inserted("$other")
_LISTS: Final = {
    "$namespace": "$.Values.namespaces",
    "$driver": "$.Values.drivers",
    "$other": "without $.Values.drivers $driver",
    "$from": "$.Values.networkPolicy.from",
    "$secret": "$.Values.imagePullSecrets",
}
_SCHEDULERS: Final = tuple(one.value for one in GangScheduler if one is not GangScheduler.BUILTIN)
_RULES_SINCE: Final = f'semverCompare ">={CEL_SINCE[0]}.{CEL_SINCE[1]}-0" $.Capabilities.KubeVersion.Version'
_ELSEWHERE: Final = "ne $.Release.Namespace $.Values.systemNamespace"
_OWN: Final = "has $.Values.systemNamespace (list {})".format(" ".join(f'"{one}"' for one in KUBERNETES_OWN))

_SWITCHES: Final = (
    Switch("controller", "$.Values.controller"),
    Switch("namespaces", "$.Values.namespaces"),
    Switch("apart", _ELSEWHERE),
    Switch("makes", f"and ({_ELSEWHERE}) (not ({_OWN}))"),
    Switch("renamed", f'ne $.Values.systemNamespace "{SYSTEM_NAMESPACE}"'),
    Switch("kube_system", 'eq $.Release.Namespace "kube-system"'),
    Switch("drivers", "$.Values.drivers"),
    Switch("several", "gt (len $.Values.drivers) 1"),
    Switch("see_nodes", "$.Values.seeNodes"),
    Switch("volcano_jobs", "$.Values.volcanoJobs"),
    *(Switch(name, f'include "tf-dist.schedules" (dict "root" $ "name" "{name}")') for name in _SCHEDULERS),
    Switch("scheduler", 'ne $.Values.defaultScheduler "builtin"'),
    Switch("domain", "$.Values.clusterDomain"),
    Switch("disruption_budgets", "$.Values.disruptionBudgets"),
    Switch("config", "$.Values.controllerConfig.name"),
    Switch("secrets", "$.Values.imagePullSecrets"),
    Switch("priority", "$.Values.priorityClassName"),
    Switch("pod_disruption_budget", "$.Values.podDisruptionBudget"),
    Switch("budgets_v1", '$.Capabilities.APIVersions.Has "policy/v1"'),
    Switch("network_policy", "$.Values.networkPolicy.enabled"),
    Switch("from", "$.Values.networkPolicy.from"),
    Switch("service_monitor", "$.Values.serviceMonitor"),
    Switch("prometheus_rule", "$.Values.prometheusRule"),
    Switch("grafana_dashboard", "$.Values.grafanaDashboard"),
    Switch("monitoring_labels", "$.Values.monitoringLabels"),
)
_OF_DEFINITIONS: Final = (Switch("volcano_jobs", "$.Values.volcanoJobs"), Switch("rules", _RULES_SINCE))
# Switches that are options as they are.
_FLAGS: Final = (
    *("controller", "see_nodes", "definitions", "volcano_jobs", "disruption_budgets", "pod_disruption_budget"),
    *("network_policy", "service_monitor", "prometheus_rule", "grafana_dashboard"),
)
# What is never without the other: the chart refuses such values, or cannot have them.
_NEEDS: Final = {"several": "drivers", "makes": "apart", "from": "network_policy", "namespaces": "controller"}
_NEVER_BOTH: Final = (("controller", "see_nodes"),)

# Files of manifests, by the switches that are on.
_Rendered = dict[frozenset[str], Mapping[str, list[Manifest]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChartOptions(InstallOptions):
    """Options whose names Helm knows: comparisons of them are switches of their own."""

    on: frozenset[str]

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in _SCHEDULERS if name in self.on)

    @property
    def apart(self) -> bool:
        return "apart" in self.on

    @property
    def meets_elsewhere(self) -> bool:
        return "renamed" in self.on

    @property
    def in_kube_system(self) -> bool:
        return "kube_system" in self.on

    @property
    def new_namespaces(self) -> tuple[str, ...]:
        return (_SYSTEM,) if "makes" in self.on else ()  # that of the release is Helm's


def _options(on: frozenset[str]) -> InstallOptions:
    """The options with these switches on."""

    def given(switch: str, value: Any, otherwise: Any = "") -> Any:
        return value if switch in on else otherwise

    values: dict[str, Any] = {
        "into": _INTO,
        "system_namespace": _SYSTEM,  # where it is the release's own, this says so as well
        "image": inserted('include "tf-dist.image" $'),
        "image_pull_policy": Expression("$.Values.image.pullPolicy", only_if="$.Values.image.pullPolicy"),
        "image_pull_secrets": given("secrets", (inserted("$secret.name"),), ()),
        "replicas": Expression("$.Values.replicas"),
        "resources": Expression("toYaml $.Values.resources", block=True),
        "node_selector": Expression("toYaml $.Values.nodeSelector", block=True, only_if="$.Values.nodeSelector"),
        "tolerations": Expression("toYaml $.Values.tolerations", block=True, only_if="$.Values.tolerations"),
        "priority_class": given("priority", inserted("$.Values.priorityClassName")),
        "metrics_from": given("from", (inserted("$from"),), ()),
        "namespaces": given("namespaces", (_NAMESPACE,), ()),
        "drivers": (_DRIVER, _OTHER) if "several" in on else given("drivers", (_DRIVER,), ()),
        "monitoring_labels": given("monitoring_labels", {SPREAD: Expression("toYaml $.Values.monitoringLabels")}, {}),
        "gang_scheduler": given("scheduler", inserted("$.Values.defaultScheduler"), GangScheduler.BUILTIN),
        "cluster_domain": given("domain", inserted("$.Values.clusterDomain")),
        "config_map": given("config", inserted("$.Values.controllerConfig.name")),
        "config_key": inserted("$.Values.controllerConfig.key"),
        "budgets": given("budgets_v1", DisruptionBudgetVersion.V1, DisruptionBudgetVersion.V1BETA1),
        **{name: name in on for name in _FLAGS},
        "kubernetes": given("rules", (0, 0), (1, 1)),
    }
    return _ChartOptions(on=on, **values)


def chart_files() -> dict[str, str]:
    """Every file of the chart, by its path."""
    own = files(__package__)
    written = {
        "Chart.yaml": _about(),
        "values.yaml": values_yaml(),
        "values.schema.json": values_schema(),
        "files/tf-dist.json": dashboard_json(),
        "templates/_helpers.tpl": own.joinpath("helpers.tpl").read_text(encoding="utf-8"),
        "templates/checks.yaml": _checks(),
        "templates/NOTES.txt": own.joinpath("NOTES.txt").read_text(encoding="utf-8"),
    }
    return written | {f"templates/{name}": text for name, text in _templates()}


def _about() -> str:
    # A version of Python as one of Helm: 0.1.0.dev0, 0.1.0rc1 are 0.1.0-dev0, 0.1.0-rc1.
    version = re.sub(r"^(\d+\.\d+\.\d+)\.?([a-z].*)$", r"\1-\2", __version__)
    return (
        "# Written by tf-dist install --chart.\n"
        "apiVersion: v2\n"
        "name: tf-dist\n"
        "description: Distributed TensorFlow jobs (TFJob v1 and v1alpha1, Volcano Job), admitted as gangs\n"
        "type: application\n"
        f"version: {version}\n"
        f"appVersion: {__version__}\n"
    )


def _templates() -> Iterator[tuple[str, str]]:
    writer = TemplateWriter(_LISTS)
    definitions = _rendered(_OF_DEFINITIONS, always="definitions")
    for name in dict.fromkeys(name for part in definitions.values() for name in part if name.startswith("crds/")):
        yield name, _of_definition(name, definitions, writer)
    rendered = _rendered(_SWITCHES)
    conditions = Conditions(_SWITCHES, list(rendered))
    for name in sorted({_file(name) for part in rendered.values() for name in part}):
        yield name, _HEADER + writer.documents(merge(_cases(name, rendered), conditions))


def _cases(file: str, rendered: _Rendered) -> list[Case]:
    """What is in a file in which settings."""
    masks: dict[str, int] = {}
    found: dict[str, list[Manifest]] = {}
    for number, part in enumerate(rendered.values()):
        objects = [one for name, inner in part.items() if _file(name) == file for one in inner]
        key = repr(objects)
        masks[key] = masks.get(key, 0) | 1 << number
        found[key] = objects
    return [(masks[key], _prepared(objects)) for key, objects in found.items()]


def _file(name: str) -> str:
    """The template that a file's objects go to: those of all drivers are in one."""
    return "drivers.yaml" if name.startswith("driver-") else name


def _rendered(switches: tuple[Switch, ...], always: str = "") -> _Rendered:
    """The manifests in enough settings to tell each switch, and each two of them, from all others."""
    return {on: manifest_files(_options(on | {always})) for on in _settings([one.name for one in switches])}


def _settings(names: list[str]) -> Iterator[frozenset[str]]:
    """Nothing on and everything on, with a controller and without; and what differs from these in one switch or two."""
    seen = set()
    for base in (
        frozenset({"controller"}),
        frozenset(),
        frozenset(names) - {"see_nodes"},
        frozenset(names) - {"controller", "namespaces"},
    ):
        for size in range(3):
            for turned in combinations(names, size):
                on = (base & frozenset(names)) ^ frozenset(turned)
                if on not in seen and _is_possible(on):
                    seen.add(on)
                    yield on


def _is_possible(on: frozenset[str]) -> bool:
    met = all(needed in on for name, needed in _NEEDS.items() if name in on)
    return met and not any(on.issuperset(pair) for pair in _NEVER_BOTH)


_LEASE: Final = CONTROLLER_NAME
_COMPUTED: Final[Mapping[str, Any]] = {
    dashboard_json(): Expression('$.Files.Get "files/tf-dist.json" | toJson'),
    _LEASE: inserted('include "tf-dist.lease" $'),
}
_KEPT: Final = {"helm.sh/resource-policy": "keep"}


def _prepared(manifests: list[Manifest]) -> list[Manifest]:
    """As they stand in a template: names computed by Helm, and the objects of the first driver for those of each."""
    return [_kept(_computed(one)) for one in manifests if _is_of_first_driver(one)]


def _is_of_first_driver(manifest: Manifest) -> bool:
    _, namespace, name = place_of(manifest)
    found = re.findall(f"{re.escape(_DRIVER)}|{re.escape(_OTHER)}", f"{namespace} {name}")
    return not found or found[0] == _DRIVER


def _computed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _computed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_computed(inner) for inner in value]
    return _COMPUTED.get(value, value) if isinstance(value, str) else value


def _kept(manifest: Manifest) -> Manifest:
    """What stays when a release is uninstalled: definitions, else all jobs would go, and the place of all drivers."""
    if manifest["kind"] not in ("CustomResourceDefinition", "Namespace"):
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": _KEPT}}


_HEADER: Final = "{{/* Written by tf-dist install --chart; change what writes it rather than this file. */}}\n"


def _of_definition(file: str, rendered: _Rendered, writer: TemplateWriter) -> str:
    """A definition, unless another installation brought it; Volcano's own means that Volcano drives these jobs."""
    name = file.removeprefix("crds/").removesuffix(".yaml")
    conditions = Conditions(_OF_DEFINITIONS, list(rendered))
    text = writer.documents(merge(_cases(file, rendered), conditions))
    return (
        f'{_HEADER}{{{{- if and $.Values.crds (not (include "tf-dist.foreign" "{name}")) }}}}\n{text}{{{{- end }}}}\n'
    )


def _checks() -> str:
    """What makes no sense together, which no schema can say in words that help."""
    lines = [_HEADER.rstrip("\n")]
    for conflict in install_checks.CONFLICTS:
        if conflict.helm:
            lines += [f"{{{{- if {conflict.helm} }}}}", f"{{{{- fail {_quoted(conflict.as_value())} }}}}", "{{- end }}"]
    volcano = install_checks.VOLCANO_IS_THERE.replace("--volcano-jobs", "volcanoJobs")
    lines += [
        f'{{{{- if and $.Values.volcanoJobs (include "tf-dist.foreign" "{VOLCANO_JOBS_DEFINITION}") }}}}',
        f"{{{{- fail {_quoted(volcano)} }}}}",
        "{{- end }}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
