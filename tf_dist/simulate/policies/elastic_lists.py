"""Common parts of the two elastic policies of tf-operator-Dragon: the lists of jobs, and changes of their workers.

Both policies remove workers without a restart, but never the first worker, and restart a job to let it grow. Both
ignore the cost of growing. tf-operator-Dragon uses the names ``min`` and ``max`` for ``least`` and ``most``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.scenario import Layout

RESYNC: Final = 30.0


class Lists:
    """Waiting jobs in order of arrival, and running jobs in the order of their starts."""

    def __init__(self) -> None:
        self.waiting: list[JobRun] = []
        self.running: list[JobRun] = []

    def arrived(self, run: JobRun, world: World) -> None:
        """Add the job to the waiting jobs."""
        self.waiting.append(run)

    def ended(self, run: JobRun, world: World) -> None:
        """Remove the job from the running jobs."""
        self.running.remove(run)

    def start(self, run: JobRun, layout: Layout, world: World) -> None:
        """Start a waiting job."""
        self.waiting.remove(run)
        self.running.append(run)
        world.resume(run, layout)

    def next_sync(self, world: World) -> float | None:
        """The next sync: every 30 seconds while jobs wait or can grow; None otherwise."""
        if not self.waiting and not any(run.size < run.job.most for run in self.running):
            return None
        return (world.now // RESYNC + 1) * RESYNC


def far_first(layout: Layout) -> Iterable[int]:
    """The nodes of a job: nodes without a parameter server first, and of these the nodes with fewest workers first."""
    return sorted(layout.workers, key=lambda node: (node in layout.home, layout.workers[node], node))


def removable(run: JobRun) -> Iterator[int]:
    """The node of each worker that can be removed, in order of removal. One worker stays on the last node."""
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
    """The layout with one worker less for each of these nodes."""
    workers = dict(layout.workers)
    for node in nodes:
        workers[node] -= 1
    return Layout({node: count for node, count in workers.items() if count}, layout.ps)


def with_workers(layout: Layout, node: int, count: int) -> Layout:
    """The layout with more workers on a node."""
    return Layout({**layout.workers, node: layout.workers.get(node, 0) + count}, layout.ps)
