"""Host ports and required pod anti-affinity between nodes, expressed as amounts of a node's resource.

Rules are those of kube-scheduler (NodePorts, InterPodAffinity). Every node has ``EXCLUSIVE_CAPACITY`` of a ``Key``. A
pod takes some of it, and pods that exclude each other together take more than a node has, so admission counts keys like
resources. If a constraint cannot be expressed in this way, the gang's pods are unpredictable, and the scheduler chooses
their nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, ExclusiveResource, exclusive_resource
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import list_items, mapping, mappings
from tf_dist.core.model.job import Document
from tf_dist.core.model.names import OPERATORS, Requirement, requirements
from tf_dist.core.model.pods import REQUIRED_AFFINITY

HOSTNAME: Final = "kubernetes.io/hostname"
MAX_EXCLUSIVES: Final = 16
"""The maximum number of keys of a gang. Admission leaves further keys to the scheduler."""
_COLUMNS: Final = 128
"""The maximum number of keys of all gangs."""

PER_POD_LABELS: Final = frozenset(
    {
        "tf-dist.dev/replica-index",
        "tf-dist.dev/attempt",
        "training.kubeflow.org/replica-index",
        "training.kubeflow.org/job-role",
        "job-role",
        "replica-index",
        "task_index",
        "volcano.sh/task-index",
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
        "batch.kubernetes.io/job-completion-index",
    }
)
"""Labels that distinguish the pods of one controller. They are dropped, and terms about them are ignored."""


class Term(NamedTuple):
    """A required anti-affinity term: no selected pod may be in the same domain."""

    topology: str
    """The node label whose value defines the domain."""
    namespaces: frozenset[str] | None
    """The namespaces of the pods that it selects; None: all."""
    rules: frozenset[Requirement] | None
    """Rules about their labels; None: it selects nothing."""

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether it selects a pod."""
        if self.rules is None or (self.namespaces is not None and namespace not in self.namespaces):
            return False
        return all(rule.holds(labels) for rule in self.rules)


class Port(NamedTuple):
    """A port of the node that a container requests, as a resource that each node has once."""

    protocol: str
    """``TCP``, ``UDP`` or ``SCTP``."""
    number: int
    """The number of the port."""
    ip: str = ""
    """The only address; "": all addresses of the node."""

    def __str__(self) -> str:
        address = f" at {self.ip}" if self.ip else ""
        return f"host port {self.number}" + (f"/{self.protocol}" if self.protocol != "TCP" else "") + address

    def cost(self, kind: PodKind) -> int:
        """The amount that a pod takes.

        Pods at different addresses can share a port, but not with a pod at all addresses.
        """
        mine = [port for port in kind.ports if (port.protocol, port.number) == (self.protocol, self.number)]
        if self.ip:
            return EXCLUSIVE_CAPACITY * any(port.ip == self.ip for port in mine)
        return EXCLUSIVE_CAPACITY if any(not port.ip for port in mine) else len(mine)


@dataclass(frozen=True, slots=True)
class PodKind:
    """The properties that decide which pods can share a node. Pods of one controller usually are of one kind."""

    namespace: str
    """The namespace of the pods."""
    labels: tuple[tuple[str, str], ...] = ()
    """Their labels, except those that distinguish pods of one controller."""
    terms: tuple[Term, ...] = ()
    """Their required anti-affinity terms that admission counts."""
    ports: tuple[Port, ...] = ()
    """The host ports that they request."""


@dataclass(frozen=True, slots=True)
class TermKey:
    """An anti-affinity term between host names."""

    term: Term
    """The term."""
    own: bool
    """Whether it selects pods that have it themselves."""

    def __str__(self) -> str:
        rules = ", ".join(
            f"{rule.key}={next(iter(rule.values))}"
            if rule.operator == "In" and len(rule.values) == 1
            else f"{rule.key} {rule.operator} {' '.join(sorted(rule.values))}".strip()
            for rule in sorted(self.term.rules or (), key=lambda rule: (rule.key, rule.operator))
        )
        return "pod anti-affinity" + (f" to {rules}" if rules else "")

    def cost(self, kind: PodKind) -> int:
        """The amount that a pod takes.

        ``own``: a pod that has the term and is selected excludes every selected pod. Otherwise a selected pod excludes
        all pods with the term.
        """
        holds = self.term in kind.terms
        if self.term.selects(kind.namespace, dict(kind.labels)):
            return EXCLUSIVE_CAPACITY if holds or not self.own else 1
        return 1 if holds else 0


Key = Port | TermKey


def pods_exclude_each_other(labels: Mapping[str, str]) -> bool:
    """Whether pods on a node with these labels exclude each other.

    On the machine of an embedded cluster, they do not, because each pod has its own ports and host name, and no other
    machine exists.
    """
    return names.EMULATED not in labels


@lru_cache(maxsize=4096)
def exclusive_cost(key: Key, kind: PodKind) -> int:
    """The amount of a key that a pod of a kind takes on its node."""
    return key.cost(kind)


# -- reading pods --


def kind_of(pod: Mapping[str, Any]) -> PodKind | None:
    """The kind of a stored pod; None if it excludes no pod, and no term can select it."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    labels = mapping(metadata.get("labels"))
    affinity = spec.get("affinity")
    ports = host_ports(spec)
    if not labels and not ports and not affinity:
        return None
    namespace = str(metadata.get("namespace") or "")
    terms, _ = anti_affinity(spec, namespace) if affinity else ((), True)
    return PodKind(namespace, _kept(labels), tuple(filter(_is_counted, terms)), ports)


def _kept(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(key), str(value)) for key, value in labels.items() if key not in PER_POD_LABELS))


def _is_counted(term: Term) -> bool:
    """Whether the domain of a term is the host name, and the term does not distinguish pods of one controller."""
    return term.topology == HOSTNAME and not any(rule.key in PER_POD_LABELS for rule in term.rules or ())


def _container_ports(spec: Document) -> Iterator[Mapping[str, Any]]:
    """The ports of a pod's containers, including sidecars."""
    sidecars = (one for one in mappings(spec.get("initContainers")) if one.get("restartPolicy") == "Always")
    for container in (*mappings(spec.get("containers")), *sidecars):
        yield from mappings(container.get("ports"))


def host_ports(spec: Document) -> tuple[Port, ...]:
    """The host ports that a pod requests.

    With the host's network, the API server makes every container port a host port.
    """
    found = set()
    for port in _container_ports(spec):
        number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") is True else 0)
        if isinstance(number, int) and number:
            ip = str(port.get("hostIP") or "")
            found.add(Port(str(port.get("protocol") or "TCP"), number, "" if ip == "0.0.0.0" else ip))
    return tuple(sorted(found))


def anti_affinity(spec: Document, namespace: str) -> tuple[tuple[Term, ...], bool]:
    """A pod's readable required anti-affinity terms, and whether these are all terms."""
    read = [_term(term, namespace) for term in required_anti_affinity(spec)]
    return tuple(term for term in read if term is not None), None not in read


def required_anti_affinity(spec: Document) -> list[Mapping[str, Any]]:
    """A pod's required anti-affinity terms, as stored."""
    return mappings(mapping(mapping(spec.get("affinity")).get("podAntiAffinity")).get(REQUIRED_AFFINITY))


def _term(stated: Mapping[str, Any], namespace: str) -> Term | None:
    if stated.get("matchLabelKeys") or stated.get("mismatchLabelKeys"):
        return None
    namespaces = frozenset(map(str, list_items(stated.get("namespaces") or ()))) or frozenset({namespace})
    of_namespaces = stated.get("namespaceSelector")
    if of_namespaces is not None and any(mapping(of_namespaces).values()):
        return None  # the labels of namespaces are not known here
    selector = stated.get("labelSelector")
    rules = None if selector is None else frozenset(requirements(selector))
    if rules is not None and any(rule.operator not in OPERATORS for rule in rules):
        return None
    return Term(str(stated.get("topologyKey")), namespaces if of_namespaces is None else None, rules)


# -- a gang --


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The amounts of keys that the pods of a gang take."""

    members: tuple[Mapping[Key, int], ...]
    """The amounts of each member, in order."""
    predictable: bool = True
    """Whether admission knows all constraints of the pods. If not, no node is assigned."""


class ExclusiveResources:
    """A column for each key that a gang has.

    A column is reused when no gang has the key. Beyond ``_COLUMNS`` keys, pods of further gangs count as unpredictable,
    so that keys cannot fill the memory.
    """

    def __init__(self) -> None:
        self._of: dict[Key, int] = {}
        self._gangs: dict[str, frozenset[str]] = {}  # gangs with keys, and the names of their columns
        self._count: Counter[str] = Counter()

    def exclusives(self, found: Exclusions) -> tuple[tuple[tuple[ExclusiveResource, ...], ...], bool]:
        """The amounts of each member by column, and whether these include all constraints of a gang."""
        for key in dict.fromkeys(key for member in found.members for key in member):
            if key not in self._of and len(self._of) < _COLUMNS:
                taken = set(self._of.values())
                self._of[key] = next(at for at in range(_COLUMNS) if at not in taken)
        members = tuple(
            tuple(
                ExclusiveResource(exclusive_resource(self._of[key]), taken, str(key))
                for key, taken in member.items()
                if key in self._of
            )
            for member in found.members
        )
        known = all(key in self._of for member in found.members for key in member)
        return members, found.predictable and known

    def hold(self, gang: str, names: frozenset[str]) -> None:
        """Set the columns of a gang (its uid)."""
        before = self._gangs.pop(gang, frozenset())
        if names:
            self._gangs[gang] = names
        self._count.update(names)
        self._count.subtract(before)

    def settle(self) -> None:
        """Free the columns that no gang has."""
        if len(self._of) != len(self._count) or not all(self._count.values()):
            self._count = +self._count
            self._of = {key: number for key, number in self._of.items() if exclusive_resource(number) in self._count}

    @property
    def keys(self) -> dict[str, Key]:
        """The keys by the names of their columns."""
        return {exclusive_resource(number): key for key, number in self._of.items()}


def exclusions(specs: Sequence[tuple[Document, Mapping[str, str], int]], namespace: str) -> Exclusions:
    """The exclusions of a gang, from each member's pod spec, labels, and maximum number of pods."""
    if not any(_may_exclude(spec) for spec, _, _ in specs):
        return Exclusions(tuple({} for _ in specs))
    kinds = []
    predictable = not any(_is_unpredictable(spec) for spec, _, _ in specs)
    for spec, labels, _ in specs:
        terms, every = anti_affinity(spec, namespace)
        counted = tuple(filter(_is_counted, terms))
        predictable = predictable and every and len(counted) == len(terms)
        kinds.append(PodKind(namespace, _kept(labels), counted, host_ports(spec)))
    found: set[Key] = set()
    for kind in kinds:
        found |= {*kind.ports, *(port._replace(ip="") for port in kind.ports)}
        found |= {TermKey(term, own=term.selects(namespace, dict(kind.labels))) for term in kind.terms}
    keys = sorted(found, key=str)
    counts = [count for _, _, count in specs]
    usable = [key for key in keys if _is_expressible(key, kinds, counts)][:MAX_EXCLUSIVES]
    members = tuple({key: taken for key in usable if (taken := key.cost(kind))} for kind in kinds)
    return Exclusions(members, predictable and len(usable) == len(keys))


def _may_exclude(spec: Document) -> bool:
    """Whether this module may apply to a pod spec. It is a fast check, and False for nearly all pods."""
    affinity = mapping(spec.get("affinity"))
    if spec.get("hostNetwork") or spec.get("resourceClaims") or spec.get("topologySpreadConstraints"):
        return True
    if affinity.get("podAntiAffinity") or affinity.get("podAffinity"):
        return True
    return any(port.get("hostPort") for port in _container_ports(spec))


def _is_unpredictable(spec: Document) -> bool:
    """Whether a pod has devices, topology spread or pod affinity: only the scheduler knows the nodes they allow."""
    spread = mappings(spec.get("topologySpreadConstraints"))
    if any(rule.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for rule in spread):
        return True
    near = mapping(mapping(spec.get("affinity")).get("podAffinity")).get(REQUIRED_AFFINITY)
    return bool(near or spec.get("resourceClaims"))


def _is_expressible(key: Key, kinds: Sequence[PodKind], counts: Sequence[int]) -> bool:
    """Whether amounts can express a key. They cannot if pods avoid several other pods that may share a node."""
    if isinstance(key, Port) or key.own:
        return True
    selected = (count for kind, count in zip(kinds, counts, strict=True) if key.cost(kind) == EXCLUSIVE_CAPACITY)
    return sum(selected) <= 1
