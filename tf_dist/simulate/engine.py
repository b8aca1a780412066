"""The loop: the next arrival, end of a job or wish of the policy to be asked, and then the policy's turn."""

from __future__ import annotations

from typing import Final, Protocol

from tf_dist.simulate.model import Scenario
from tf_dist.simulate.world import Run, World

STALLED: Final = 2 * 86_400.0
"""Seconds in which nothing runs and nothing comes, after which what still waits is stuck."""


class Policy(Protocol):
    """Who gets what when. Told what happens, it acts by ``world.give`` and ``world.take``."""

    def arrived(self, run: Run, world: World) -> None:
        """A job came."""

    def ended(self, run: Run, world: World) -> None:
        """A job is done; its room is free already."""

    def act(self, world: World) -> float | None:
        """Decide now; when to be asked again if nothing happens until then (None: not before something happens)."""


def simulate(scenario: Scenario, policy: Policy, *, record: bool = False) -> World:
    """Run the trace to its end, or until nothing moves any more. ``record``: keep what the picture needs.

    A job of the world that has not ``ended`` then is stuck.
    """
    world = World(scenario, record=record)
    coming = sorted(world.runs, key=lambda run: (run.job.submit, run.number))
    arrived, lively = 0, 0.0
    wake = float("inf")
    endless = float("inf")
    while True:
        arrival = coming[arrived].job.submit if arrived < len(coming) else endless
        now = min(arrival, world.next_end(), wake)
        if world.working or arrived < len(coming):
            lively = now
        if now == endless or now - lively > STALLED:
            break
        world.now = now
        while world.next_end() <= now:
            policy.ended(world.end_next(), world)
        while arrived < len(coming) and coming[arrived].job.submit <= now:
            world.waiting += 1
            policy.arrived(coming[arrived], world)
            arrived += 1
        asked = policy.act(world)
        if asked is not None and asked <= now:
            raise ValueError(f"asked to be woken at {asked}, and it is {now}")
        wake = endless if asked is None else asked
        world.noted()
    _close_books(world)
    return world


def _close_books(world: World) -> None:
    """What stuck jobs hold, they hold until the last job ended, or came."""
    ends = [run.ended for run in world.runs if run.ended is not None]
    world.now = max(world.now if not ends else 0.0, world.scenario.span, *ends)
    for run in world.runs:
        if run.layout is not None:
            world.take(run)
