"""Against a real API server: set TF_DIST_TEST_KUBECONFIG to one that is yours to fill.

Nodes are objects without a machine behind them. Pods that are to stay unbound name a scheduler that does not exist.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark
from tf_dist.cli.manifests import definitions
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES, PODS, SERVICES, TFJOBS, Cluster, Object
from tf_dist.cluster.kube import load
from tf_dist.cluster.memory.resources import CRDS
from tf_dist.cluster.reflector import Reflector
from tf_dist.core.actions import Create, WriteStatus
from tf_dist.core.dialects import read
from tf_dist.core.gang.model import Admit
from tf_dist.core.observed import Observed
from tf_dist.core.reconcile import reconcile
from tf_dist.driver.lease import controller_name
from tf_dist.errors import AlreadyExists, NotFound

VARIABLE = "TF_DIST_TEST_KUBECONFIG"
SPACE = "tf-dist-benchmark"
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


def at_hand() -> bool:
    """Whether there is a server to measure against."""
    return bool(os.environ.get(VARIABLE))


@contextmanager
def prepared() -> Iterator[Cluster]:
    """The real cluster with the TFJob kind, sixty nodes, and an empty namespace."""
    with load(os.environ[VARIABLE]).cluster(connections=32) as cluster:
        with suppress(AlreadyExists):
            cluster.create(CRDS, None, definitions.tfjobs())
        until(lambda: _served(cluster))
        for number in range(60):
            _node(cluster, f"{SPACE}-{number}")
        with suppress(AlreadyExists):
            cluster.create(NAMESPACES, None, {"metadata": {"name": SPACE}})
            # As tf-dist install brings it: one that is missing is waited with.
            cluster.create(LEASES, SPACE, {"metadata": {"name": controller_name((SPACE,))}})
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
    """Pods on nodes without a machine end by nobody's hand but ours; a collector at work would disturb what follows."""
    kinds = (TFJOBS, PODS, SERVICES)
    with ThreadPoolExecutor(16) as pool:
        for kind in kinds:
            list(pool.map(partial(_delete, cluster, kind), cluster.list(kind, SPACE).items))
    until(lambda: not any(cluster.list(kind, SPACE, limit=1).items for kind in kinds))


def _delete(cluster: Cluster, kind: Any, stored: Object) -> None:
    with suppress(NotFound):
        cluster.delete(kind, SPACE, stored["metadata"]["name"], grace_period=0)


def until(condition: Callable[[], bool], seconds: float = 600) -> None:
    """Return when ``condition`` holds; TimeoutError."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {seconds:g} s")
        time.sleep(0.1)


class Controller:
    """``tf-dist controller`` as a process."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "tf_dist", "controller", "--kubeconfig", os.environ[VARIABLE]]
        command += ["--lease-namespace", SPACE, "--metrics-port", str(self.port), "--namespace", SPACE]
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
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident MiB."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

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
def _pods(cluster: Cluster) -> Iterator[Reflector]:
    """Names and nodes of the pods there are."""

    def keep(pod: Object) -> Object:
        return {"metadata": pod["metadata"], "node": pod["spec"].get("nodeName", "")}

    reflector = Reflector(cluster, PODS, namespace=SPACE, keep=keep, changed=lambda *_: None)
    reflector.start()
    try:
        yield reflector
    finally:
        reflector.stop()


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


@benchmark("api.gang8_unscheduled")
def created() -> Figure:
    """600 jobs of 8 pods, from the first submitted to the last pod made; no scheduler takes them up.

    The peer writes the same objects into the same server with the same client, and decides nothing.
    """
    with prepared() as cluster, _pods(cluster) as pods:
        begun = time.monotonic()
        _write_alike(cluster)
        until(lambda: len(pods.cache) >= JOBS * REPLICAS)
        bare = JOBS * REPLICAS / (time.monotonic() - begun)
    with prepared() as cluster, Controller() as controller, _pods(cluster) as pods:
        until(controller.leads)
        before, begun = controller.calls(), time.monotonic()
        _submit(cluster, JOBS, workers=REPLICAS - 1, scheduler="nobody")
        until(lambda: len(pods.cache) >= JOBS * REPLICAS)
        seconds = time.monotonic() - begun
        calls = {key: count - before.get(key, 0) for key, count in controller.calls().items()}
    print("  calls per job: " + ", ".join(f"{key} {count / JOBS:.2f}" for key, count in sorted(calls.items()) if count))
    rate = JOBS * REPLICAS / seconds
    peer = f"the same writes by 16 threads, no driver: {bare:.0f} pods/s ({rate / bare:.2f} of it)"
    return Figure(rate, "pods/s", target=700, at_least=True, peer=peer)


def _write_alike(cluster: Cluster) -> None:
    """What a driver writes for these jobs: one status, one service and the pods of each."""

    def write(number: int) -> None:
        stored = cluster.create(TFJOBS, SPACE, job_of(number, workers=REPLICAS - 1, scheduler="nobody"))
        plan = reconcile(read(stored), Observed(now=time.time(), verdict=Admit()))
        for action in plan.actions:
            if isinstance(action, WriteStatus):
                body = {**stored, "status": action.status}
                cluster.replace(TFJOBS, SPACE, stored["metadata"]["name"], body, subresource="status")
            elif isinstance(action, Create):
                cluster.create(PODS if action.body["kind"] == "Pod" else SERVICES, SPACE, action.body)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(JOBS)))


@benchmark("api.gang8_scheduled")
def scheduled() -> Figure:
    """The same with the cluster's scheduler: how much sooner the last pod is made than the last one bound."""
    with prepared() as cluster, Controller() as controller, _pods(cluster) as pods:
        until(controller.leads)
        begun = time.monotonic()
        _submit(cluster, JOBS, workers=REPLICAS - 1, scheduler="default-scheduler")
        until(lambda: len(pods.cache) >= JOBS * REPLICAS)
        made = time.monotonic() - begun
        until(lambda: all(pod["node"] for pod in pods.items()))
        bound = time.monotonic() - begun
    count = JOBS * REPLICAS
    return Figure(bound / made, "ratio", target=1, at_least=True, peer=f"kube-scheduler: {count / bound:.0f} pods/s")


@benchmark("api.idle_1000_jobs")
def idle() -> Figure:
    """Percent of a core that a controller takes while 1,000 jobs of 3 pods run and nothing happens."""
    with prepared() as cluster, Controller() as controller, _pods(cluster) as pods:
        until(controller.leads)
        _submit(cluster, 1000, workers=2, scheduler="nobody")
        until(lambda: len(pods.cache) >= 3000)
        _run(cluster, pods)
        until(lambda: all(_phase(job) == "Running" for job in cluster.list(TFJOBS, SPACE).items))
        time.sleep(15)  # what was gathered is written
        writes, cpu = controller.calls(), controller.cpu()
        time.sleep(60)
        used = (controller.cpu() - cpu) / 60 * 100
        after = controller.calls()
        extra = {key: n - writes.get(key, 0) for key, n in after.items() if n != writes.get(key, 0)}
        print(f"  requests in a minute: {extra}; resident: {controller.memory():.0f} MiB (<= 250)")
    return Figure(used, "% of a core", target=1)


def _run(cluster: Cluster, pods: Reflector) -> None:
    def run(pod: Object) -> None:
        cluster.patch(PODS, SPACE, pod["metadata"]["name"], {"status": RUNNING}, subresource="status")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, pods.items()))


def _phase(job: Object) -> str:
    return str(((job.get("status") or {}).get("tfDist") or {}).get("phase", ""))


@benchmark("api.failover")
def failover() -> Figure:
    """A controller is killed; seconds until the next replica makes a pod for a job that came meanwhile."""
    with ExitStack() as stack:
        cluster = stack.enter_context(prepared())
        pods = stack.enter_context(_pods(cluster))
        first = stack.enter_context(Controller())
        until(first.leads)
        stack.enter_context(Controller())
        _submit(cluster, 1, workers=2, scheduler="nobody")
        until(lambda: len(pods.cache) == 3)
        first.kill()
        begun = time.monotonic()
        cluster.create(TFJOBS, SPACE, job_of(99, workers=2, scheduler="nobody"))
        until(lambda: len(pods.cache) == 6)
        seconds = time.monotonic() - begun
    return Figure(seconds, "s", target=20)
