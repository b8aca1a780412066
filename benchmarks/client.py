"""What a write costs the client itself."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Figure, benchmark
from tf_dist.cluster.http import ApiServer
from tf_dist.cluster.memory import MemoryCluster

_CLIENT = """
import statistics, sys, time
from benchmarks.store import pods
from tf_dist.cluster.api import PODS
from tf_dist.cluster.rest import RestCluster
bodies, rounds = pods(3000), []
with RestCluster(sys.argv[1], token=sys.argv[2]) as cluster:
    cluster.list(PODS)
    for start in range(0, len(bodies), 500):
        before = time.process_time()
        for body in bodies[start:start + 500]:
            cluster.create(PODS, "default", body)
        rounds.append((time.process_time() - before) / 500)
print(statistics.median(rounds))
"""


@benchmark("client.write_cpu")
def write() -> Figure:
    """Processor time of the client for one pod created: JSON both ways, HTTP, the kernel's share."""
    with ApiServer(MemoryCluster()) as server:
        command = [sys.executable, "-c", _CLIENT, server.app.url, server.token]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Figure(float(output) * 1e6, "us", target=350, peer="the official client's typed path: 1,000 us")
