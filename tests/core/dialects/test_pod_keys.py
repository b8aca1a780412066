"""The lists of known keys are those of Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tf_dist.core.dialects import pod_keys

# Beside the checkout, where there is one.
SCHEMA = Path(__file__).parents[4] / "shared" / "argo" / "workflow-schema.json"
KINDS = {
    "PodSpec": pod_keys.POD_SPEC,
    "Container": pod_keys.CONTAINER,
    "EnvVar": pod_keys.ENV,
    "EnvVarSource": pod_keys.ENV_SOURCE,
    "VolumeMount": pod_keys.MOUNT,
    "ContainerPort": pod_keys.PORT,
    "Volume": pod_keys.VOLUME,
    "ResourceRequirements": pod_keys.RESOURCES,
    "PodTemplateSpec": pod_keys.TEMPLATE,
}


@pytest.mark.skipif(not SCHEMA.exists(), reason="needs Argo's copy of the Kubernetes API definitions")
def test_every_key_of_the_api_definitions_is_known():
    definitions = json.loads(SCHEMA.read_text())["definitions"]
    checked = 0
    for kind, known in KINDS.items():
        definition = definitions.get(f"io.k8s.api.core.v1.{kind}")
        if definition is not None:
            checked += 1
            assert set(definition["properties"]) <= known, kind
    assert checked >= 6


def test_every_key_of_the_python_client_is_known():
    client = pytest.importorskip("kubernetes.client")
    for kind, known in {**KINDS, "ObjectMeta": pod_keys.METADATA}.items():
        model = getattr(client, f"V1{kind}")
        assert set(model.attribute_map.values()) <= known, kind
