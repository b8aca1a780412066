"""Airflow: 1,000 deferred jobs in one triggerer beside the Kubernetes provider's own trigger; what imports cost."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark
from tf_dist.cluster.api import PODS, TFJOBS, Object, Resource
from tf_dist.cluster.http import ApiServer, kubeconfig
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.driver.embedded import dump

JOBS = 1_000
SECONDS = 10.0
INSTALLED = importlib.util.find_spec("airflow") is not None
_PROVIDER = "import time; t = time.perf_counter(); import tf_dist.airflow.provider as p; p.get_provider_info()"


class Counting(MemoryCluster):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Counted."""
        self.asked["get"] += 1
        return super().get(resource, namespace, name)

    def watch(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        """Counted."""
        self.asked[f"watch {resource.plural}"] += 1
        return super().watch(resource, *args, **kwargs)


def _many(kind: str) -> dict[str, Any]:
    """The figures of a triggerer with so many triggers of a kind."""
    with tempfile.TemporaryDirectory() as folder, Counting() as cluster:
        server = ApiServer(cluster)
        file = Path(folder, "kubeconfig")
        dump(kubeconfig(server.start(), server.token), file)
        try:
            return _run(kind, cluster, file)
        finally:
            server.stop()


def _run(kind: str, cluster: Counting, file: Path) -> dict[str, Any]:
    for number in range(JOBS):
        if kind == "ours":
            cluster.create(TFJOBS, "default", tfjob(f"job-{number}"))
        else:
            _running_pod(cluster, f"pod-{number}")
    command = [sys.executable, "-m", "benchmarks.airflow_triggerer", kind, str(file), str(JOBS), str(SECONDS)]
    settings = {"AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR", "AIRFLOW_HOME": str(file.parent / "airflow")}
    environment = os.environ | settings
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "text": True,
        "env": environment,
    }
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            _until(lambda: cluster.asked["get"] >= JOBS)
        except TimeoutError:
            process.kill()
            raise
        process.stdin.write("\n")
        process.stdin.flush()
        _answer(process)
        before = cluster.asked.total()
        figures = _answer(process)
        figures["requests"] = (cluster.asked.total() - before) / SECONDS
        figures["watches"] = sum(count for name, count in cluster.asked.items() if name.startswith("watch"))
        if kind == "ours":
            _answer(process)
            begun = time.perf_counter()
            for number in range(JOBS):
                done = {"status": {"tfDist": {"phase": "Completed", "message": "worker-0 succeeded"}}}
                cluster.patch(TFJOBS, "default", f"job-{number}", done, subresource="status")
            figures["end"] = _answer(process) | {"seconds": time.perf_counter() - begun}
    return figures


def _running_pod(cluster: MemoryCluster, name: str) -> None:
    container = {"name": "base", "image": "none", "command": ["true"]}
    cluster.create(PODS, "default", {"metadata": {"name": name}, "spec": {"containers": [container]}})
    status = {"name": "base", "ready": True, "restartCount": 0, "state": {"running": {}}, "image": "", "imageID": ""}
    scheduled = {"type": "PodScheduled", "status": "True"}
    body = {"status": {"phase": "Running", "conditions": [scheduled], "containerStatuses": [status]}}
    cluster.patch(PODS, "default", name, body, subresource="status")


def _until(condition: Any) -> None:
    end = time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the triggers did not begin")
        time.sleep(0.1)
    time.sleep(2.0)  # what they do next


def _answer(process: Any) -> dict[str, Any]:
    for line in process.stdout:
        if line.startswith("{"):
            return dict(json.loads(line))
    raise RuntimeError("the triggerer has ended")


_SEEN: dict[str, dict[str, Any]] = {}


def _figures(kind: str) -> dict[str, Any]:
    if kind not in _SEEN:
        try:
            _SEEN[kind] = _many(kind)
        except TimeoutError:
            if kind == "ours":
                raise
            # The provider's trigger may be too slow for so many on this machine; that is no figure of ours.
            _SEEN[kind] = {"requests": float("nan"), "cpu": float("nan"), "memory": float("nan"), "stall": float("nan")}
    return _SEEN[kind]


if INSTALLED:

    @benchmark("airflow.requests")
    def requests() -> Figure:
        """Requests a second that 1,000 deferred jobs cost while nothing happens."""
        mine, other = _figures("ours"), _figures("theirs")
        peer = f"provider's pod trigger {other['requests']:.0f}/s, {mine['watches']} watches here"
        return Figure(mine["requests"], "1/s", target=1.0, peer=peer)

    @benchmark("airflow.cpu")
    def cpu() -> Figure:
        """Part of a core that they take meanwhile."""
        return Figure(
            100 * _figures("ours")["cpu"],
            "% core",
            target=5.0,
            peer=f"provider {100 * _figures('theirs')['cpu']:.0f} %",
        )

    @benchmark("airflow.memory")
    def memory() -> Figure:
        """What they hold more than an idle triggerer."""
        peer = f"provider {_figures('theirs')['memory']:.0f} MiB"
        return Figure(_figures("ours")["memory"], "MiB", target=200.0, peer=peer)

    @benchmark("airflow.event")
    def event() -> Figure:
        """CPU time from a job's end to its event, reading its log and result included."""
        end = _figures("ours")["end"]
        assert end["ended"] == JOBS, end
        return Figure(1000 * end["cpu"] / JOBS, "ms", peer=f"all {JOBS} in {end['seconds']:.1f} s")

    @benchmark("airflow.stall")
    def stall() -> Figure:
        """The longest stall of the event loop, the end of all jobs at once included."""
        mine = _figures("ours")
        peer = f"provider {_figures('theirs')['stall']:.2f} s"
        return Figure(max(mine["stall"], mine["end"]["stall"]), "s", target=0.2, peer=peer)

    @benchmark("airflow.discovery")
    def discovery() -> Figure:
        """What looking for providers imports of us."""
        code = f"{_PROVIDER}; print(time.perf_counter() - t)"
        found = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
        return Figure(1000 * sorted(found)[2], "ms", target=50.0)

    @benchmark("airflow.parse")
    def parse() -> Figure:
        """Reading the four DAGs, in a process that has Airflow."""
        dags = sorted(str(path) for path in (Path(__file__).parents[1] / "dags").glob("*.py"))
        code = (
            "import time, runpy, airflow.sdk, airflow.triggers.base; t = time.perf_counter(); "
            f"[runpy.run_path(path) for path in {dags!r}]; print(time.perf_counter() - t)"
        )
        call = [sys.executable, "-c", code]
        found = [float(subprocess.check_output(call, stderr=subprocess.DEVNULL).split()[-1]) for _ in range(3)]
        return Figure(sorted(found)[1], "s", target=1.5)
