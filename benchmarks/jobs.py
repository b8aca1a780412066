"""Jobs to measure with: documents, and many copies of one that a driver has written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from tf_dist.cluster.api import Object
from tf_dist.cluster.apiserver.storage.store import Key

# What stands for the name of a job, the beginning of uids, and the name of a node in what is copied.
TEMPLATE: Final = "the-job-here"
NODE: Final = "the-node-here"
_UID: Final = "00badbad"


class Copies:
    """A journal that keeps what one cluster holds, and gives it to the next with all of ``TEMPLATE`` many times over.

    Give the first cluster ``uids``. Its node ``NODE`` is there ``nodes`` times, and the copies are spread over them.
    ``vary``: makes the JSON of a copy, by its number, other than that of the first, where it has to be.
    """

    def __init__(
        self, name: str, copies: int, *, nodes: int = 1, vary: Callable[[str, int], str] = lambda text, _: text
    ) -> None:
        self._name, self._copies, self._nodes, self._vary = name, copies, nodes, vary
        self._kept: dict[Key, Object] = {}
        self._version = 0
        self._numbers = count(1)

    def uids(self) -> str:
        """The next uid."""
        return f"{_UID}-0000-4000-8000-{next(self._numbers):012}"

    def write(self, key: Key, version: int, obj: Object | None) -> None:
        """Keep it."""
        self._version = version
        self._kept.pop(key, None)
        if obj is not None:
            self._kept[key] = obj

    def load(self) -> tuple[int, Iterator[tuple[Key, Object]]]:
        """All of it, with the copies; they have versions of their own."""
        found = dict(self._kept)
        return self._version + len(found) * self._copies, self._objects(found)

    def _objects(self, found: dict[Key, Object]) -> Iterator[tuple[Key, Object]]:
        version = self._version
        for key, obj in found.items():
            if TEMPLATE not in key.name and key.name != NODE:
                yield key, obj
                continue
            text, before = json.dumps(obj), f'"resourceVersion": "{obj["metadata"]["resourceVersion"]}"'
            for number in range(self._nodes if key.name == NODE else self._copies):
                name, node = f"{self._name}-{number:06}", f"node-{number % self._nodes:03}"
                version += 1
                copy = text.replace(before, f'"resourceVersion": "{version}"').replace(_UID, f"{number:08x}")
                copy = self._vary(copy, number)
                renamed = key._replace(name=key.name.replace(TEMPLATE, name).replace(NODE, node))
                yield renamed, json.loads(copy.replace(TEMPLATE, name).replace(NODE, node))

    def close(self) -> None:
        """Nothing to let go of."""


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
