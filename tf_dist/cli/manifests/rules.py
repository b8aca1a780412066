"""Who may do what, as tables: each row is there because some code of ours makes that very call.

``tests/deploy`` compares them with what the API server grants, and drives a job with nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tf_dist.cli.manifests.names import Object
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.schedulers.served import Api
from tf_dist.core.schedulers.table import SCHEDULERS

_SEE: Final = ("get", "list", "watch")
_FEED: Final = ("list", "watch")  # what a reflector needs, and nothing that reads one object by name
_OWN: Final = (*_SEE, "create", "delete")  # what a job is made of
_CORE: Final = ""
_KUBEFLOW: Final = "kubeflow.org"
_VOLCANO: Final = "batch.volcano.sh"
_TF_DIST: Final = "tf-dist.dev"
_NETWORK: Final = "networking.k8s.io"
_SCHEDULING: Final = "scheduling.k8s.io"
_NODE: Final = "node.k8s.io"
_KUEUE: Final = "kueue.x-k8s.io"
_LEASES: Final = "coordination.k8s.io"


def _rule(group: str, resources: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs)}


def _jobs(group: str, plural: str) -> list[Object]:
    """A driver's rights on a kind of job; what it remembers of one is in the status. ``patch``: who decides for all
    touches the jobs that the one before it named (see ``driver.intents``).

    ``finalizers``: where OwnerReferencesPermissionEnforcement is on, who lets pods block the deletion of a job must be
    allowed to set its finalizers.
    """
    return [
        _rule(group, plural, *_SEE, "patch", "delete"),
        _rule(group, f"{plural}/status", "update"),
        _rule(group, f"{plural}/finalizers", "update"),
    ]


def driving(*, volcano: bool = False) -> list[Object]:
    """What any driver needs in a namespace whose jobs it drives. Only Volcano's plugins need more than pods."""
    rules = [
        *_jobs(_KUBEFLOW, "tfjobs"),
        _rule(_CORE, "pods", *_OWN),
        _rule(_CORE, "services", *_OWN),
        _rule(_CORE, "events", "create", "patch"),
        _rule(_CORE, "resourcequotas", *_FEED),
    ]
    if volcano:
        rules += _jobs(_VOLCANO, "jobs")
        rules.append(_rule(_CORE, "configmaps", *_OWN, "patch"))
        rules.append(_rule(_NETWORK, "networkpolicies", *_OWN))
    return rules


def gang_scheduling(schedulers: Iterable[str]) -> list[Object]:
    """What a driver needs in a namespace whose jobs may ask for these gang schedulers: their objects, to make, change
    and follow them; of Kueue it is the one that says how its jobs stand.
    """
    objects = {key: api for name in schedulers for part in SCHEDULERS[name].apis for key, api in _own_kinds(part)}
    rules = [_rule(api.group, api.plural, *_OWN, "patch") for api in objects.values()]
    if GangScheduler.KUEUE in schedulers:
        rules.append(_rule(_KUEUE, "workloads/status", "patch"))
    return rules


def _own_kinds(apis: Iterable[Api]) -> Iterator[tuple[str, Api]]:
    return ((api.key, api) for api in apis if api.namespaced)


def cluster_kinds(schedulers: Iterable[str]) -> list[Object]:
    """What they have in no namespace: Kueue's kinds of nodes, and its priority classes."""
    shared = {api.key: api for name in schedulers for part in SCHEDULERS[name].apis for api in part}
    return [_rule(api.group, api.plural, *_FEED) for api in shared.values() if not api.namespaced]


def controlling(*, volcano: bool = False) -> list[Object]:
    """What the controller needs where it drives jobs: with other drivers' Leases, to see which of them are dead."""
    return [*driving(volcano=volcano), *watching_drivers()]


def watching_drivers() -> list[Object]:
    """What it takes to see which drivers of a namespace are dead."""
    return [_rule(_LEASES, "leases", "get", "list")]


def holding(leases: Iterable[str]) -> list[Object]:
    """What the candidates for Leases need that are there already: these, and no other of the namespace."""
    return [{**_rule(_LEASES, "leases", "get", "update"), "resourceNames": list(leases)}]


def seeing(lease: str) -> list[Object]:
    """What any driver needs to leave decisions about places to the one that decides for all."""
    return [{**_rule(_LEASES, "leases", "get"), "resourceNames": [lease]}]


def scheduling() -> list[Object]:
    """What gang admission looks at, besides pods: nodes, priorities, queues, whose status it writes, and the labels of
    namespaces, by which queues select theirs.
    """
    return [
        _rule(_CORE, "nodes", *_FEED),
        _rule(_TF_DIST, "queues", *_FEED),
        _rule(_TF_DIST, "queues/status", "update"),
        _rule(_SCHEDULING, "priorityclasses", *_FEED),
        _rule(_NODE, "runtimeclasses", *_FEED),
        _rule(_CORE, "namespaces", *_FEED),
    ]


def queueing() -> list[Object]:
    """What a driver of one namespace needs beyond it, and who wants to know why a job waits: queues and priorities."""
    return [
        _rule(_TF_DIST, "queues", *_SEE),
        _rule(_SCHEDULING, "priorityclasses", *_SEE),
        _rule(_NODE, "runtimeclasses", *_SEE),
    ]


def inline(*, volcano: bool = False) -> list[Object]:
    """What a program needs that submits a job in a namespace and drives it there: Airflow's worker, ``tf-dist run``."""
    submitting = [_rule(_KUBEFLOW, "tfjobs", "create")]
    if volcano:
        submitting.append(_rule(_VOLCANO, "jobs", "create"))
    return [
        *submitting,
        *companions(),
        *driving(volcano=volcano),
        _rule(_CORE, "pods/log", "get"),
        _rule(_CORE, "events", *_FEED),
        _rule(_LEASES, "leases", "get", "list", "create", "update", "delete"),
    ]


def companions() -> list[Object]:
    """What it takes to make what stands beside a job, to see whose it is, and to bring it up to date.

    Who may create pods may read every Secret of the namespace by way of one: this adds nothing to it.
    """
    return [_rule(_CORE, "configmaps secrets persistentvolumeclaims services", "get", "create", "patch")]


def editing(*, volcano: bool = False) -> list[Object]:
    """What who may edit a namespace may do with its jobs."""
    all_verbs = (*_SEE, "create", "update", "patch", "delete", "deletecollection")
    rules = [
        _rule(_KUBEFLOW, "tfjobs", *all_verbs),
        _rule(_KUBEFLOW, "tfjobs/scale", "get", "update", "patch"),
        _rule(_KUBEFLOW, "tfjobs/status", "get"),
    ]
    return [*rules, _rule(_VOLCANO, "jobs", *all_verbs), _rule(_VOLCANO, "jobs/status", "get")] if volcano else rules


def viewing(*, volcano: bool = False) -> list[Object]:
    """What who may look into a namespace sees of its jobs."""
    rules = [
        _rule(_KUBEFLOW, "tfjobs", *_SEE),
        _rule(_KUBEFLOW, "tfjobs/status tfjobs/scale", "get"),
        *queueing(),  # for who may look into the whole cluster; in one namespace there are none
    ]
    return [*rules, _rule(_VOLCANO, "jobs", *_SEE), _rule(_VOLCANO, "jobs/status", "get")] if volcano else rules


def node() -> list[Object]:
    """What ``tf-dist node`` needs to be a node: as much as a kubelet, and to ask who may read its pods' logs."""
    return [
        _rule(_CORE, "nodes", *_SEE, "create", "patch", "delete"),
        _rule(_CORE, "nodes/status", "patch"),
        _rule(_CORE, "pods", *_FEED, "delete"),
        _rule(_CORE, "pods/status", "patch"),
        _rule(_CORE, "secrets configmaps persistentvolumeclaims persistentvolumes", "get"),
        _rule(_CORE, "services", *_FEED),
        _rule(_CORE, "events", "create"),
        {**_rule(_CORE, "namespaces", "get"), "resourceNames": ["kube-system"]},  # its uid is the cluster's identity
        _rule("authentication.k8s.io", "tokenreviews", "create"),
        _rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    ]


def heartbeat() -> list[Object]:
    """What ``tf-dist node`` needs in the namespace of the nodes' leases."""
    return [_rule(_LEASES, "leases", "get", "create", "update", "delete")]
