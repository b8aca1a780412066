"""The embedded cluster's store in process, in a file, and over HTTP; and what requests cost the client."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.jobs import tfjob
from benchmarks.measure import Measured, Row, Target, benchmark
from tf_dist.client.monitor import ObjectWatcher
from tf_dist.cluster.api import PODS, TFJOBS, Cluster, ObjectList
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
from tf_dist.core.dialects import parse
from tf_dist.core.podbuilder import replica_pod
from tf_dist.errors import Gone

_JSON = "json.dumps and loads of the same"
_FULL, _NORMAL = "SQLite alone, FULL", "SQLite alone, NORMAL"
_ECHO = "Python's own HTTP server and client, echo"
_OFFICIAL = "the official Python client"
_FOLLOWED: Final = 10.0  # seconds


def pods(count: int) -> list[dict[str, Any]]:
    """Pods as a job really makes them, each a dict of its own."""
    job = parse(tfjob("mnist", workers=1)).job
    bodies = [replica_pod.build_pod(job, job.replicas[-1], "1.0.0") for _ in range(count)]
    for number, body in enumerate(bodies):
        body["metadata"]["name"] = f"pod-{number:06}"
        del body["metadata"]["ownerReferences"]  # the job itself is not stored here
    return bodies


def _per_second(
    create: Callable[[dict[str, Any]], object],
    bodies: Sequence[dict[str, Any]],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    start = clock()
    for body in bodies:
        create(body)
    return len(bodies) / (clock() - start)


def _created(cluster: MemoryCluster, count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    rate = _per_second(lambda body: cluster.create(PODS, "default", body), pods(count), clock)
    assert len(cluster.list(PODS).items) == count
    return rate


@benchmark(
    Row(
        "store.creates",
        "Pods created in process, in memory, one after the other by one thread.",
        "/s",
        better="higher",
        target=Target(0.1, of=_JSON),
    )
)
def in_process() -> Measured:
    """The peer is the least that a store with copies of its own has to do."""
    rates, peer = [], []
    for _ in range(3):
        rates.append(_created(MemoryCluster(), 5000, time.thread_time))
        peer.append(_per_second(lambda body: json.loads(json.dumps(body)), pods(5000), time.thread_time))
    return Measured(rates, {_JSON: peer})


@benchmark(
    Row(
        "store.creates_durable",
        "Pods created in process by one thread, each in the file, and the file on the disk (`synchronous=FULL`), "
        "before the call returns.",
        "/s",
        better="higher",
        target=Target(0.5, of=_FULL),
    )
)
def durable() -> Measured:
    """The peers commit the same documents, in the same folder, to a table of their own: with and without the wait."""
    rates: list[float] = []
    peers: dict[str, list[float]] = {_FULL: [], _NORMAL: []}
    for _ in range(3):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # /tmp may be memory
            with MemoryCluster(journal=SqliteJournal(Path(folder) / "cluster.sqlite")) as cluster:
                rates.append(_created(cluster, 1000))
            for name, rates_of in peers.items():
                rates_of.append(_sqlite(Path(folder) / f"{name}.sqlite", name.rpartition(" ")[2]))
    return Measured(rates, peers)


def _sqlite(file: Path, synchronous: str) -> float:
    database = sqlite3.connect(file, isolation_level=None)
    try:
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", f"synchronous = {synchronous}"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE pods (name TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID")
        insert = "INSERT INTO pods VALUES (?, ?)"
        return _per_second(
            lambda body: database.execute(insert, (body["metadata"]["name"], json.dumps(body))), pods(1000)
        )
    finally:
        database.close()


_CLIENT = """
import sys, time
from benchmarks.store import pods
from tf_dist.cluster.api import PODS
from tf_dist.cluster.client.rest import RestCluster
bodies, rates = pods(3100), []
with RestCluster(sys.argv[1], token=sys.argv[2]) as cluster:
    for body in bodies[3000:]:
        cluster.create(PODS, "default", body)
    for first in range(0, 3000, 1000):
        start = time.perf_counter()
        for body in bodies[first:first + 1000]:
            cluster.create(PODS, "default", body)
        rates.append(1000 / (time.perf_counter() - start))
    assert len(cluster.list(PODS).items) == 3100
print(*rates)
"""
_ECHO_CLIENT = """
import http.client, json, sys, time
from benchmarks.store import pods
connection, bodies, rates = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1])), pods(3100), []
def create(body):
    connection.request("POST", "/pods", json.dumps(body), {"Content-Type": "application/json"})
    assert json.loads(connection.getresponse().read()) == body
for body in bodies[3000:]:
    create(body)
for first in range(0, 3000, 1000):
    start = time.perf_counter()
    for body in bodies[first:first + 1000]:
        create(body)
    rates.append(1000 / (time.perf_counter() - start))
print(*rates)
"""


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # else head and body go out apart, and each answer waits for an acknowledgement

    def do_POST(self) -> None:
        body = json.dumps(json.loads(self.rfile.read(int(self.headers["Content-Length"])))).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def _printed(code: str, *arguments: str) -> list[float]:
    """The numbers that a process of this code prints."""
    command = [sys.executable, "-c", code, *arguments]
    return [float(word) for word in subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()]


@benchmark(
    Row(
        "store.creates_http",
        "Pods created over HTTP by one client in a process of its own, one request after the other.",
        "/s",
        better="higher",
        target=Target(0.4, of=_ECHO),
    )
)
def over_http() -> Measured:
    """The peer posts the same documents to a server that decodes, encodes, and keeps nothing."""
    with ApiServer(MemoryCluster()) as server:
        rates = _printed(_CLIENT, server.app.url, server.token)
    echo = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=echo.serve_forever)
    thread.start()
    try:
        return Measured(rates, {_ECHO: _printed(_ECHO_CLIENT, str(echo.server_port))})
    finally:
        echo.shutdown()
        echo.server_close()
        thread.join()


_MEMORY = """
import os, resource, sys
from pathlib import Path
from benchmarks.store import pods
from tf_dist.cluster.api import PODS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

def resident():
    # On Linux ru_maxrss starts with what the parent had before exec, so it cannot be used there.
    if Path("/proc/self/statm").exists():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

cluster = MemoryCluster()
before = resident()
for body in pods(10_000):
    cluster.create(PODS, "default", body)
print((resident() - before) / (1 << 20))
"""


@benchmark(
    Row(
        "store.memory_10000",
        "What 10,000 pods add to the memory of a process, the requests that made them included.",
        "MiB",
        target=Target(200),
    )
)
def memory() -> Measured:
    """A process of its own each time."""
    return Measured([found for _ in range(3) for found in _printed(_MEMORY)])


# -- The client --

_OURS_CPU = """
import sys, time
from benchmarks.store import pods
from tf_dist.cluster.api import PODS
from tf_dist.cluster.client.rest import RestCluster
bodies = pods(3500)
with RestCluster(sys.argv[1], token=sys.argv[2]) as cluster:
    for first in range(0, 3500, 500):
        before = time.process_time()
        for body in bodies[first:first + 500]:
            cluster.create(PODS, "default", body)
        if first:
            print((time.process_time() - before) / 500 * 1e6)
"""
_OFFICIAL_CPU = """
import sys, time
from kubernetes import client
from benchmarks.store import pods
settings = client.Configuration(host=sys.argv[1])
settings.api_key = {"authorization": "Bearer " + sys.argv[2]}
bodies, api = pods(3500), client.CoreV1Api(client.ApiClient(settings))
for first in range(0, 3500, 500):
    before = time.process_time()
    for body in bodies[first:first + 500]:
        api.create_namespaced_pod("default", body)
    if first:
        print((time.process_time() - before) / 500 * 1e6)
"""


def _no_official_client() -> str:
    return "" if _has("kubernetes") else "the official client is not installed (the extra airflow brings it)"


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


@benchmark(
    Row(
        "client.write_cpu",
        "Processor time of the client for one pod created: JSON both ways, HTTP, the kernel's share.",
        "us",
        # Most of it is urllib3's and http.client's, which is kept in place of a parser of our own (0.35).
        target=Target(0.6, of=_OFFICIAL),
    ),
    lacks=_no_official_client,
)
def write() -> Measured:
    """The peer writes the same pods to an equal server with ``CoreV1Api``, which makes typed objects of the answers."""
    found = []
    for code in (_OURS_CPU, _OFFICIAL_CPU):
        with ApiServer(cluster := MemoryCluster()) as server:
            found.append(_printed(code, server.app.url, server.token))
        assert len(cluster.list(PODS).items) == 3500
    return Measured(found[0], {_OFFICIAL: found[1]})


class _Broken:
    """A cluster in which no watch begins."""

    def __init__(self) -> None:
        self._memory = MemoryCluster()
        self._memory.create(TFJOBS, "default", tfjob("mnist"))
        self.lists = 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._memory, verb)

    def list(self, *args: Any, **how: Any) -> ObjectList:
        """Counted."""
        self.lists += 1
        return self._memory.list(*args, **how)

    def watch(self, *_: Any, **__: Any) -> None:
        """Never."""
        raise Gone("too old, says the proxy")


@benchmark(
    Row(
        "client.lists_behind_410",
        "Lists in the first ten seconds of a follower of a job behind a proxy that answers every watch with 410 Gone.",
        "lists",
        target=Target(20),
    )
)
def lists_behind_410() -> Measured:
    """Later they come every five seconds."""
    broken = _Broken()
    watcher = ObjectWatcher(cast(Cluster, broken), TFJOBS, "default", lambda _: None)
    threading.Event().wait(_FOLLOWED)
    watcher.close()
    assert broken.lists > 1, "it did not try again"
    return Measured(broken.lists)
