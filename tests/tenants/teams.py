"""A team with its tenant, the node that runs its pods, and the controller's process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.cluster.support import wait_for
from tests.controller.harness import container, queue, replica, running, tfjob
from tests.waiting import until
from tf_dist.cluster.api import EVENTS, NAMESPACES, PODS, QUEUES, SERVICES, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.model import names
from tf_dist.errors import ClusterError, NotFound

LONG = 60
"""Seconds after which a test stops waiting."""
FINALIZER = "example.com/other"


class Controller:
    """The controller as a process, its log and its metrics."""

    def __init__(self, command: Sequence[str], kubeconfig: str, log: Path) -> None:
        self._command, self._log = [*command, f"--kubeconfig={kubeconfig}"], log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            until(lambda: not self.alive() or self._leads(), LONG)
            assert self.alive(), self.log()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(LONG)
        assert code == 0, self.log()

    def restart(self) -> None:
        """Restart the process as a rollout does. It lists everything again."""
        self.__exit__()
        self.__enter__()

    def alive(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text()

    def _leads(self) -> bool:
        with suppress(OSError):
            return self.metrics().get("tf_dist_leading") == 1
        return False

    def metrics(self) -> dict[str, float]:
        """The values of all series, or nothing before they are served."""
        port = re.search(r"started manager .*?port=(\d+)", self.log())
        if port is None:
            return {}
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=LONG) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (one.rpartition(" ") for one in lines if one[0] != "#")}

    def memory(self) -> int:
        """The resident memory in bytes."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


class Nodes:
    """A kubelet that starts bound pods in the namespaces of the teams, and removes deleted pods."""

    def __init__(self, admin: RestCluster, name: str) -> None:
        self.name = name
        self._admin = admin
        self._namespaces: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def serve(self, namespace: str) -> None:
        self._namespaces.add(namespace)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            with suppress(ClusterError):
                found = self._admin.list(PODS, None, fields=f"spec.nodeName={self.name}")
                for pod in found.items:
                    if pod["metadata"]["namespace"] in self._namespaces:
                        self._step(pod)

    def _step(self, pod: Object) -> None:
        place = PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]
        with suppress(ClusterError):
            if "deletionTimestamp" in pod["metadata"]:
                self._admin.delete(*place, grace_period=0)
            elif pod["status"].get("phase") == "Pending":
                self.report(pod, running())

    def report(self, pod: Object, status: Object) -> None:
        """Write the status of a pod as a kubelet does, with all fields that an API server requires."""
        required = {"ready": True, "image": "", "imageID": "", "restartCount": 0}
        containers = [{**required, **one} for one in status["containerStatuses"]]
        body = {"status": {**status, "containerStatuses": containers}}
        place = PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._admin.patch(*place, body, subresource="status")

    def end(self, pod: Object, code: int, message: str = "", reason: str = "") -> None:
        """End the only container of a pod."""
        state = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "message": message}
        ended = {"name": "tensorflow", "state": {"terminated": state}}
        self.report(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]})


class Team:
    """A namespace with a tenant (role ``edit``) and a queue for two CPUs. Tests read objects with ``admin``."""

    def __init__(self, admin: RestCluster, tenant: RestCluster, namespace: str, nodes: Nodes) -> None:
        self.admin, self.tenant, self.namespace, self.nodes = admin, tenant, namespace, nodes
        self.queue = f"queue-{namespace}"
        self.set_queue(cpu="2")

    def set_queue(self, cpu: str, **spec: Any) -> None:
        """Create or change the queue, which only this team may use."""
        own = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        body = queue(self.queue, cpu, namespaceSelector=own, **spec)
        try:
            self.admin.patch(QUEUES, None, self.queue, {"spec": body["spec"]})
        except NotFound:
            self.admin.create(QUEUES, None, body)

    def leave(self) -> None:
        """Delete all objects of the team. The namespace is removed later."""
        for job in self.admin.list(TFJOBS, self.namespace).items:
            if job["metadata"].get("finalizers"):
                with suppress(NotFound):
                    self.admin.patch(
                        TFJOBS, self.namespace, job["metadata"]["name"], {"metadata": {"finalizers": None}}
                    )
        self.admin.delete(NAMESPACES, None, self.namespace)
        self.admin.delete(QUEUES, None, self.queue)

    # Actions of the tenant

    def job(self, name: str = "mnist", *, workers: int = 2, cpu: str = "1", **policy: Any) -> Object:
        """A job in the team's queue, as users write it by hand."""
        policy = {"schedulingPolicy": {"queue": self.queue}, **policy}
        job = tfjob(name, **policy)
        template = {"spec": {"containers": [container(cpu=cpu)], "terminationGracePeriodSeconds": 0}}
        job["spec"]["tfReplicaSpecs"] = {"Worker": {**replica(workers), "template": template}}
        job["metadata"] = {"name": name}
        return job

    def submit(self, job: Object | str = "mnist", **options: Any) -> Object:
        body = self.job(job, **options) if isinstance(job, str) else job
        return self.tenant.create(TFJOBS, self.namespace, body)

    def patch(self, name: str, patch: Object, **options: Any) -> Object:
        return self.tenant.patch(TFJOBS, self.namespace, name, patch, **options)

    def delete(self, name: str, **options: Any) -> None:
        self.tenant.delete(TFJOBS, self.namespace, name, **options)

    # Stored objects

    def stored(self, name: str = "mnist") -> Object:
        return self.admin.get(TFJOBS, self.namespace, name)

    def memory(self, name: str = "mnist") -> Object:
        """The memory of a job."""
        return dict((self.stored(name).get("status") or {}).get("tfDist") or {})

    def reason(self, name: str = "mnist") -> str:
        return str(self.memory(name).get("reason", ""))

    def pods(self, job: str = "") -> dict[str, Object]:
        found = self.admin.list(PODS, self.namespace, labels=f"{names.JOB_NAME}={job}" if job else "").items
        return {pod["metadata"]["name"]: pod for pod in found}

    def services(self) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for one in self.admin.list(SERVICES, self.namespace).items}

    def events(self) -> list[Object]:
        return self.admin.list(EVENTS, self.namespace).items

    def used(self) -> str:
        """The used CPUs in the status of the queue."""
        return str((self.admin.get(QUEUES, None, self.queue).get("status") or {}).get("used", {}).get("cpu", "0"))

    # Waiting

    def until(self, condition: Callable[[], bool], about: str = "mnist") -> None:
        try:
            until(condition, LONG)
        except AssertionError as error:
            with suppress(NotFound):
                raise AssertionError(f"{error}: {self.memory(about)} {sorted(self.pods())}") from None
            raise

    def until_reason(self, reason: str, name: str = "mnist") -> None:
        self.until(lambda: self.reason(name) == reason, name)

    def until_running(self, name: str = "mnist") -> None:
        self.until(lambda: self.memory(name).get("phase") == "Running", name)

    def until_gone(self, name: str) -> None:
        wait_for(self.admin, TFJOBS, self.namespace, name, lambda job: job is None)

    def seconds_to_run(self, name: str) -> float:
        """The seconds from the creation of a job until its only pod exists. Deletes the job afterwards."""
        begun = time.monotonic()
        self.submit(name, workers=1)
        wait_for(self.admin, PODS, self.namespace, f"{name}-worker-0", lambda pod: pod is not None)
        taken = time.monotonic() - begun
        self.delete(name)
        wait_for(self.admin, PODS, self.namespace, f"{name}-worker-0", lambda pod: pod is None)
        return taken


def forged_pod(name: str, labels: dict[str, str], *, owner: Object | None = None, **spec: Any) -> Object:
    """A pod that a tenant writes by hand. ``owner`` is the job that it claims as its owner."""
    metadata: Object = {"name": name, "labels": labels}
    if owner is not None:
        whose = {key: owner["metadata"][key] for key in ("name", "uid")}
        kind = {key: owner[key] for key in ("apiVersion", "kind")}
        metadata["ownerReferences"] = [{**kind, **whose, "controller": True}]
    body = {"containers": [container()], "terminationGracePeriodSeconds": 0, **spec}
    return {"metadata": metadata, "spec": body}


def size(value: object) -> int:
    """The number of characters as JSON."""
    return len(json.dumps(value))
