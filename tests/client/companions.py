"""Small companion objects of a job."""

from __future__ import annotations

import base64
from typing import Any

from tf_dist.client.submission import create_companion
from tf_dist.client.yaml_files import YamlDocument
from tf_dist.cluster.api import Object

CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}


def config(word: str = "hello", **more: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"word": word}, **more}


def secret(word: str = "hello", **more: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "settings"},
        "stringData": {"word": word},
        **more,
    }


def put(cluster: Any, body: Object, owner: str = "digits", namespace: str = "default") -> str:
    return create_companion(cluster, YamlDocument("job.yaml", None, body, None), namespace, owner=owner)


def word_of(body: Object) -> str:
    word = body["data"]["word"]
    return (
        base64.b64decode(word).decode() if body.get("kind") == "Secret" or body.get("type") == "Opaque" else str(word)
    )
