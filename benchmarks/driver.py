"""The decision for one steady job, a driver's pass over a thousand, and its start beside ten thousand."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from benchmarks.jobs import NODE, TEMPLATE, Copies, tfjob
from benchmarks.measure import Measured, Row, Target, benchmark, rounds, until
from tf_dist.cluster.api import NODES, PODS, SERVICES, TFJOBS, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.manager import tune_garbage_collector
from tf_dist.core.dialects import parse
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.context import Observed
from tf_dist.core.model.job import Job
from tf_dist.core.model.pods import pod_view
from tf_dist.core.model.status import Status
from tf_dist.core.model.status_codec import load_status
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.core.reconciler.reconcile import reconcile

NOW = 1_800_000_000.0
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "startTime": "2027-01-15T08:00:00Z",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "tensorflow", "state": {"running": {}}, "restartCount": 0}],
}
_DECODED = "json.loads of the job and its pods"
_ALONE = "reconcile of each job alone"
_LISTS = "json.loads of all that is listed"


def _steady() -> tuple[Job, Observed, Status, list[Object]]:
    """A job all of whose replicas run, and whose status says so; and its objects."""
    document = tfjob("steady", ps=2, workers=4)
    job = parse(document).job
    bodies = [{**replica_pod.build_pod(job, replica, "1.0.0"), "status": RUNNING} for replica in job.replicas]
    views = [pod_view(body, "tensorflow") for body in bodies]
    objects = {key: make() for key, make in services.job_objects(job).items()}
    seen = Observed(now=NOW, pods=tuple(v for v in views if v), objects=objects, verdict=Admit())
    written: Any = reconcile(job, seen).actions[0]
    observed = Observed(now=NOW + 1, stored_status=written.status, pods=seen.pods, objects=objects, verdict=Admit())
    return job, observed, load_status(observed.stored_status), [{**document, "status": written.status}, *bodies]


@benchmark(
    Row(
        "reconcile.steady",
        "One call of `reconcile` for a job of 2 parameter servers and 4 workers, all running, that has nothing to do.",
        "us",
        target=Target(4.0, of=_DECODED),
    )
)
def one_steady_job() -> Measured:
    """The peer is what any client pays to read these objects. The target was set as 100 us, where it took some 25."""
    job, observed, status, objects = _steady()
    assert not reconcile(job, observed, status).actions
    texts = [json.dumps(one) for one in objects]
    samples = rounds(lambda: reconcile(job, observed, status), number=2000, scale=1e6, clock=time.thread_time)
    peer = rounds(lambda: [json.loads(text) for text in texts], number=500, scale=1e6, clock=time.thread_time)
    return Measured(samples, {_DECODED: peer})


def _run_all(cluster: MemoryCluster, nodes: list[str]) -> None:
    """Bind every pod to the nodes in turn, and run it."""
    for at, pod in enumerate(cluster.list(PODS).items):
        name = pod["metadata"]["name"]
        cluster.bind("default", name, nodes[at % len(nodes)])
        bound = cluster.get(PODS, "default", name)
        cluster.replace(PODS, "default", name, {**bound, "status": RUNNING}, subresource="status")


def _come_to_rest(driver: Controller) -> None:
    """So many passes as it takes: only some hundred gangs are admitted in one."""
    while driver.step():
        pass


@benchmark(
    Row(
        "driver.pass_1000_jobs",
        "A driver's pass over 1,000 jobs of 6 replicas that all run: list, admit, reconcile; nothing is to be written.",
        "ms",
        target=Target(3.0, of=_ALONE),
    )
)
def a_full_pass() -> Measured:
    """The peer is ``reconcile.steady`` a thousand times."""
    cluster = MemoryCluster(clock=lambda: NOW)
    room = {"cpu": "100000", "memory": "100Ti", "pods": "100000"}
    cluster.create(NODES, None, {"metadata": {"name": "n"}, "status": {"allocatable": room}})
    for number in range(1000):
        cluster.create(TFJOBS, "default", tfjob(f"job-{number:04}", ps=2, workers=4))
    # Both clocks stand: if only one went on, that would mean that the other had been set.
    driver = Controller(cluster, clock=lambda: NOW, monotonic=lambda: 0.0)
    _come_to_rest(driver)
    _run_all(cluster, ["n"])
    _come_to_rest(driver)
    phases = Counter(job["status"]["tfDist"]["phase"] for job in cluster.list(TFJOBS).items)
    assert phases == {"Running": 1000}, phases
    before = cluster.list(TFJOBS).resource_version
    samples = rounds(driver.step, scale=1e3, clock=time.thread_time)
    assert cluster.list(TFJOBS).resource_version == before, "something was written"
    job, observed, status, _ = _steady()
    again = range(1000)
    alone = rounds(lambda: [reconcile(job, observed, status) for _ in again], scale=1e3, clock=time.thread_time)
    return Measured(samples, {_ALONE: alone})


@benchmark(
    Row(
        "driver.cold_start",
        "From a driver's start beside 10,000 running jobs of 8 pods to a status of a job that waits for its decision.",
        "s",
        target=Target(4.0, of=_LISTS),
    )
)
def cold_start() -> Measured:
    """One run. The peer decodes the same objects, as a client that lists them has to; this driver need not."""
    tune_garbage_collector()
    journal = Copies("job", 10_000, nodes=100)
    with MemoryCluster(clock=lambda: NOW, journal=journal, uids=journal.uids) as small:
        room = {"cpu": "1000", "memory": "10Ti", "pods": "1000"}
        small.create(NODES, None, {"metadata": {"name": NODE}, "status": {"allocatable": room}})
        job = tfjob(TEMPLATE, ps=1, workers=7)
        job["metadata"]["annotations"] = {"tf-dist.dev/services": "per-job"}
        small.create(TFJOBS, "default", job)
        first = Controller(small, clock=lambda: NOW, monotonic=lambda: 0.0)
        _come_to_rest(first)
        _run_all(small, [NODE])
        _come_to_rest(first)
    cluster = MemoryCluster(clock=lambda: NOW, journal=journal, history=1000)
    assert len(cluster.list(PODS).items) == 80_000
    cluster.create(TFJOBS, "default", tfjob("new"))
    driver = Controller(cluster, clock=lambda: NOW)
    begun = time.perf_counter()
    driver.start()
    try:
        until(lambda: bool(cluster.get(TFJOBS, "default", "new").get("status")), every=0.01)
        seconds = time.perf_counter() - begun
    finally:
        driver.stop()
    texts = [json.dumps(one) for kind in (TFJOBS, PODS, SERVICES) for one in cluster.list(kind).items]
    begun = time.perf_counter()
    decoded = [json.loads(text) for text in texts]
    assert len(decoded) > 100_000, f"only {len(decoded)} objects"
    return Measured(seconds, {_LISTS: time.perf_counter() - begun})
