"""Fields of a pod other than its containers: the pod's template overrides the job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import template, v1, v1alpha1, volcano
from tf_dist.core.dialects import parse
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.podbuilder import replica_pod

# Every field that a job or another template may set, with two values for each.
FIELDS: dict[str, tuple[Any, Any]] = {
    "schedulerName": ("mine", "other"),
    "priorityClassName": ("low", "high"),
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
    "imagePullSecrets": ([{"name": "mine"}], [{"name": "other"}]),
    "serviceAccountName": ("mine", "other"),
    "runtimeClassName": ("gvisor", "nvidia"),
    "tolerations": ([{"key": "gpu", "operator": "Exists"}], [{"key": "spot", "operator": "Exists"}]),
}


def jobs(first: Any, second: Any, **spec: Any) -> dict[str, tuple[dict[str, Any], ReplicaId, ReplicaId]]:
    """For each dialect: a document with two templates, and the replicas of these templates."""
    alpha = v1alpha1()
    alpha["spec"]["replicaSpecs"][0]["template"] = first
    alpha["spec"]["replicaSpecs"][1]["template"] = second
    one = v1()
    one["spec"]["tfReplicaSpecs"]["Chief"]["template"] = first
    one["spec"]["tfReplicaSpecs"]["Worker"]["template"] = second
    many = volcano()
    many["spec"]["tasks"] = [
        {"name": n, "replicas": 1, "template": t} for n, t in (("chief", first), ("worker", second))
    ]
    many["spec"] |= {"minAvailable": 2, "policies": []}
    for key in ("schedulerName", "priorityClassName"):
        many["spec"].pop(key, None)
    for document in (alpha, many):
        document["spec"] |= spec if document is many else {k: v for k, v in spec.items() if k == "schedulerName"}
    return {
        "v1alpha1": (alpha, ReplicaId("master", 0), ReplicaId("worker", 0)),
        "v1": (one, ReplicaId("chief", 0), ReplicaId("worker", 0)),
        "volcano": (many, ReplicaId("chief", 0), ReplicaId("worker", 0)),
    }


def pod_spec(document: dict[str, Any], replica: ReplicaId) -> dict[str, Any]:
    return replica_pod.build_pod(parse(document).job, replica, "1.0.0")["spec"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["v1alpha1", "v1", "volcano"])
@pytest.mark.parametrize("field", FIELDS)
def test_pod_has_fields_of_its_own_template_only(field: str, form: str) -> None:
    mine, other = FIELDS[field]
    document, first, second = jobs(template(**{field: mine}), template(**{field: other}))[form]
    assert (pod_spec(document, first)[field], pod_spec(document, second)[field]) == (mine, other)
    document, first, second = jobs(template(**{field: mine}), template())[form]
    assert pod_spec(document, first)[field] == mine
    assert field not in pod_spec(document, second)


@pytest.mark.parametrize(
    ("form", "field", "filled"),
    [
        ("v1alpha1", "schedulerName", True),
        ("v1", "schedulerName", False),  # v1 has no such field
        ("volcano", "schedulerName", True),
        ("v1alpha1", "priorityClassName", False),
        ("v1", "priorityClassName", False),  # schedulingPolicy.priorityClass applies to the PodGroup
        ("volcano", "priorityClassName", True),
    ],
)
@pytest.mark.parametrize("silent", [{}, None, ""])
def test_fields_of_job_are_defaults_for_templates(form: str, field: str, filled: bool, silent: Any) -> None:
    quiet = template() if silent == {} else template(**{field: silent})
    document, first, second = jobs(template(**{field: "mine"}), quiet, **{field: "jobs"})[form]
    assert pod_spec(document, first)[field] == "mine"
    assert pod_spec(document, second).get(field) == ("jobs" if filled else None if silent == {} else silent)


def served(*templates: dict[str, Any], ps: Any = None, **spec: Any) -> dict[str, Any]:
    """The pod of a standard parameter server, in a job with these templates."""
    document = v1alpha1()
    for replicas, body in zip(document["spec"]["replicaSpecs"], templates, strict=False):
        replicas["template"] = body
    document["spec"]["replicaSpecs"][2] |= {"template": ps} if ps else {}
    document["spec"] |= spec
    return pod_spec(document, ReplicaId("ps", 0))


@pytest.mark.parametrize("field", FIELDS)
def test_standard_parameter_server_has_scheduling_fields_of_peers(field: str) -> None:
    mine, other = FIELDS[field]
    assert served(template(**{field: mine}), template(**{field: other}))[field] == mine  # the chief's
    assert served(template(), template(**{field: other}))[field] == other
    assert field not in served(template(), template())
    own = {"metadata": {}, "spec": {"containers": [{"name": "log", "image": "i"}], field: other}}
    assert served(template(**{field: mine}), ps=own)[field] == other
    assert served(template(**{field: mine}), schedulerName="jobs")[field] == mine


def test_standard_parameter_server_has_image_pull_policy_of_peers() -> None:
    chief = template()
    chief["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    assert served(chief)["containers"][0]["imagePullPolicy"] == "Never"
    assert "imagePullPolicy" not in served()["containers"][0]
