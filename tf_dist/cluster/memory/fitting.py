"""Which node a pod fits on, and why not: pure functions over pods and nodes as they are in the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.memory.objects import look_up
from tf_dist.core.gang import fit
from tf_dist.core.gang.exclusive import HOSTNAME, Port, Term, anti_affinity, excludes, host_ports
from tf_dist.core.quantity import parse_quantity

Amounts = dict[str, Decimal]
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a pod goes; with no ``node``, ``message`` says why, in the scheduler's words."""

    node: str = ""
    message: str = ""


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Quantities as numbers; what cannot be read counts as nothing."""
    found: Amounts = {}
    for name, text in (quantities or {}).items():
        try:
            found[name] = parse_quantity(text)
        except ValueError:
            continue
    return found


def free_on(nodes: Iterable[Object], taken: Iterable[tuple[str, Amounts]]) -> dict[str, Amounts]:
    """What is left of each node's allocatable resources when pods have taken theirs."""
    free = {node["metadata"]["name"]: amounts(look_up(node, "status.allocatable")) for node in nodes}
    for name, wanted in taken:
        if name in free:
            take(free[name], wanted)
    return free


def take(free: Amounts, wanted: Amounts) -> None:
    """Subtract in place."""
    for name, amount in wanted.items():
        free[name] = free.get(name, _ZERO) - amount


def choose(
    pod: Object,
    wanted: Amounts,
    nodes: Sequence[Object],
    free: Mapping[str, Amounts],
    neighbours: Neighbours | None = None,
) -> Choice:
    """The best node that fits: what the pod prefers first, then the emptiest, then the first by name."""
    if not nodes:
        return Choice(message="no nodes available to schedule pods")
    refused = neighbours.refuse(pod) if neighbours else {}
    reasons: Counter[str] = Counter()
    fitting: list[Object] = []
    for node in nodes:
        name = node["metadata"]["name"]
        against = reasons_against(pod, wanted, node, free[name])
        if name in refused and not against:
            against = [refused[name]]
        reasons.update(against)
        if not against:
            fitting.append(node)
    if not fitting:
        said = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return Choice(message=f"0/{len(nodes)} nodes are available: {said}.")
    best = min(fitting, key=lambda node: _rank(pod, node, free[node["metadata"]["name"]]))
    return Choice(best["metadata"]["name"])


class Neighbours:
    """The pods that are on nodes already, with what keeps others away from them: host ports, required anti-affinity."""

    def __init__(self, nodes: Iterable[Object], bound: Iterable[Object]) -> None:
        self._labels = {node["metadata"]["name"]: _labels(node) for node in nodes if excludes(_labels(node))}
        self._pods: list[tuple[str, Object]] = []
        self._ports: list[tuple[str, tuple[Port, ...]]] = []
        self._terms: list[tuple[str, tuple[Term, ...]]] = []
        for pod in bound:
            self.add(pod, pod["spec"]["nodeName"])

    def add(self, pod: Object, node: str) -> None:
        """A pod that is on a node."""
        self._pods.append((node, pod))
        if ports := host_ports(pod["spec"]):
            self._ports.append((node, ports))
        if terms := _apart(pod):
            self._terms.append((node, terms))

    def refuse(self, pod: Object) -> dict[str, str]:
        """The nodes on which a pod cannot be beside those that are there, and why."""
        refused: dict[str, str] = {}
        for node, terms in self._terms:
            for term in (term for term in terms if _means(term, pod)):
                why = "node(s) didn't satisfy existing pods anti-affinity rules"
                refused |= dict.fromkeys(self._near(node, term.topology), why)
        for term in _apart(pod):
            why = "node(s) didn't match pod anti-affinity rules"
            for node in {node for node, other in self._pods if _means(term, other)}:
                refused |= dict.fromkeys(self._near(node, term.topology), why)
        wanted = host_ports(pod["spec"])
        for node, ports in self._ports if wanted else ():
            if node in self._labels and any(_conflict(mine, theirs) for mine in wanted for theirs in ports):
                refused[node] = "node(s) didn't have free ports for the requested pod ports"
        return refused

    def _near(self, node: str, topology: str) -> list[str]:
        """The nodes of the same domain; a node without the label is in none."""
        domain = self._domain(node, topology)
        return [other for other in self._labels if domain and self._domain(other, topology) == domain]

    def _domain(self, node: str, topology: str) -> str:
        labels = self._labels.get(node)
        return "" if labels is None else labels.get(topology, node if topology == HOSTNAME else "")


def _apart(pod: Object) -> tuple[Term, ...]:
    spec = pod["spec"]
    return anti_affinity(spec, pod["metadata"]["namespace"])[0] if spec.get("affinity") else ()


def _means(term: Term, pod: Object) -> bool:
    return term.selects(pod["metadata"]["namespace"], pod["metadata"].get("labels") or {})


def _conflict(one: Port, other: Port) -> bool:
    same = (one.protocol, one.number) == (other.protocol, other.number)
    return same and (not one.ip or not other.ip or one.ip == other.ip)


def _rank(pod: Object, node: Object, free: Amounts) -> tuple[int, Decimal, str]:
    total = amounts(look_up(node, "status.allocatable"))
    emptiness = sum((free[name] / total[name] for name in ("cpu", "memory") if total.get(name)), _ZERO)
    name = node["metadata"]["name"]
    return -fit.preference(pod["spec"], name, _labels(node)), -emptiness, name


def reasons_against(pod: Object, wanted: Amounts, node: Object, free: Amounts) -> list[str]:
    """Why the pod cannot go there; empty when it can. As in Kubernetes, resources come last and all at once."""
    if not _is_ready(node):
        return ["node(s) were not ready"]
    try:
        kept_away = _kept_away(pod["spec"], node)
    except fit.Unreadable:
        kept_away = "node(s) could not be compared with a node selector, affinity or toleration that makes no sense"
    if kept_away:
        return [kept_away]
    short = sorted(name for name, amount in wanted.items() if amount > free.get(name, _ZERO))
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


def _kept_away(spec: Object, node: Object) -> str:
    if look_up(node, "spec.unschedulable") and fit.untolerated(spec, (_CORDON,)):
        return "node(s) were unschedulable"
    # What the pod would like is read here too: what makes no sense must show before nodes are ranked by it.
    fit.preference(spec, node["metadata"]["name"], _labels(node))
    if not fit.allows(spec, node["metadata"]["name"], _labels(node)):
        return "node(s) didn't match Pod's node affinity/selector"
    if taint := fit.untolerated(spec, look_up(node, "spec.taints") or ()):
        return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value', '')}}}"
    return ""


def _is_ready(node: Object) -> bool:
    conditions = look_up(node, "status.conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}
