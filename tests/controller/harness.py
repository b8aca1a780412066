"""A controller on the embedded store. The test acts as the kubelet and moves the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable
from typing import Any, cast

from tf_dist.cluster.api import (
    EVENTS,
    JOB_KINDS,
    NODES,
    PODS,
    TFJOBS,
    VOLCANO_JOBS,
    Cluster,
    Object,
    Resource,
)
from tf_dist.cluster.apiserver.storage.api_resources import BUILTIN_KINDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.controller import Controller
from tf_dist.errors import TFDistError

START = 1_800_000_000.0


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


class RunningClock(Clock):
    """A clock that runs, and that a test can advance, for controllers with threads and their retries."""

    def __init__(self) -> None:
        self._ahead = START - time.monotonic()

    @property
    def now(self) -> float:  # type: ignore[override]  # tests add to it, as to the attribute of Clock
        return time.monotonic() + self._ahead

    @now.setter
    def now(self, now: float) -> None:
        self._ahead = now - time.monotonic()


def container(*command: str, cpu: str = "1") -> dict[str, Any]:
    return {
        "name": "tensorflow",
        "image": "tf",
        "command": list(command) or ["python", "train.py"],
        "resources": {"requests": {"cpu": cpu}},
    }


def replica(count: int, policy: str = "ExitCode", **fields: Any) -> dict[str, Any]:
    return {"replicas": count, "restartPolicy": policy, "template": {"spec": {"containers": [container()]}}, **fields}


def tfjob(name: str = "mnist", *, workers: int = 2, ps: int = 1, **policy: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", **policy},
            "tfReplicaSpecs": {"PS": replica(ps, "OnFailure"), "Worker": replica(workers)},
        },
    }


class World:
    """A cluster with one node, a controller, and methods that act as the kubelet."""

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        cpu: str = "8",
        lacks: Collection[Resource] = (),
        clock: Clock | None = None,
    ) -> None:
        """``lacks`` lists kinds that are not served until they are defined."""
        self.clock = clock or Clock()
        self.memory = MemoryCluster(clock=self.clock, kinds=[one for one in BUILTIN_KINDS if one.resource not in lacks])
        self.cluster: Cluster = cluster or self.memory
        node = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}}
        self.memory.create(NODES, None, node)
        self.memory.replace(NODES, None, "n1", {**self.memory.get(NODES, None, "n1"), **node}, subresource="status")
        self.controller = Controller(self.cluster, clock=self.clock, monotonic=self.clock)

    def submit(self, document: Object, resource: Resource = TFJOBS) -> Object:
        return self.memory.create(resource, "default", document)

    def settle(self, most: int = 50) -> int:
        """Run passes until nothing is left to do, and return their number."""
        for count in range(most):
            if self.controller.step() == 0:
                return count
        raise AssertionError(f"not settled after {most} passes: {self.describe()}")

    def run_job(self, document: Object, resource: Resource = TFJOBS) -> None:
        """Submit a job, and start its pods."""
        self.submit(document, resource)
        self.start_pods()

    def start_pods(self) -> None:
        """Settle, start all pending pods, and settle again."""
        self.settle()
        self.run_pods()
        self.settle()

    def remove_pods(self) -> None:
        """Settle, remove the pods that are being deleted, and settle again."""
        self.settle()
        self.bury()
        self.settle()

    def step_until(self, condition: Callable[[], bool], most: int = 50) -> None:
        for _ in range(most):
            if condition():
                return
            self.controller.step()
        raise AssertionError(self.describe())

    def pods(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self.memory.list(PODS, "default").items}

    def phases(self) -> dict[str, str]:
        return {name: pod.get("status", {}).get("phase", "") for name, pod in self.pods().items()}

    def job(self, name: str = "mnist", resource: Resource = TFJOBS) -> Object:
        return self.memory.get(resource, "default", name)

    def status(self, name: str = "mnist", resource: Resource = TFJOBS) -> dict[str, Any]:
        return dict(self.job(name, resource).get("status", {}).get("tfDist", {}))

    def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["message"]) for event in self.memory.list(EVENTS, "default").items]

    def run_pods(self, *names: str) -> None:
        """The kubelet has started these pods, or all pending pods if ``names`` is empty."""
        for name, pod in self.pods().items():
            if (name in names) if names else pod.get("status", {}).get("phase", "Pending") == "Pending":
                self.set_status(name, running())

    def end_pod(self, name: str, code: int) -> None:
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        phase = "Succeeded" if code == 0 else "Failed"
        containers = [{"name": "tensorflow", "state": state, "restartCount": 0}]
        self.set_status(name, {"phase": phase, "containerStatuses": containers})

    def set_status(self, name: str, status: dict[str, Any]) -> None:
        pod = self.memory.get(PODS, "default", name)
        if not pod["spec"].get("nodeName"):
            self.memory.bind("default", name, "n1")
            pod = self.memory.get(PODS, "default", name)
        self.memory.replace(PODS, "default", name, {**pod, "status": status}, subresource="status")

    def bury(self) -> None:
        """The kubelet has stopped every pod that is being deleted."""
        for name, pod in self.pods().items():
            if "deletionTimestamp" in pod["metadata"]:
                self.memory.delete(PODS, "default", name, grace_period=0)

    def evict(self, name: str) -> None:
        self.memory.delete(PODS, "default", name, grace_period=0)

    def describe(self) -> str:
        jobs = [*self.memory.list(TFJOBS).items, *self.memory.list(VOLCANO_JOBS).items]
        return f"{[job.get('status', {}).get('tfDist') for job in jobs]} {self.phases()} {self.events()}"


def running() -> dict[str, Any]:
    return {
        "phase": "Running",
        "startTime": "2027-01-15T08:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "tensorflow", "state": {"running": {}}, "restartCount": 0}],
    }


class Crash(BaseException):
    """The controller process dies here."""


class CrashingCluster:
    """Forwards every call, and dies right after the ``after``-th write has reached the server."""

    _WRITES = frozenset({"create", "replace", "patch", "delete"})

    def __init__(self, inner: Cluster) -> None:
        self._inner = inner
        self.writes = 0
        self.after: int | None = None

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._inner, verb)
        return self._counted(call) if verb in self._WRITES else call

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except TFDistError:
                raise
            finally:
                self.writes += 1
                if self.writes == self.after:
                    raise Crash

        return counted


def disturbed(inner: Cluster, before: Callable[..., object]) -> Cluster:
    """Forwards every call after ``before(verb, *arguments)``, which may raise an error."""

    class Wire:
        def __getattr__(self, verb: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                before(verb, *args, **kwargs)
                return getattr(inner, verb)(*args, **kwargs)

            return call

    return cast("Cluster", Wire())


class Hands:
    """A leadership that the test controls. It ends after ``left`` writes, or never if ``left`` is None."""

    def __init__(self) -> None:
        self.epoch = 0
        self.left: int | None = None
        self.led = frozenset(JOB_KINDS)
        self.changed: Callable[[], object] = lambda: None

    @property
    def term(self) -> Hashable:
        return (self.epoch, self.led) if self.kinds() else ()

    def kinds(self) -> frozenset[Resource]:
        return self.led if self.left is None or self.left > 0 else frozenset()

    def remaining(self, kind: Resource) -> float:
        """The controller calls this before each write."""
        if kind not in self.kinds():
            return 0.0
        if self.left is not None:
            self.left -= 1
        return math.inf

    def listen(self, listener: Callable[[], object]) -> None:
        self.changed = listener

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Counting:
    """Forwards every call, and records the names of the calls."""

    def __init__(self, inner: Cluster) -> None:
        self.inner = inner
        self.calls: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self.inner, verb)

        def counted(resource: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append(f"{verb} {resource.plural if isinstance(resource, Resource) else ''}".strip())
            return call(resource, *args, **kwargs)

        return counted


def queue(name: str, cpu: str, **spec: Any) -> Object:
    return {
        "apiVersion": "tf-dist.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"quotas": {"cpu": {"nominal": cpu}}, **spec},
    }


def queued(name: str, queue: str = "", priority_class: str = "", **fields: Any) -> Object:
    job = tfjob(name, **fields)
    policy = {"queue": queue, "priorityClass": priority_class}
    job["spec"]["runPolicy"]["schedulingPolicy"] = {key: value for key, value in policy.items() if value}
    return job
