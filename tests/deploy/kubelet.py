"""A test double of a kubelet, for nodes without a machine."""

from __future__ import annotations

from contextlib import suppress

from tests.controller.harness import running
from tf_dist.cluster.api import PODS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import NotFound


class Kubelet:
    """Writes what a kubelet would about the pods of one namespace."""

    def __init__(self, admin: RestCluster, namespace: str) -> None:
        self._admin = admin
        self._namespace = namespace

    def step(self, ends: dict[str, int]) -> None:
        """Start what is bound or can be, end pods with these exit codes (by the last part of their name), bury."""
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
        # What a real API server requires of a container's status, beside what the harness says of it.
        required = {"ready": True, "image": "", "imageID": ""}
        containers = [{**required, **one} for one in status["containerStatuses"]]
        status = {**status, "containerStatuses": containers}
        self._admin.patch(PODS, self._namespace, name, {"status": status}, subresource="status")
