"""What it takes a hub to hand changes to those who wait."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from benchmarks.airflow_site import until
from benchmarks.jobs import tfjob
from tf_dist.airflow.bell import bell_here
from tf_dist.airflow.hub import Hub
from tf_dist.client.connect import Connection
from tf_dist.cluster.api import TFJOBS
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.driver.refs import JobRef

_ROUNDS = 20


def seconds(count: int) -> tuple[float, float]:
    """Seconds an event and waiter, and an event that concerns nobody, with ``count`` who wait on one event loop."""
    with MemoryCluster() as cluster:
        for number in range(count):
            cluster.create(TFJOBS, "default", tfjob(f"job-{number}"))
        hub = Hub(Connection(cluster, "default", "memory"), "default")
        try:
            return asyncio.run(_handed(hub, count))
        finally:
            hub.close()


async def _handed(hub: Hub, count: int) -> tuple[float, float]:
    loop, events = asyncio.get_running_loop(), [asyncio.Event() for _ in range(count)]
    refs = [JobRef(TFJOBS, "default", f"job-{number}") for number in range(count)]

    ring = bell_here().ring
    tickets = [hub.join(ref, partial(ring, loop, event)) for ref, event in zip(refs, events, strict=True)]
    until(lambda: all(ticket.take(0) or True for ticket in tickets))
    best, others = [], [JobRef(TFJOBS, "default", f"other-{number}") for number in range(count)]
    for _ in range(_ROUNDS):
        for event in events:
            event.clear()
        begun = time.thread_time()
        for ref in refs:
            hub.ring(ref)
        await events[-1].wait()
        assert all(event.is_set() for event in events)
        for ticket in tickets:
            ticket.take(0)
        best.append((time.thread_time() - begun) / count)
    begun = time.thread_time()
    for ref in others:
        hub.ring(ref)
    passed = (time.thread_time() - begun) / count
    for ticket in tickets:
        hub.leave(ticket)
    return sorted(best)[_ROUNDS // 2], passed
