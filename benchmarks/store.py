"""The embedded store: creates in process, durable, over HTTP from another process, and its memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark
from tf_dist.cluster.api import PODS
from tf_dist.cluster.http import ApiServer
from tf_dist.cluster.memory import MemoryCluster, SqliteJournal
from tf_dist.core import render
from tf_dist.core.dialects import parse


def pods(count: int) -> list[dict[str, Any]]:
    """Pods as a job really makes them, each a dict of its own."""
    job = parse(tfjob("mnist", workers=1)).job
    bodies = [render.pod(job, job.replicas[-1], "1.0.0") for _ in range(count)]
    for number, body in enumerate(bodies):
        body["metadata"]["name"] = f"pod-{number:06}"
        del body["metadata"]["ownerReferences"]  # the job itself is not stored here
    return bodies


def _creates_per_second(cluster: MemoryCluster, count: int = 5000) -> float:
    bodies = pods(count)
    start = time.perf_counter()
    for body in bodies:
        cluster.create(PODS, "default", body)
    return count / (time.perf_counter() - start)


@benchmark("store.creates")
def in_process() -> Figure:
    """Pods created in process, in memory."""
    return Figure(_creates_per_second(MemoryCluster()), "/s", target=5000, at_least=True)


@benchmark("store.creates_durable")
def durable() -> Figure:
    """Pods created in process, each one in the file before the call returns."""
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "cluster.sqlite")
        with MemoryCluster(journal=journal) as cluster:
            return Figure(_creates_per_second(cluster), "/s")


_CLIENT = """
import sys, time
from benchmarks.store import pods
from tf_dist.cluster.api import PODS
from tf_dist.cluster.rest import RestCluster
cluster, bodies = RestCluster(sys.argv[1], token=sys.argv[2]), pods(2000)
cluster.list(PODS)
start = time.perf_counter()
for body in bodies:
    cluster.create(PODS, "default", body)
print(len(bodies) / (time.perf_counter() - start))
"""


@benchmark("store.creates_http")
def over_http() -> Figure:
    """Pods created over HTTP by one client in a process of its own."""
    with ApiServer(MemoryCluster()) as server:
        command = [sys.executable, "-c", _CLIENT, server.app.url, server.token]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Figure(float(output), "/s", target=1000, at_least=True)


_MEMORY = """
import os, resource, sys
from pathlib import Path
from benchmarks.store import pods
from tf_dist.cluster.api import PODS
from tf_dist.cluster.memory import MemoryCluster

def resident():
    # On Linux ru_maxrss starts with what the parent had before exec, so it cannot be used there.
    if Path("/proc/self/statm").exists():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

cluster = MemoryCluster()
before = resident()
for body in pods(10_000):
    cluster.create(PODS, "default", body)
print(resident() - before)
"""


@benchmark("store.memory_10000")
def memory() -> Figure:
    """What 10,000 pods add to a process, the requests that made them included."""
    output = subprocess.run([sys.executable, "-c", _MEMORY], check=True, capture_output=True, text=True).stdout
    return Figure(int(output) / (1 << 20), "MiB", target=200)
