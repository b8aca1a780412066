"""Namespace, Deployment and services of the controller; the installation as files, in the order of application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tf_dist.cli.install import monitoring, rbac
from tf_dist.cli.install.crds import definitions
from tf_dist.cli.install.install_options import CONTROLLER, SELECTOR, InstallOptions, Manifest, metadata
from tf_dist.cli.install.rbac import (
    controller_roles,
    driver_roles,
    integration_cluster_roles,
    lease_reader_roles,
    user_roles,
)
from tf_dist.controller.leases.lease import SYSTEM_NAMESPACE_VARIABLE
from tf_dist.core.api.gang_scheduler import GangScheduler

_PORT: Final = 8080
_USER: Final = 65532
_CONFIG: Final = "/etc/config"
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"  # a label that every namespace has, from Kubernetes 1.21 on


def namespace(name: str) -> Manifest:
    """A namespace of tf-dist."""
    levels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(name, labels=levels)}


def workload(settings: InstallOptions) -> list[Manifest]:
    """The Deployment with its Leases, what protects it, and what its metrics are read and judged by."""
    held = rbac.lease_objects(rbac.controller_leases(settings))
    budget = [_budget(settings)] if settings.pod_disruption_budget else []
    policy = [_network_policy(settings)] if settings.network_policy else []
    return [*held, _deployment(settings), *budget, *policy, _service(settings)]


def _deployment(settings: InstallOptions) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(CONTROLLER, settings.into, SELECTOR),
        "spec": {
            "replicas": settings.replicas,
            "selector": {"matchLabels": SELECTOR},
            # One of the new ones first: a rollout never leaves the jobs without a stand-by.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": metadata("", labels=SELECTOR)["labels"]}, "spec": _pod(settings)},
        },
    }


def _pod(settings: InstallOptions) -> Manifest:
    # Other namespaces may have no room for this class: quotas and admission keep it to Kubernetes' own.
    name = settings.priority_class or ("system-cluster-critical" if settings.in_kube_system else "")
    priority = {"priorityClassName": name} if name else {}
    secrets = settings.image_pull_secrets
    return {
        "serviceAccountName": CONTROLLER,
        "automountServiceAccountToken": True,
        **({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}),
        **priority,
        **({"nodeSelector": settings.node_selector} if settings.node_selector else {}),
        **({"tolerations": settings.tolerations} if settings.tolerations else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # It ends within 18 seconds, also when the API server does not answer.
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [_spread("kubernetes.io/hostname"), _spread("topology.kubernetes.io/zone")],
        "containers": [_container(settings)],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}, *_config_volume(settings)],
    }


def _config_volume(settings: InstallOptions) -> list[Manifest]:
    return [{"name": "config", "configMap": {"name": settings.config_map}}] if settings.config_map else []


def _spread(over: str) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": over,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": SELECTOR},
    }


def _container(settings: InstallOptions) -> Manifest:
    only = [f"--namespace={one}" for one in settings.namespaces]
    volcano = ["--volcano-jobs"] if settings.volcano_jobs else []
    named = settings.gang_scheduler != GangScheduler.BUILTIN
    gang = [f"--gang-scheduler={settings.gang_scheduler}"] if named else []
    domain = [f"--cluster-domain={settings.cluster_domain}"] if settings.cluster_domain else []
    budgets = ["--disruption-budgets"] if settings.disruption_budgets else []
    config = [f"--controller-config-file={_CONFIG}/{settings.config_key}"] if settings.config_map else []
    mounts = [{"name": "config", "mountPath": _CONFIG, "readOnly": True}] if settings.config_map else []
    meeting_place = [{"name": SYSTEM_NAMESPACE_VARIABLE, "value": settings.system_namespace}]
    environment = {"env": meeting_place} if settings.meets_elsewhere else {}
    pulled = {"imagePullPolicy": settings.image_pull_policy} if settings.image_pull_policy else {}
    return {
        "name": "controller",
        "image": settings.image,
        **pulled,
        "args": [
            "controller",
            f"--metrics-port={_PORT}",
            "--log-format=json",
            *only,
            *volcano,
            *gang,
            *domain,
            *budgets,
            *config,
        ],
        **environment,
        "ports": [{"name": "metrics", "containerPort": _PORT}],
        # A cold start lists every job and pod before it says anything. A rollout waits for these two, and for no more
        # than their periods once the controller is up.
        "startupProbe": {**_probe("/healthz"), "periodSeconds": 1, "failureThreshold": 120},
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 2, "timeoutSeconds": 5},
        "resources": settings.resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
    }


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "metrics"}}


def _budget(settings: InstallOptions) -> Manifest:
    """At most one at a time: a single replica must not stand in the way of a drain."""
    return {
        "apiVersion": settings.budget_version.value,
        "kind": "PodDisruptionBudget",
        "metadata": metadata(CONTROLLER, settings.into),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": SELECTOR}},
    }


def _network_policy(settings: InstallOptions) -> Manifest:
    """Scrapes only, beside the node's own probes. What goes out is not limited: an API server has no labels."""
    sources = [{"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: name}}} for name in settings.metrics_from]
    rule = {**({"from": sources} if sources else {}), "ports": [{"protocol": "TCP", "port": "metrics"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(CONTROLLER, settings.into),
        "spec": {"podSelector": {"matchLabels": SELECTOR}, "policyTypes": ["Ingress"], "ingress": [rule]},
    }


def _service(settings: InstallOptions) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(f"{CONTROLLER}-metrics", settings.into, SELECTOR),
        "spec": {"selector": SELECTOR, "ports": [{"name": "metrics", "port": _PORT, "targetPort": "metrics"}]},
    }


Files = Mapping[str, list[Manifest]]

_KUSTOMIZATION: Final = "kustomization.yaml"


def manifest_files(settings: InstallOptions) -> Files:
    """Every object that is installed, by the file it belongs in."""
    wanted = definitions(settings) if settings.definitions else []
    parts = {f"crds/{one['metadata']['name']}.yaml": [one] for one in wanted}
    if settings.only_definitions:
        return parts
    parts["roles.yaml"] = user_roles(settings)
    made = [namespace(name) for name in settings.new_namespaces]
    parts["system.yaml"] = [*made, *lease_reader_roles(settings)]
    for one in settings.drivers:
        parts[f"driver-{one}.yaml"] = _driver(one, settings)
    if settings.see_nodes:
        parts["see-nodes.yaml"] = rbac.see_nodes_roles(settings)
    if flavors := integration_cluster_roles(settings):
        parts["flavors.yaml"] = flavors
    if settings.controller:
        parts["controller.yaml"] = [*controller_roles(settings), *workload(settings)]
    if watched := monitoring.objects(settings):
        parts["monitoring.yaml"] = watched
    return parts


def kustomize_tree(settings: InstallOptions) -> Files:
    """``manifest_files`` as a folder for ``kubectl apply -k``.

    Beside what is applied there is ``driver/``: an account for drivers without a controller, to be put into a
    namespace by an overlay.
    """
    applied = manifest_files(settings)
    folder = {**applied, _KUSTOMIZATION: [_kustomization(applied)]}
    if settings.only_definitions:
        return folder
    driver = _driver("default", settings)
    return {**folder, "driver/driver.yaml": driver, f"driver/{_KUSTOMIZATION}": [_kustomization(["driver.yaml"])]}


def _driver(namespace: str, settings: InstallOptions) -> list[Manifest]:
    return driver_roles(namespace, volcano=settings.volcano_jobs, gang_schedulers=settings.others)


def _kustomization(resources: Iterable[str]) -> Manifest:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(resources)}
