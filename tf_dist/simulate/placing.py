"""Ways to place a whole job: packed on few nodes, spread as kube-scheduler does, or as the seed's controller did.

Each takes a floor, a job and a number of workers, and gives a layout, or None if there is no room for all of it. The
floor is as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tf_dist.simulate.model import Layout, SimJob
from tf_dist.simulate.room import Floor

Placing = Callable[[Floor, SimJob, int], Layout | None]


def packed(floor: Floor, job: SimJob, size: int) -> Layout | None:
    """One node if one holds all (the fullest such), else the fewest nodes, the last one tight; servers among them."""
    units, ps_units = floor.of_worker(job), floor.of_ps(job)
    need, cores = size * units + job.ps * ps_units, size * job.cpu + job.ps * job.ps_cpu
    if need > floor.free:
        return None
    for node in floor.rising(need):
        if floor.cpu[node] >= cores:
            return Layout({node: size}, {node: job.ps} if job.ps else {})
    workers = _fewest(floor, units, job.cpu, size)
    return None if workers is None else _with_servers(floor, job, workers, ps_units)


def _fewest(floor: Floor, units: int, cpu: int, size: int) -> dict[int, int] | None:
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


def _with_servers(floor: Floor, job: SimJob, workers: dict[int, int], units: int) -> Layout | None:
    """Parameter servers beside the workers, where most of them are; elsewhere only if there is no room."""
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


def _beside(floor: Floor, node: int, taken: tuple[int, int], units: int, cpu: int, most: int) -> int:
    if units:
        most = min(most, (floor.units[node] - taken[0]) // units)
    return min(most, (floor.cpu[node] - taken[1]) // cpu) if cpu else most


def spread(floor: Floor, job: SimJob, size: int) -> Layout | None:
    """Pod by pod, each on the node with the most room: what kube-scheduler does unless told otherwise."""
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


def emptiest(floor: Floor, units: int, cpu: int) -> int | None:
    """The node with the most room among those that can take such a pod."""
    if not units:
        node = max(range(len(floor.cpu)), key=lambda node: (floor.cpu[node], -node))
        return node if floor.cpu[node] >= cpu else None
    return next((node for node in floor.falling(units) if floor.cpu[node] >= cpu), None)


def with_pod(layout: Layout, node: int, *, server: bool = False) -> Layout:
    """The layout and one pod more."""
    side = layout.ps if server else layout.workers
    more = {**side, node: side.get(node, 0) + 1}
    return Layout(layout.workers, more) if server else Layout(more, layout.ps)


def seeded(floor: Floor, job: SimJob, size: int) -> Layout | None:
    """As the seed did: a single node if one holds all workers, else node after node; servers where most workers are.

    Nodes come by number: the seed took them in the random order of a Go map. It counted no room for parameter servers,
    and then they might not start; here they go to the next node if they must.
    """
    units = floor.of_worker(job)
    nodes = range(len(floor.units))
    whole = next((n for n in nodes if size and floor.fits(n, units, job.cpu, size) == size), None)
    workers = {whole: size} if whole is not None else filled(floor, units, job.cpu, size, nodes)
    if sum(workers.values()) < size:
        return None
    return _with_servers(floor, job, workers, floor.of_ps(job))


def filled(floor: Floor, units: int, cpu: int, size: int, nodes: Iterable[int]) -> dict[int, int]:
    """Workers put on node after node, as many as there is room for."""
    found: dict[int, int] = {}
    for node in nodes:
        count = floor.fits(node, units, cpu, size)
        if count:
            found[node] = count
            size -= count
    return found
