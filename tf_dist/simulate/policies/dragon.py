"""The rules of DRAGON v2: the first waiting job may shrink others after 30 seconds, and a quiet minute grows all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.placement import FreeCapacity, filled
from tf_dist.simulate.policies.elastic_lists import Lists, removable, with_workers, without
from tf_dist.simulate.scenario import Layout

HIGH: Final = 30.0
QUIET: Final = 60.0


class Dragon(Lists):
    """One pass of the algorithm at every event and every 30 seconds. A pass starts at most one job."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0.0

    def act(self, world: World) -> float | None:
        """Run passes until a pass changes nothing, because every change is an event that causes another pass."""
        while self._pass(world):
            pass
        return self.next_sync(world)

    def _pass(self, world: World) -> bool:
        high = self.waiting[0] if self.waiting and world.now - self.waiting[0].job.submit >= HIGH else None
        changed = helped = False
        if high is not None:
            helped, changed = self._shrink(high, world)
            self._last = world.now
        if high is None or helped:  # if shrinking cannot help the first job, no other job starts
            changed = self._admit(world) or changed
        if world.now - self._last >= QUIET:
            self._last = world.now
            changed = self._grow(world) or changed
        return changed

    def _admit(self, world: World) -> bool:
        for run in self.waiting:
            layout = schedule(world.floor, run, run.job.workers, servers=True)
            if layout is not None and layout.size >= max(run.job.least, 1):
                self.start(run, layout, world)
                self._last = world.now
                return True
        return False

    def _shrink(self, high: JobRun, world: World) -> tuple[bool, bool]:
        """Take workers one by one until the minimum of the job fits. Take none if it never fits."""
        floor = world.floor.copy()
        taken: dict[int, list[int]] = {}

        def fits() -> bool:
            found = schedule(floor, high, high.job.least, servers=False)
            return found is not None and found.size >= high.job.least

        for run, node in self._candidates():
            if fits():
                break
            floor.change(node, floor.of_worker(run.job), run.job.cpu)
            taken.setdefault(run.number, []).append(node)
        if not fits():
            return False, False
        for number, nodes in taken.items():
            world.resize(world.runs[number], without(world.runs[number].layout or Layout(), nodes))
        return True, bool(taken)

    def _candidates(self) -> Iterable[tuple[JobRun, int]]:
        return ((run, node) for run in self.running for node in removable(run))

    def _grow(self, world: World) -> bool:
        """Add as many workers as fit, node by node. The next job grows when the job before it has its maximum."""
        floor = world.floor.copy()
        layouts: dict[int, Layout] = {}
        index = 0
        for node in range(len(floor.units)):
            while index < len(self.running):
                run = self.running[index]
                layout = layouts.get(run.number, run.layout or Layout())
                units = floor.of_worker(run.job)
                missing = run.job.most - layout.size
                count = floor.fits(node, units, run.job.cpu, missing)
                if count:
                    floor.change(node, -count * units, -count * run.job.cpu)
                    layouts[run.number] = with_workers(layout, node, count)
                if count < missing:
                    break
                index += 1
        for number, layout in layouts.items():
            world.resize(world.runs[number], layout)
        return bool(layouts)


def schedule(floor: FreeCapacity, run: JobRun, size: int, *, servers: bool) -> Layout | None:
    """One node that fits all pods, else as many workers as fit, on the nodes that fit most workers first.

    None if the parameter servers do not all fit.
    """
    job, units, ps_units = run.job, floor.of_worker(run.job), floor.of_ps(run.job)
    ps = job.ps if servers else 0
    nodes = range(len(floor.units))
    for node in nodes:
        cores = size * job.cpu + ps * job.ps_cpu
        if floor.units[node] >= size * units + ps * ps_units and floor.cpu[node] >= cores:
            return Layout({node: size}, {node: ps} if ps else {})
    order = sorted(nodes, key=lambda node: (-floor.fits(node, units, job.cpu, size), node))
    placed = filled(floor, ps_units, job.ps_cpu, ps, order) if ps else {}
    if sum(placed.values()) < ps:
        return None
    rest = floor.copy()
    for node, count in placed.items():
        rest.change(node, -count * ps_units, -count * job.ps_cpu)
    return Layout(filled(rest, units, job.cpu, size, order), placed)
