"""Admission against a real API server: jobs that other drivers drive, so that nothing is written but verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.control_plane import SPACE, Controller, job_of, prepared, until
from benchmarks.measure import Figure, benchmark
from tf_dist.cluster.api import NODES, TFJOBS, Cluster, Object
from tf_dist.cluster.reflector import Reflector
from tf_dist.core import names
from tf_dist.core.actions import Emit, WriteStatus
from tf_dist.core.dialects import read
from tf_dist.core.gang.model import Admit
from tf_dist.core.observed import Observed
from tf_dist.core.reconcile import reconcile
from tf_dist.driver.events import EventWriter
from tf_dist.driver.lease import LeaseRef
from tf_dist.driver.tenure import Tenure

JOBS = 2000
OFFERED = 400  # jobs a second
_DRIVER = LeaseRef(SPACE, "tf-dist-of-the-benchmark")


class _Seen:
    """When each job was first seen with a place, by its name."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def note(self, _: Object | None, new: Object | None) -> None:
        """A job has changed."""
        if new is not None and ((new.get("status") or {}).get("tfDist") or {}).get("admission"):
            self.at.setdefault(new["metadata"]["name"], time.monotonic())


@contextmanager
def _scene() -> Iterator[tuple[Cluster, _Seen]]:
    """A cluster, a controller that decides for all, and a driver that lives and does nothing."""
    seen = _Seen()
    with ExitStack() as stack:
        cluster = stack.enter_context(prepared())
        tenure = Tenure(cluster, _DRIVER, shared=False)
        stack.callback(tenure.stop)
        tenure.start()
        until(tenure.valid)
        controller = stack.enter_context(Controller())
        until(controller.leads)
        reflector = Reflector(cluster, TFJOBS, namespace=SPACE, changed=seen.note)
        stack.callback(reflector.stop)
        reflector.start()
        _create(cluster, JOBS)  # it decides about this one before anything is measured
        until(lambda: f"job-{JOBS:05}" in seen.at)
        seen.at.clear()
        yield cluster, seen


def _create(cluster: Cluster, number: int) -> None:
    job = job_of(number, workers=2, scheduler="nobody")
    job["metadata"]["annotations"][names.DRIVER] = str(_DRIVER)
    cluster.create(TFJOBS, SPACE, job)


def _cordon(cluster: Cluster, *, cordoned: bool) -> None:
    for number in range(60):
        cluster.patch(NODES, None, f"{SPACE}-{number}", {"spec": {"unschedulable": cordoned}})


@benchmark("api.admit_2000")
def admitted() -> Figure:
    """2,000 jobs wait for nodes; from the moment that the nodes are there to the last verdict in a job's status.

    The peer writes the same statuses and events with 16 threads of the same client, and decides nothing.
    """
    with _scene() as (cluster, seen):
        _cordon(cluster, cordoned=True)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(_create, cluster), range(JOBS)))
        until(lambda: all("tfDist" in (job.get("status") or {}) for job in cluster.list(TFJOBS, SPACE).items))
        begun = time.monotonic()
        _cordon(cluster, cordoned=False)
        until(lambda: len(seen.at) >= JOBS)
        rate = JOBS / (max(seen.at.values()) - begun)
    bare = _write_alike()
    peer = f"the same writes by 16 threads, no arbiter: {bare:.0f} jobs/s ({rate / bare:.2f} of it)"
    return Figure(rate, "jobs/s", target=500, at_least=True, peer=peer)


def _write_alike() -> float:
    with prepared() as cluster, ThreadPoolExecutor(16) as pool:
        list(pool.map(partial(_create, cluster), range(JOBS)))
        jobs = cluster.list(TFJOBS, SPACE).items
        events = EventWriter(cluster, time.time, "tf-dist")
        begun = time.monotonic()
        list(pool.map(partial(_write, cluster, events), jobs))
        return JOBS / (time.monotonic() - begun)


def _write(cluster: Cluster, events: EventWriter, stored: Object) -> None:
    plan = reconcile(read(stored), Observed(now=time.time(), verdict=Admit()))
    for action in plan.actions:
        if isinstance(action, WriteStatus):
            body = {**stored, "status": action.status}
            cluster.replace(TFJOBS, SPACE, stored["metadata"]["name"], body, subresource="status")
        elif isinstance(action, Emit):
            events.emit(TFJOBS, SPACE, stored, action)


@benchmark("api.admit_latency")
def latency() -> Figure:
    """400 jobs a second are created for 5 s; 99 of 100 have their place in their status so soon after that."""
    with _scene() as (cluster, seen), ThreadPoolExecutor(16) as pool:
        begun = time.monotonic()

        def create(number: int) -> float:
            time.sleep(max(0.0, begun + number / OFFERED - time.monotonic()))
            _create(cluster, number)
            return time.monotonic()

        created = dict(zip((f"job-{number:05}" for number in range(JOBS)), pool.map(create, range(JOBS)), strict=True))
        until(lambda: len(seen.at) >= JOBS)
        waits = sorted(max(0.0, seen.at[name] - moment) for name, moment in created.items())
        offered = JOBS / (max(created.values()) - begun)
        print(f"  offered: {offered:.0f} jobs/s; half of them within {waits[JOBS // 2] * 1000:.0f} ms")
    return Figure(waits[int(JOBS * 0.99)] * 1000, "ms", target=100)
