"""Free capacity of a cluster of equal nodes, and ways to place a whole job in it: packed, spread, node after node.

Each function takes the free capacity, a job and a number of workers. It returns a layout, or None if the whole job does
not fit. It does not change the free capacity.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from tf_dist.simulate.scenario import Cluster, Layout, SimJob


class NoRoom(AssertionError):
    """A policy assigned more than the free capacity. This is a bug of the policy."""


class FreeCapacity:
    """Free units and cores of every node. Units are GPUs, or cores in a cluster without GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.units = [cluster.gpus or cluster.cpu] * cluster.nodes
        self.cpu = [cluster.cpu] * cluster.nodes
        self.free = cluster.units
        self._levels: list[list[int]] = [[] for _ in range((cluster.gpus or cluster.cpu) + 1)]
        self._levels[-1] = list(range(cluster.nodes))

    def limited(self, units: list[int], cpu: list[int]) -> FreeCapacity:
        """A copy whose capacity is limited to these lists."""
        found = FreeCapacity.__new__(FreeCapacity)
        found.cluster = self.cluster
        found.units = [max(0, min(pair)) for pair in zip(self.units, units, strict=True)]
        found.cpu = [max(0, min(pair)) for pair in zip(self.cpu, cpu, strict=True)]
        found.free = sum(found.units)
        found._levels = [[] for _ in self._levels]
        for node, level in enumerate(found.units):
            found._levels[level].append(node)
        return found

    def copy(self) -> FreeCapacity:
        """An independent copy for trial placements."""
        found = FreeCapacity.__new__(FreeCapacity)
        found.cluster, found.free = self.cluster, self.free
        found.units, found.cpu = self.units[:], self.cpu[:]
        found._levels = [level[:] for level in self._levels]
        return found

    def change(self, node: int, units: int, cpu: int) -> None:
        """Add capacity to a node, or remove it if negative. Raises ``NoRoom``."""
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
        """Remove the capacity that the pods of a job use."""
        units, ps_units = self.of_worker(job), self.of_ps(job)
        for node, count in layout.workers.items():
            self.change(node, sign * count * units, sign * count * job.cpu)
        for node, count in layout.ps.items():
            self.change(node, sign * count * ps_units, sign * count * job.ps_cpu)

    def give(self, job: SimJob, layout: Layout) -> None:
        """Add the capacity that the pods of a job used."""
        self.take(job, layout, 1)

    def of_worker(self, job: SimJob) -> int:
        """Units of one worker."""
        return self.cluster.units_of(job)

    def of_ps(self, job: SimJob) -> int:
        """Units of one parameter server, which uses no GPU."""
        return 0 if self.cluster.gpus else job.ps_cpu

    def fits(self, node: int, units: int, cpu: int, most: int) -> int:
        """How many pods of this size the node can take, up to ``most``."""
        if units:
            most = min(most, self.units[node] // units)
        return min(most, self.cpu[node] // cpu) if cpu else most

    def rising(self, least: int = 0) -> Iterator[int]:
        """Nodes with at least ``least`` free units, fewest free units first."""
        for level in self._levels[least:]:
            yield from level

    def falling(self, least: int = 0) -> Iterator[int]:
        """Nodes with at least ``least`` free units, most free units first."""
        for number in range(len(self._levels) - 1, least - 1, -1):
            yield from self._levels[number]


Placing = Callable[[FreeCapacity, SimJob, int], Layout | None]


def packed(floor: FreeCapacity, job: SimJob, size: int) -> Layout | None:
    """The fullest node that fits all pods, else the fewest nodes with a tight last node. Includes parameter servers."""
    units, ps_units = floor.of_worker(job), floor.of_ps(job)
    need, cores = size * units + job.ps * ps_units, size * job.cpu + job.ps * job.ps_cpu
    if need > floor.free:
        return None
    for node in floor.rising(need):
        if floor.cpu[node] >= cores:
            return Layout({node: size}, {node: job.ps} if job.ps else {})
    workers = _fewest(floor, units, job.cpu, size)
    return None if workers is None else _with_servers(floor, job, workers, ps_units)


def _fewest(floor: FreeCapacity, units: int, cpu: int, size: int) -> dict[int, int] | None:
    found: dict[int, int] = {}
    left = size
    for node in floor.falling(units):
        count = floor.fits(node, units, cpu, left)
        if count == left:
            tight = (n for n in floor.rising(units * left) if floor.fits(n, units, cpu, left) == left)
            found[next((n for n in tight if n not in found), node)] = left
            return found
        if count:
            found[node] = count
            left -= count
    return None


def _with_servers(floor: FreeCapacity, job: SimJob, workers: dict[int, int], units: int) -> Layout | None:
    """Place parameter servers on the nodes with most workers, and on other nodes only if these are full."""
    used = {node: (count * floor.of_worker(job), count * job.cpu) for node, count in workers.items()}
    order = sorted(workers, key=lambda node: (-workers[node], node))
    servers: dict[int, int] = {}
    left = job.ps
    for node in (*order, *floor.rising()):
        if not left:
            break
        taken = used.get(node, (0, 0))
        if node in servers:
            continue
        count = _beside(floor, node, taken, units, job.ps_cpu, left)
        if count:
            servers[node] = count
            left -= count
    return None if left else Layout(workers, servers)


def _beside(floor: FreeCapacity, node: int, taken: tuple[int, int], units: int, cpu: int, most: int) -> int:
    if units:
        most = min(most, (floor.units[node] - taken[0]) // units)
    return min(most, (floor.cpu[node] - taken[1]) // cpu) if cpu else most


def spread(floor: FreeCapacity, job: SimJob, size: int) -> Layout | None:
    """Pod by pod, each on the node with the most free capacity, like kube-scheduler by default."""
    scratch = floor.copy()
    layout = Layout({}, {})
    for _ in range(job.ps):
        node = emptiest(scratch, scratch.of_ps(job), job.ps_cpu)
        if node is None:
            return None
        layout = with_pod(layout, node, server=True)
        scratch.change(node, -scratch.of_ps(job), -job.ps_cpu)
    for _ in range(size):
        node = emptiest(scratch, scratch.of_worker(job), job.cpu)
        if node is None:
            return None
        layout = with_pod(layout, node)
        scratch.change(node, -scratch.of_worker(job), -job.cpu)
    return layout


def emptiest(floor: FreeCapacity, units: int, cpu: int) -> int | None:
    """The node with the most free capacity among the nodes that fit such a pod."""
    if not units:
        node = max(range(len(floor.cpu)), key=lambda node: (floor.cpu[node], -node))
        return node if floor.cpu[node] >= cpu else None
    return next((node for node in floor.falling(units) if floor.cpu[node] >= cpu), None)


def with_pod(layout: Layout, node: int, *, server: bool = False) -> Layout:
    """The layout with one additional pod."""
    side = layout.ps if server else layout.workers
    more = {**side, node: side.get(node, 0) + 1}
    return Layout(layout.workers, more) if server else Layout(more, layout.ps)


def node_after_node(floor: FreeCapacity, job: SimJob, size: int) -> Layout | None:
    """As tf-operator-Dragon: one node if it fits all workers, else node after node; servers where most workers are.

    Nodes are ordered by number. tf-operator-Dragon uses the random order of a Go map and reserves no capacity for
    parameter servers, so these might not start. Here they move to the next node if necessary.
    """
    units = floor.of_worker(job)
    nodes = range(len(floor.units))
    whole = next((n for n in nodes if size and floor.fits(n, units, job.cpu, size) == size), None)
    workers = {whole: size} if whole is not None else filled(floor, units, job.cpu, size, nodes)
    if sum(workers.values()) < size:
        return None
    return _with_servers(floor, job, workers, floor.of_ps(job))


def filled(floor: FreeCapacity, units: int, cpu: int, size: int, nodes: Iterable[int]) -> dict[int, int]:
    """Place as many workers as fit, node after node."""
    found: dict[int, int] = {}
    for node in nodes:
        count = floor.fits(node, units, cpu, size)
        if count:
            found[node] = count
            size -= count
    return found
