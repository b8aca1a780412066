"""RBAC: rules, roles, accounts and bindings of controller, drivers and users; Leases that roles name.

``tests/deploy`` compares them with what the API server grants, and drives a job with nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tf_dist.cli.install.install_options import (
    CONTROLLER,
    DRIVER,
    FLAVORS,
    QUEUES,
    SEE_NODES,
    InstallOptions,
    Manifest,
    metadata,
)
from tf_dist.cluster.api import JOB_KINDS, TFJOBS
from tf_dist.controller.leases.lease import LEASE_LABELS, LeaseRef, leader_lease
from tf_dist.core.api.context import ApiResource
from tf_dist.core.api.gang_scheduler import GangScheduler
from tf_dist.core.integrations.dispatch import INTEGRATIONS


def controller_leases(settings: InstallOptions) -> tuple[LeaseRef, ...]:
    """By which the controller leads the cluster; those of single namespaces come and go with who leads."""
    kinds = JOB_KINDS if settings.volcano_jobs else (TFJOBS,)
    return () if settings.namespaces else tuple(leader_lease(kind, None, settings.system_namespace) for kind in kinds)


def lease_objects(refs: Iterable[LeaseRef]) -> list[Manifest]:
    """Leases with nothing in them, so that a second apply leaves them alone: roles name them, and a creation has no
    name."""
    return [
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata(ref.name, ref.namespace, dict(LEASE_LABELS)),
        }
        for ref in refs
    ]


ELECTION: Final = "tf-dist-election"
_READ_VERBS: Final = ("get", "list", "watch")
_FEED_VERBS: Final = ("list", "watch")  # what a reflector needs, and nothing that reads one object by name
_OWN_VERBS: Final = (*_READ_VERBS, "create", "delete")  # what a job is made of
_CORE: Final = ""
_KUBEFLOW: Final = "kubeflow.org"
_VOLCANO: Final = "batch.volcano.sh"
_VOLCANO_QUEUES: Final = "scheduling.volcano.sh"
_BUS: Final = "bus.volcano.sh"
_TF_DIST: Final = "tf-dist.dev"
_NETWORK: Final = "networking.k8s.io"
_SCHEDULING: Final = "scheduling.k8s.io"
_NODE: Final = "node.k8s.io"
_KUEUE: Final = "kueue.x-k8s.io"
_LEASES: Final = "coordination.k8s.io"


def rule(group: str, resources: str, *verbs: str) -> Manifest:
    """These verbs on these resources of an API group."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs)}


def _event_rule() -> Manifest:
    return rule(_CORE, "events", "create", "patch")


def _jobs(group: str, plural: str) -> list[Manifest]:
    """A driver's rights on a kind of job; what it remembers of one is in the status. ``patch``: the admission
    leader touches the jobs that the one before it named (see ``pending_admissions``).

    ``finalizers``: where OwnerReferencesPermissionEnforcement is on, who lets pods block the deletion of a job must be
    allowed to set its finalizers.
    """
    return [
        rule(group, plural, *_READ_VERBS, "patch", "delete"),
        rule(group, f"{plural}/status", "update"),
        rule(group, f"{plural}/finalizers", "update"),
    ]


def driver_rules(*, volcano: bool = False) -> list[Manifest]:
    """What any driver needs in a namespace whose jobs it drives. Only Volcano's plugins need more than pods."""
    rules = [
        *_jobs(_KUBEFLOW, "tfjobs"),
        rule(_CORE, "pods", *_OWN_VERBS),
        rule(_CORE, "services", *_OWN_VERBS),
        _event_rule(),
        rule(_CORE, "resourcequotas limitranges", *_FEED_VERBS),
    ]
    if volcano:
        rules += _jobs(_VOLCANO, "jobs")
        rules.append(rule(_CORE, "configmaps", *_OWN_VERBS, "patch"))
        rules.append(rule(_NETWORK, "networkpolicies", *_OWN_VERBS))
        rules.append(rule(_BUS, "commands", *_READ_VERBS, "delete"))
        # Keys of the ssh plugin. Who may create pods may read every Secret of the namespace by way of one.
        rules.append(rule(_CORE, "secrets", "get", "create"))
    return rules


def integration_rules(schedulers: Iterable[str]) -> list[Manifest]:
    """What a driver needs in a namespace whose jobs may ask for these gang schedulers: their objects, to make, change
    and follow them; of Kueue it is the one that says how its jobs stand.
    """
    objects = {key: api for name in schedulers for part in INTEGRATIONS[name].apis for key, api in _own_kinds(part)}
    rules = [rule(api.group, api.plural, *_OWN_VERBS, "patch") for api in objects.values()]
    if GangScheduler.KUEUE in schedulers:
        rules.append(rule(_KUEUE, "workloads/status", "patch"))
    return rules


def _own_kinds(apis: Iterable[ApiResource]) -> Iterator[tuple[str, ApiResource]]:
    return ((api.key, api) for api in apis if api.namespaced)


def integration_cluster_rules(schedulers: Iterable[str]) -> list[Manifest]:
    """What they have in no namespace: Kueue's kinds of nodes, and its priority classes."""
    shared = {api.key: api for name in schedulers for part in INTEGRATIONS[name].apis for api in part}
    return [rule(api.group, api.plural, *_FEED_VERBS) for api in shared.values() if not api.namespaced]


def controller_rules(*, volcano: bool = False, budgets: bool = False) -> list[Manifest]:
    """What the controller needs where it drives jobs."""
    gangs = [rule("policy", "poddisruptionbudgets", *_OWN_VERBS, "patch")] if budgets else []
    return [*driver_rules(volcano=volcano), *gangs]


def candidate_rules() -> list[Manifest]:
    """What it takes to lead a namespace."""
    return [rule(_LEASES, "leases", *_READ_VERBS, "create", "update", "delete")]


def lease_holder_rules(leases: Iterable[str]) -> list[Manifest]:
    """What the candidates for Leases need that are there already: these, and no other of the namespace."""
    return [{**rule(_LEASES, "leases", *_READ_VERBS, "update"), "resourceNames": list(leases)}]


def admission_rules(*, volcano: bool = False) -> list[Manifest]:
    """What gang admission looks at, besides pods: nodes, priorities, queues, whose status it writes, and the labels of
    namespaces, by which queues select theirs. Of Volcano's queues it writes nothing.
    """
    rules = [
        rule(_CORE, "nodes", *_FEED_VERBS),
        rule(_TF_DIST, "queues", *_FEED_VERBS),
        rule(_TF_DIST, "queues/status", "update"),
        rule(_SCHEDULING, "priorityclasses", *_FEED_VERBS),
        rule(_NODE, "runtimeclasses", *_FEED_VERBS),
        rule(_CORE, "namespaces", *_FEED_VERBS),
    ]
    return [*rules, rule(_VOLCANO_QUEUES, "queues", *_FEED_VERBS)] if volcano else rules


def see_nodes_rules(*, volcano: bool = False) -> list[Manifest]:
    """What a driver of one namespace reads of the whole cluster to decide about places: all that takes part in it."""
    rules = [
        rule(_CORE, "nodes pods namespaces resourcequotas limitranges", *_FEED_VERBS),
        rule(_KUBEFLOW, "tfjobs", *_FEED_VERBS),
        *queue_reader_rules(volcano=volcano),
    ]
    return [*rules, rule(_VOLCANO, "jobs", *_FEED_VERBS)] if volcano else rules


def queue_reader_rules(*, volcano: bool = False) -> list[Manifest]:
    """What a driver of one namespace needs beyond it, and who wants to know why a job waits: queues and priorities."""
    rules = [
        rule(_TF_DIST, "queues", *_READ_VERBS),
        rule(_SCHEDULING, "priorityclasses", *_READ_VERBS),
        rule(_NODE, "runtimeclasses", *_READ_VERBS),
    ]
    return [*rules, rule(_VOLCANO_QUEUES, "queues", *_READ_VERBS)] if volcano else rules


def inline_driver_rules(*, volcano: bool = False) -> list[Manifest]:
    """What a program needs that submits a job in a namespace and drives it there: Airflow's worker, ``tf-dist run``."""
    submitting = [rule(_KUBEFLOW, "tfjobs", "create")]
    if volcano:
        submitting.append(rule(_VOLCANO, "jobs", "create"))
    return [
        *submitting,
        *companion_rules(),
        *driver_rules(volcano=volcano),
        rule(_CORE, "pods/log", "get"),
        rule(_CORE, "events", *_FEED_VERBS),
        *candidate_rules(),
    ]


def companion_rules() -> list[Manifest]:
    """What it takes to make what stands beside a job, to see whose it is, and to bring it up to date.

    Who may create pods may read every Secret of the namespace by way of one: this adds nothing to it.
    """
    return [rule(_CORE, "configmaps secrets persistentvolumeclaims services", "get", "create", "patch")]


def edit_rules(*, volcano: bool = False) -> list[Manifest]:
    """What who may edit a namespace may do with its jobs."""
    all_verbs = (*_READ_VERBS, "create", "update", "patch", "delete", "deletecollection")
    rules = [
        rule(_KUBEFLOW, "tfjobs", *all_verbs),
        rule(_KUBEFLOW, "tfjobs/scale", "get", "update", "patch"),
        rule(_KUBEFLOW, "tfjobs/status", "get"),
    ]
    if volcano:
        rules += [rule(_VOLCANO, "jobs", *all_verbs), rule(_VOLCANO, "jobs/status", "get")]
        rules.append(rule(_BUS, "commands", *_OWN_VERBS))
    return rules


def view_rules(*, volcano: bool = False) -> list[Manifest]:
    """What who may look into a namespace sees of its jobs."""
    rules = [
        rule(_KUBEFLOW, "tfjobs", *_READ_VERBS),
        rule(_KUBEFLOW, "tfjobs/status tfjobs/scale", "get"),
        *queue_reader_rules(
            volcano=volcano
        ),  # for who may look into the whole cluster; in one namespace there are none
    ]
    return [*rules, rule(_VOLCANO, "jobs", *_READ_VERBS), rule(_VOLCANO, "jobs/status", "get")] if volcano else rules


ARGO_ACCOUNT: Final = "tf-dist-argo"
_API: Final = "rbac.authorization.k8s.io"


def user_roles(settings: InstallOptions) -> list[Manifest]:
    """Jobs in Kubernetes' own roles: who has ``edit`` or ``view`` in a namespace has it for jobs, too.

    Queues are in no namespace: a role of their own, to be bound to whom the cluster's administrator wants to see them.
    """
    volcano = settings.volcano_jobs
    edit = {f"{_API}/aggregate-to-edit": "true", f"{_API}/aggregate-to-admin": "true"}
    view = {f"{_API}/aggregate-to-view": "true"}
    return [
        role("tf-dist-edit", edit_rules(volcano=volcano), labels=edit),
        role("tf-dist-view", view_rules(volcano=volcano), labels=view),
        role(QUEUES, queue_reader_rules(volcano=volcano)),
    ]


def controller_roles(settings: InstallOptions) -> list[Manifest]:
    """The controller's account and its rights: everywhere, or in the namespaces that it drives and nowhere else."""
    mine = {**account(CONTROLLER, settings.into), "automountServiceAccountToken": False}  # its pod asks for it
    driving = controller_rules(volcano=settings.volcano_jobs, budgets=settings.disruption_budgets)
    rights = [*driving, *integration_rules(settings.others)]
    granted: list[Manifest] = []
    for namespace in settings.namespaces or ("",):
        everywhere = (
            []
            if namespace
            else [*admission_rules(volcano=settings.volcano_jobs), *integration_cluster_rules(settings.others)]
        )
        granted += _granted(CONTROLLER, [*rights, *everywhere], settings.into, namespace)
    if settings.namespaces:
        elections = [
            one for space in settings.namespaces for one in _granted(ELECTION, candidate_rules(), settings.into, space)
        ]
        return [mine, *granted, *elections]
    leases = controller_leases(settings)
    election = _granted(
        ELECTION, lease_holder_rules(ref.name for ref in leases), settings.into, settings.system_namespace
    )
    # Who wins the cluster waits until nobody leads a namespace.
    seeing = _granted(f"{ELECTION}-seen", [rule(_LEASES, "leases", "list")], settings.into, "")
    return [mine, *granted, *election, *seeing]


def lease_reader_roles(settings: InstallOptions) -> list[Manifest]:
    """Every user may read who leads the cluster: who would lead a namespace yields, commands say that nobody leads."""
    name = f"{ELECTION}-read"
    names_ = [leader_lease(kind, None).name for kind in JOB_KINDS]
    all_users = {"apiGroup": _API, "kind": "Group", "name": "system:authenticated"}
    rights = [{**rule(_LEASES, "leases", *_READ_VERBS), "resourceNames": names_}]
    return [
        role(name, rights, settings.system_namespace),
        {**binding(name, "", "", settings.system_namespace), "subjects": [all_users]},
    ]


def integration_cluster_roles(settings: InstallOptions) -> list[Manifest]:
    """What the gang schedulers have in no namespace, for those whose rights are in single namespaces."""
    rights = integration_cluster_rules(settings.others)
    if not rights:
        return []
    bindings = [binding(f"{FLAVORS}-{one}", DRIVER, one, of=FLAVORS) for one in settings.drivers]
    if settings.controller and settings.namespaces:
        bindings.append(binding(f"{FLAVORS}-controller", CONTROLLER, settings.into, of=FLAVORS))
    return [role(FLAVORS, rights), *bindings]


def driver_roles(namespace: str, *, volcano: bool = False, gang_schedulers: Sequence[str] = ()) -> list[Manifest]:
    """An account in a namespace that may submit jobs there and drive them, and see the queues of the cluster."""
    rights = [*inline_driver_rules(volcano=volcano), *integration_rules(gang_schedulers)]
    queues = binding(f"{DRIVER}-{namespace}", DRIVER, namespace, of=QUEUES)
    mine = binding(DRIVER, DRIVER, namespace, namespace)
    return [account(DRIVER, namespace), role(DRIVER, rights, namespace), mine, queues]


def see_nodes_roles(settings: InstallOptions) -> list[Manifest]:
    """What programs that lead a namespace need to decide about places by what they see of the nodes."""
    found = [role(SEE_NODES, see_nodes_rules(volcano=settings.volcano_jobs))]
    for one in settings.drivers:
        found.append(_for_steps(binding(f"{SEE_NODES}-{one}", DRIVER, one, of=SEE_NODES), one))
    return found


def _for_steps(bound: Manifest, home: str) -> Manifest:
    """The same for the account of Argo's steps there, which drive jobs, too (``tf-dist workflows export``)."""
    steps = {"kind": "ServiceAccount", "name": ARGO_ACCOUNT, "namespace": home}
    return {**bound, "subjects": [*bound["subjects"], steps]}


def _granted(name: str, rights: Sequence[Manifest], home: str, namespace: str) -> list[Manifest]:
    """A role and the controller in it; ``home`` is where the controller's account is."""
    return [role(name, rights, namespace), binding(name, CONTROLLER, home, namespace)]


def account(name: str, namespace: str) -> Manifest:
    """A ServiceAccount."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, namespace)}


def role(name: str, rights: Sequence[Manifest], namespace: str = "", labels: dict[str, str] | None = None) -> Manifest:
    """A role of a namespace, or of the cluster."""
    kind = "Role" if namespace else "ClusterRole"
    named = metadata(name, namespace, labels)
    return {"apiVersion": f"{_API}/v1", "kind": kind, "metadata": named, "rules": list(rights)}


def binding(name: str, account: str, home: str, namespace: str = "", of: str = "") -> Manifest:
    """A binding of a role (``of``, else of the same name) to an account, whose namespace is ``home``."""
    kind = "Role" if namespace else "ClusterRole"
    return {
        "apiVersion": f"{_API}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata(name, namespace),
        "roleRef": {"apiGroup": _API, "kind": kind, "name": of or name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
    }
