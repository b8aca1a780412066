"""The rules of tf-operator-Dragon's ``auto-scale`` branch: starving jobs shrink others, idle time lets jobs grow.

The thresholds (two minutes, one minute, a sync every 30 seconds) and the order of jobs are the original ones. Two plain
bugs are fixed: the original skips jobs when it changes a list during iteration, and remembers a starving job that is
gone.
"""

from __future__ import annotations

from typing import Final

from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.placement import node_after_node
from tf_dist.simulate.policies.elastic_lists import Lists, removable, with_workers, without
from tf_dist.simulate.scenario import Layout

STARVING: Final = 120.0
IDLE: Final = 60.0
_NONE: Final = 100


class AutoScale(Lists):
    """One sync of the controller at every event and every 30 seconds. A sync starts at most one job."""

    def __init__(self) -> None:
        super().__init__()
        self._grow_timer = 0.0
        self._shrunk_for: JobRun | None = None

    def act(self, world: World) -> float | None:
        """Run syncs until a sync changes nothing, because every change is an event that causes another sync."""
        while self._sync(world):
            pass
        return self.next_sync(world)

    def _sync(self, world: World) -> bool:
        if self._shrunk_for not in self.waiting:
            self._shrunk_for = None
        starving, need = self._starving(world)
        surplus = sum(run.size - run.job.least for run in self.running)
        if not surplus > need and self._admit(world):  # strictly greater, as in the original
            self._grow_timer = world.now
            return True
        if self.waiting and self._shrink(need - world.floor.free, world):
            self._shrunk_for = starving
            self._grow_timer = world.now
            return True
        if world.now - self._grow_timer >= IDLE:
            self._grow_timer = world.now
            return self._grow(world)
        return False

    def _starving(self, world: World) -> tuple[JobRun | None, int]:
        """Of the jobs that have waited for two minutes, the job with the smallest minimum (not the longest wait)."""
        found, least = None, _NONE
        for run in self.waiting:
            waited = world.now - run.job.submit
            if waited >= STARVING and run is not self._shrunk_for and run.job.least < least:
                found, least = run, run.job.least
        return found, least

    def _admit(self, world: World) -> bool:
        for run in self.waiting:
            layout = node_after_node(world.floor, run.job, run.job.workers) or node_after_node(
                world.floor, run.job, run.job.least
            )
            if layout is not None:
                self.start(run, layout, world)
                return True
        return False

    def _shrink(self, need: int, world: World) -> bool:
        """Take workers from running jobs in the order of their starts, if enough workers can be taken."""
        taken: dict[int, list[int]] = {}
        pairs = ((run.number, node) for run in self.running for node in removable(run))
        for freed, (number, node) in enumerate(pairs, start=1):
            taken.setdefault(number, []).append(node)
            if freed >= need:
                break
        else:
            return False
        for number, nodes in taken.items():
            run = world.runs[number]
            world.resize(run, without(run.layout or Layout(), nodes))
        return True

    def _grow(self, world: World) -> bool:
        """Add a worker to each running job in turn, on the node of its parameter servers, until no job can grow."""
        floor = world.floor.copy()
        layouts = {run.number: run.layout or Layout() for run in self.running}
        grown: set[int] = set()
        changed = True
        while changed:
            changed = False
            for run in self.running:
                layout = layouts[run.number]
                home = max(layout.home, key=lambda node: (layout.home[node], -node))
                units, cpu = floor.of_worker(run.job), run.job.cpu
                if layout.size < run.job.most and floor.fits(home, units, cpu, 1):
                    floor.change(home, -units, -cpu)
                    layouts[run.number] = with_workers(layout, home, 1)
                    grown.add(run.number)
                    changed = True
        for number in sorted(grown):
            world.resize(world.runs[number], layouts[number])
        return bool(grown)
