"""Events of a job's pods in the small cluster of ``world``."""

from __future__ import annotations

from tests.core.world import World
from tf_dist.core.model.job import (
    CleanPodPolicy,
    Job,
)
from tf_dist.core.model.status import Phase

KEEP = CleanPodPolicy.NONE


def started(job: Job) -> World:
    """A world in which every pod of the job runs."""
    world = World(job)
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    return world


def end(world: World, replica: str, code: int = 0, reason: str = "") -> None:
    pod = world.pod(replica)
    world.end(pod, code, reason)
    world.settle()


def again(world: World) -> None:
    """Wait until backoffs end, and let new pods run."""
    world.now += 1000
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()


def lose(world: World, replica: str) -> None:
    pod = world.pod(replica)
    world.remove(pod)
    world.settle()


def ended(world: World) -> tuple[Phase, str]:
    return world.memory.phase, world.memory.reason
