"""Options of an installation: how their texts are read, and which make no sense together.

The Helm chart refuses the same ``CONFLICTS``; single values it refuses by its schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.cli.install.install_options import InstallOptions
from tf_dist.client.connection import VOLCANO_JOBS_DEFINITION
from tf_dist.core.api.quantity import parse_quantity
from tf_dist.core.dialects.common_schema import is_label
from tf_dist.errors import InvalidJob, Problem

VOLCANO_IS_THERE: Final = (
    f"the cluster has Volcano's definition {VOLCANO_JOBS_DEFINITION}: its controller and tf-dist's would drive the "
    "same jobs; leave out --volcano-jobs"
)


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
        return f"{self.value}: {self.message}{hint}".replace("--no-controller", "controller: false")


_LEFT_OUT: Final = "and --no-controller leaves it out"

CONFLICTS: Final = (
    Conflict(
        "--namespace",
        "namespaces",
        lambda options: options.namespaces and not options.controller,
        "and $.Values.namespaces (not $.Values.controller)",
        f"says what the controller drives, {_LEFT_OUT}",
    ),
    Conflict(
        "--see-nodes",
        "seeNodes",
        lambda options: options.see_nodes and options.controller,
        "and $.Values.seeNodes $.Values.controller",
        "is for drivers without a controller, which decides for all itself",
        "leave one of them out, or add --no-controller",
    ),
    Conflict(
        "--crds-only",
        "",
        lambda options: options.only_definitions and options.drivers,
        "",
        "leaves out what --drivers asks for",
    ),
    Conflict(
        "--no-crds",
        "",
        lambda options: options.only_definitions and not options.definitions,
        "",
        "leaves out what --crds-only asks for",
    ),
    Conflict(
        "--controller-config",
        "controllerConfig",
        lambda options: options.config_map and not options.controller,
        "and $.Values.controllerConfig.name (not $.Values.controller)",
        f"configures the controller, {_LEFT_OUT}",
    ),
    Conflict(
        "--disruption-budgets",
        "disruptionBudgets",
        lambda options: options.disruption_budgets and not options.controller,
        "and $.Values.disruptionBudgets (not $.Values.controller)",
        f"is for the controller, {_LEFT_OUT}",
    ),
    *(
        Conflict(
            option,
            value,
            lambda options, name=name: getattr(options, name) and not options.controller,  # type: ignore[misc]
            f"and $.Values.{value} (not $.Values.controller)",
            f"is for the controller, {_LEFT_OUT}",
        )
        for option, value, name in (
            ("--network-policy", "networkPolicy.enabled", "network_policy"),
            ("--service-monitor", "serviceMonitor", "service_monitor"),
            ("--prometheus-rule", "prometheusRule", "prometheus_rule"),
            ("--grafana-dashboard", "grafanaDashboard", "grafana_dashboard"),
        )
    ),
    Conflict(
        "--metrics-from",
        "networkPolicy.from",
        lambda options: options.metrics_from and not options.network_policy,
        "and $.Values.networkPolicy.from (not $.Values.networkPolicy.enabled)",
        "says who may scrape, which only a network policy limits",
    ),
)


_IMAGE: Final = re.compile(r"[\w][\w./:-]*(@sha256:[0-9a-f]{64})?")
_DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
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
        found: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = part.partition("=")
            try:
                if not equals or not name or parse_quantity(value) < 0:
                    raise ValueError(part)
            except ValueError:
                self.refuse(option, f"{part!r} is no amount of a resource", "write cpu=100m,memory=256Mi")
            else:
                found[name] = value
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
            if not is_label(name):
                self.refuse(option, f"{name!r} is no namespace")
        if not _IMAGE.fullmatch(settings.image):
            self.refuse("--image", f"{settings.image!r} is no image", "write REGISTRY/tf-dist:TAG or …@sha256:DIGEST")
        objects = [("--image-pull-secret", name) for name in settings.image_pull_secrets]
        objects += [("--priority-class", settings.priority_class)] if settings.priority_class else []
        for option, name in objects:
            if not _DNS_NAME.fullmatch(name):
                self.refuse(option, f"{name!r} is no name of an object")
        self._problems += [one.problem() for one in CONFLICTS if one.holds(settings)]
