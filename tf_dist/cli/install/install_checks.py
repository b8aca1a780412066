"""Options of an installation: how their texts are read, and which make no sense together.

The Helm chart refuses the same ``CONFLICTS``; single values it refuses by its schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.cli.install.install_options import CONFIG_KEY, RESOURCES, InstallOptions
from tf_dist.cli.options import parse_resources
from tf_dist.client.connection import VOLCANO_JOBS_DEFINITION
from tf_dist.core.api.names import is_dns_label
from tf_dist.core.api.quantity import parse_quantity
from tf_dist.core.steps.job_arguments import NAME_HINT
from tf_dist.errors import InvalidJob, Problem

VOLCANO_IS_THERE: Final = (
    f"the cluster has Volcano's definition {VOLCANO_JOBS_DEFINITION}: its controller and tf-dist's would drive the "
    "same jobs; leave out --volcano-jobs"
)


# Options that messages name, as the chart calls them.
_AS_VALUES: Final = {
    "--no-controller": "controller: false",
    "--gang-scheduler": "gangSchedulers",
    "--service-monitor": "serviceMonitor",
    "--prometheus-rule": "prometheusRule",
}


@dataclass(frozen=True, slots=True)
class Conflict:
    """Options that do not go together. ``option``, ``value``: the one at fault; ``helm``: how the chart asks for it."""

    option: str
    value: str
    holds: Callable[[InstallOptions], object]
    helm: str
    message: str
    hint: str = ""

    def problem(self) -> Problem:
        """What the command says."""
        return Problem(self.option, self.message, self.hint)

    def as_value(self) -> str:
        """What the chart says."""
        hint = f"; {self.hint}" if self.hint else ""
        said = f"{self.value}: {self.message}{hint}"
        for option, value in _AS_VALUES.items():
            said = said.replace(option, value)
        return said


_DEFAULTS: Final = InstallOptions()


def _given(name: str) -> Callable[[InstallOptions], bool]:
    """Whether an option was given: it is not what it is by default."""
    return lambda options: _value(options, name) != _value(_DEFAULTS, name)


def _value(options: InstallOptions, name: str) -> object:
    return options.resources[name] if name in RESOURCES else getattr(options, name)


@dataclass(frozen=True, slots=True)
class _Option:
    """One that an installation may have no use for. ``asked``: when the chart has its value ("": it cannot tell)."""

    name: str
    field: str
    value: str = ""
    asked: str = ""
    about: str = "is for the controller"
    hint: str = ""

    def without_controller(self) -> Conflict:
        given = _given(self.field)
        return Conflict(
            self.name,
            self.value,
            lambda options: given(options) and not options.controller,
            f"and {self.asked} (not $.Values.controller)" if self.asked else "",
            f"{self.about}, and --no-controller leaves it out",
            self.hint,
        )

    def with_definitions_only(self) -> Conflict:
        given = _given(self.field)
        return Conflict(
            self.name,
            "",
            lambda options: given(options) and options.only_definitions,
            "",
            "is not for the definitions, and --crds-only leaves it out",
        )


# --cluster-domain is not among them: a variable may have set it. In the chart image and resources are not: they often
# stand in a file of values that several releases share.
_OF_THE_CONTROLLER: Final = (
    _Option("--into", "into"),
    _Option("--image", "image"),
    _Option("--image-pull-policy", "image_pull_policy"),
    _Option("--image-pull-secret", "image_pull_secrets"),
    _Option("--requests", "requests"),
    _Option("--limits", "limits"),
    _Option("--replicas", "replicas", "replicas", f"(ne (int $.Values.replicas) {_DEFAULTS.replicas})"),
    _Option("--namespace", "namespaces", "namespaces", "$.Values.namespaces", "says what the controller drives"),
    _Option("--node-selector", "node_selector", "nodeSelector", "$.Values.nodeSelector"),
    _Option("--toleration", "tolerations", "tolerations", "$.Values.tolerations"),
    _Option("--priority-class", "priority_class", "priorityClassName", "$.Values.priorityClassName"),
    _Option("--no-pod-budget", "pod_disruption_budget", "podDisruptionBudget", "(not $.Values.podDisruptionBudget)"),
    _Option("--network-policy", "network_policy", "networkPolicy.enabled", "$.Values.networkPolicy.enabled"),
    _Option("--service-monitor", "service_monitor", "serviceMonitor", "$.Values.serviceMonitor"),
    _Option("--prometheus-rule", "prometheus_rule", "prometheusRule", "$.Values.prometheusRule"),
    _Option("--grafana-dashboard", "grafana_dashboard", "grafanaDashboard", "$.Values.grafanaDashboard"),
    _Option(
        "--default-scheduler",
        "gang_scheduler",
        "defaultScheduler",
        f'(ne $.Values.defaultScheduler "{_DEFAULTS.gang_scheduler}")',
        hint="--gang-scheduler gives drivers the rights that it needs",
    ),
    _Option("--disruption-budgets", "disruption_budgets", "disruptionBudgets", "$.Values.disruptionBudgets"),
    _Option(
        "--controller-config",
        "config_map",
        "controllerConfig",
        "$.Values.controllerConfig.name",
        "configures the controller",
    ),
)
_NOT_OF_DEFINITIONS: Final = (
    *_OF_THE_CONTROLLER,
    _Option("--no-controller", "controller"),
    _Option("--system-namespace", "system_namespace"),
    _Option("--drivers", "drivers"),
    _Option("--see-nodes", "see_nodes"),
    _Option("--gang-scheduler", "gang_schedulers"),
)

CONFLICTS: Final = (
    *(one.without_controller() for one in _OF_THE_CONTROLLER),
    *(one.with_definitions_only() for one in _NOT_OF_DEFINITIONS),
    Conflict(
        "--see-nodes",
        "seeNodes",
        lambda options: options.see_nodes and options.controller and not options.only_definitions,
        "and $.Values.seeNodes $.Values.controller",
        "is for drivers without a controller, which decides for all itself",
        "leave one of them out, or add --no-controller",
    ),
    Conflict(
        "--no-crds",
        "",
        lambda options: options.only_definitions and not options.definitions,
        "",
        "leaves out what --crds-only asks for",
    ),
    Conflict(
        "--metrics-from",
        "networkPolicy.from",
        lambda options: options.metrics_from and not options.network_policy,
        "and $.Values.networkPolicy.from (not $.Values.networkPolicy.enabled)",
        "says who may scrape, which only a network policy limits",
    ),
    Conflict(
        "--monitoring-label",
        "monitoringLabels",
        lambda options: options.monitoring_labels and not (options.service_monitor or options.prometheus_rule),
        "and $.Values.monitoringLabels (not (or $.Values.serviceMonitor $.Values.prometheusRule))",
        "is for --service-monitor or --prometheus-rule",
    ),
)


_IMAGE: Final = re.compile(r"[\w][\w./:-]*(@sha256:[0-9a-f]{64})?")
_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_CONFIG_KEY: Final = re.compile(r"(?!\.{1,2}$|\.\.)[-.\w]{1,253}", re.ASCII)
_RESOURCE: Final = re.compile(r"cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+|[a-z0-9.-]+/[\w.-]+", re.ASCII)
_KEY: Final = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class OptionReader:
    """Reads options that are text, and remembers all that is wrong; ``finish`` says so."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def refuse(self, option: str, message: str, hint: str = "") -> None:
        """Remember a problem."""
        self._problems.append(Problem(option, message, hint))

    def finish(self) -> None:
        """InvalidJob with all problems, if there are any."""
        if self._problems:
            raise InvalidJob(self._problems)

    def quantities(self, option: str, text: str) -> dict[str, str]:
        """``cpu=100m,memory=256Mi``."""
        example = "cpu=100m,memory=256Mi"
        try:
            found = parse_resources(text, option, example)
        except InvalidJob as error:
            self._problems += error.problems
            return {}
        for name in found:
            if not _RESOURCE.fullmatch(name):
                self.refuse(option, f"{name!r} is no resource of a container", f"write {example}")
        return found

    def labels(self, option: str, texts: Iterable[str] | None) -> dict[str, str]:
        """``KEY=VALUE``, each."""
        found: dict[str, str] = {}
        for text in texts or ():
            key, equals, value = text.partition("=")
            if equals and _KEY.fullmatch(key) and _VALUE.fullmatch(value):
                found[key] = value
            else:
                self.refuse(option, f"{text!r} is no label", "write KEY=VALUE")
        return found

    def tolerations(self, option: str, texts: Iterable[str] | None) -> tuple[dict[str, Any], ...]:
        """``KEY[=VALUE][:EFFECT]``, each; without an effect all of them, without a value any."""
        return tuple(found for text in texts or () for found in self._toleration(option, text))

    def _toleration(self, option: str, text: str) -> Iterator[dict[str, Any]]:
        taint, colon, effect = text.partition(":")
        key, equals, value = taint.partition("=")
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or (colon and effect not in _EFFECTS):
            self.refuse(option, f"{text!r} is no taint", f"write KEY=VALUE:EFFECT; an effect is {', '.join(_EFFECTS)}")
            return
        which = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
        yield {"key": key, **which, **({"effect": effect} if effect else {})}

    def release(self, option: str, text: str) -> tuple[int, int]:
        """``1.27``; (0, 0) for nothing."""
        found = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(\..*)?", text)
        if text and found is None:
            self.refuse(option, f"{text!r} is no release of Kubernetes", "write 1.27")
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def check(self, settings: InstallOptions) -> None:
        """Names of a form that Kubernetes has not, and ``CONFLICTS``."""
        lists = {"--namespace": settings.namespaces, "--drivers": settings.drivers}
        lists |= {"--metrics-from": settings.metrics_from}
        given = [("--into", settings.into), ("--system-namespace", settings.system_namespace)]
        for option, name in [*given, *((option, name) for option, names in lists.items() for name in names)]:
            if not is_dns_label(name):
                self.refuse(option, f"{name!r} is no namespace", NAME_HINT)
        if not _IMAGE.fullmatch(settings.image):
            self.refuse("--image", f"{settings.image!r} is no image", "write REGISTRY/tf-dist:TAG or …@sha256:DIGEST")
        objects = [("--image-pull-secret", name) for name in settings.image_pull_secrets]
        objects += [("--priority-class", settings.priority_class)] if settings.priority_class else []
        configured = settings.config_map or settings.config_key != CONFIG_KEY
        objects += [("--controller-config", settings.config_map)] if configured else []
        for option, name in objects:
            if not _DNS_NAME.fullmatch(name):
                self.refuse(option, f"{name!r} is no name of an object")
        if not _CONFIG_KEY.fullmatch(settings.config_key):
            self.refuse("--controller-config", f"{settings.config_key!r} is no key of a ConfigMap", "write NAME/KEY")
        if settings.cluster_domain and not _DNS_NAME.fullmatch(settings.cluster_domain):
            self.refuse("--cluster-domain", f"{settings.cluster_domain!r} is no domain", "write example.local")
        self._compare(settings.resources["requests"], settings.resources["limits"])
        self._problems += [one.problem() for one in CONFLICTS if one.holds(settings)]

    def _compare(self, requests: Mapping[str, str], limits: Mapping[str, str]) -> None:
        """The API server refuses a request above its limit, after it has taken all that is not the Deployment."""
        for name in requests.keys() & limits.keys():
            request, limit = requests[name], limits[name]
            if parse_quantity(request) <= parse_quantity(limit):
                continue
            if limit != RESOURCES["limits"].get(name) and request == RESOURCES["requests"].get(name):
                message, hint = f"is less than what is requested, {request}", f"add --requests {name}={limit}"
                self.refuse("--limits", f"{name}={limit} {message}", hint)
            else:
                message, hint = f"is more than the limit, {limit}", f"add --limits {name}={request}"
                self.refuse("--requests", f"{name}={request} {message}", hint)
