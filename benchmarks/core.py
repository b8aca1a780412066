"""The decisions: one steady job, and a full pass of a driver over a thousand."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark, median_seconds
from tf_dist.cluster.api import NODES, PODS, TFJOBS
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.core import render
from tf_dist.core.dialects import parse
from tf_dist.core.gang.model import Admit
from tf_dist.core.model import Job
from tf_dist.core.observed import Observed, pod_view
from tf_dist.core.reconcile import reconcile
from tf_dist.core.status_codec import load_status
from tf_dist.driver.controller import collect_rarely
from tf_dist.driver.loop import Driver

NOW = 1_800_000_000.0
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "startTime": "2027-01-15T08:00:00Z",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "tensorflow", "state": {"running": {}}, "restartCount": 0}],
}


def _steady(job: Job) -> Observed:
    """A job all of whose replicas run, and whose status says so."""
    bodies = [render.pod(job, replica, "1.0.0") for replica in job.replicas]
    views = [pod_view({**body, "status": RUNNING}, "tensorflow") for body in bodies]
    objects = {("Service", name): body for name, body in render.services(job).items()}
    seen = Observed(now=NOW, pods=tuple(v for v in views if v), objects=objects, verdict=Admit())
    plan = reconcile(job, seen)
    status: Any = plan.actions[0]
    return Observed(now=NOW + 1, stored_status=status.status, pods=seen.pods, objects=objects, verdict=Admit())


@benchmark("reconcile.steady")
def one_steady_job() -> Figure:
    """``reconcile`` of one job of 2 parameter servers and 4 workers in which nothing happens."""
    job = parse(tfjob("steady", ps=2, workers=4)).job
    observed = _steady(job)
    status = load_status(observed.stored_status)
    assert not reconcile(job, observed, status).actions
    seconds = median_seconds(lambda: reconcile(job, observed, status), number=2000)
    return Figure(seconds * 1e6, "us", target=100)


@benchmark("driver.pass_1000_jobs")
def a_full_pass() -> Figure:
    """A driver's pass over 1,000 jobs of 6 replicas that all run: list, admit, reconcile; nothing is written."""
    cluster = MemoryCluster(clock=lambda: NOW)
    room = {"cpu": "100000", "memory": "100Ti", "pods": "100000"}
    cluster.create(NODES, None, {"metadata": {"name": "n"}, "status": {"allocatable": room}})
    for number in range(1000):
        cluster.create(TFJOBS, "default", tfjob(f"job-{number:04}", ps=2, workers=4))
    driver = Driver(cluster, clock=lambda: NOW)
    driver.step()
    for pod in cluster.list(PODS).items:
        name = pod["metadata"]["name"]
        cluster.bind("default", name, "n")
        bound = cluster.get(PODS, "default", name)
        cluster.replace(PODS, "default", name, {**bound, "status": RUNNING}, subresource="status")
    while driver.step():
        pass
    before = cluster.list(TFJOBS).resource_version
    seconds = median_seconds(driver.step)
    assert cluster.list(TFJOBS).resource_version == before
    return Figure(seconds, "s", target=0.15)


@benchmark("driver.cold_start")
def cold_start() -> Figure:
    """A driver starts beside 10,000 running jobs of 8 pods; seconds until it has decided about one that waits."""
    cluster = MemoryCluster(clock=lambda: NOW, history=1000)
    for number in range(100):
        room = {"cpu": "1000", "memory": "10Ti", "pods": "1000"}
        cluster.create(NODES, None, {"metadata": {"name": f"n{number}"}, "status": {"allocatable": room}})
    for number in range(10_000):
        job = tfjob(f"job-{number:05}", ps=1, workers=7)
        job["metadata"]["annotations"] = {"tf-dist.dev/services": "per-job"}
        cluster.create(TFJOBS, "default", job)
    first = Driver(cluster, clock=lambda: NOW)
    first.step()
    for at, pod in enumerate(cluster.list(PODS).items):
        name = pod["metadata"]["name"]
        cluster.bind("default", name, f"n{at % 100}")
        bound = cluster.get(PODS, "default", name)
        cluster.replace(PODS, "default", name, {**bound, "status": RUNNING}, subresource="status")
    first.step()
    assert len(cluster.list(PODS).items) == 80_000
    cluster.create(TFJOBS, "default", tfjob("new"))
    driver = Driver(cluster, clock=lambda: NOW)
    collect_rarely()
    begun = time.monotonic()
    driver.start()
    try:
        while not cluster.get(TFJOBS, "default", "new").get("status"):
            time.sleep(0.01)
        return Figure(time.monotonic() - begun, "s", target=8)
    finally:
        driver.stop()
