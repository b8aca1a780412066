"""A pod is sent to the node that was found for it, and to no node that its user has ruled out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import v1_job
from tf_dist.core import render
from tf_dist.core.affinity import pin
from tf_dist.core.gang.fit import allows
from tf_dist.core.model import ReplicaId

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE_A = {"key": "zone", "operator": "In", "values": ["a"]}
GPU = {"key": "gpu", "operator": "Exists"}
NOT_N2 = {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}
TERMS = (
    {"matchExpressions": [ZONE_A]},
    {"matchExpressions": [GPU]},
    {"matchExpressions": [ZONE_A, GPU]},
    {"matchFields": [NOT_N2]},
    {"matchFields": [NOT_N2], "matchExpressions": [GPU]},
    {"matchExpressions": []},
    {},
)
LABELS = ({}, {"zone": "a"}, {"gpu": "1"}, {"zone": "a", "gpu": "1"}, {"zone": "b"})


def pinned(spec: dict[str, Any], node: str = "n1") -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    pin(changed, node)
    return changed


@given(st.lists(st.sampled_from(TERMS), max_size=3), st.sampled_from(LABELS), st.sampled_from(("n1", "n2", "n3")))
def test_it_may_go_to_this_node_only_and_only_if_it_might_have_before(terms: Any, labels: Any, node: str) -> None:
    spec: dict[str, Any] = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    assert allows(pinned(spec), node, labels) == (node == "n1" and allows(spec, node, labels))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"affinity": None},
        {"affinity": {}},
        {"affinity": {"nodeAffinity": None}},
        {"affinity": {"nodeAffinity": {REQUIRED: None}}},
        {"nodeSelector": {"zone": "a"}},
    ],
)
def test_where_nothing_was_required_the_node_is(spec: dict[str, Any]) -> None:
    result = pinned(spec)
    assert result["affinity"]["nodeAffinity"][REQUIRED] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }
    assert result.get("nodeSelector") == spec.get("nodeSelector")


def test_other_affinities_stay() -> None:
    wish = [{"weight": 1, "preference": {"matchExpressions": [GPU]}}]
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    spec = {
        "affinity": {
            "podAntiAffinity": apart,
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish},
        }
    }
    result = pinned(spec)["affinity"]
    assert result["podAntiAffinity"] == apart
    assert result["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == wish


def test_a_pod_that_names_its_node_itself_is_left_alone() -> None:
    assert pinned({"nodeName": "n7"}) == {"nodeName": "n7"}


def test_a_rendered_pod_has_its_node_and_the_template_is_not_touched() -> None:
    job = v1_job()
    before = copy.deepcopy(job.replica_specs[1].template)
    body = render.pod(job, ReplicaId("worker", 0), "1.0.0", None, "n1")
    assert allows(body["spec"], "n1", {})
    assert not allows(body["spec"], "n2", {})
    assert job.replica_specs[1].template == before
    assert "affinity" not in render.pod(job, ReplicaId("worker", 0), "1.0.0")["spec"]
