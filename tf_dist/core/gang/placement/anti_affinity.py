"""Host ports and required pod anti-affinity between nodes, expressed as amounts of a node's resource.

Read as kube-scheduler reads it (NodePorts, InterPodAffinity), and expressed as amounts: of a ``Key`` every node has
``EXCLUSIVE_CAPACITY``, a pod takes some of it, and pods that exclude each other take more than that together. So
admission counts it like a resource. What cannot be expressed in this way makes a gang's pods unpredictable: the
scheduler chooses their nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
"""A gang's pods may have so many keys; what is beyond is left to the scheduler."""
_COLUMNS: Final = 128
"""And all gangs together so many."""

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
"""Labels that tell the pods of one controller apart: not kept of pods, and terms that read one are not read."""


class Term(NamedTuple):
    """A required anti-affinity term: no pod that it selects may be near."""

    topology: str
    """The label of nodes within one value of which no such pod may be."""
    namespaces: frozenset[str] | None
    """The namespaces of the pods that it selects; None: all."""
    rules: frozenset[Requirement] | None
    """Rules about their labels; None: it selects nothing."""

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether it means a pod."""
        if self.rules is None or (self.namespaces is not None and namespace not in self.namespaces):
            return False
        return all(rule.holds(labels) for rule in self.rules)


class Port(NamedTuple):
    """A port of the node that a container asks for."""

    protocol: str
    """``TCP``, ``UDP`` or ``SCTP``."""
    number: int
    """The number of the port."""
    ip: str
    """The address; "": all addresses of the node."""


@dataclass(frozen=True, slots=True)
class PodKind:
    """What decides beside which others a pod may be. Pods of one controller mostly are of one kind."""

    namespace: str
    """The namespace of the pods."""
    labels: tuple[tuple[str, str], ...] = ()
    """Their labels, except those that tell pods of one controller apart."""
    terms: tuple[Term, ...] = ()
    """Their required anti-affinity terms that are counted."""
    ports: tuple[Port, ...] = ()
    """The ports of the node that they ask for."""


@dataclass(frozen=True, slots=True)
class PortKey:
    """A host port, as a resource that a node has once."""

    protocol: str
    """``TCP``, ``UDP`` or ``SCTP``."""
    number: int
    """The number of the port."""
    ip: str = ""
    """The only address at which it is counted; "": all addresses of the node."""

    def __str__(self) -> str:
        address = f" at {self.ip}" if self.ip else ""
        return f"host port {self.number}" + (f"/{self.protocol}" if self.protocol != "TCP" else "") + address

    def cost(self, kind: PodKind) -> int:
        """What a pod takes of it: pods at different addresses may share a port, but not with one that has it all."""
        mine = [port for port in kind.ports if (port.protocol, port.number) == (self.protocol, self.number)]
        if self.ip:
            return EXCLUSIVE_CAPACITY * any(port.ip == self.ip for port in mine)
        return EXCLUSIVE_CAPACITY if any(not port.ip for port in mine) else len(mine)


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
        """What a pod takes of it.

        ``own``: a pod that holds the term and is selected excludes every selected pod. Else a selected pod excludes all
        that hold it.
        """
        holds = self.term in kind.terms
        if self.term.selects(kind.namespace, dict(kind.labels)):
            return EXCLUSIVE_CAPACITY if holds or not self.own else 1
        return 1 if holds else 0


Key = PortKey | TermKey


def pods_exclude_each_other(labels: Mapping[str, str]) -> bool:
    """Whether pods on a node with these labels exclude each other.

    Those on the machine of an embedded cluster do not: each has ports and a host name of its own, and there is no other
    machine to which they could go.
    """
    return names.EMULATED not in labels


@lru_cache(maxsize=4096)
def exclusive_cost(key: Key, kind: PodKind) -> int:
    """What a pod of a kind takes of a key on its node."""
    return key.cost(kind)


# -- reading pods --


def kind_of(pod: Mapping[str, Any]) -> PodKind | None:
    """The kind of a stored pod; None: it excludes no pod, and no term can select it."""
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
    """Whether it is between host names, and does not tell the pods of one controller apart."""
    return term.topology == HOSTNAME and not any(rule.key in PER_POD_LABELS for rule in term.rules or ())


def _container_ports(spec: Document) -> Iterator[Mapping[str, Any]]:
    """The ports of a pod's containers, sidecars among them."""
    sidecars = (one for one in mappings(spec.get("initContainers")) if one.get("restartPolicy") == "Always")
    for container in (*mappings(spec.get("containers")), *sidecars):
        yield from mappings(container.get("ports"))


def host_ports(spec: Document) -> tuple[Port, ...]:
    """The ports of the node that a pod asks for. With the host's network the API server makes every container port one
    of them.
    """
    found = set()
    for port in _container_ports(spec):
        number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") is True else 0)
        if isinstance(number, int) and number:
            ip = str(port.get("hostIP") or "")
            found.add(Port(str(port.get("protocol") or "TCP"), number, "" if ip == "0.0.0.0" else ip))
    return tuple(sorted(found))


def anti_affinity(spec: Document, namespace: str) -> tuple[tuple[Term, ...], bool]:
    """A pod's required anti-affinity terms that can be read, and whether these are all."""
    read = [_term(term, namespace) for term in required_anti_affinity(spec)]
    return tuple(term for term in read if term is not None), None not in read


def required_anti_affinity(spec: Document) -> list[Mapping[str, Any]]:
    """The same, as they are stored."""
    return mappings(mapping(mapping(spec.get("affinity")).get("podAntiAffinity")).get(REQUIRED_AFFINITY))


def _term(stated: Mapping[str, Any], namespace: str) -> Term | None:
    if stated.get("matchLabelKeys") or stated.get("mismatchLabelKeys"):
        return None
    namespaces = frozenset(map(str, list_items(stated.get("namespaces") or ()))) or frozenset({namespace})
    of_namespaces = stated.get("namespaceSelector")
    if of_namespaces is not None and any(mapping(of_namespaces).values()):
        return None  # the labels of namespaces are not seen
    selector = stated.get("labelSelector")
    rules = None if selector is None else frozenset(requirements(selector))
    if rules is not None and any(rule.operator not in OPERATORS for rule in rules):
        return None
    return Term(str(stated.get("topologyKey")), namespaces if of_namespaces is None else None, rules)


# -- a gang --


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What the pods of a gang take of which keys."""

    members: tuple[Mapping[Key, int], ...]
    """For each of its members, in their order."""
    predictable: bool = True
    """This is all that a scheduler looks at besides what admission knows. If not, no node is named."""


class ExclusiveResources:
    """A column of admission's for each key that a gang has, as long as there is one that has it; then it is reused.

    Gangs beyond ``_COLUMNS`` keys are as if their pods could not be predicted: keys must not fill the memory.
    """

    def __init__(self) -> None:
        self._of: dict[Key, int] = {}
        self._gangs: dict[str, frozenset[str]] = {}  # those that have any, with the names of their columns
        self._count: Counter[str] = Counter()

    def exclusives(self, found: Exclusions) -> tuple[tuple[tuple[ExclusiveResource, ...], ...], bool]:
        """What each member takes of which column, and whether that is all there is to know about a gang."""
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
        """A gang (its uid) has these columns from now on, and no others."""
        before = self._gangs.pop(gang, frozenset())
        if names:
            self._gangs[gang] = names
        self._count.update(names)
        self._count.subtract(before)

    def settle(self) -> None:
        """Free the columns that no gang has (any more)."""
        if len(self._of) != len(self._count) or not all(self._count.values()):
            self._count = +self._count
            self._of = {key: number for key, number in self._of.items() if exclusive_resource(number) in self._count}

    @property
    def keys(self) -> dict[str, Key]:
        """The keys by the names of their columns."""
        return {exclusive_resource(number): key for key, number in self._of.items()}


def exclusions(specs: Sequence[tuple[Document, Mapping[str, str], int]], namespace: str) -> Exclusions:
    """The exclusions of a gang: of each member its pod spec, its labels, and how many pods it has at most."""
    if not any(_may_exclude(spec) for spec, _, _ in specs):
        return Exclusions(tuple({} for _ in specs))
    kinds = []
    predictable = not any(_is_unpredictable(spec) for spec, _, _ in specs)
    for spec, labels, _ in specs:
        terms, every = anti_affinity(spec, namespace)
        counted = tuple(filter(_is_counted, terms))
        predictable = predictable and every and len(counted) == len(terms)
        kinds.append(PodKind(namespace, _kept(labels), counted, host_ports(spec)))
    keys = sorted(set(_keys(kinds)), key=str)
    counts = [count for _, _, count in specs]
    usable = [key for key in keys if _is_expressible(key, kinds, counts)][:MAX_EXCLUSIVES]
    members = tuple({key: taken for key in usable if (taken := key.cost(kind))} for kind in kinds)
    return Exclusions(members, predictable and len(usable) == len(keys))


def _may_exclude(spec: Document) -> bool:
    """Whether anything here may concern a pod spec: for nearly all pods the answer is no, and cheap."""
    affinity = mapping(spec.get("affinity"))
    if spec.get("hostNetwork") or spec.get("resourceClaims") or spec.get("topologySpreadConstraints"):
        return True
    if affinity.get("podAntiAffinity") or affinity.get("podAffinity"):
        return True
    return any(port.get("hostPort") for port in _container_ports(spec))


def _is_unpredictable(spec: Document) -> bool:
    """Devices, spreading, and nearness to other pods: the scheduler alone knows which nodes these leave."""
    spread = mappings(spec.get("topologySpreadConstraints"))
    if any(rule.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for rule in spread):
        return True
    near = mapping(mapping(spec.get("affinity")).get("podAffinity")).get(REQUIRED_AFFINITY)
    return bool(near or spec.get("resourceClaims"))


def _keys(kinds: Iterable[PodKind]) -> Iterator[Key]:
    for kind in kinds:
        for port in kind.ports:
            yield PortKey(port.protocol, port.number)
            yield PortKey(*port)
        for term in kind.terms:
            yield TermKey(term, own=term.selects(kind.namespace, dict(kind.labels)))


def _is_expressible(key: Key, kinds: Sequence[PodKind], counts: Sequence[int]) -> bool:
    """Whether amounts say it. Pods that avoid several others, which may be together, cannot be counted like this."""
    if isinstance(key, PortKey) or key.own:
        return True
    selected = (count for kind, count in zip(kinds, counts, strict=True) if key.cost(kind) == EXCLUSIVE_CAPACITY)
    return sum(selected) <= 1
