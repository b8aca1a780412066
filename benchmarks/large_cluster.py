"""A controller of a large cluster in a process of its own: its memory, and its part of a core while pods change."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
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
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import Standalone
from tf_dist.controller.manager import tune_garbage_collector
from tf_dist.controller.observability.metrics_interface import Metric, MetricsRecorder
from tf_dist.controller.settings import ControllerSettings

JOBS: Final = 5_000
WORKERS: Final = 8
POD_BYTES: Final = 10_000
_CHANGES: Final = 100  # a second
_SECONDS: Final = 20
_CHANGE: Final = "/change"
_DECODED: Final = "json.loads of the same changes as they come"
_LISTED: Final = 900_000  # the version of every list
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
    driver = Controller(memory, leadership=Standalone(), settings=ControllerSettings(volcano_jobs=False))
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


def _written(stored: Object) -> str:
    """As an API server does, without a space."""
    return json.dumps(stored, separators=(",", ":"))


def _padded(pod: Object) -> Object:
    """A pod as large as those of a cluster with sidecars, volumes and several field managers."""
    missing = POD_BYTES - len(_written(pod))
    fields: Object = {f"f:field-{number}": {} for number in range(max(0, missing) // 18)}
    entry = {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}
    return {**pod, "metadata": {**pod["metadata"], "managedFields": [entry]}}


class Copies:
    """Templates of all objects, and what an API server says of them as if there were thousands."""

    def __init__(self) -> None:
        found = _documents()
        found[PODS] = [_padded(pod) for pod in found[PODS]]
        for kind in (TFJOBS, PODS, SERVICES):
            for one in found[kind]:
                one["metadata"] = {**one["metadata"], "resourceVersion": _VERSION}
        self._texts = {kind.plural: [_written(one) for one in items] for kind, items in found.items()}

    def page(self, plural: str, limit: int, begin: int) -> bytes:
        """Objects from number ``begin`` on."""
        texts = self._texts.get(plural, [])
        copies = _NODES if plural == "nodes" else JOBS
        whole = copies * len(texts)
        end = min(whole, begin + limit) if limit else whole
        items = [self._item(texts, number, number + 1) for number in range(begin, end)]
        metadata = {"resourceVersion": str(_LISTED), "continue": str(end) if end < whole else ""}
        return f'{{"kind":"List","metadata":{json.dumps(metadata)},"items":[{",".join(items)}]}}'.encode()

    def changes(self) -> list[bytes]:
        """Pods that change, of another job each: in one of ten a container has started again."""
        texts = self._texts[PODS.plural]
        events = []
        for number in range(1, _CHANGES * _SECONDS + 1):
            pod = self._item(texts, number * (len(texts) + 1) % (JOBS * len(texts)), _LISTED + number)
            if number % 10 == 0:
                pod = pod.replace('"restartCount":0', '"restartCount":1')
            events.append(f'{{"type":"MODIFIED","object":{pod}}}\n'.encode())
        return events

    @staticmethod
    def _item(texts: list[str], number: int, version: int) -> str:
        copy, which = divmod(number, len(texts))
        named = texts[which].replace(_NAME, f"job-{copy:05}").replace(_UID, f"{copy:08x}")
        return named.replace(_NODE, f"node-{copy % _NODES:04}").replace(f'"{_VERSION}"', f'"{version}"')


def _as_they_come(events: Iterable[bytes]) -> Iterator[bytes]:
    begun = time.monotonic()
    for number, event in enumerate(events):
        time.sleep(max(0.0, begun + number / _CHANGES - time.monotonic()))
        yield event


class Server:
    """Answers lists page by page; what changes is said in the watches of pods, once that is asked for."""

    def __init__(self) -> None:
        self.copies = Copies()
        self.changing = threading.Event()
        self.versions = count(2 * _LISTED)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"serving": self}))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def serve(self) -> None:
        """Until the process ends."""
        self._http.serve_forever()


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
            self._watched(url.path.rpartition("/")[2], float(query.get("timeoutSeconds", 60)))
            self.wfile.write(b"0\r\n\r\n")
            return
        begin = int(query.get("continue") or 0)
        self._answer(self.serving.copies.page(url.path.rpartition("/")[2], int(query.get("limit", 0)), begin))

    def _watched(self, plural: str, seconds: float) -> None:
        """The events of a watch, in so many seconds."""
        end = time.monotonic() + seconds
        if plural == PODS.plural and self.serving.changing.wait(seconds):
            for event in _as_they_come(self.serving.copies.changes()):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        time.sleep(max(0.0, end - time.monotonic()))

    def do_POST(self) -> None:
        """What is written gets a version; asked for changes, it begins to make them."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == _CHANGE:
            self.serving.changing.set()
        else:
            body["metadata"]["resourceVersion"] = str(next(self.serving.versions))
        self._answer(_written(body).encode())

    do_PUT = do_POST

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
    """The driver's process: a cold start with a pass over every job, a relist, and pods that change."""
    tune_garbage_collector()
    looked = Looked()
    settings = ControllerSettings(volcano_jobs=False, workers=16)
    with RestCluster(url, paced=True) as cluster:
        driver = Controller(cluster, leadership=Standalone(), settings=settings, recorder=looked)
        began = time.monotonic()
        driver.start()
        until(lambda: driver.synced() and looked.count >= JOBS)
        cold, seconds = peak(), time.monotonic() - began
        driver.informers.relist()
        until(driver.synced)
        assert sum(driver.readings().jobs.values()) == JOBS, driver.readings().jobs
        found = {"cold": cold, "relist": peak(), "now": resident_mib(), "seconds": seconds}
        print(json.dumps({**found, **_while_pods_change(url, looked)}), flush=True)
        driver.stop()


def _while_pods_change(url: str, looked: Looked) -> dict[str, float]:
    """The part of a core that this process takes while pods change, and how many jobs a second it looks at."""
    until(looked.at_rest)
    before, cpu, begun = looked.count, time.process_time(), time.monotonic()
    with urllib.request.urlopen(url + _CHANGE, data=b"{}", timeout=10):
        time.sleep(_SECONDS)
    seconds = time.monotonic() - begun
    return {"changing": (time.process_time() - cpu) / seconds, "looked": (looked.count - before) / seconds}


def _decoding() -> float:
    """The part of a core that it takes to decode as many changes a second and do nothing else.

    At the same pace: a processor that was idle in between is slower by a factor of two to four.
    """
    events = Copies().changes()
    cpu, begun = time.thread_time(), time.monotonic()
    for event in _as_they_come(events):
        json.loads(event)
    return (time.thread_time() - cpu) / (time.monotonic() - begun)


class Looked(MetricsRecorder):
    """How many jobs were looked at."""

    count = 0

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        """Count one."""
        self.count += metric is Metric.RECONCILE_SECONDS

    def at_rest(self) -> bool:
        """Whether jobs are looked at only as all are from time to time."""
        before = self.count
        time.sleep(2.0)
        return self.count - before < JOBS / 100


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
    with _process("from benchmarks.large_cluster import serve; serve()") as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with _process("import sys; from benchmarks.large_cluster import drive; drive(sys.argv[1])", url) as driver:
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
    ),
    Row(
        "driver.pod_changes",
        "The part of a core that this process takes in 20 s in which 100 of those pods change a second, of another job "
        "each; in one of ten a container has started again.",
        "% of a core",
        # A ratio: the part of a core depends on how fast the core is, and how slow after each of its many pauses.
        target=Target(2.0, of=_DECODED),
    ),
)
def of_forty_thousand_pods() -> dict[str, Measured]:
    """One run: it takes two minutes."""
    found = measured()
    memory = f"cold start {found['cold']:.0f} MiB in {found['seconds']:.0f} s, after a relist {found['now']:.0f} MiB."
    looked = f"{found['looked']:.0f} jobs a second are looked at."
    return {
        "driver.memory_40k": Measured(max(found["cold"], found["relist"]), note=memory),
        "driver.pod_changes": Measured(found["changing"] * 100, {_DECODED: _decoding() * 100}, looked),
    }
