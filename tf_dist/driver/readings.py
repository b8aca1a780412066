"""How a driver stands at a moment: what is read when metrics are scraped or its health is asked for.

What is read then is never out of date: nothing has to be set back when jobs are deleted or the Lease is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tf_dist.core.gang.queue_tree import DEFAULT
from tf_dist.driver.ledger import Standing

# Queues that have series of their own; users may name any, so all that do not exist share one.
_MOST_QUEUES: Final = 200
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class InformerReading:
    """One informer. ``age``: seconds since the server last said anything; ``idle``: since its thread came round.

    ``dead``: its thread has ended by itself. ``lists``: how often it has listed everything.
    """

    resource: str
    age: float
    idle: float
    dead: bool
    lists: int


@dataclass(frozen=True, slots=True)
class WorkReading:
    """The work queue and its workers. ``running``: what workers are busy with, and for how many seconds."""

    depth: int = 0
    adds: int = 0
    retries: int = 0
    running: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0


@dataclass(frozen=True, slots=True)
class GangReading:
    """The gangs of a queue: those that wait for their place, and those that have it."""

    pending: int = 0
    admitted: int = 0


@dataclass(frozen=True, slots=True)
class Readings:
    """One driver. ``jobs`` by phase and ``gangs`` by queue: of jobs that it drives now, so none while it stands by."""

    work: WorkReading
    informers: tuple[InformerReading, ...] = ()
    jobs: Mapping[str, int] = field(default_factory=dict)
    gangs: Mapping[str, GangReading] = field(default_factory=dict)


def phases(jobs: Mapping[Standing, int]) -> dict[str, int]:
    """How many jobs are in each phase."""
    found: Counter[str] = Counter()
    for standing, number in jobs.items():
        found[standing.phase] += number
    return dict(found)


def gangs(jobs: Mapping[Standing, int], queues: Iterable[str]) -> dict[str, GangReading]:
    """The gangs of each queue that there is ("": jobs without one, where there is no default queue)."""
    there = sorted(set(queues))[:_MOST_QUEUES]
    found = {name: GangReading() for name in there}
    for one, number in jobs.items():
        if one.queue is None:
            continue
        named = one.queue or (DEFAULT if DEFAULT in found else "")
        name = named if named in found or not named else OTHER
        before = found.get(name, GangReading())
        found[name] = GangReading(before.pending + one.waits * number, before.admitted + one.admitted * number)
    return found


def stuck(readings: Readings, *, worker: float, informer: float) -> list[str]:
    """What has stood still for longer than any request takes, so that only a new process helps.

    ``worker``, ``informer``: seconds. A server that does not answer is no reason: requests end, and are tried again.
    """
    found = [
        f"a worker has been busy with {job} for {seconds:.0f} s"
        for job, seconds in sorted(readings.work.running.items())
        if seconds > worker
    ]
    for one in readings.informers:
        if one.dead:
            found.append(f"the informer of {one.resource} has ended")
        elif one.idle > informer:
            found.append(f"the informer of {one.resource} has not come round for {one.idle:.0f} s")
    return found
