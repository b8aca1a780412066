"""Checks of pod templates, with the path of each mistake.

The lists of known keys are those of Kubernetes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.dialects.documents import changed, only_error, paths, template, v1, v1alpha1, warnings
from tf_dist.core.dialects import parse
from tf_dist.core.openapi.kubernetes_types import fields_of

AT = "spec.tfReplicaSpecs.Chief.template"
C = f"{AT}.spec.containers[0]"


def with_template(value: Any) -> dict[str, Any]:
    return changed(v1(), AT, value)


def with_container(**keys: Any) -> dict[str, Any]:
    pod = template()
    pod["spec"]["containers"][0] |= keys
    return with_template(pod)


def with_sidecar(**keys: Any) -> dict[str, Any]:
    pod = template()
    pod["spec"]["containers"].append({"name": "sidecar", "image": "log:1", **keys})
    return with_template(pod)


@pytest.mark.parametrize(
    ("container", "path", "message", "hint"),
    [
        ({"comand": ["x"]}, f"{C}.comand", "unknown key", "did you mean command?"),
        ({"Image": "x"}, f"{C}.Image", "unknown key", "did you mean image?"),
        ({"image": None}, f"{C}.image", "is required and missing", ""),
        ({"image": ""}, f"{C}.image", "is required and missing", ""),
        ({"image": "a b"}, f"{C}.image", "an image name has no blanks in it", ""),
        ({"image": 2}, f"{C}.image", "must be text, not the number 2", 'write it in quotes: "2"'),
        ({"command": "python x"}, f"{C}.command", "must be a list of texts, not one text", "- word"),
        ({"args": ["--steps", 5]}, f"{C}.args[1]", "must be text, not the number 5", 'write it in quotes: "5"'),
        ({"args": [True]}, f"{C}.args[0]", "must be text, not the boolean true", 'write it in quotes: "true"'),
        ({"args": [None]}, f"{C}.args[0]", "must be text, not nothing (null)", ""),
        ({"args": {"a": 1}}, f"{C}.args", "must be a list (- item), not a mapping", ""),
        ({"env": [{"name": "N", "value": 3}]}, f"{C}.env[0].value", "must be text, not the number 3", '"3"'),
        (
            {"env": [{"name": "N", "value": False}]},
            f"{C}.env[0].value",
            "must be text, not the boolean false",
            '"false"',
        ),
        ({"env": [{"value": "x"}]}, f"{C}.env[0].name", "is required and missing", ""),
        ({"env": [{"name": "N", "vlaue": "x"}]}, f"{C}.env[0].vlaue", "unknown key", "did you mean value?"),
        ({"env": {"N": "x"}}, f"{C}.env", "must be a list (- item), not a mapping", ""),
        ({"env": ["N=x"]}, f"{C}.env[0]", "must be a mapping (key: value), not the text 'N=x'", ""),
        ({"env": [{"name": "N=x"}]}, f"{C}.env[0].name", "'N=x': the name of a variable has no '='", "value:"),
        (
            {"env": [{"name": "N", "value": "x", "valueFrom": {"secretKeyRef": {}}}]},
            f"{C}.env[0]",
            "has both value and valueFrom",
            "keep one",
        ),
        ({"env": [{"name": "N", "valueFrom": {}}]}, f"{C}.env[0].valueFrom", "names exactly one source", ""),
        ({"env": [{"name": "N", "valueFrom": "x"}]}, f"{C}.env[0].valueFrom", "must be a mapping (key: value)", ""),
        ({"ports": [{"containerPort": 0}]}, f"{C}.ports[0].containerPort", "is not a port: the number 0", ""),
        ({"ports": [{"containerPort": 65536}]}, f"{C}.ports[0].containerPort", "is not a port", ""),
        ({"ports": [{"containerPort": "80"}]}, f"{C}.ports[0].containerPort", "not the text '80'", "80 without quotes"),
        ({"ports": [{"containerPort": True}]}, f"{C}.ports[0].containerPort", "must be a whole number", ""),
        ({"ports": [{"name": "x"}]}, f"{C}.ports[0].containerPort", "is required and missing", ""),
        ({"ports": [{"name": "HTTP", "containerPort": 80}]}, f"{C}.ports[0].name", "'HTTP' is not a port name", ""),
        (
            {"ports": [{"name": "a", "containerPort": 80}, {"name": "a", "containerPort": 81}]},
            f"{C}.ports[1].name",
            "a second port named 'a'",
            "",
        ),
        (
            {"volumeMounts": [{"name": "dta", "mountPath": "/x"}]},
            f"{C}.volumeMounts[0].name",
            "there is no volume 'dta'",
            "volumes of this pod: data",
        ),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/x"}, {"name": "data", "mountPath": "/x/"}]},
            f"{C}.volumeMounts[1].mountPath",
            "'/x/' is mounted twice in this container",
            "",
        ),
        (
            {"resources": {"limits": {"cpu": "2 cores"}}},
            f"{C}.resources.limits.cpu",
            "is not a quantity: the text '2 cores'",
            "500m",
        ),
        ({"resources": {"limits": {"cpu": True}}}, f"{C}.resources.limits.cpu", "is not a quantity", ""),
        ({"resources": {"limits": {"cpu": "-1"}}}, f"{C}.resources.limits.cpu", "must not be negative", ""),
        (
            {"resources": {"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 1}}},
            f'{C}.resources.requests["nvidia.com/gpu"]',
            "2 is requested, but the limit is 1",
            "may not exceed",
        ),
        ({"resources": {"limit": {"cpu": 1}}}, f"{C}.resources.limit", "unknown key", "did you mean limits?"),
        ({"resources": ["cpu"]}, f"{C}.resources", "must be a mapping (key: value), not a list", ""),
        ({"imagePullPolicy": "IfNotpresent"}, f"{C}.imagePullPolicy", "unknown value", "did you mean IfNotPresent?"),
        ({"workingDir": 7}, f"{C}.workingDir", "must be text", '"7"'),
    ],
)
def test_reports_mistake_in_container(container: dict[str, Any], path: str, message: str, hint: str):
    problem = only_error(with_container(**container))
    assert problem.path == path
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("spec", "path", "message", "hint"),
    [
        (
            {"restartPolicy": "Sometimes"},
            "restartPolicy",
            "unknown value 'Sometimes'",
            "known: Always, OnFailure, Never",
        ),
        ({"nodeSelector": {"gpu": True}}, "nodeSelector.gpu", "must be text, not the boolean true", '"true"'),
        ({"volume": []}, "volume", "unknown key", "did you mean volumes?"),
        ({"hostNetwork": "yes"}, "hostNetwork", "must be true or false, not the text 'yes'", ""),
        ({"schedulerName": 5}, "schedulerName", "must be text", '"5"'),
        ({"volumes": [{"name": "data"}, {"name": "data"}]}, "volumes[1].name", "a second volume named 'data'", ""),
        (
            {"volumes": [{"name": "data", "nfs": {}, "emptyDir": {}}]},
            "volumes[0]",
            "a volume can have only one source",
            "",
        ),
        ({"volumes": [{"name": "data", "emptydir": {}}]}, "volumes[0].emptydir", "unknown key", "emptyDir"),
        ({"volumes": {"data": {}}}, "volumes", "must be a list", ""),
        ({"initContainers": [{"name": "tensorflow", "image": "x"}]}, "containers[0].name", "a second container", ""),
        ({"initContainers": [{"name": "init"}]}, "initContainers[0].image", "is required and missing", ""),
        ({"initContainers": [{"name": 7, "image": "x"}]}, "initContainers[0].name", "must be text", '"7"'),
        ({"initContainers": [{"name": "Fetch_it", "image": "x"}]}, "initContainers[0].name", "lower-case", "fetch-it"),
    ],
)
def test_reports_mistake_in_pod(spec: dict[str, Any], path: str, message: str, hint: str):
    problem = only_error(with_template(template(**spec)))
    assert problem.path == f"{AT}.spec.{path}"
    assert message in problem.message
    assert hint in problem.hint


def test_container_without_name_is_reported_once():
    pod = template()
    pod["spec"]["containers"].append({"image": "x"})
    assert only_error(with_template(pod)).path == f"{AT}.spec.containers[1].name"


def test_labels_must_be_text():
    problem = only_error(with_template({**template(), "metadata": {"labels": {"version": 1.5}}}))
    assert (problem.path, problem.hint) == (f"{AT}.metadata.labels.version", 'write it in quotes: "1.5"')


@pytest.mark.parametrize("value", [7, "x", []])
def test_template_must_be_mapping(value: Any):
    assert only_error(with_template(value)).path == AT


@pytest.mark.parametrize("pod", [{}, {"spec": {}}, {"spec": {"containers": []}}, {"spec": {"containers": None}}])
def test_pod_needs_container(pod: dict[str, Any]):
    problem = only_error(with_template(pod))
    assert problem.path == (f"{AT}.spec.containers" if "spec" in pod else f"{AT}.spec")


@pytest.mark.parametrize("pod", [{"metadata": {"labels": {"a": "b"}}}, {"spec": {"nodeSelector": {"pool": "servers"}}}])
def test_standard_server_of_v1alpha1_has_its_own_container(pod: dict[str, Any]):
    server = parse(changed(v1alpha1(), "spec.replicaSpecs.2.template", pod)).job.replica_specs[2]
    assert (server.template, bool(server.server_image)) == (pod, True)


def test_reports_containers_outside_spec():
    problem = only_error(with_template(template()["spec"]))
    assert (problem.path, problem.hint) == (f"{AT}.spec", "move containers (and the keys next to it) under spec")


@pytest.mark.parametrize(
    ("one", "other"), [({}, {}), ({}, {"protocol": "TCP"}), ({"protocol": "UDP"}, {"protocol": "UDP"})]
)
def test_containers_of_pod_cannot_share_port(one: dict[str, Any], other: dict[str, Any]):
    document = with_sidecar(ports=[{"containerPort": 2222, **one}])
    ports = [{"name": "tfjob-port", "containerPort": 2222, **other}]
    document = changed(document, f"{AT}.spec.containers.0.ports", ports)
    problem = only_error(document)
    assert problem.path == f"{AT}.spec.containers[1].ports[0].containerPort"
    assert "'tensorflow'" in problem.message


def test_containers_may_share_port_with_different_protocols():
    document = with_sidecar(ports=[{"containerPort": 80, "protocol": "UDP"}])
    assert not warnings(changed(document, f"{AT}.spec.containers.0.ports", [{"containerPort": 80}]))


def test_unknown_key_without_similar_key_is_only_a_warning():
    """Kubernetes adds keys with every release."""
    found = warnings(with_container(quantumEntanglement=True))
    assert paths(found) == [f"{C}.quantumEntanglement"]


def test_warns_of_replicas_that_share_port_of_host_network():
    pod = template(hostNetwork=True)
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 2222}]
    document = changed(v1(), "spec.tfReplicaSpecs.Worker.template", pod)
    assert paths(warnings(document)) == ["spec.tfReplicaSpecs.Worker.template.spec.hostNetwork"]
    assert not warnings(with_template(pod)), "one chief has no other replica to share with"


# Next to the checkout, if it exists there.
SCHEMA = Path(__file__).parents[4] / "shared" / "argo" / "workflow-schema.json"
KINDS = (
    "PodSpec",
    "Container",
    "EnvVar",
    "EnvVarSource",
    "VolumeMount",
    "ContainerPort",
    "Volume",
    "ResourceRequirements",
    "PodTemplateSpec",
)


@pytest.mark.skipif(not SCHEMA.exists(), reason="needs Argo's copy of the Kubernetes API definitions")
def test_every_key_of_the_api_definitions_is_known():
    definitions = json.loads(SCHEMA.read_text())["definitions"]
    checked = 0
    for kind in KINDS:
        definition = definitions.get(f"io.k8s.api.core.v1.{kind}")
        if definition is not None:
            checked += 1
            assert set(definition["properties"]) <= fields_of(kind).keys(), kind
    assert checked >= 6


def test_every_key_of_the_python_client_is_known():
    client = pytest.importorskip("kubernetes.client")
    for kind in (*KINDS, "ObjectMeta"):
        model = getattr(client, f"V1{kind}")
        assert set(model.attribute_map.values()) <= fields_of(kind).keys(), kind
