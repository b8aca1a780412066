"""A required node for a pod, on top of whatever its template says about nodes."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pin(spec: Body, node: str) -> None:
    """Have the pod of this spec go to ``node``, if it may go there at all: nothing it requires is taken away.

    The terms of a node selector are alternatives, so each is narrowed. One without any rule matches no node, and has to
    go on matching none.
    """
    if spec.get("nodeName"):
        return
    rule = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = dict(spec.get("affinity") or {})
    nodes = dict(affinity.get("nodeAffinity") or {})
    required = nodes.get(_REQUIRED)
    terms = required.get("nodeSelectorTerms") or [] if required else [{"matchExpressions": []}]
    narrowed = [_narrowed(term, rule) if _rules(term) or not required else term for term in terms]
    spec["affinity"] = {
        **affinity,
        "nodeAffinity": {**nodes, _REQUIRED: {**(required or {}), "nodeSelectorTerms": narrowed}},
    }


def _rules(term: Body) -> list[Any]:
    return [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]


def _narrowed(term: Body, rule: Body) -> Body:
    kept = {key: value for key, value in term.items() if value}
    return {**kept, "matchFields": [*(term.get("matchFields") or ()), rule]}
