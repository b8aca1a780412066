"""Job documents to measure with."""

from __future__ import annotations

from typing import Any


def tfjob(
    name: str, *, ps: int = 1, workers: int = 2, gpus: int = 0, command: list[str] | None = None
) -> dict[str, Any]:
    """A v1 TFJob whose containers run ``command``; each worker asks for ``gpus``."""

    def template(gpus: int = 0) -> dict[str, Any]:
        requests = {"cpu": "100m", "memory": "64Mi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        container = {
            "name": "tensorflow",
            "image": "tf",
            "command": command or ["python", "train.py"],
            "resources": {"requests": requests} | ({"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}),
        }
        return {"spec": {"containers": [container]}}

    replicas = {
        "PS": {"replicas": ps, "restartPolicy": "OnFailure", "template": template()},
        "Worker": {"replicas": workers, "restartPolicy": "ExitCode", "template": template(gpus)},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running"},
            "successPolicy": "AllWorkers",
            "tfReplicaSpecs": {type_: replica for type_, replica in replicas.items() if replica["replicas"]},
        },
    }
