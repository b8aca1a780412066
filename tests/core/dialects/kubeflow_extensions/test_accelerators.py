"""Accelerators: ``pkg/apis/tensorflow/helper/helpers_test.go`` and the charts' own configuration, case by case."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.core.dialects.documents import changed, template, v1, v1alpha1
from tf_dist.core.dialects import parse
from tf_dist.core.dialects.kubeflow_extensions.accelerators import parse_controller_config, with_accelerators
from tf_dist.errors import InvalidJob

Doc = dict[str, Any]
GPU = "alpha.kubernetes.io/nvidia-gpu"
CONFIG: Doc = {
    "accelerators": {
        GPU: {
            "volumes": [{"name": "cuda-lib", "hostPath": "/home/cuda", "mountPath": "/usr/local/cuda"}],
            "envVars": [{"name": "LD_LIBRARY_PATH", "value": "/usr/local/cuda"}],
        },
        "example.com/tpu": {"envVars": [{"name": "TPU", "value": ""}]},
    }
}
CONTAINER = "spec.replicaSpecs.0.template.spec.containers.0"


def job_with(**container: Any) -> Doc:
    bare = {"containers": [{"name": "tensorflow", "image": "trainer:1"}]}
    document = changed(v1alpha1(), "spec.replicaSpecs.0.template", {"spec": bare})
    for key, value in container.items():
        document = changed(document, f"{CONTAINER}.{key}", value)
    return document


def equipped(document: Doc, config: Doc = CONFIG) -> list[Doc]:
    job = with_accelerators(parse(document).job, parse_controller_config(config))
    return [dict(spec.template) for spec in job.replica_specs]


@pytest.mark.parametrize(
    ("resources", "volumes", "variables"),
    [
        ({}, [], []),
        ({"limits": {GPU: 1}}, ["cuda-lib"], ["LD_LIBRARY_PATH"]),
        ({"requests": {GPU: 1}}, ["cuda-lib"], ["LD_LIBRARY_PATH"]),
        ({"limits": {GPU: 1}, "requests": {GPU: 1}}, ["cuda-lib"], ["LD_LIBRARY_PATH"]),
        ({"limits": {GPU: 1, "example.com/tpu": 1}}, ["cuda-lib"], ["LD_LIBRARY_PATH", "TPU"]),
        ({"limits": {"example.com/tpu": 8}}, [], ["TPU"]),
        ({"limits": {"nvidia.com/gpu": 1, "cpu": 1}}, [], []),
    ],
)
def test_a_container_that_asks_for_it_gets_it(resources: Doc, volumes: list[str], variables: list[str]) -> None:
    document = job_with(resources=resources)
    before = copy.deepcopy(document)
    first, *others = equipped(document)
    pod = first["spec"]
    (container,) = pod["containers"]
    assert [one["name"] for one in pod.get("volumes", [])] == volumes
    assert [one["name"] for one in container.get("volumeMounts", [])] == volumes
    assert [one["name"] for one in container.get("env", [])] == variables
    assert others == [dict(spec.template) for spec in parse(document).job.replica_specs[1:]]
    assert document == before


def test_what_it_gets_is_in_the_form_of_kubernetes() -> None:
    pod = equipped(job_with(resources={"limits": {GPU: 1}}))[0]["spec"]
    assert pod["volumes"] == [{"name": "cuda-lib", "hostPath": {"path": "/home/cuda"}}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "cuda-lib", "mountPath": "/usr/local/cuda"}]
    assert pod["containers"][0]["env"] == [{"name": "LD_LIBRARY_PATH", "value": "/usr/local/cuda"}]


def test_only_the_container_tensorflow_gets_it() -> None:
    pod = template()
    pod["spec"]["containers"].insert(0, {"name": "log", "image": "log:1", "resources": {"limits": {GPU: 1}}})
    document = changed(v1alpha1(), "spec.replicaSpecs.0.template", pod)
    assert equipped(document)[0] == pod


def test_what_the_user_has_stays_and_twice_changes_nothing() -> None:
    own = [{"name": "LD_LIBRARY_PATH", "value": "/mine"}, {"name": "OTHER", "value": "1"}]
    document = job_with(resources={"limits": {GPU: 1}}, env=own)
    accelerators = parse_controller_config(CONFIG)
    job = with_accelerators(parse(document).job, accelerators)
    assert job.replica_specs[0].template["spec"]["containers"][0]["env"] == own
    assert with_accelerators(job, accelerators) == job


def test_jobs_of_other_formats_are_left_alone() -> None:
    place = "spec.tfReplicaSpecs.Worker.template.spec.containers.0.resources"
    job = parse(changed(v1(), place, {"limits": {GPU: 1}})).job
    assert with_accelerators(job, parse_controller_config(CONFIG)) is job


AZURE: Doc = {
    "grpcServerFilePath": "/opt/mlkube/grpc_tensorflow_server/grpc_tensorflow_server.py",
    "tfImage": "tensorflow/tensorflow:1.3.0",
    "accelerators": {
        "alpha.kubernetes.io/nvidia-gpu": {
            "volumes": [
                {"name": "lib", "mountPath": "/usr/local/nvidia/lib64", "hostPath": "/usr/lib/nvidia-384"},
                {"name": "bin", "mountPath": "/usr/local/nvidia/bin", "hostPath": "/usr/lib/nvidia-384/bin"},
            ]
        }
    },
}
VOLUMES = 'accelerators["a.b/gpu"].volumes'


@pytest.mark.parametrize(
    ("config", "resources"),
    [
        (AZURE, ["alpha.kubernetes.io/nvidia-gpu"]),
        ({}, []),
        ({"accelerators": None}, []),
        ({"accelerators": {"gpu": None}}, ["gpu"]),
        ({"accelerators": {"gpu": {"volumes": None}}}, ["gpu"]),
        ({"tfImage": "tensorflow/tensorflow:1.3.0"}, []),
        ({"Accelerators": {"gpu": {"Volumes": [{"Name": "a", "HostPath": "/a", "MountPath": "/b"}]}}}, ["gpu"]),
    ],
)
def test_files_of_the_original(config: Doc, resources: list[str]) -> None:
    assert list(parse_controller_config(config)) == resources


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ([], {"": "must be a mapping (key: value), not a list"}),
        ({"accelerator": {}}, {"accelerator": "unknown key"}),
        ({"accelerators": ["gpu"]}, {"accelerators": "must be a mapping (key: value), not a list"}),
        ({"accelerators": {"a.b/gpu": {"volume": []}}}, {'accelerators["a.b/gpu"].volume': "unknown key"}),
        (
            {"accelerators": {"a.b/gpu": {"volumes": [{"name": "a", "mountPath": 5}]}}},
            {
                f"{VOLUMES}[0].hostPath": "is required and missing",
                f"{VOLUMES}[0].mountPath": "must be text, not the number 5",
            },
        ),
        (
            {"accelerators": {"a.b/gpu": {"volumes": {}, "envVars": [{"name": "A", "value": 1}]}}},
            {
                VOLUMES: "must be a list (- item), not a mapping",
                'accelerators["a.b/gpu"].envVars[0].value': "must be text, not the number 1",
            },
        ),
    ],
)
def test_a_wrong_configuration_is_refused_with_every_reason(config: Any, expected: dict[str, str]) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_controller_config(config)
    assert {problem.path: problem.message for problem in caught.value.problems} == expected
