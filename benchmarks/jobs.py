"""Job documents to measure with."""

from __future__ import annotations

from typing import Any


def tfjob(name: str, *, ps: int = 1, workers: int = 2, command: list[str] | None = None) -> dict[str, Any]:
    """A v1 TFJob whose containers run ``command``."""
    container = {
        "name": "tensorflow",
        "image": "tf",
        "command": command or ["python", "train.py"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running"},
            "successPolicy": "AllWorkers",
            "tfReplicaSpecs": {
                "PS": {"replicas": ps, "restartPolicy": "OnFailure", "template": template},
                "Worker": {"replicas": workers, "restartPolicy": "ExitCode", "template": template},
            },
        },
    }
