"""Admission against a real API server: jobs that other drivers drive, so that nothing is written but verdicts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.control_plane import (
    EVENTS,
    NO_SCHEDULER,
    SPACE,
    Controller,
    Peer,
    followed,
    job_of,
    no_server,
    placed,
    prepared,
)
from benchmarks.measure import Measured, Row, Target, benchmark, in_turn, until
from tf_dist.cluster.api import NODES, TFJOBS, Cluster, Object
from tf_dist.cluster.client.informer import Informer
from tf_dist.core.dialects import read
from tf_dist.core.model.assignment import Verdict, Wait
from tf_dist.core.model.context import Observed
from tf_dist.core.model.reasons import Reason

JOBS = 2000
OFFERED = 50  # jobs a second: a third of what two processors create with all else that they do
OFFERS = 500
_BARE = "the same writes by 16 threads, no admission"
_CORDONED = ", ".join(f"{SPACE}-{number} (cordoned)" for number in (0, 1, 10))
_WAITS = Wait(
    reason=Reason.NODES_UNAVAILABLE,
    message=f"it would fit with nodes that accept no pods now: {_CORDONED} and 57 more",
)
"""As a controller says it."""


class _Seen:
    """When each job was first seen with a place, by its name."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def note(self, _: Object | None, new: Object | None) -> None:
        """A job has changed."""
        if new is not None and ((new.get("status") or {}).get("tfDist") or {}).get("admission"):
            self.at.setdefault(new["metadata"]["name"], time.monotonic())


@contextmanager
def _following(cluster: Cluster) -> Iterator[_Seen]:
    seen = _Seen()
    informer = Informer(cluster, TFJOBS, namespace=SPACE, changed=seen.note)
    informer.start()
    try:
        yield seen
    finally:
        informer.stop()


@contextmanager
def _scene() -> Iterator[tuple[Cluster, _Seen, Controller]]:
    """A cluster and a controller of all of it."""
    with ExitStack() as stack:
        cluster = stack.enter_context(prepared())
        controller = stack.enter_context(Controller())
        until(controller.leads)
        seen = stack.enter_context(_following(cluster))
        _create(cluster, JOBS)  # it decides about this one before anything is measured
        until(lambda: f"job-{JOBS:05}" in seen.at)
        seen.at.clear()
        yield cluster, seen, controller


def _create(cluster: Cluster, number: int) -> Object:
    job = job_of(number, workers=2, scheduler=NO_SCHEDULER)
    return cluster.create(TFJOBS, SPACE, job)


def _cordon(cluster: Cluster, *, cordoned: bool) -> None:
    for number in range(60):
        cluster.patch(NODES, None, f"{SPACE}-{number}", {"spec": {"unschedulable": cordoned}})


@benchmark(
    Row(
        "api.admit_2000",
        "2,000 jobs wait for nodes: jobs a second from the first of 60 nodes uncordoned to the last verdict in a "
        "status, as a watch shows it.",
        "jobs/s",
        better="higher",
        target=Target(0.9, of=_BARE),
    ),
    lacks=no_server,
)
def admitted() -> Measured:
    """The peer uncordons the nodes and writes the same statuses over the same ones, and as many events."""
    spent: list[float] = []

    def written(of: _Decided) -> float:
        rate, cpu = _write_alike(of.events)
        spent.append(cpu)
        return rate

    ours, peers = in_turn(_decided, written, pairs=3)
    cpu, events = statistics.median(one.cpu for one in ours), ours[-1].events
    note = f"The controller: {cpu:.1f} ms of CPU time a job, the peer {statistics.median(spent):.1f}; "
    note += f"{events} events within the time measured. "
    note += "The peer follows the same kinds and writes over the same statuses; both in turn."
    return Measured([one.rate for one in ours], {_BARE: peers}, note)


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a controller does in the time measured."""

    rate: float  # jobs a second
    cpu: float  # milliseconds, a job
    events: int


def _decided() -> _Decided:
    with _scene() as (cluster, seen, controller):
        _cordon(cluster, cordoned=True)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(_create, cluster), range(JOBS)))
        until(lambda: all("tfDist" in (job.get("status") or {}) for job in cluster.list(TFJOBS, SPACE).items))
        events, cpu = controller.calls().get(EVENTS, 0), controller.cpu()
        rate = _admission_rate(cluster, seen)
        cpu = (controller.cpu() - cpu) / JOBS * 1e3
        return _Decided(rate, cpu, controller.calls().get(EVENTS, 0) - events)


def _admission_rate(cluster: Cluster, seen: _Seen, write: Callable[[], object] = lambda: None) -> float:
    """Jobs a second from the first node uncordoned to the last verdict seen; what ``write`` does is part of it."""
    begun = time.monotonic()
    _cordon(cluster, cordoned=False)
    write()
    until(lambda: len(seen.at) >= JOBS)
    return JOBS / (max(seen.at.values()) - begun)


def _write_alike(events: int) -> tuple[float, float]:
    """Jobs a second, and milliseconds of CPU time a job, with as many events as the controller wrote in its time; it
    writes most of them later, so that jobs go first.
    """
    with (
        prepared() as cluster,
        followed(cluster),
        _following(cluster) as seen,
        ThreadPoolExecutor(16) as pool,
    ):
        _cordon(cluster, cordoned=True)
        list(pool.map(partial(_create, cluster), range(JOBS)))

        def write(verdict: Callable[[int], Verdict], peer: Peer) -> Callable[[], object]:
            listed = sorted(cluster.list(TFJOBS, SPACE).items, key=lambda job: str(job["metadata"]["name"]))
            jobs = [(stored, read(stored)) for stored in listed]
            return lambda: list(
                pool.map(lambda number: peer.write(number, *jobs[number], _observed(verdict(number))), range(JOBS))
            )

        write(lambda _: _WAITS, Peer(cluster, jobs=JOBS, events=0))()
        admit = write(partial(placed, workers=2), Peer(cluster, jobs=JOBS, events=events))
        begun = time.process_time()
        rate = _admission_rate(cluster, seen, admit)
        return rate, (time.process_time() - begun) / JOBS * 1e3


def _observed(verdict: Verdict) -> Observed:
    return Observed(now=0.0, verdict=verdict)


@benchmark(
    Row(
        "api.admit_latency",
        "50 jobs a second are created for 10 s: the 99th percentile from a creation answered to its place in a "
        "status, as a watch shows it.",
        "ms",
        # A decision every 50 ms, and two writes instead of one: what is about to be given, and the status.
        target=Target(8.0, of=_BARE),
    ),
    lacks=no_server,
)
def latency() -> Measured:
    """The peer: the thread that has created a job writes the same status itself at once."""
    ours, peers = in_turn(_decided_waits, lambda _: _written_waits(), pairs=2)
    note = f"offered: {ours[-1].offered:.0f} jobs/s; half of them within {ours[-1].half:.0f} ms."
    return Measured([one.late for one in ours], {_BARE: peers}, note)


@dataclass(frozen=True, slots=True)
class _Waits:
    """Milliseconds from a creation to the place: the median and the 99th percentile; jobs a second that there were."""

    half: float
    late: float
    offered: float


def _decided_waits() -> _Waits:
    with _scene() as (cluster, seen, _):
        return _offered(partial(_create, cluster), seen)


def _written_waits() -> float:
    with prepared() as cluster, _following(cluster) as seen:
        peer = Peer(cluster, jobs=OFFERS, events=OFFERS)

        def create(number: int) -> Callable[[], None]:
            stored = _create(cluster, number)
            return lambda: peer.write(number, stored, read(stored), _observed(placed(number, workers=2)))

        return _offered(create, seen).late


def _offered(create: Callable[[int], Object | Callable[[], None]], seen: _Seen) -> _Waits:
    begun = time.monotonic()

    def one(number: int) -> float:
        time.sleep(max(0.0, begun + number / OFFERED - time.monotonic()))
        then = create(number)
        created = time.monotonic()
        if callable(then):
            then()
        return created

    with ThreadPoolExecutor(16) as pool:
        moments = list(pool.map(one, range(OFFERS)))
    until(lambda: len(seen.at) >= OFFERS)
    waits = sorted(max(0.0, seen.at[f"job-{number:05}"] - moment) * 1e3 for number, moment in enumerate(moments))
    return _Waits(waits[OFFERS // 2], waits[int(OFFERS * 0.99)], OFFERS / (max(moments) - begun))
