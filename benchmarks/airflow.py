"""Airflow: 1,000 deferred jobs in one triggerer beside the Kubernetes provider's own trigger; what imports cost."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

from benchmarks.measure import Figure, benchmark

JOBS = 1_000
SECONDS = 20.0
INSTALLED = importlib.util.find_spec("airflow") is not None
_PROVIDER = "import time; t = time.perf_counter(); import tf_dist.airflow.provider as p; p.get_provider_info()"


def _figures(kind: str) -> dict[str, Any]:
    """The figures of a triggerer with so many triggers of a kind, each for one pod; TimeoutError."""
    found = _taken(kind)
    if isinstance(found, TimeoutError):
        raise found
    return found


@cache
def _taken(kind: str) -> dict[str, Any] | TimeoutError:
    from benchmarks.airflow_site import site

    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as (cluster, file):
        make = cluster.job if kind == "ours" else cluster.pod
        for number in range(JOBS):
            make(f"{kind}-{number}")
        command = [sys.executable, "-m", "benchmarks.airflow_triggerer", kind, str(file), str(JOBS), str(SECONDS)]
        settings = {"AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR", "AIRFLOW_HOME": str(Path(folder) / "airflow")}
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | settings,
        ) as process:
            try:
                return _measure(kind, cluster, process)
            except TimeoutError as error:
                return error
            finally:
                process.kill()


def _measure(kind: str, cluster: Any, process: subprocess.Popen[str]) -> dict[str, Any]:
    from benchmarks.airflow_site import until

    assert process.stdin is not None
    assert process.stdout is not None
    until(lambda: cluster.running() == JOBS)
    # Ours have come to rest then. The provider's make a client each, and ask again and again when they have it.
    until(_quiet(cluster) if kind == "ours" else lambda: cluster.asked["get"] >= 2 * JOBS)
    watches = {name: count for name, count in cluster.asked.items() if name.startswith("watch")}
    process.stdin.write("\n")
    process.stdin.flush()
    _answer(process.stdout)
    before = cluster.asked.total()
    figures = _answer(process.stdout)
    figures["requests"] = (cluster.asked.total() - before) / figures["seconds"]
    figures["watches"] = len(watches)
    _answer(process.stdout)
    begun = time.perf_counter()
    cluster.end_pods()
    figures["end"] = _answer(process.stdout)
    figures["end"]["seconds"] = time.perf_counter() - begun
    return figures


def _quiet(cluster: Any) -> Callable[[], bool]:
    """Whether nothing has been asked for 3 seconds."""
    seen: list[float] = [-1.0, 0.0]

    def quiet() -> bool:
        asked = cluster.asked.total()
        if asked != seen[0]:
            seen[:] = asked, time.monotonic()
        return time.monotonic() - seen[1] >= 3.0

    return quiet


def _answer(lines: IO[str]) -> dict[str, Any]:
    for line in lines:
        if line.startswith("{"):
            return dict(json.loads(line))
    raise RuntimeError("the triggerer has ended")


def _theirs(told: Callable[[dict[str, Any]], str]) -> str:
    """What the provider's triggers took in the same run."""
    try:
        return f"provider {told(_figures('theirs'))}"
    except TimeoutError:
        return f"the provider's {JOBS} triggers did not all ask twice within 15 minutes"


if INSTALLED:

    @benchmark("airflow.requests")
    def requests() -> Figure:
        """Requests a second that 1,000 deferred jobs cost, driven by the triggerer, while nothing happens."""
        mine = _figures("ours")
        theirs = _theirs(lambda other: f"{other['requests']:.0f}/s")
        peer = f"{theirs}; {mine['watches']} kinds watched here, each once"
        return Figure(mine["requests"], "1/s", target=1.0, peer=peer)

    @benchmark("airflow.cpu")
    def cpu() -> Figure:
        """Part of a core that they take meanwhile."""
        peer = _theirs(lambda other: f"{100 * other['cpu']:.0f} %")
        return Figure(100 * _figures("ours")["cpu"], "% core", target=5.0, peer=peer)

    @benchmark("airflow.memory")
    def memory() -> Figure:
        """What they hold more than an idle triggerer, 128 logs that are followed included."""
        peer = _theirs(lambda other: f"{other['memory']:.0f} MiB")
        return Figure(_figures("ours")["memory"], "MiB", target=200.0, peer=peer)

    @benchmark("airflow.end")
    def end() -> Figure:
        """CPU time from a pod's end to its job's event: the driver's part, the log and the result included."""
        ended = _figures("ours")["end"]
        assert ended["ended"] == JOBS, ended
        peer = _theirs(lambda other: f"{1000 * other['end']['cpu'] / JOBS:.1f} ms, {other['end']['seconds']:.1f} s")
        peer = f"all {JOBS} in {ended['seconds']:.1f} s; {peer}, no logs"
        return Figure(1000 * ended["cpu"] / JOBS, "ms", peer=peer)

    @benchmark("airflow.stall")
    def stall() -> Figure:
        """The longest stall of the event loop, the end of all jobs at once included."""
        mine = _figures("ours")
        theirs = _theirs(lambda other: f"{max(other['stall'], other['end']['stall']):.2f} s")
        peer = f"idle {mine['stall']:.3f} s; {theirs}"
        return Figure(max(mine["stall"], mine["end"]["stall"]), "s", target=0.2, peer=peer)

    @benchmark("airflow.event")
    def event() -> Figure:
        """To hand a change of a job to one who waits for it, among 1,000 who wait: told, and taken in."""
        from benchmarks.airflow_handing import seconds

        handed, passed = seconds(JOBS)
        peer = f"nobody waits for it: {1e6 * passed:.2f} us"
        return Figure(1e6 * handed, "us", target=10.0, peer=peer)

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
