"""The memory of a controller of a large cluster: the peak of its own process, with the API server in another one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from benchmarks.jobs import tfjob
from benchmarks.measure import Measured, Row, Target, benchmark, resident_mib, until
from tf_dist.cluster.api import NODES, PODS, SERVICES, TFJOBS, Object, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.driver import Driver
from tf_dist.controller.driver_settings import DriverSettings
from tf_dist.controller.leases.leadership import Standalone
from tf_dist.controller.manager import tune_garbage_collector
from tf_dist.controller.observability.metrics_recorder import MetricsRecorder

JOBS: Final = 5_000
WORKERS: Final = 8
POD_BYTES: Final = 10_000
_NODES: Final = 1_000
# What stands for the number of a job, of its node, and of its versions in the texts below.
_NAME, _UID, _NODE, _VERSION = "the-job-here", "00badbad", "the-node-here", "770077"


def _documents() -> dict[Resource, list[Object]]:
    """One job that runs, all its pods and services, and a node, as an API server would return them."""
    numbers = count(1)
    memory = MemoryCluster(uids=lambda: f"{_UID}-0000-4000-8000-{next(numbers):012}", clock=lambda: 1_800_000_000.0)
    node = memory.create(NODES, None, {"metadata": {"name": _NODE}})
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    memory.replace(NODES, None, _NODE, {**node, "status": status}, subresource="status")
    document = tfjob(_NAME, workers=WORKERS)
    document["spec"]["tfReplicaSpecs"].pop("PS", None)
    memory.create(TFJOBS, "default", document)
    driver = Driver(memory, leadership=Standalone("bench"), settings=DriverSettings(volcano_jobs=False))
    for _ in range(3):
        driver.step()
    for pod in memory.list(PODS).items:
        memory.bind("default", pod["metadata"]["name"], _NODE)
        bound = memory.get(PODS, "default", pod["metadata"]["name"])
        running = {**bound, "status": _running(bound)}
        memory.replace(PODS, "default", pod["metadata"]["name"], running, subresource="status")
    for _ in range(3):
        driver.step()
    return {kind: memory.list(kind).items for kind in (TFJOBS, PODS, SERVICES, NODES)}


def _running(pod: Object) -> Object:
    moment = "2027-01-15T08:00:00Z"
    conditions = [
        {"type": type_, "status": "True", "lastProbeTime": None, "lastTransitionTime": moment}
        for type_ in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    image = "registry.example.com/research/training@sha256:" + "0123456789abcdef" * 4
    containers = [
        {
            "name": one["name"],
            "state": {"running": {"startedAt": moment}},
            "lastState": {},
            "ready": True,
            "restartCount": 0,
            "image": image,
            "imageID": image,
            "containerID": "containerd://" + "0123456789abcdef" * 4,
            "started": True,
        }
        for one in pod["spec"]["containers"]
    ]
    return {
        "phase": "Running",
        "conditions": conditions,
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": moment,
        "qosClass": "Burstable",
        "containerStatuses": containers,
    }


def _padded(pod: Object) -> Object:
    """A pod as large as those of a cluster with sidecars, volumes and several field managers."""
    missing = POD_BYTES - len(json.dumps(pod))
    fields = {f"f:field-{number}": {} for number in range(max(0, missing) // 20)}
    entry = {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}
    return {**pod, "metadata": {**pod["metadata"], "managedFields": [entry]}}


class Server:
    """Answers lists from templates, page by page, and says nothing in watches."""

    def __init__(self) -> None:
        found = _documents()
        found[PODS] = [_padded(pod) for pod in found[PODS]]
        for kind in (TFJOBS, PODS, SERVICES):
            for one in found[kind]:
                one["metadata"] = {**one["metadata"], "resourceVersion": _VERSION}
        texts = {kind.plural: [json.dumps(one) for one in items] for kind, items in found.items()}
        self._texts = texts
        self.writes = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"serving": self}))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def serve(self) -> None:
        """Until the process ends."""
        self._http.serve_forever()

    def page(self, plural: str, limit: int, begin: int) -> bytes:
        """Objects from number ``begin`` on."""
        texts = self._texts.get(plural, [])
        copies = _NODES if plural == "nodes" else JOBS
        whole = copies * len(texts)
        end = min(whole, begin + limit) if limit else whole
        items = [self._item(texts, number) for number in range(begin, end)]
        metadata = {"resourceVersion": "900000", "continue": str(end) if end < whole else ""}
        return f'{{"kind":"List","metadata":{json.dumps(metadata)},"items":[{",".join(items)}]}}'.encode()

    @staticmethod
    def _item(texts: list[str], number: int) -> str:
        copy, which = divmod(number, len(texts))
        named = texts[which].replace(_NAME, f"job-{copy:05}").replace(_UID, f"{copy:08x}")
        return named.replace(_NODE, f"node-{copy % _NODES:04}").replace(f'"{_VERSION}"', f'"{number + 1}"')


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    serving: Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if "watch" in query:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            threading.Event().wait(float(query.get("timeoutSeconds", 60)))
            self.wfile.write(b"0\r\n\r\n")
            return
        begin = int(query.get("continue") or 0)
        self._answer(self.serving.page(url.path.rpartition("/")[2], int(query.get("limit", 0)), begin))

    def do_PUT(self) -> None:
        self.serving.writes += 1
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    do_POST = do_PATCH = do_DELETE = do_PUT

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def serve() -> None:
    """The server's process."""
    server = Server()
    print(server.url, flush=True)
    server.serve()


def drive(url: str) -> None:
    """The driver's process: a cold start, a pass over every job, then a relist; prints the peaks in MiB."""
    tune_garbage_collector()
    looked = Looked()
    settings = DriverSettings(volcano_jobs=False, workers=16)
    with RestCluster(url) as cluster:
        driver = Driver(cluster, leadership=Standalone("bench"), settings=settings, recorder=looked)
        began = time.monotonic()
        driver.start()
        until(lambda: driver.synced() and looked.count >= JOBS)
        cold, seconds = peak(), time.monotonic() - began
        driver.informers.relist()
        until(driver.synced)
        assert sum(driver.readings().jobs.values()) == JOBS, driver.readings().jobs
        print(json.dumps({"cold": cold, "relist": peak(), "now": resident_mib(), "seconds": seconds}), flush=True)
        driver.stop()


class Looked(MetricsRecorder):
    """How many jobs were looked at."""

    count = 0

    def reconciled(self, seconds: float) -> None:
        """Count one."""
        self.count += 1


def peak() -> float:
    """The most memory that this process has had, in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@contextmanager
def _process(*code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", *code], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def measured() -> dict[str, float]:
    """What the driver's process said."""
    with _process("from benchmarks.memory import serve; serve()") as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with _process("import sys; from benchmarks.memory import drive; drive(sys.argv[1])", url) as driver:
            assert driver.stdout is not None
            figures: dict[str, float] = json.loads(driver.stdout.readline())
            return figures


@benchmark(
    Row(
        "driver.memory_40k",
        "The peak of a controller's process with 5,000 jobs, 40,000 pods of 10 KB and 40,000 services: a cold start "
        "and a relist, with the API server in another process.",
        "MiB",
        target=Target(600),
    )
)
def of_forty_thousand_pods() -> Measured:
    """One run: it takes a minute."""
    found = measured()
    note = f"cold start {found['cold']:.0f} MiB in {found['seconds']:.0f} s, after a relist {found['now']:.0f} MiB."
    return Measured(max(found["cold"], found["relist"]), note=note)
