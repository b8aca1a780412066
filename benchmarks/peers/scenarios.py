"""One system under one load client: what it does with a burst, a backlog, turns, single gangs and a cold start."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from benchmarks.control_plane import SPACE
from benchmarks.measure import Row, cpu_seconds, until
from benchmarks.peers.servers import DECIDER, JOB_CONTROLLER
from benchmarks.peers.systems import System
from tf_dist.cluster.api import PODS, SERVICES, Cluster, Object
from tf_dist.cluster.client.informer import Informer
from tf_dist.errors import NotFound

_LIMIT: Final = 180.0  # seconds for any wait
_PLENTY: Final = 1_000_000  # CPUs
_RATE: Final = 20  # single gangs a second
_SMALL: Final = 2  # pods of such a gang: with 8, creating the pods takes all that two processors have


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much load there is."""

    gangs: int = 300  # in a burst, a backlog, and so on
    pods: int = 8  # of a gang
    single: int = 200  # gangs that come one by one


_WAITING = "300 gangs of 8 wait because the quota of their queue is 0. Then it is raised: "
_TURNS = "300 gangs wait, and there is a quota for 30. Each gang is deleted as soon as it is admitted: "
_COLD = "300 gangs wait when the controller's process is started: "
_SINGLE = f"{_RATE} gangs of {_SMALL} are created a second, 200 in all: "
_BURST = "300 gangs of 8 are created by 4 threads while there is quota for all: "
ROWS: Final = (
    Row("backlog", _WAITING + "gangs admitted a second, until all are.", "gangs/s", better="higher"),
    Row("backlog.first", _WAITING + "seconds to the first admission.", "s"),
    Row("backlog.cpu", _WAITING + "processor time of the controller until all are admitted.", "ms a gang"),
    Row("turns", _TURNS + "gangs admitted a second, until all were.", "gangs/s", better="higher"),
    Row("cold.first", _COLD + "seconds from there to the first admission.", "s"),
    Row("cold.first_started", _COLD + "seconds from the line in its log that says that it works to the first.", "s"),
    Row("cold.all", _COLD + "seconds from its start until all are admitted.", "s"),
    Row("cold.cpu", _COLD + "processor time until then, its start included.", "ms a gang"),
    Row("single.p50", _SINGLE + "the median from a creation answered to its admission.", "ms"),
    Row("single.p99", _SINGLE + "the 99th percentile of the same.", "ms"),
    Row("pods.admission", _BURST + "the median from a creation answered to its admission.", "s"),
    Row("pods", _BURST + "pods a second from the first creation until all exist.", "pods/s", better="higher"),
    Row("pods.requests", _BURST + "requests of the controller, and of Kubernetes' own.", "a gang"),
    Row("pods.cpu", _BURST + "processor time of the controller until all pods exist.", "ms a gang"),
    Row("pods.manager_cpu", _BURST + "that of kube-controller-manager, which has the Job controller.", "ms a gang"),
    Row("memory", "The most memory that the controller's process held in all of that.", "MiB"),
)
"""What is measured, in the order of the table."""
Figures = dict[str, float]


class Plane(Protocol):
    """The API server that all of it is about; see ``Servers``."""

    folder: Path

    def kubeconfig(self, user: str) -> Path:
        """The file with which ``user`` connects."""

    def job_controller_cpu(self) -> float:
        """Processor seconds of the controller manager so far."""

    def requests(self, *users: str) -> int:
        """How many requests these users have made so far."""


class Load:
    """Creates jobs, deletes them, and notes when each was created and admitted, and which pods exist."""

    def __init__(self, cluster: Cluster, system: System) -> None:
        self.cluster, self.system = cluster, system
        self.created: dict[str, float] = {}
        self.admitted: dict[str, float] = {}
        self.ends = False  # whether a gang is deleted as soon as it is admitted
        self._count = 0
        self._deleters = ThreadPoolExecutor(8)
        self._admissions = Informer(cluster, system.shown_in, namespace=SPACE, changed=self._changed)
        self._pods = Informer(cluster, PODS, namespace=SPACE, keep=_name_only, changed=lambda *_: None)

    def __enter__(self) -> Load:
        for informer in (self._admissions, self._pods):
            informer.start()
            until(informer.synced)
        return self

    def __exit__(self, *exc: object) -> None:
        self._deleters.shutdown(cancel_futures=True)
        self._admissions.stop()
        self._pods.stop()

    def _changed(self, _: Object | None, new: Object | None) -> None:
        name = self.system.admitted(new) if new is not None else ""
        if name and name not in self.admitted:
            self.admitted[name] = time.monotonic()
            if self.ends:
                self._deleters.submit(self._delete, name)

    def create(self, count: int, pods: int, *, rate: float = 0.0) -> None:
        """So many jobs by four threads; ``rate``: so many a second."""
        begun, first = time.monotonic(), self._count
        self._count += count

        def one(number: int) -> None:
            if rate:
                time.sleep(max(0.0, begun + (number - first) / rate - time.monotonic()))
            stored = self.cluster.create(self.system.job_kind, SPACE, self.system.job(number, pods))
            self.created[stored["metadata"]["name"]] = time.monotonic()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(one, range(first, first + count)))

    def wait_admitted(self) -> list[float]:
        """When each was admitted, in order, once all are."""
        until(lambda: len(self.admitted) >= len(self.created), _LIMIT, every=0.02)
        return sorted(self.admitted.values())

    def waits(self) -> list[float]:
        """Seconds from each creation to its admission, in order."""
        return sorted(max(0.0, self.admitted[name] - at) for name, at in self.created.items())

    def wait_pods(self, count: int) -> None:
        """Until so many exist."""
        until(lambda: len(self._pods.cache) >= count, _LIMIT, every=0.02)

    def _delete(self, name: str) -> None:
        with suppress(NotFound):
            self.cluster.delete(self.system.job_kind, SPACE, name)

    def clear(self) -> None:
        """Until nothing is left of the jobs; forget what was noted."""
        self.ends = False
        with ThreadPoolExecutor(16) as pool:
            stored = self.cluster.list(self.system.job_kind, SPACE).items
            list(pool.map(self._delete, [job["metadata"]["name"] for job in stored]))
        kinds = (self.system.job_kind, self.system.shown_in, PODS, SERVICES)
        until(lambda: not any(self.cluster.list(kind, SPACE, limit=1).items for kind in kinds), _LIMIT, every=0.3)
        self.created.clear()
        self.admitted.clear()


def _name_only(stored: Object) -> Object:
    return {"metadata": stored["metadata"]}


def measure(system: System, plane: Plane, cluster: Cluster, sizes: Sizes) -> Figures:
    """All figures of one system, by the names of the rows. The plane has what ``system.install`` creates."""
    kubeconfig, found = plane.kubeconfig(DECIDER), Figures()
    with Load(cluster, system) as load:
        load.clear()
        with system.running(kubeconfig, plane.folder) as processes:
            until(lambda: system.has_started(plane.folder), _LIMIT)
            of = partial(_Spent, processes, plane)
            _warm_up(load, sizes)
            found |= _burst(load, sizes, of)
            found |= _backlog(load, sizes, of)
            if system.makes_pods:
                found |= _turns(load, sizes, of)
            found |= _single(load, sizes)
            found["memory"] = sum(map(_peak_mib, processes))
        found |= _cold(load, sizes, plane, kubeconfig)
    return found


class _Spent:
    """What a controller uses from now on."""

    def __init__(self, processes: list[int], plane: Plane) -> None:
        self._processes, self._plane = processes, plane
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        return (
            sum(map(cpu_seconds, self._processes)),
            self._plane.job_controller_cpu(),
            self._plane.requests(DECIDER, JOB_CONTROLLER),
        )

    def a_gang(self, gangs: int) -> tuple[float, float, float]:
        """Milliseconds of its processor time, of the controller manager's, and requests of both; for each gang."""
        cpu, manager, requests = (after - before for after, before in zip(self._now(), self._before, strict=True))
        return cpu / gangs * 1e3, manager / gangs * 1e3, requests / gangs

    def at_rest(self) -> bool:
        """Whether the controller and the manager do next to nothing for half a second."""
        before = self._now()
        time.sleep(0.5)
        after = self._now()
        return after[0] - before[0] < 0.03 and after[1] - before[1] < 0.1


Spent = Callable[[], _Spent]


def _warm_up(load: Load, sizes: Sizes) -> None:
    load.system.set_quota(load.cluster, _PLENTY)
    load.create(4, sizes.pods)
    load.wait_admitted()
    load.clear()


def _burst(load: Load, sizes: Sizes, spent: Spent) -> Figures:
    used, begun = spent(), time.monotonic()
    load.create(sizes.gangs, sizes.pods)
    load.wait_admitted()
    found = {"pods.admission": load.waits()[sizes.gangs // 2]}
    if load.system.makes_pods:
        load.wait_pods(sizes.gangs * sizes.pods)
        found["pods"] = sizes.gangs * sizes.pods / (time.monotonic() - begun)
        found["pods.cpu"], found["pods.manager_cpu"], found["pods.requests"] = used.a_gang(sizes.gangs)
    load.clear()
    return found


def _backlog(load: Load, sizes: Sizes, spent: Spent) -> Figures:
    used, begun = _wait_for(load, sizes, spent, quota=_PLENTY)
    moments = load.wait_admitted()
    cpu, _, _ = used.a_gang(sizes.gangs)
    load.clear()
    rate = sizes.gangs / (moments[-1] - begun)
    return {"backlog": rate, "backlog.first": moments[0] - begun, "backlog.cpu": cpu}


def _wait_for(load: Load, sizes: Sizes, spent: Spent, *, quota: int) -> tuple[_Spent, float]:
    """Gangs wait for a quota, which is raised once nothing happens any more: what is used since, and since when."""
    load.system.set_quota(load.cluster, 0)
    until(spent().at_rest, _LIMIT)  # it has seen that, and does not admit the first of the next
    load.create(sizes.gangs, sizes.pods)
    until(spent().at_rest, _LIMIT)
    assert not load.admitted, "gangs were admitted without a quota"
    used, begun = spent(), time.monotonic()
    load.system.set_quota(load.cluster, quota)
    return used, begun


def _turns(load: Load, sizes: Sizes, spent: Spent) -> Figures:
    load.ends = True
    _, begun = _wait_for(load, sizes, spent, quota=sizes.gangs // 10 * sizes.pods)
    moments = load.wait_admitted()
    load.clear()
    load.system.set_quota(load.cluster, _PLENTY)
    return {"turns": sizes.gangs / (moments[-1] - begun)}


def _single(load: Load, sizes: Sizes) -> Figures:
    load.system.set_quota(load.cluster, _PLENTY)
    load.create(sizes.single, _SMALL, rate=_RATE)
    load.wait_admitted()
    waits = load.waits()
    load.clear()
    return {"single.p50": waits[len(waits) // 2] * 1e3, "single.p99": waits[int(len(waits) * 0.99)] * 1e3}


def _cold(load: Load, sizes: Sizes, plane: Plane, kubeconfig: Path) -> Figures:
    load.create(sizes.gangs, sizes.pods)
    system, begun = load.system, time.monotonic()
    with system.running(kubeconfig, plane.folder) as processes:
        until(lambda: system.has_started(plane.folder), _LIMIT, every=0.01)
        started = time.monotonic()
        moments = load.wait_admitted()
        cpu = sum(map(cpu_seconds, processes)) / sizes.gangs * 1e3
        load.clear()
    first = moments[0] - begun
    after = {"cold.first_started": max(0.0, moments[0] - started), "cold.all": moments[-1] - begun}
    return {"cold.first": first, **after, "cold.cpu": cpu}


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
