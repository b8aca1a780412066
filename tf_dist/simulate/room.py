"""The free room of a cluster of equal nodes, kept by how much of it each node has: choosing does not scan all nodes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from tf_dist.simulate.model import Cluster, Layout, SimJob


class NoRoom(AssertionError):
    """A policy gave out what is not there: a defect of the policy."""


class Floor:
    """Free GPUs (``units``; cores in a cluster without GPUs) and cores of every node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.units = [cluster.gpus or cluster.cpu] * cluster.nodes
        self.cpu = [cluster.cpu] * cluster.nodes
        self.free = cluster.units
        self._levels: list[list[int]] = [[] for _ in range((cluster.gpus or cluster.cpu) + 1)]
        self._levels[-1] = list(range(cluster.nodes))

    def limited(self, units: list[int], cpu: list[int]) -> Floor:
        """A floor with no more room than this one and than these lists say."""
        found = Floor.__new__(Floor)
        found.cluster = self.cluster
        found.units = [max(0, min(pair)) for pair in zip(self.units, units, strict=True)]
        found.cpu = [max(0, min(pair)) for pair in zip(self.cpu, cpu, strict=True)]
        found.free = sum(found.units)
        found._levels = [[] for _ in self._levels]
        for node, level in enumerate(found.units):
            found._levels[level].append(node)
        return found

    def copy(self) -> Floor:
        """One of its own, to try things on."""
        found = Floor.__new__(Floor)
        found.cluster, found.free = self.cluster, self.free
        found.units, found.cpu = self.units[:], self.cpu[:]
        found._levels = [level[:] for level in self._levels]
        return found

    def change(self, node: int, units: int, cpu: int) -> None:
        """Give (or, negative, take) room on a node. Raises ``NoRoom``."""
        before = self.units[node]
        after = before + units
        self.cpu[node] += cpu
        if after < 0 or self.cpu[node] < 0 or after >= len(self._levels) or self.cpu[node] > self.cluster.cpu:
            raise NoRoom(f"node {node} would have {after} of {before} and {self.cpu[node]} cpu left")
        if units:
            level = self._levels[before]
            del level[bisect_left(level, node)]
            insort(self._levels[after], node)
            self.units[node] = after
            self.free += units

    def take(self, job: SimJob, layout: Layout, sign: int = -1) -> None:
        """Take the room of a job's pods."""
        units, ps_units = self.of_worker(job), self.of_ps(job)
        for node, count in layout.workers.items():
            self.change(node, sign * count * units, sign * count * job.cpu)
        for node, count in layout.ps.items():
            self.change(node, sign * count * ps_units, sign * count * job.ps_cpu)

    def give(self, job: SimJob, layout: Layout) -> None:
        """Give the room of a job's pods back."""
        self.take(job, layout, 1)

    def of_worker(self, job: SimJob) -> int:
        """Units of one worker."""
        return self.cluster.units_of(job)

    def of_ps(self, job: SimJob) -> int:
        """Units of one parameter server: it has no GPU."""
        return 0 if self.cluster.gpus else job.ps_cpu

    def fits(self, node: int, units: int, cpu: int, most: int) -> int:
        """How many pods of this size the node can take, up to ``most``."""
        if units:
            most = min(most, self.units[node] // units)
        return min(most, self.cpu[node] // cpu) if cpu else most

    def rising(self, least: int = 0) -> Iterator[int]:
        """Nodes with at least so many units free, those with fewest first."""
        for level in self._levels[least:]:
            yield from level

    def falling(self, least: int = 0) -> Iterator[int]:
        """Nodes with at least so many units free, those with most first."""
        for number in range(len(self._levels) - 1, least - 1, -1):
            yield from self._levels[number]
