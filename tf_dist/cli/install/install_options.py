"""Options of an installation, and the names and labels of what is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tf_dist import __version__
from tf_dist.client.connection import PART_OF, TF_DIST
from tf_dist.core.api.gang_scheduler import GangScheduler
from tf_dist.core.api.names import SYSTEM_NAMESPACE

Manifest = dict[str, Any]

CONTROLLER: Final = "tf-dist-controller"
DRIVER: Final = "tf-dist-driver"
QUEUES: Final = "tf-dist-queues"
FLAVORS: Final = "tf-dist-flavors"
SEE_NODES: Final = "tf-dist-see-nodes"

LABELS: Final = {PART_OF: TF_DIST}
SELECTOR: Final = {"app.kubernetes.io/name": CONTROLLER}


def metadata(name: str, namespace: str = "", labels: Mapping[str, Any] | None = None) -> Manifest:
    """An object's metadata, with the label that says whose it is."""
    where = {"namespace": namespace} if namespace else {}
    return {"name": name, **where, "labels": {**LABELS, **(labels or {})}}


IMAGE: Final = f"tf-dist:{__version__}"
"""Without a registry: where the image is, its builder knows."""


CONFIG_KEY: Final = "controller_config_file.yaml"
"""The key of the file in the ConfigMap ``tf-job-operator-config`` of Kubeflow 0.1 and 0.2."""


class DisruptionBudgetVersion(StrEnum):
    """Which version of PodDisruptionBudget the cluster serves: v1 from Kubernetes 1.21 on, v1beta1 before 1.25."""

    V1 = "policy/v1"
    V1BETA1 = "policy/v1beta1"


CEL_SINCE: Final = (1, 27)
_BUDGETS_SINCE: Final = (1, 21)

RESOURCES: Final[Mapping[str, Any]] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""Of the controller. Without a limit of CPU: a controller that is throttled loses its Lease."""

# Namespaces that Kubernetes makes itself.
KUBERNETES_OWN: Final = ("default", "kube-system", "kube-public", "kube-node-lease")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """What to install, and where.

    ``into``: the controller's namespace; ``system_namespace``: where all drivers of the cluster meet; ``namespaces``:
    the only ones whose jobs it drives (none: all of them, and it sees nodes); ``drivers``: namespaces in which programs
    without a controller drive jobs; ``see_nodes``: these programs see nodes and decide about places, one at a time;
    ``gang_schedulers``: other ones that jobs may ask for; ``gang_scheduler``: that of jobs which name none;
    ``cluster_domain``, ``disruption_budgets``: see ``ControllerSettings``; ``config_map`` and ``config_key``: where the
    file of ``--controller-config-file`` is ("": there is none); ``left_out``: definitions that another installation
    brought, by their names; ``kubernetes``: the release of its API server ((0, 0): not known).

    Of the controller's pods: ``image_pull_policy``, ``image_pull_secrets`` (names), ``resources``, ``node_selector``,
    ``tolerations``, ``priority_class``, all as in a pod; ``pod_disruption_budget``: drains take one at a time.
    ``network_policy``: nothing reaches them but scrapes of their metrics, from the namespaces ``metrics_from`` (none:
    from all). ``monitoring_labels``: by which a Prometheus selects its ServiceMonitors and PrometheusRules.
    """

    into: str = SYSTEM_NAMESPACE
    system_namespace: str = SYSTEM_NAMESPACE
    image: str = IMAGE
    image_pull_policy: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    replicas: int = 2
    resources: Mapping[str, Any] = field(default_factory=lambda: RESOURCES)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str = ""
    pod_disruption_budget: bool = True
    network_policy: bool = False
    metrics_from: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    controller: bool = True
    see_nodes: bool = False
    definitions: bool = True
    only_definitions: bool = False
    service_monitor: bool = False
    prometheus_rule: bool = False
    grafana_dashboard: bool = False
    monitoring_labels: Mapping[str, str] = field(default_factory=dict)
    volcano_jobs: bool = False
    gang_schedulers: tuple[str, ...] = ()
    gang_scheduler: str = GangScheduler.BUILTIN
    cluster_domain: str = ""
    disruption_budgets: bool = False
    config_map: str = ""
    config_key: str = CONFIG_KEY
    budgets: DisruptionBudgetVersion | None = None
    left_out: frozenset[str] = field(default_factory=frozenset)
    kubernetes: tuple[int, int] = (0, 0)

    @property
    def knows_rules(self) -> bool:
        """Whether the server is taken to know validation rules (CEL): older ones refuse or drop them."""
        return self.kubernetes == (0, 0) or self.kubernetes >= CEL_SINCE

    @property
    def budget_version(self) -> DisruptionBudgetVersion:
        """As the cluster was found to serve it; else by its release."""
        if self.budgets is None:
            new = self.kubernetes == (0, 0) or self.kubernetes >= _BUDGETS_SINCE
            return DisruptionBudgetVersion.V1 if new else DisruptionBudgetVersion.V1BETA1
        return self.budgets

    @property
    def others(self) -> tuple[str, ...]:
        """The gang schedulers beside tf-dist itself whose objects are made, each once, in the order of their list."""
        asked = {*self.gang_schedulers, self.gang_scheduler} - {GangScheduler.BUILTIN}
        return tuple(one.value for one in GangScheduler if one in asked)

    # Comparisons of names. The chart, whose names are not known yet, has answers of its own.

    @property
    def apart(self) -> bool:
        """Whether the controller is in another namespace than that in which drivers meet."""
        return self.into != self.system_namespace

    @property
    def meets_elsewhere(self) -> bool:
        """Whether drivers have to be told where they meet."""
        return self.system_namespace != SYSTEM_NAMESPACE

    @property
    def in_kube_system(self) -> bool:
        """Whether the controller is among the cluster's own components."""
        return self.into == "kube-system"

    @property
    def new_namespaces(self) -> tuple[str, ...]:
        """Namespaces to make: that in which drivers meet, and the controller's."""
        wanted = dict.fromkeys((self.system_namespace, *([self.into] if self.controller else [])))
        return tuple(name for name in wanted if name not in KUBERNETES_OWN)
