"""TFJob v1alpha2, v1beta1 and v1beta2, and DRAGON 0.9: ``pkg/apis/tensorflow/v1beta2`` and its ``defaults_test.go``,
``validation_test.go`` (``ValidateBetaTwoTFJobSpec``), ``test/workflows/components`` of tf-operator 0.3 to 0.7.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tf_dist.core.dialects import convert, current, dialect_of, parse, read
from tf_dist.core.model.job import CleanPodPolicy, Dialect
from tf_dist.errors import InvalidJob

Doc = dict[str, Any]
VERSIONS = ["kubeflow.org/v1alpha2", "kubeflow.org/v1beta1", "kubeflow.org/v1beta2"]


def replicas(count: int | None = None, policy: str | None = None, **container: Any) -> Doc:
    found: Doc = {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "trainer:1", **container}]}}}
    return {
        **found,
        **({} if count is None else {"replicas": count}),
        **({} if policy is None else {"restartPolicy": policy}),
    }


def tfjob(version: str, groups: Doc | None = None, **spec: Any) -> Doc:
    groups = {"Worker": replicas(4)} if groups is None else groups
    return {
        "apiVersion": version,
        "kind": "TFJob",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"tfReplicaSpecs": groups, **spec},
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, CleanPodPolicy.RUNNING),
        ("Running", CleanPodPolicy.RUNNING),
        ("All", CleanPodPolicy.ALL),
        ("None", CleanPodPolicy.NONE),
    ],
)
def test_clean_pod_policy(version: str, policy: str | None, expected: CleanPodPolicy) -> None:
    document = tfjob(version, cleanPodPolicy=policy)
    before = copy.deepcopy(document)
    assert parse(document).job.run_policy.clean_pods is expected
    assert read(current(document)).run_policy.clean_pods is expected
    assert document == before


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key", ["worker", "WORKER", "Worker", "workER"])
def test_defaults_of_replica_set(version: str, key: str) -> None:
    (spec,) = parse(tfjob(version, {key: replicas()})).job.replica_specs
    assert (spec.name, spec.replicas, spec.pod_restart_policy, spec.port) == ("Worker", 1, "Never", 2222)


def test_custom_port_is_kept() -> None:
    ports = [{"name": "tfjob-port", "containerPort": 9999}]
    (spec,) = parse(tfjob(VERSIONS[2], {"Worker": replicas(1, ports=ports)})).job.replica_specs
    assert spec.port == 9999


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("groups", "place"),
    [
        ({"Worker": {"template": {"spec": {"containers": []}}}}, "containers"),
        ({"Worker": replicas(image="")}, "image"),
        ({"Worker": replicas(name="")}, "name"),
        ({"Worker": {"template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}}, "containers"),
        ({"Chief": replicas(), "Master": replicas()}, "tfReplicaSpecs"),
    ],
)
def test_refuses_jobs_that_original_validation_refused(version: str, groups: Doc, place: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse(tfjob(version, groups))
    assert any(place in problem.path for problem in caught.value.problems)


@pytest.mark.parametrize("version", VERSIONS)
def test_earlier_version_runs_and_converts_as_v1(version: str) -> None:
    document = tfjob(version, {"Worker": replicas(2, "ExitCode")}, ttlSecondsAfterFinished=60)
    found = parse(document)
    assert dialect_of(document) is found.job.dialect is Dialect.TFJOB_V1
    assert [problem.path for problem in found.warnings][:2] == [
        "apiVersion",
        "spec.tfReplicaSpecs.Worker.restartPolicy",
    ]
    written = convert(document).document
    assert written["apiVersion"] == "kubeflow.org/v1"
    policy = written["spec"]["runPolicy"]
    assert (policy["cleanPodPolicy"], policy["ttlSecondsAfterFinished"]) == ("Running", 60)
    assert parse(written).job == found.job


@pytest.mark.parametrize(
    ("spec", "least", "most"),
    [
        ({"min-instances": 1, "max-instances": 4}, 1, 4),
        ({"min-instances": 2, "max-instances": 2}, 2, 2),
        ({"min-instances": 0, "max-instances": 0}, 2, 2),
        ({"max-instances": 3}, 2, 3),
        ({}, 2, 2),
    ],
)
def test_bounds_of_dragon_0_9(spec: Doc, least: int, most: int) -> None:
    document = tfjob("kubeflow.org/v1", {"PS": replicas(1), "Worker": replicas(2)}, **spec)
    for job in (parse(document).job, read(document), parse(current(document)).job):
        worker = job.spec("worker")
        assert worker is not None
        assert (worker.min_replicas, worker.most) == (least, most)


def test_refuses_bounds_of_dragon_0_9_that_are_not_numbers() -> None:
    document = tfjob("kubeflow.org/v1", **{"min-instances": "two"})
    with pytest.raises(InvalidJob) as caught:
        parse(document)
    assert [problem.path for problem in caught.value.problems] == ["spec.min-instances"]
