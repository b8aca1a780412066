"""The controller's namespace, Deployment, and what stands around it."""

from __future__ import annotations

from typing import Final

from tf_dist.cli.manifests import leases
from tf_dist.cli.manifests.names import CONTROLLER, SELECTOR, Object, metadata
from tf_dist.cli.manifests.settings import Settings
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.names import SYSTEM_NAMESPACE
from tf_dist.driver import lease
from tf_dist.driver.arbiter import SYSTEM_VARIABLE

_PORT: Final = 8080
_USER: Final = 65532
# Namespaces that Kubernetes makes itself.
_THERE: Final = frozenset({"default", "kube-system", "kube-public"})


def namespace(name: str) -> list[Object]:
    """A namespace of tf-dist, unless it is one of Kubernetes' own."""
    if name in _THERE:
        return []
    levels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(name, labels=levels)}]


def workload(settings: Settings) -> list[Object]:
    """The Deployment with its Leases, its disruption budget and the service that its metrics are read from."""
    monitor = [_service_monitor(settings)] if settings.service_monitor else []
    held = leases.objects(leases.of_controller(settings), lease.CONTROLLER)
    return [*held, _deployment(settings), _budget(settings), _service(settings), *monitor]


def _deployment(settings: Settings) -> Object:
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


def _pod(settings: Settings) -> Object:
    # Other namespaces may have no room for this class: quotas and admission keep it to Kubernetes' own.
    priority = {"priorityClassName": "system-cluster-critical"} if settings.into == "kube-system" else {}
    return {
        "serviceAccountName": CONTROLLER,
        "automountServiceAccountToken": True,
        **priority,
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
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}],
    }


def _spread(over: str) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": over,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": SELECTOR},
    }


def _container(settings: Settings) -> Object:
    only = [f"--namespace={one}" for one in settings.namespaces]
    volcano = ["--volcano-jobs"] if settings.volcano_jobs else []
    named = settings.gang_scheduler != GangScheduler.BUILTIN
    gang = [f"--gang-scheduler={settings.gang_scheduler}"] if named else []
    system = settings.system_namespace
    environment = {"env": [{"name": SYSTEM_VARIABLE, "value": system}]} if system != SYSTEM_NAMESPACE else {}
    return {
        "name": "controller",
        "image": settings.image,
        "args": ["controller", f"--metrics-port={_PORT}", "--log-format=json", *only, *volcano, *gang],
        **environment,
        "ports": [{"name": "metrics", "containerPort": _PORT}],
        # A cold start lists every job and pod before it says anything.
        "startupProbe": {**_probe("/healthz"), "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 5, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _probe(path: str) -> Object:
    return {"httpGet": {"path": path, "port": "metrics"}}


def _budget(settings: Settings) -> Object:
    """At most one at a time: a single replica must not stand in the way of a drain."""
    return {
        "apiVersion": settings.budgets.value,
        "kind": "PodDisruptionBudget",
        "metadata": metadata(CONTROLLER, settings.into),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": SELECTOR}},
    }


def _service(settings: Settings) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(f"{CONTROLLER}-metrics", settings.into, SELECTOR),
        "spec": {"selector": SELECTOR, "ports": [{"name": "metrics", "port": _PORT, "targetPort": "metrics"}]},
    }


def _service_monitor(settings: Settings) -> Object:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata(CONTROLLER, settings.into),
        "spec": {
            "selector": {"matchLabels": SELECTOR},
            "endpoints": [{"port": "metrics", "interval": "30s"}],
        },
    }
