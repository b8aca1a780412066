"""Against a real API server: set TF_DIST_TEST_KUBECONFIG to one that is yours to fill.

Nodes are objects without a machine behind them. Pods that are to stay unbound name a scheduler that does not exist.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.jobs import tfjob
from benchmarks.measure import Measured, Row, Target, benchmark, cpu_seconds, in_turn, resident_mib, until
from tf_dist.cluster.api import NAMESPACES, NODES, PODS, SERVICES, TFJOBS, Cluster, Object
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.client_config import load_config
from tf_dist.cluster.client.event_recorder import EventRecorder
from tf_dist.cluster.client.informer import Informer
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.context import Create, EmitEvent, Observed, WriteStatus
from tf_dist.core.model.job import Job
from tf_dist.core.model.status import Status
from tf_dist.core.reconciler.accepted_spec import read_stored_spec
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.errors import AlreadyExists, NotFound
from tools.definitions import crds

VARIABLE = "TF_DIST_TEST_KUBECONFIG"
SPACE = "tf-dist-benchmark"
_WRITES = ("create", "update", "patch", "delete")
NO_SCHEDULER = "none"
"""A scheduler that does not exist."""
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "startTime": "2026-01-15T08:00:00Z",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {
            "name": "tensorflow",
            "image": "tf",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-15T08:00:00Z"}},
        }
    ],
}


def no_server() -> str:
    """What is missing to measure against a real server."""
    return "" if os.environ.get(VARIABLE) else f"it needs an API server: set {VARIABLE}"


@contextmanager
def prepared() -> Iterator[Cluster]:
    """The real cluster with the TFJob kind, sixty nodes, and an empty namespace."""
    with load_config(os.environ[VARIABLE]).cluster(connections=32) as cluster:
        with suppress(AlreadyExists):
            cluster.create(CRDS, None, crds.tfjobs())
        until(lambda: _served(cluster))
        for number in range(60):
            _node(cluster, f"{SPACE}-{number}")
        with suppress(AlreadyExists):
            cluster.create(NAMESPACES, None, {"metadata": {"name": SPACE}})
        try:
            yield cluster
        finally:
            _empty(cluster)


def _served(cluster: Cluster) -> bool:
    try:
        cluster.list(TFJOBS, SPACE)
    except NotFound:
        return False
    return True


def _node(cluster: Cluster, name: str) -> None:
    room = {"cpu": "1000", "memory": "1000Gi", "pods": "1000"}
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
    with suppress(AlreadyExists):
        cluster.create(NODES, None, {"metadata": {"name": name}})
    cluster.patch(NODES, None, name, {"status": status}, subresource="status")


def _empty(cluster: Cluster) -> None:
    """Pods on nodes without a machine end only by this benchmark; a collector at work would disturb what follows."""
    kinds = (TFJOBS, PODS, SERVICES)
    with ThreadPoolExecutor(16) as pool:
        for kind in kinds:
            list(pool.map(partial(_delete, cluster, kind), cluster.list(kind, SPACE).items))
    until(lambda: not any(cluster.list(kind, SPACE, limit=1).items for kind in kinds))


def _delete(cluster: Cluster, kind: Any, stored: Object) -> None:
    with suppress(NotFound):
        cluster.delete(kind, SPACE, stored["metadata"]["name"], grace_period=0)


class Controller:
    """``tf-dist controller`` as a process."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "tf_dist", "controller", "--kubeconfig", os.environ[VARIABLE]]
        command += ["--metrics-port", str(self.port), "--namespace", SPACE]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(self.ready)

    def ready(self) -> bool:
        """Whether it follows the cluster."""
        try:
            return bool(self._get("/readyz"))
        except OSError:
            return False

    def leads(self) -> bool:
        """Whether it is the one that drives."""
        return "tf_dist_leading 1.0" in self._get("/metrics")

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def calls(self) -> dict[str, int]:
        """Requests so far by verb and kind."""
        found: dict[str, int] = {}
        for line in self._get("/metrics").splitlines():
            if line.startswith("tf_dist_api_calls_total{"):
                labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
                key = f"{labels['verb']} {labels['resource']}".replace('"', "")
                found[key] = found.get(key, 0) + int(float(line.rsplit(" ", 1)[1]))
        return found

    def cpu(self) -> float:
        """Processor seconds so far."""
        return cpu_seconds(self.process.pid)

    def memory(self) -> float:
        """Resident MiB."""
        return resident_mib(self.process.pid)

    def kill(self) -> None:
        """As a node does that loses its power."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def _pods(cluster: Cluster) -> Iterator[Informer]:
    """Names and nodes of the pods there are."""

    def keep(pod: Object) -> Object:
        return {"metadata": pod["metadata"], "node": pod["spec"].get("nodeName", "")}

    informer = Informer(cluster, PODS, namespace=SPACE, keep=keep, changed=lambda *_: None)
    informer.start()
    try:
        yield informer
    finally:
        informer.stop()


def job_of(number: int, *, workers: int, scheduler: str) -> Object:
    """A job with one parameter server, whose pods are for ``scheduler``."""
    job = tfjob(f"job-{number:05}", ps=1, workers=workers)
    job["metadata"] = {"name": job["metadata"]["name"], "annotations": {"tf-dist.dev/services": "per-job"}}
    for spec in job["spec"]["tfReplicaSpecs"].values():
        spec["template"] = {"spec": {**spec["template"]["spec"], "schedulerName": scheduler}}
    return job


def _submit(cluster: Cluster, count: int, *, workers: int, scheduler: str) -> None:
    jobs = (job_of(number, workers=workers, scheduler=scheduler) for number in range(count))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: cluster.create(TFJOBS, SPACE, job), jobs))


JOBS, REPLICAS = 600, 8
PODS_ALL = JOBS * REPLICAS
_BARE = "the same objects, by 16 threads and no driver"
EVENTS = "create events"
_IN_TURN = "The peer, one process where ours are two, follows the same kinds and writes as many events; both in turn."
_EVENT = EmitEvent("Normal", "Admitted", "all replicas are admitted")


@dataclass(frozen=True, slots=True)
class _Driven:
    """Seconds from the first job submitted to the last pod made, and to the last one bound; what that took by then."""

    made: float
    bound: float
    events: int
    cpu: float  # milliseconds of the controller, a job
    calls: str  # requests, a job


def _driven(scheduler: str) -> _Driven:
    with prepared() as cluster, Controller() as controller, _pods(cluster) as pods:
        until(controller.leads)
        before, cpu, begun = controller.calls(), controller.cpu(), time.monotonic()
        _submit(cluster, JOBS, workers=REPLICAS - 1, scheduler=scheduler)
        made, bound = _seen(pods, begun, bound=scheduler != NO_SCHEDULER)
        cpu = (controller.cpu() - cpu) / JOBS * 1e3
        calls = {key: count - before.get(key, 0) for key, count in controller.calls().items()}
    told = ", ".join(f"{key} {count / JOBS:.2f}" for key, count in sorted(calls.items()) if count)
    return _Driven(made, bound, calls.get(EVENTS, 0), cpu, f"Requests a job: {told}.")


def _written(scheduler: str, events: int) -> tuple[float, float]:
    """The same when the same objects are written, with so many events, by threads that decide nothing."""
    with prepared() as cluster, followed(cluster), _pods(cluster) as pods:
        begun = time.monotonic()
        _write_alike(cluster, scheduler, events)
        return _seen(pods, begun, bound=scheduler != NO_SCHEDULER)


def _seen(pods: Informer, begun: float, *, bound: bool) -> tuple[float, float]:
    until(lambda: len(pods.cache) >= PODS_ALL)
    made = time.monotonic() - begun
    if bound:
        until(lambda: all(pod["node"] for pod in pods.items()))
    return made, time.monotonic() - begun


@contextmanager
def followed(cluster: Cluster) -> Iterator[None]:
    """A peer follows what a controller has to follow, too: the server has to send it, and the peer to read it."""
    with ExitStack() as stack:
        for kind in (TFJOBS, PODS, SERVICES):
            informer = Informer(cluster, kind, namespace=SPACE, changed=lambda *_: None)
            stack.callback(informer.stop)
            informer.start()
            until(informer.synced)
        yield


def placed(number: int, *, workers: int) -> Admit:
    """A verdict as a controller comes to it: all replicas of a job, on one of the nodes."""
    sizes = {"ps": 1, "worker": workers}
    node = f"{SPACE}-{number % 60}"
    return Admit(placement={type_: {node: count} for type_, count in sizes.items()}, sizes=sizes)


class Peer:
    """Writes what a controller would, and ``events`` of ``jobs`` jobs, without deciding anything."""

    def __init__(self, cluster: Cluster, *, jobs: int, events: int) -> None:
        self._cluster, self._jobs, self._count = cluster, jobs, events
        self._events = EventRecorder(cluster, time.time, "tf-dist", permission=lambda: math.inf)

    def write(self, number: int, stored: Object, job: Job, observed: Observed) -> None:
        """Everything for the job of that number, as it is ``observed`` now."""
        plan = reconcile(job, replace(observed, now=time.time(), stored_status=stored.get("status") or {}))
        for action in plan.actions:
            if isinstance(action, WriteStatus):
                body = {**stored, "status": action.status}
                self._cluster.replace(TFJOBS, SPACE, stored["metadata"]["name"], body, subresource="status")
            elif isinstance(action, Create):
                self._cluster.create(PODS if action.body["kind"] == "Pod" else SERVICES, SPACE, action.body)
        if number * self._count // self._jobs < (number + 1) * self._count // self._jobs:
            self._events.emit(TFJOBS, SPACE, stored, _EVENT)


def _write_alike(cluster: Cluster, scheduler: str, events: int) -> None:
    """What a controller writes for these jobs: one status, one service and the pods of each, and some events."""
    peer = Peer(cluster, jobs=JOBS, events=events)

    def write(number: int) -> None:
        stored = cluster.create(TFJOBS, SPACE, job_of(number, workers=REPLICAS - 1, scheduler=scheduler))
        reading = read_stored_spec(stored, Status())
        if reading.job is None:
            raise ValueError("the job of this benchmark is invalid")
        verdict = placed(number, workers=REPLICAS - 1)
        observed = Observed(now=0.0, verdict=verdict, accepted=reading.accepted)
        peer.write(number, stored, reading.job, observed)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(JOBS)))


@benchmark(
    Row(
        "api.gang8_unscheduled",
        "600 jobs of 8 pods and no scheduler: pods a second from the first job submitted to the last pod made.",
        "pods/s",
        better="higher",
        target=Target(0.9, of=_BARE),
    ),
    lacks=no_server,
)
def created() -> Measured:
    """The peer follows and writes the same, with the same client and server; its verdicts are made up."""
    ours, peers = in_turn(lambda: _driven(NO_SCHEDULER), lambda of: _written(NO_SCHEDULER, of.events)[0], pairs=3)
    cpu = statistics.median(one.cpu for one in ours)
    note = f"The controller: {cpu:.0f} ms of CPU time a job. {_IN_TURN} {ours[-1].calls}"
    return Measured([PODS_ALL / one.made for one in ours], {_BARE: [PODS_ALL / one for one in peers]}, note)


@benchmark(
    Row(
        "api.gang8_scheduled",
        "600 jobs of 8 pods and the cluster's scheduler: pods a second from the first job submitted to the last pod "
        "bound.",
        "pods/s",
        better="higher",
        target=Target(0.9, of=_BARE),
    ),
    lacks=no_server,
)
def scheduled() -> Measured:
    """Whether the driver holds the scheduler up: the peer's pods are all there as early as the server takes them."""
    of = "default-scheduler"
    ours, peers = in_turn(lambda: _driven(of), lambda driven: _written(of, driven.events)[1], pairs=2)
    note = f"The last pod was made after {ours[-1].made:.1f} s and bound after {ours[-1].bound:.1f} s. {_IN_TURN} "
    found = [PODS_ALL / one.bound for one in ours]
    return Measured(found, {_BARE: [PODS_ALL / one for one in peers]}, note + ours[-1].calls)


@benchmark(
    Row(
        "api.idle_1000_jobs",
        "The part of a core that a controller takes in a minute in which 1,000 jobs of 3 pods run and nothing happens.",
        "% of a core",
        target=Target(1.0),
    ),
    Row("api.idle_memory", "What it holds then.", "MiB", target=Target(250)),
    lacks=no_server,
)
def idle() -> dict[str, Measured]:
    """Measured at rest: once the controller has written nothing but Leases for 15 s. Events take a minute or two."""
    with prepared() as cluster, Controller() as controller, _pods(cluster) as pods:
        until(controller.leads)
        _submit(cluster, 1000, workers=2, scheduler=NO_SCHEDULER)
        until(lambda: len(pods.cache) >= 3000)
        _run(cluster, pods)
        until(lambda: all(_phase(job) == "Running" for job in cluster.list(TFJOBS, SPACE).items))
        until(_at_rest(controller))
        writes, cpu, begun = controller.calls(), controller.cpu(), time.monotonic()
        time.sleep(60)
        used = (controller.cpu() - cpu) / (time.monotonic() - begun) * 100
        extra = {key: n - writes.get(key, 0) for key, n in controller.calls().items() if n != writes.get(key, 0)}
        told = ", ".join(f"{key} {count}" for key, count in sorted(extra.items()))
        return {
            "api.idle_1000_jobs": Measured(used, note=f"Requests in that minute: {told}."),
            "api.idle_memory": Measured(controller.memory()),
        }


def _at_rest(controller: Controller) -> Callable[[], bool]:
    """Whether the controller has written nothing but Leases for 15 s."""
    seen: dict[str, float] = {}

    def at_rest() -> bool:
        calls = controller.calls()
        written = sum(count for key, count in calls.items() if key.split()[0] in _WRITES and "leases" not in key)
        if written != seen.get("written"):
            seen.update(written=written, at=time.monotonic())
        return time.monotonic() - seen["at"] >= 15

    return at_rest


def _run(cluster: Cluster, pods: Informer) -> None:
    def run(pod: Object) -> None:
        cluster.patch(PODS, SPACE, pod["metadata"]["name"], {"status": RUNNING}, subresource="status")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, pods.items()))


def _phase(job: Object) -> str:
    return str(((job.get("status") or {}).get("tfDist") or {}).get("phase", ""))


@benchmark(
    Row(
        "api.failover",
        "From the kill of a controller to the pods that the next replica makes for a job that came meanwhile.",
        "s",
        target=Target(20),
    ),
    lacks=no_server,
)
def failover() -> Measured:
    """Bounded by the Lease's 15 s, not by the machine."""
    with ExitStack() as stack:
        cluster = stack.enter_context(prepared())
        pods = stack.enter_context(_pods(cluster))
        first = stack.enter_context(Controller())
        until(first.leads)
        stack.enter_context(Controller())
        _submit(cluster, 1, workers=2, scheduler=NO_SCHEDULER)
        until(lambda: len(pods.cache) == 3)
        first.kill()
        begun = time.monotonic()
        cluster.create(TFJOBS, SPACE, job_of(99, workers=2, scheduler=NO_SCHEDULER))
        until(lambda: len(pods.cache) == 6)
        return Measured(time.monotonic() - begun)
