"""What the two elastic policies of tf-operator-Dragon share: their lists, and how they take and add workers.

Both take workers away without a restart, never the first one, and restart a job to let it grow. Neither looks at what
growing costs. (Named ``min`` and ``max`` there: ``least`` and ``most``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.scenario import Layout

RESYNC: Final = 30.0


class Lists:
    """Jobs that wait and jobs that run, in the order in which they came and started."""

    def __init__(self) -> None:
        self.waiting: list[JobRun] = []
        self.running: list[JobRun] = []

    def arrived(self, run: JobRun, world: World) -> None:
        """To the end of those that wait."""
        self.waiting.append(run)

    def ended(self, run: JobRun, world: World) -> None:
        """It runs no longer."""
        self.running.remove(run)

    def start(self, run: JobRun, layout: Layout, world: World) -> None:
        """From those that wait to those that run."""
        self.waiting.remove(run)
        self.running.append(run)
        world.resume(run, layout)

    def next_sync(self, world: World) -> float | None:
        """The controller looks every 30 seconds, as long as there is anything to look at."""
        if not self.waiting and not any(run.size < run.job.most for run in self.running):
            return None
        return (world.now // RESYNC + 1) * RESYNC


def far_first(layout: Layout) -> Iterable[int]:
    """The nodes of a job, those without a parameter server first, and among them those with fewest workers."""
    return sorted(layout.workers, key=lambda node: (node in layout.home, layout.workers[node], node))


def removable(run: JobRun) -> Iterator[int]:
    """The node of each worker that may go, in the order in which they go; the first stays, beside the servers."""
    layout = run.layout or Layout()
    keep = max(run.job.least, 1)
    spare = layout.size - keep
    nodes = list(far_first(layout))
    for node in nodes:
        critical = 1 if node == nodes[-1] else 0
        for _ in range(min(spare, layout.workers[node] - critical)):
            spare -= 1
            yield node


def without(layout: Layout, nodes: Iterable[int]) -> Layout:
    """The layout and one worker less on each of these nodes."""
    workers = dict(layout.workers)
    for node in nodes:
        workers[node] -= 1
    return Layout({node: count for node, count in workers.items() if count}, layout.ps)


def with_workers(layout: Layout, node: int, count: int) -> Layout:
    """The layout and more workers on a node."""
    return Layout({**layout.workers, node: layout.workers.get(node, 0) + count}, layout.ps)
