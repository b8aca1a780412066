"""A test double of a kubelet, for simulated nodes."""

from __future__ import annotations

from contextlib import suppress

from tests.controller.harness import running
from tf_dist.cluster.api import PODS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import NotFound


class Kubelet:
    """Writes the statuses of the pods of a namespace, as a kubelet would."""

    def __init__(self, admin: RestCluster, namespace: str) -> None:
        self._admin = admin
        self._namespace = namespace

    def step(self, ends: dict[str, int]) -> None:
        """Start pending pods, end pods with these exit codes, and remove deleted pods.

        The keys of ``ends`` are parts of the names of pods.
        """
        for pod in self._admin.list(PODS, self._namespace).items:
            name, phase = pod["metadata"]["name"], (pod.get("status") or {}).get("phase", "Pending")
            with suppress(NotFound):
                if "deletionTimestamp" in pod["metadata"]:
                    self._admin.delete(PODS, self._namespace, name, grace_period=0)
                elif phase == "Pending":
                    self._write(name, running())
                elif phase == "Running" and (code := self._code(name, ends)) is not None:
                    self._end(name, code)

    @staticmethod
    def _code(name: str, ends: dict[str, int]) -> int | None:
        return next((ends.pop(part) for part in list(ends) if part in name), None)

    def _end(self, name: str, code: int) -> None:
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        ended = {"name": "tensorflow", "state": state, "restartCount": 0}
        self._write(name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]})

    def _write(self, name: str, status: Object) -> None:
        # Fields that a real API server requires in a container's status, in addition to those of the harness.
        required = {"ready": True, "image": "", "imageID": ""}
        containers = [{**required, **one} for one in status["containerStatuses"]]
        status = {**status, "containerStatuses": containers}
        self._admin.patch(PODS, self._namespace, name, {"status": status}, subresource="status")
