"""Airflow: 1,000 deferred jobs in one triggerer beside the Kubernetes provider's own trigger; what imports cost."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.jobs import tfjob
from benchmarks.measure import Measured, Row, Target, benchmark, until
from tf_dist.cluster.api import TFJOBS
from tf_dist.controller.settings import JobRef

JOBS: Final = 1_000
SECONDS: Final = 20.0
_PATIENCE: Final = 900.0
_ROUNDS: Final = 20
_RUNS: Final = 3
_PROVIDER = "the Kubernetes provider's"
_JOBS = "its own for Jobs"
_POD_OPERATOR = "importing KubernetesPodOperator"
_COLLECTION = "a full garbage collection of the triggerer without jobs"
_BARE = "call_soon_threadsafe(event.set)"


def _no_airflow() -> str:
    return "" if importlib.util.find_spec("airflow") is not None else "Airflow is not installed (the extra airflow)"


def _triggerer(kind: str) -> dict[str, Any]:
    """The figures of a triggerer with so many triggers of a kind, each for one pod; TimeoutError."""
    from benchmarks.airflow_site import site

    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as (cluster, file):
        make = {"ours": cluster.job, "theirs": cluster.pod, "jobs": cluster.batch_job}[kind]
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
            finally:
                process.kill()


def _measure(kind: str, cluster: Any, process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    if kind != "jobs":
        until(lambda: cluster.running() == JOBS, _PATIENCE)
    # Ours have come to rest then. The provider's make a client each, and ask again and again when they have it.
    until(_quiet(cluster) if kind == "ours" else lambda: cluster.asked["get"] >= 2 * JOBS, _PATIENCE)
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
    (cluster.end_batch_jobs if kind == "jobs" else cluster.end_pods)()
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


def _theirs(kind: str) -> tuple[dict[str, Any] | None, str]:
    """The provider's figures, or why there are none."""
    try:
        return _triggerer(kind), ""
    except TimeoutError:
        return None, f"the provider's {JOBS} triggers did not all ask twice within {_PATIENCE / 60:.0f} minutes."


@benchmark(
    Row(
        "airflow.requests",
        "Requests a second that 1,000 deferred jobs cost, driven by the triggerer, in 20 s in which nothing happens.",
        "/s",
        target=Target(1.0),
    ),
    Row("airflow.cpu", "The part of a core that they take meanwhile.", "% of a core", target=Target(0.1, of=_PROVIDER)),
    Row(
        "airflow.memory",
        "What they hold more than an idle triggerer, 128 logs that are followed included (the provider's follow none).",
        "MiB",
        target=Target(200.0),
    ),
    Row(
        "airflow.stall",
        "The longest stall of the event loop, the end of all jobs at once included. At the end ours read logs and "
        "results, the provider's only the pod.",
        "s",
        target=Target(0.2),
    ),
    Row(
        "airflow.end",
        "CPU time a job from its pod's end to its event, when all end at once: the driver's part, log and result "
        "included.",
        "ms",
    ),
    lacks=_no_airflow,
)
def triggerer() -> dict[str, Measured]:
    """Three runs of 1,000 of our triggers, as the longest of all pauses varies most, then one of 1,000 of each of the
    Kubernetes provider's: for pods, which SparkKubernetesOperator uses, too, and for Jobs."""
    runs = [_triggerer("ours") for _ in range(_RUNS)]
    assert all(mine["end"]["ended"] == JOBS for mine in runs), [mine["end"] for mine in runs]
    mine = runs[-1]
    found = {_PROVIDER: _theirs("theirs"), _JOBS: _theirs("jobs")}
    others = {name: figures for name, (figures, _) in found.items() if figures}
    lost = " ".join(why for _, why in found.values() if why)
    told = f"all {JOBS} in {mine['end']['seconds']:.1f} s."

    def beside(value: Callable[[dict[str, Any]], float], note: str = "") -> Measured:
        peers = {name: value(figures) for name, figures in others.items()}
        return Measured([value(mine) for mine in runs], peers, f"{note} {lost}".strip())

    stall = beside(lambda of: max(of["stall"], of["end"]["stall"]), f"idle {mine['stall']:.3f} s.")
    collection = max(mine["collection"] for mine in runs)
    return {
        "airflow.requests": beside(lambda of: of["requests"], f"{mine['watches']} kinds watched, each once."),
        "airflow.cpu": beside(lambda of: 100 * of["cpu"]),
        "airflow.memory": beside(lambda of: of["memory"]),
        "airflow.stall": replace(stall, peers={**(stall.peers or {}), _COLLECTION: collection}),
        "airflow.end": Measured([1000 * mine["end"]["cpu"] / JOBS for mine in runs], note=told),
    }


@benchmark(
    Row(
        "airflow.event",
        "CPU time of the event loop's thread to hand a change of a job to the one who waits for it, among 1,000 who "
        "do: notified, and taken in.",
        "us",
        target=Target(10.0),
    ),
    lacks=_no_airflow,
)
def event() -> Measured:
    """The peer sets the same events on the same loop, and hands over nothing."""
    from tf_dist.airflow.informers.job_informer import SharedJobInformer
    from tf_dist.client.connection import Connection
    from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

    with MemoryCluster() as cluster:
        for number in range(JOBS):
            cluster.create(TFJOBS, "default", tfjob(f"job-{number}"))
        informer = SharedJobInformer(Connection(cluster, "default", "memory"), "default")
        try:
            ours, bare = asyncio.run(_handed(informer, JOBS))
        finally:
            informer.close()
    return Measured(ours, {_BARE: bare})


async def _handed(informer: Any, count: int) -> tuple[list[float], list[float]]:
    """Microseconds an event and waiter, in rounds."""
    loop, events = asyncio.get_running_loop(), [asyncio.Event() for _ in range(count)]
    refs = [JobRef(TFJOBS, "default", f"job-{number}") for number in range(count)]
    wakes = [partial(loop.call_soon_threadsafe, event.set) for event in events]
    subscriptions = [informer.join(ref, wake) for ref, wake in zip(refs, wakes, strict=True)]

    async def one_round(tell: Callable[[int], object], take: Callable[[], object]) -> float:
        for event in events:
            event.clear()
        begun = time.thread_time()
        for number in range(count):
            tell(number)
        await events[-1].wait()
        assert all(event.is_set() for event in events)
        take()
        return (time.thread_time() - begun) / count * 1e6

    found: tuple[list[float], list[float]] = [], []
    for _ in range(_ROUNDS):
        found[0].append(
            await one_round(lambda at: informer.notify(refs[at]), lambda: [one.take(0) for one in subscriptions])
        )
        found[1].append(await one_round(lambda at: loop.call_soon_threadsafe(events[at].set), list))
    for subscription in subscriptions:
        informer.leave(subscription)
    return found


def _printed(code: str) -> list[float]:
    """The seconds that five processes of this code print last; the first of six does not count."""
    call = [sys.executable, "-c", code]
    return [float(subprocess.check_output(call, stderr=subprocess.DEVNULL).split()[-1]) for _ in range(6)][1:]


def _timed(setup: str, code: str) -> str:
    return f"import time; {setup}; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"


@benchmark(
    Row(
        "airflow.discovery",
        "What Airflow imports of us when it looks for providers.",
        "ms",
        target=Target(0.05, of=_PROVIDER),
    ),
    Row(
        "airflow.parse",
        "Reading the DAGs of `dags/`, in a process that has imported Airflow.",
        "s",
        target=Target(1.0, of=_POD_OPERATOR),
    ),
    lacks=_no_airflow,
)
def imports() -> dict[str, Measured]:
    """Processes of their own."""
    discovery = _timed("import sys", "import tf_dist.airflow.provider as p; p.get_provider_info()")
    theirs = _timed(
        "import sys", "import airflow.providers.cncf.kubernetes.get_provider_info as p; p.get_provider_info()"
    )
    dags = sorted(str(path) for path in (Path(__file__).parents[1] / "dags").glob("*.py"))
    assert dags, "no DAG was found"
    ready = "import runpy, airflow.sdk, airflow.triggers.base"
    parse = _printed(_timed(ready, f"[runpy.run_path(path) for path in {dags!r}]"))
    operator = _printed(_timed(ready, "import airflow.providers.cncf.kubernetes.operators.pod"))
    return {
        "airflow.discovery": Measured(
            [1e3 * one for one in _printed(discovery)], {_PROVIDER: [1e3 * one for one in _printed(theirs)]}
        ),
        "airflow.parse": Measured(parse, {_POD_OPERATOR: operator}, f"{len(dags)} DAGs."),
    }
