"""The roles and what binds them: the tables of ``rules`` put where they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tf_dist.cli.manifests import leases, rules
from tf_dist.cli.manifests.names import ARBITER, CONTROLLER, DRIVER, FLAVORS, NODE, QUEUES, Object, metadata
from tf_dist.cli.manifests.settings import Settings

_API: Final = "rbac.authorization.k8s.io"
_NODE_LEASES: Final = "kube-node-lease"


def for_people(settings: Settings) -> list[Object]:
    """Jobs in Kubernetes' own roles: who has ``edit`` or ``view`` in a namespace has it for jobs, too.

    Queues are in no namespace: a role of their own, to be bound to whom the cluster's administrator wants to see them.
    """
    volcano = settings.volcano_jobs
    edit = {f"{_API}/aggregate-to-edit": "true", f"{_API}/aggregate-to-admin": "true"}
    view = {f"{_API}/aggregate-to-view": "true"}
    return [
        _role("tf-dist-edit", rules.editing(volcano=volcano), labels=edit),
        _role("tf-dist-view", rules.viewing(volcano=volcano), labels=view),
        _role(QUEUES, rules.queueing()),
    ]


def for_nodes() -> list[Object]:
    """Roles of ``tf-dist node``, bound to nobody."""
    return [_role(NODE, rules.node()), _role(NODE, rules.heartbeat(), _NODE_LEASES)]


def for_controller(settings: Settings) -> list[Object]:
    """The controller's account and its rights: everywhere, or in the namespaces that it drives and nowhere else."""
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(CONTROLLER, settings.into),
        "automountServiceAccountToken": False,  # its pod asks for it
    }
    rights = [*rules.controlling(volcano=settings.volcano_jobs), *rules.gang_scheduling(settings.others)]
    granted: list[Object] = []
    for namespace in settings.namespaces or ("",):
        everywhere = [] if namespace else [*rules.scheduling(), *rules.cluster_kinds(settings.others)]
        granted += _granted(CONTROLLER, [*rights, *everywhere], settings.into, namespace)
    # A name of its own: the namespace may be one of those that are driven.
    own = [ref.name for ref in leases.of_controller(settings)]
    # Beside its own it sees the Leases of controllers that were there before it.
    taking_turns = [*rules.holding(own), *rules.watching_drivers()]
    election = _granted(f"{CONTROLLER}-election", taking_turns, settings.into, settings.into)
    # That of a whole cluster decides about places for all drivers.
    arbiter = [] if settings.namespaces else [_binding(ARBITER, CONTROLLER, settings.into, settings.system_namespace)]
    return [account, *granted, *election, *arbiter]


def for_arbiters(settings: Settings) -> list[Object]:
    """The role of drivers that may decide about places for all, and what all others need to leave it to them."""
    arbiter, seen, where = leases.of_arbiter(settings), f"{ARBITER}-seen", settings.system_namespace
    everybody = {"apiGroup": _API, "kind": "Group", "name": "system:authenticated"}
    return [
        _role(ARBITER, rules.holding(ref.name for ref in arbiter), where),
        _role(seen, rules.seeing(arbiter[0].name), where),
        {**_binding(seen, "", "", where), "subjects": [everybody]},
    ]


def for_flavors(settings: Settings) -> list[Object]:
    """What the gang schedulers have in no namespace, for those whose rights are in single namespaces."""
    rights = rules.cluster_kinds(settings.others)
    if not rights:
        return []
    bindings = [_binding(f"{FLAVORS}-{one}", DRIVER, one, role=FLAVORS) for one in settings.drivers]
    if settings.controller and settings.namespaces:
        bindings.append(_binding(f"{FLAVORS}-controller", CONTROLLER, settings.into, role=FLAVORS))
    return [_role(FLAVORS, rights), *bindings]


def for_drivers(namespace: str, *, volcano: bool = False, gang_schedulers: Sequence[str] = ()) -> list[Object]:
    """An account in a namespace that may submit jobs there and drive them, and see the queues of the cluster."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(DRIVER, namespace)}
    rights = [*rules.inline(volcano=volcano), *rules.gang_scheduling(gang_schedulers)]
    role = _role(DRIVER, rights, namespace)
    queues = _binding(f"{DRIVER}-{namespace}", DRIVER, namespace, role=QUEUES)
    return [account, role, _binding(DRIVER, DRIVER, namespace, namespace), queues]


def _granted(name: str, rights: Sequence[Object], home: str, namespace: str) -> list[Object]:
    """A role and the controller in it; ``home`` is where the controller's account is."""
    return [_role(name, rights, namespace), _binding(name, CONTROLLER, home, namespace)]


def _role(name: str, rights: Sequence[Object], namespace: str = "", labels: dict[str, str] | None = None) -> Object:
    kind = "Role" if namespace else "ClusterRole"
    named = metadata(name, namespace, labels)
    return {"apiVersion": f"{_API}/v1", "kind": kind, "metadata": named, "rules": list(rights)}


def _binding(name: str, account: str, home: str, namespace: str = "", role: str = "") -> Object:
    kind = "Role" if namespace else "ClusterRole"
    return {
        "apiVersion": f"{_API}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata(name, namespace),
        "roleRef": {"apiGroup": _API, "kind": kind, "name": role or name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
    }
