"""Which nodes a pod's selector and affinity allow."""

from __future__ import annotations

from typing import Any

import pytest

from tf_dist.core.gang.placement.predicates import matches_node_affinity, node_affinity_score

LABELS = {"pool": "gpu", "gen": "4", "low": "-2", "word": "four"}


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ({"key": "pool", "operator": "In", "values": ["cpu", "gpu"]}, True),
        ({"key": "none", "operator": "In", "values": ["gpu"]}, False),
        ({"key": "pool", "operator": "NotIn", "values": ["gpu"]}, False),
        ({"key": "none", "operator": "NotIn", "values": ["gpu"]}, True),
        ({"key": "pool", "operator": "Exists"}, True),
        ({"key": "none", "operator": "Exists"}, False),
        ({"key": "pool", "operator": "DoesNotExist"}, False),
        ({"key": "none", "operator": "DoesNotExist"}, True),
        ({"key": "gen", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "gen", "operator": "Gt", "values": ["4"]}, False),
        ({"key": "gen", "operator": "Lt", "values": ["5"]}, True),
        ({"key": "gen", "operator": "Lt", "values": ["4"]}, False),
        ({"key": "low", "operator": "Lt", "values": ["-1"]}, True),
        ({"key": "none", "operator": "Lt", "values": ["5"]}, False),
        ({"key": "word", "operator": "Gt", "values": ["3"]}, False),
        ({"key": "word", "operator": "Lt", "values": ["3"]}, False),
        ({"key": "gen", "operator": "Gt", "values": []}, False),
        ({"key": "gen", "operator": "Lt"}, False),
        ({"key": "gen", "operator": "Unknown", "values": ["4"]}, False),
    ],
)
def test_node_affinity_operators(rule: dict[str, Any], holds: bool) -> None:
    term = {"matchExpressions": [rule]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert matches_node_affinity({"affinity": {"nodeAffinity": required}}, "n", LABELS) is holds
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "preference": term}]}
    assert node_affinity_score({"affinity": {"nodeAffinity": preferred}}, "n", LABELS) == (7 if holds else 0)


def test_node_matches_if_all_rules_of_any_term_hold() -> None:
    def allows(*terms: dict[str, Any]) -> bool:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return matches_node_affinity({"affinity": {"nodeAffinity": required}}, "n", LABELS)

    gpu, new = {"key": "pool", "operator": "In", "values": ["gpu"]}, {"key": "gen", "operator": "Gt", "values": ["9"]}
    here = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    assert allows({"matchExpressions": [gpu]}, {"matchExpressions": [new]})
    assert not allows({"matchExpressions": [gpu, new]})
    assert allows({"matchExpressions": [gpu], "matchFields": [here]})
    assert not allows({})
    assert not allows()
