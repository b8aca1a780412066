"""Documents of each dialect as users write them, and helpers that change a document and return its errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tf_dist.core.dialects import parse
from tf_dist.errors import InvalidJob, Problem

Doc = dict[str, Any]


def template(**spec: Any) -> Doc:
    container = {
        "name": "tensorflow",
        "image": "registry.example/mnist:1.4",
        "command": ["python", "/app/train.py"],
        "args": ["--steps", "500"],
        "env": [
            {"name": "LOG_LEVEL", "value": "info"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 2, "memory": "2Gi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "mnist-data"}}]
    return {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {"containers": [container], "volumes": volumes, **spec},
    }


def v1() -> Doc:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "mnist", "namespace": "vision", "labels": {"app": "mnist"}},
        "spec": {
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 4,
                "activeDeadlineSeconds": 3600,
                "ttlSecondsAfterFinished": 600,
                "schedulingPolicy": {
                    "minAvailable": 3,
                    "queue": "research",
                    "priorityClass": "high",
                    "scheduleTimeoutSeconds": 120,
                },
            },
            "tfReplicaSpecs": {
                "Chief": {"replicas": 1, "restartPolicy": "ExitCode", "template": template()},
                "PS": {"replicas": 2, "restartPolicy": "OnFailure", "template": template()},
                "Worker": {"replicas": 3, "restartPolicy": "Never", "template": template()},
            },
        },
    }


def v1alpha1() -> Doc:
    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": {"name": "example-job"},
        "spec": {
            "replicaSpecs": [
                {"replicas": 1, "tfReplicaType": "MASTER", "template": template(restartPolicy="OnFailure")},
                {"replicas": 2, "tfReplicaType": "WORKER", "template": template(restartPolicy="OnFailure")},
                {"replicas": 1, "tfReplicaType": "PS"},
            ]
        },
    }


def volcano() -> Doc:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "tf-dist-mnist", "namespace": "vision"},
        "spec": {
            "minAvailable": 3,
            "schedulerName": "volcano",
            "plugins": {"env": [], "svc": []},
            "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
            "queue": "default",
            "tasks": [
                {"name": "ps", "replicas": 1, "template": template(restartPolicy="Never")},
                {
                    "name": "worker",
                    "replicas": 2,
                    "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
                    "template": template(restartPolicy="Never"),
                },
            ],
        },
    }


ALL = (v1, v1alpha1, volcano)


def changed(document: Doc, path: str, value: Any) -> Doc:
    """A copy with the value under a path such as ``spec.tasks.0.name``; ``...`` removes the key."""
    result = copy.deepcopy(document)
    here: Any = result
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in way:
        here = here.setdefault(part, {}) if isinstance(here, dict) else here[part]
    if value is ...:
        del here[last]
    else:
        here[last] = value
    return result


def errors(document: Any, **options: Any) -> list[Problem]:
    with pytest.raises(InvalidJob) as caught:
        parse(document, **options)
    return list(caught.value.problems)


def only_error(document: Any) -> Problem:
    found = errors(document)
    assert len(found) == 1, found
    return found[0]


def warnings(document: Any) -> list[Problem]:
    return list(parse(document).warnings)


def paths(problems: list[Problem]) -> list[str]:
    return [problem.path for problem in problems]


def merged(document: Any, patch: Any) -> Any:
    """Applies a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
