"""TFJob v1alpha1, case by case: ``pkg/trainer/replicas_test.go``, ``training_test.go`` and ``test/e2e`` of tf-operator.

Names, labels, addresses and TF_CONFIG are compared with what those tests expect, byte for byte.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.core.world import World
from tf_dist.core.dialects import parse, read
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.status import Attempts
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.errors import InvalidJob

Doc = dict[str, Any]


def entry(kind: str, replicas: int = 1, port: int | None = None, **template: Any) -> Doc:
    found: Doc = {"tfReplicaType": kind, "replicas": replicas}
    if port is not None:
        found["tfPort"] = port
    pod = {"containers": [{"name": "tensorflow", "image": "trainer:1"}]}
    return {**found, "template": {"spec": pod, **template}}


def tfjob(name: str, *entries: Doc, **spec: Any) -> Doc:
    metadata = {"name": name, "namespace": "default", "uid": "some-uid"}
    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": metadata,
        "spec": {"replicaSpecs": list(entries), **spec},
    }


# TestTFReplicaSet
PS_JOB = tfjob(
    "some-job",
    entry("PS", 2, 10, metadata={"labels": {"some-label": "some-value"}, "annotations": {"some-anno": "some-value"}}),
    RuntimeId="some-runtime",
    schedulerName="test-scheduler",
    terminationPolicy={"chief": {"replicaName": "PS", "replicaIndex": 0}},
)
# TestClusterSpec
CLUSTER_JOB = tfjob("myjob", entry("PS", 2, 22), entry("MASTER", 1, 42), entry("WORKER", 3, 40), RuntimeId="runtime")
CLUSTER = {
    "master": ["myjob-master-runtime-0:42"],
    "ps": ["myjob-ps-runtime-0:22", "myjob-ps-runtime-1:22"],
    "worker": ["myjob-worker-runtime-0:40", "myjob-worker-runtime-1:40", "myjob-worker-runtime-2:40"],
}


def pod_of(document: Doc, kind: str, index: int) -> Doc:
    replica = ReplicaId(kind, index)
    return replica_pod.build_pod(read(document), replica, Attempts().label(replica))


def tf_config(document: Doc, kind: str, index: int) -> str:
    (container,) = pod_of(document, kind, index)["spec"]["containers"]
    return next(str(one["value"]) for one in container["env"] if one["name"] == "TF_CONFIG")


@pytest.mark.parametrize("index", [0, 1])
def test_pods_and_services_of_replica_set(index: int) -> None:
    labels = {
        "kubeflow.org": "",
        "task_index": str(index),
        "job_type": "PS",
        "runtime_id": "some-runtime",
        "tf_job_name": "some-job",
    }
    owner = {"apiVersion": "kubeflow.org/v1alpha1", "kind": "TFJob", "name": "some-job", "uid": "some-uid"}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    service = next(
        one
        for one in services.build_objects(read(PS_JOB))
        if one["metadata"]["name"] == f"some-job-ps-some-runtime-{index}"
    )
    assert labels.items() <= service["metadata"]["labels"].items()
    # The original's service is headless, as with the annotation ``tf-dist.dev/services: headless``.
    assert "clusterIP" not in service["spec"]
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("tf-port", 10)]
    pod = pod_of(PS_JOB, "ps", index)
    start, _, suffix = pod["metadata"]["name"].rpartition("-")
    assert (start, len(suffix)) == (f"some-job-ps-some-runtime-{index}", 5)
    assert (labels | {"some-label": "some-value"}).items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["annotations"] == {"some-anno": "some-value"}
    assert pod["metadata"]["ownerReferences"] == service["metadata"]["ownerReferences"] == [owner]
    assert pod["spec"]["schedulerName"] == "test-scheduler"
    assert [one["name"] for one in pod["spec"]["containers"][0]["env"]] == ["TF_CONFIG"]


@pytest.mark.parametrize(("kind", "index"), [("ps", 1), ("master", 0), ("worker", 2)])
def test_tf_config(kind: str, index: int) -> None:
    expected = {"cluster": CLUSTER, "task": {"type": kind, "index": index}, "environment": "cloud"}
    assert tf_config(CLUSTER_JOB, kind, index) == json.dumps(expected, separators=(",", ":"))


def test_single_replica_has_tf_config() -> None:
    alone = tfjob("one", entry("MASTER"), RuntimeId="r")
    config = {"cluster": {"master": ["one-master-r-0:2222"]}, "task": {"type": "master", "index": 0}}
    assert json.loads(tf_config(alone, "master", 0)) == {**config, "environment": "cloud"}


@pytest.mark.parametrize(
    ("name", "runtime_id", "taken"),
    [
        ("job", "runtime", True),
        ("job", "some-runtime", True),
        ("some-meta-name", "some-runtime-id", True),
        ("job", "76no", True),
        ("job", "0", True),
        ("n" * 60, "r" * 13, True),  # 40 characters of the job's name, 13, "-worker-" and "-0" are 63
        ("n" * 60, "r" * 14, False),
        ("n" * 39, "r" * 14, True),
        ("job", "-a", False),
        ("job", "a-", False),
        ("job", "A", False),
        ("job", "a.b", False),
        ("job", "a_b", False),
        ("job", "", True),  # generated
    ],
)
def test_accepts_and_refuses_runtime_ids(name: str, runtime_id: str, taken: bool) -> None:
    document = tfjob(name, entry("MASTER"), entry("WORKER"), RuntimeId=runtime_id)
    for reads in (parse, read):
        if taken:
            reads(document)
            continue
        with pytest.raises(InvalidJob) as caught:
            reads(document)
        assert {problem.path for problem in caught.value.problems} == {"spec.RuntimeId"}


def test_setup_fills_in_missing_runtime_id() -> None:
    found = read(tfjob("job", entry("MASTER")))
    assert found.spec_defaults == {"RuntimeId": found.runtime_id}
    assert len(found.runtime_id) == 4
    written = read(tfjob("job", entry("MASTER"), RuntimeId=found.runtime_id))
    assert (written.spec_defaults, written.runtime_id) == ({}, found.runtime_id)


@pytest.mark.parametrize(("workers", "expected"), [(0, []), (2, [3])])
def test_pdb_for_gang_scheduling(workers: int, expected: list[int]) -> None:
    """TestPDBForGangScheduling: a single replica has none, and a larger gang has one (``syncPdb`` deletes it)."""
    others = [entry("WORKER", workers)] if workers else []
    job = read(tfjob("some-job", entry("MASTER"), *others, RuntimeId="some-runtime"))
    assert not services.build_budgets(job), "only if asked for"
    world = World(replace(job, disruption_budget=True))
    world.settle()
    made = {name: body["spec"] for (kind, name), body in world.objects.items() if kind == "PodDisruptionBudget"}
    assert list(made) == ["tf-job-pdb-some-job"] * len(expected)
    assert [one["minAvailable"] for one in made.values()] == expected
    for pod in world.pods.values():
        assert all(one["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items() for one in made.values())
        world.run(pod)
    world.end(world.pod("master-0"), 0)
    world.settle()
    assert not [name for kind, name in world.objects if kind == "PodDisruptionBudget"]


def test_pdb_follows_size_of_gang() -> None:
    job = read(tfjob("some-job", entry("MASTER"), entry("WORKER", 3), RuntimeId="some-runtime"))
    world = World(replace(job, disruption_budget=True))
    world.settle()
    world.scale("worker", 1)
    world.settle()
    assert world.objects["PodDisruptionBudget", "tf-job-pdb-some-job"]["spec"]["minAvailable"] == 2
