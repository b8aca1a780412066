"""NetworkPolicies that prevent replicas of a job from reaching each other.

tf-dist does not know whether the cluster's network enforces policies. Rules about addresses or labels of namespaces
count as permissions, so findings are certain if policies are enforced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import list_items, mapping, mappings, text

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
# Pods of a type differ only in their index, which policies do not select. Two pods of each type represent all pods.
_OF_EACH_TYPE: Final = 2


@dataclass(frozen=True, slots=True)
class SeparatedPods:
    """A pod that another pod of the job cannot reach."""

    client: str
    """The name of the pod that connects."""
    server: str
    """The name of the pod that it cannot reach."""
    policies: tuple[str, ...]
    """The sorted names of the NetworkPolicies that select one of the pods and do not permit the connection."""


def separated_pods(
    policies: Sequence[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], namespace: str
) -> SeparatedPods | None:
    """The first pair of raw pods of a job that the raw policies of its namespace separate; None: no such pair."""
    shown = _shown(pods)
    for client, server in ((one, other) for one in shown for other in shown if one is not other):
        for direction, own, peer in (("Ingress", server, client), ("Egress", client, server)):
            selecting = [one for one in policies if _selects(one, own, direction)]
            rules = [rule for one in selecting for rule in mappings(mapping(one.get("spec")).get(direction.lower()))]
            if selecting and not any(_permits(rule, direction, peer, server, namespace) for rule in rules):
                found = tuple(sorted(text(mapping(one.get("metadata")).get("name")) for one in selecting))
                return SeparatedPods(client["metadata"]["name"], server["metadata"]["name"], found)
    return None


def _shown(pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        found.setdefault(_labels(pod).get(names.REPLICA_TYPE, ""), []).append(pod)
    return [pod for of_type in found.values() for pod in of_type[:_OF_EACH_TYPE]]


def _labels(pod: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in mapping(pod["metadata"].get("labels")).items()}


def _holds(selector: object, labels: Mapping[str, str]) -> bool:
    return all(rule.holds(labels) for rule in names.requirements(selector))


def _selects(policy: Mapping[str, Any], pod: Mapping[str, Any], direction: str) -> bool:
    """Whether a policy restricts this direction of a pod.

    A policy without types restricts ingress, and egress if it has egress rules.
    """
    spec = mapping(policy.get("spec"))
    types = list_items(spec.get("policyTypes")) or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return direction in types and _holds(spec.get("podSelector"), _labels(pod))


def _permits(
    rule: Mapping[str, Any], direction: str, peer: Mapping[str, Any], server: Mapping[str, Any], namespace: str
) -> bool:
    peers = mappings(rule.get("from" if direction == "Ingress" else "to"))
    ports = mappings(rule.get("ports"))
    return (not peers or any(_is_peer(one, peer, namespace) for one in peers)) and (
        not ports or any(_is_port(one, server) for one in ports)
    )


def _is_peer(stated: Mapping[str, Any], pod: Mapping[str, Any], namespace: str) -> bool:
    if stated.get("ipBlock"):
        return True
    spaces = names.requirements(stated.get("namespaceSelector"))
    known = {_NAMESPACE_NAME: namespace}
    here = all(rule.holds(known) for rule in spaces if rule.key == _NAMESPACE_NAME)
    return here and _holds(stated.get("podSelector"), _labels(pod))


def _is_port(stated: Mapping[str, Any], server: Mapping[str, Any]) -> bool:
    """Whether the server's containers declare a port of the rule, if they declare any port."""
    if stated.get("protocol", "TCP") != "TCP":
        return False
    declared = list(_declared_ports(server))
    first = stated.get("port")
    if first is None or not declared:
        return True
    last = stated.get("endPort", first)
    return any(first == name or (isinstance(first, int) and first <= port <= last) for name, port in declared)


def _declared_ports(pod: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for container in mappings(mapping(pod.get("spec")).get("containers")):
        for port in mappings(container.get("ports")):
            if isinstance(number := port.get("containerPort"), int):
                yield text(port.get("name")), number
