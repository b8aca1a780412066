"""The decision of a whole driver, as its jobs see it: from one change in the cluster to the admission it leads to.

The cluster: 200 nodes of 8 GPUs, each held by a running gang of 8 workers. So many gangs of 8 wait for GPUs. A driver
with a controller's settings follows all of it in its threads. ``python -m benchmarks.deciding 2000 8000`` prints what
an answer takes with so many waiting.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.jobs import TEMPLATE, Copies, tfjob
from benchmarks.measure import Measured, Row, Target, benchmark
from tf_dist.cluster.api import LEASES, NODES, PODS, TFJOBS, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.manager import tune_garbage_collector
from tf_dist.controller.observability.metrics_interface import Metric, MetricsRecorder
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.gang.messages import queue_position_text
from tf_dist.core.model import names
from tf_dist.core.model.job import JobKey

GANGS, WORKERS = 200, 8
_LONGEST = 1800  # seconds for an answer
_NO_RESYNC = 86_400.0
_FEW = "1,000 waiting"
_READY = [{"type": "Ready", "status": "True"}]


@dataclass
class Answers:
    """Milliseconds from a change to the admission in a job's status; of CPU time, until the driver rests again."""

    waiting: int
    arrivals: list[float] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Looks(MetricsRecorder):
    """How often the driver has looked at a job."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        """It has, once more."""
        self.count += metric is Metric.RECONCILE_SECONDS


class Scene:
    """The cluster, and a driver that has seen all of it."""

    def __init__(self, cluster: MemoryCluster, driver: Controller) -> None:
        self._cluster = cluster
        self.driver = driver
        self._arrived = 0
        self._admitted = {f"running-{gang:03}" for gang in range(GANGS)}

    def arrive(self) -> float:
        """Seconds from the creation of a job that fits (it wants no GPU) to its admission."""
        self._arrived += 1
        name = f"small-{self._arrived}"
        change = lambda: self._cluster.create(TFJOBS, "default", tfjob(name, ps=0, workers=1))  # noqa: E731
        seconds, admitted = self._answer(change)
        assert admitted == name, f"{admitted} was admitted, not {name}"
        return seconds

    def release(self, gang: int) -> float:
        """Seconds from the end of the last pod of a running gang to the admission of one that waits."""
        pods = self._cluster.list(PODS, "default", labels=f"{names.JOB_NAME}=running-{gang:03}").items
        assert len(pods) == WORKERS, f"{len(pods)} pods are left of running-{gang:03}"
        for pod in pods[1:]:
            self._succeed(pod)
        self.rest()
        seconds, admitted = self._answer(lambda: self._succeed(pods[0]))
        assert admitted.startswith("waiting-"), f"{admitted} was admitted, and it did not wait for GPUs"
        return seconds

    def _succeed(self, pod: Object) -> None:
        state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        status = {"phase": "Succeeded", "containerStatuses": [{"name": "tensorflow", "state": state}]}
        body = {**pod, "status": status}
        self._cluster.replace(PODS, "default", pod["metadata"]["name"], body, subresource="status")

    def _answer(self, change: Callable[[], object]) -> tuple[float, str]:
        """Seconds from a change to the next admission in a job's status, and that job's name; then rest."""
        since = self._cluster.list(LEASES, "default").resource_version
        with self._cluster.watch(TFJOBS, "default", since=since, timeout=_LONGEST) as stream:
            begun = time.perf_counter()
            change()
            for event in stream:
                name = event.object["metadata"].get("name", "")  # a bookmark has none
                if name not in self._admitted and _admitted(event.object):
                    break
            else:
                raise TimeoutError(f"nothing was admitted within {_LONGEST} s")
            seconds = time.perf_counter() - begun
        self.rest(seconds)
        self._admitted.add(name)
        return seconds, name

    def rest(self, seconds: float = 0.0) -> None:
        """Return when nothing has been written for as long as a driver rests after a decision of ``seconds``.

        Not longer: jobs that wait write every 9 to 15 seconds, so after a slow first answer there would never be rest.
        """
        quiet, seen, since = min(8.0, max(1.0, 6 * seconds)), "", time.monotonic()
        while time.monotonic() - since < quiet:
            if (now := self._cluster.list(LEASES, "default").resource_version) != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.05)


def _admitted(job: Object) -> bool:
    return bool(((job.get("status") or {}).get("tfDist") or {}).get("admission"))


@contextmanager
def scene(waiting: int) -> Iterator[Scene]:
    """So many gangs wait, and a driver follows them."""
    tune_garbage_collector()
    # No resync: it has every job that waits say anew what is free now, one after the other, and there is never rest.
    settings = ControllerSettings(volcano_jobs=False, workers=16, resync_waiting=_NO_RESYNC)
    journal = Copies("waiting", waiting, vary=_in_line)
    with MemoryCluster(journal=journal, uids=journal.uids) as small:
        _fill(small, Controller(small, settings=settings))
    with MemoryCluster(journal=journal) as cluster:
        looks = Looks()
        driver = Controller(cluster, settings=settings, recorder=looks)
        found = Scene(cluster, driver)
        driver.start()
        try:
            while looks.count < GANGS + waiting:  # it begins with one at each job, once all are decided about
                time.sleep(0.05)
            found.arrive()
            yield found
        finally:
            driver.stop()


def _in_line(text: str, number: int) -> str:
    """The JSON of a job that waits as it says where in the line it stands: a driver need not write it again."""
    ahead = [JobKey("default", f"waiting-{other:06}") for other in range(min(number, 3))]
    reader = JobKey("default", f"waiting-{number:06}")
    return text.replace(queue_position_text(0, (), "", reader), queue_position_text(number, ahead, "", reader))


def _fill(cluster: MemoryCluster, driver: Controller) -> None:
    """Every GPU is held by a gang that runs, and one gang waits."""
    room = {"cpu": "96", "memory": "384Gi", "pods": "110", "nvidia.com/gpu": "8"}
    for number in range(GANGS):
        node = {"metadata": {"name": f"n{number:03}"}, "status": {"allocatable": room, "conditions": _READY}}
        cluster.create(NODES, None, node)
        cluster.create(TFJOBS, "default", tfjob(f"running-{number:03}", ps=0, workers=WORKERS, gpus=1))
    while driver.step():
        pass
    _run_pods(cluster)
    cluster.create(TFJOBS, "default", tfjob(TEMPLATE, ps=0, workers=WORKERS, gpus=1))
    while driver.step():
        pass


def _run_pods(cluster: MemoryCluster) -> None:
    """Bind every pod to the node that its job was given, and run it."""
    place = {
        job["metadata"]["name"]: next(iter(job["status"]["tfDist"]["admission"]["placement"]["worker"]))
        for job in cluster.list(TFJOBS).items
    }
    pods = cluster.list(PODS).items
    assert len(pods) == GANGS * WORKERS, f"{len(pods)} pods, not {GANGS * WORKERS}"
    for pod in pods:
        name = pod["metadata"]["name"]
        cluster.bind("default", name, place[pod["metadata"]["labels"][names.JOB_NAME]])
        bound = cluster.get(PODS, "default", name)
        container = {"name": "tensorflow", "state": {"running": {}}, "restartCount": 0}
        status = {"phase": "Running", "conditions": _READY, "containerStatuses": [container]}
        cluster.replace(PODS, "default", name, {**bound, "status": status}, subresource="status")


def answers(waiting: int, rounds: int = 11) -> Answers:
    """Arrivals and releases, one after the other, with so many gangs waiting."""
    found = Answers(waiting)
    with scene(waiting) as here:
        for number in range(rounds):
            before = time.process_time()
            found.arrivals.append(here.arrive() * 1e3)
            found.cpu.append((time.process_time() - before) * 1e3)
            found.releases.append(here.release(number) * 1e3)
    return found


@benchmark(
    Row(
        "driver.decide_100k",
        "100,000 gangs of 8 wait for GPUs, and a job is created that fits: until the admission is in its status. "
        "A whole driver that follows the cluster in its threads and is at rest before.",
        "ms",
        target=Target(10.0),
    ),
    Row(
        "driver.release_100k",
        "The same, from the end of the last pod of a running gang to the admission of one that waited.",
        "ms",
        target=Target(3.0, of=_FEW),
    ),
    Row(
        "driver.decide_cpu_100k",
        "CPU time of the process for such an arrival, until nothing more is written: what other jobs cannot have.",
        "ms",
        target=Target(3.0, of=_FEW),
    ),
)
def decided() -> dict[str, Measured]:
    """The peer is the same with 1,000 gangs waiting."""
    few, many = answers(1_000), answers(100_000)
    return {
        "driver.decide_100k": Measured(many.arrivals, {_FEW: few.arrivals}),
        "driver.release_100k": Measured(many.releases, {_FEW: few.releases}),
        "driver.decide_cpu_100k": Measured(many.cpu, {_FEW: few.cpu}),
    }


def main(counts: list[str]) -> int:
    """Print a table."""
    for count in counts:
        found = answers(int(count), 5)
        for what, each in (("arrival", found.arrivals), ("release", found.releases), ("CPU", found.cpu)):
            middle = statistics.median(each)
            print(f"{count:>8} waiting  {what:<8} median {middle:9.2f} ms  worst {max(each):9.2f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
