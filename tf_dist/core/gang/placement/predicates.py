"""Node predicates: node selector, node affinity and taints.

Admission and the embedded scheduler share them. Otherwise, a gang could be admitted to nodes to which the scheduler
never binds its pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tf_dist.core.model.job import Document

Labels = Mapping[str, str]
Taint = Mapping[str, Any]

_SOFT: Final = "PreferNoSchedule"
REFUSED_NODES: Final = "tf-dist.dev/refused-nodes"
"""An additional key, used only in admission: the nodes that the scheduler refused to a job's pods."""


class InvalidConstraints(ValueError):
    """The constraints are malformed. The API server stores templates of jobs without validation."""


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidConstraints("its nodeSelector, affinity or tolerations cannot be read") from error


def matches_node_affinity(pod_spec: Document, name: str, labels: Labels) -> bool:
    """Whether the pod's node selector and required node affinity allow a node of this name and these labels.

    Raises InvalidConstraints, like the functions below, if they are malformed.
    """
    with _reading():
        if name in pod_spec.get(REFUSED_NODES, ()):
            return False
        chosen = pod_spec.get("nodeSelector") or {}
        if any(labels.get(key) != value for key, value in chosen.items()):
            return False
        required = _node_affinity(pod_spec).get("requiredDuringSchedulingIgnoredDuringExecution")
        return not required or any(_term_holds(term, name, labels) for term in required.get("nodeSelectorTerms") or ())


def node_affinity_score(pod_spec: Document, name: str, labels: Labels) -> int:
    """The sum of the weights of the node affinities that match the node."""
    with _reading():
        wishes = _node_affinity(pod_spec).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        return sum(int(w.get("weight", 1)) for w in wishes if _term_holds(w.get("preference") or {}, name, labels))


def untolerated_taint(pod_spec: Document, taints: Iterable[Taint]) -> Taint | None:
    """The first taint that the pod does not tolerate, or None."""
    with _reading():
        tolerations = pod_spec.get("tolerations") or ()
        for taint in taints:
            if taint.get("effect") != _SOFT and not any(tolerates(toleration, taint) for toleration in tolerations):
                return taint
        return None


def tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """Whether a toleration covers a taint."""
    exists = toleration.get("operator") == "Exists"
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    if not key:
        return exists
    return bool(key == taint.get("key")) and (exists or (toleration.get("value") or "") == (taint.get("value") or ""))


def _node_affinity(pod_spec: Document) -> Mapping[str, Any]:
    return ((pod_spec.get("affinity") or {}).get("nodeAffinity")) or {}


def _term_holds(term: Mapping[str, Any], name: str, labels: Labels) -> bool:
    """Whether all rules of a term match. A term without rules matches nothing."""
    rules = [(rule, labels) for rule in term.get("matchExpressions") or ()]
    rules += [(rule, {"metadata.name": name}) for rule in term.get("matchFields") or ()]
    return bool(rules) and all(_rule_holds(rule, values) for rule, values in rules)


def _rule_holds(rule: Mapping[str, Any], values: Labels) -> bool:
    value = values.get(rule.get("key", ""))
    listed: Sequence[str] = rule.get("values") or ()
    match rule.get("operator"):
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return bool(listed) and _number(value) > _number(listed[0])
        case "Lt":
            return bool(listed) and _number(value) < _number(listed[0])
    return False


def _number(text: str | None) -> float:
    # NaN is neither greater nor less than any number, so it never matches.
    return float(text) if text and text.lstrip("-").isdecimal() else float("nan")
