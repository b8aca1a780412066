"""Search: nodes for all pods of a gang, or for none, on nodes without the capacity of assumed pods.

A gang is placed on a single node if all its pods fit there. Otherwise, its pod classes are placed one after the other,
the class with most accelerators first. Pods go to the nodes that the gang uses already, and the rest to as few nodes as
possible: as many pods as possible to the node where most fit, and so on. The last node is a node where the rest just
fits. Of equally good nodes, the node with the smallest ``NodeTable.key`` is used, which keeps large free parts whole.
The same rules apply within a topology domain.

The order of the classes can matter: if it fails, the reverse order is tried. Both may fail although a placement exists.
``tests/core/gang/placement/test_search_properties.py`` measures how often this happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from tf_dist.errors import MissingPackage

try:
    import numpy as np
except ModuleNotFoundError as error:  # admission imports this module before the others that use numpy
    raise MissingPackage(
        "Admitting and running jobs needs the package numpy",
        hint="pip install 'tf-dist[controller]', in a checkout '.[controller]'",
    ) from error

from tf_dist.core.gang.placement.node_snapshot import ALL_NODES, Ints, NodeMask, NodeSnapshot, Rows, TopologyDomains
from tf_dist.core.gang.placement.pod_sets import Counts, GangRequest, PodClass, PodGroups, PodsOnNode, group_by_class
from tf_dist.core.gang.placement.predicates import REFUSED_NODES, untolerated_taint
from tf_dist.core.gang.types import Node, Resources, TopologyRequest, UnavailableNode

Found = dict[PodClass, dict[int, int]]
"""For each class, the number of pods by row."""
Wants = Sequence[tuple[PodClass, int]]

NodeAssignments = list[dict[str, int]]
"""For each member of a gang: the number of its pods by node."""

_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})
_LAST: Final = np.iinfo(np.int64).max  # greater than every key


def place_gang(
    snapshot: NodeSnapshot, wants: Wants, *, locality: TopologyRequest | None = None, keep: Mapping[str, int] = _NOWHERE
) -> NodeAssignments | int:
    """Take capacity for all pods of ``wants``.

    Returns the number of pods by node for each want. If nothing was taken, returns the index of the want that did not
    fit. With a required ``locality``, this want may fit alone, but not together with the others. ``keep``: nodes that
    the gang uses already, which come first.
    """
    groups = group_by_class(tuple(wants))
    if not groups.counts:
        return [{} for _ in wants]
    snapshot.ready()
    rows = snapshot.table.row
    used = [rows[node] for node in keep if node in rows]
    found: Found | PodClass | None = None
    if not used and (locality or len(groups.counts) > 1):  # for a single class, the other search has the same result
        found = _on_one_node(snapshot, groups, snapshot.domains(locality.label).inside if locality else ALL_NODES)
    if found is None and locality is None:
        found = _on_several(snapshot, groups.counts, used)
    elif found is None and locality is not None:
        found = _in_domains(snapshot, groups.counts, used, locality)
    if isinstance(found, dict):
        return _distribute(snapshot.table.names, wants, groups.counts, found)
    # Prefer to return a member that does not fit even alone.
    lacking = next((shape for shape, count in groups.counts.items() if snapshot.most(shape) < count), found)
    return next(at for at, (shape, count) in enumerate(wants) if shape is lacking and count > 0)


def _distribute(names: Sequence[str], wants: Wants, groups: Mapping[PodClass, int], found: Found) -> NodeAssignments:
    """The part of each want in the result for its class: the first remaining pods."""
    shares: list[dict[str, int]] = []
    for shape, count in wants:
        if count == groups.get(shape):
            shares.append({names[row]: there for row, there in found[shape].items()})
            continue
        share: dict[str, int] = {}
        while count > 0:
            row = next(iter(found[shape]))
            there = found[shape].pop(row)
            share[names[row]] = min(there, count)
            if there > count:
                found[shape][row] = there - count
            count -= there
        shares.append(share)
    return shares


def _on_one_node(snapshot: NodeSnapshot, groups: PodGroups, within: NodeMask) -> Found | None:
    """Take capacity for all groups on one node ``within`` the mask; None if no node has enough capacity."""
    table = snapshot.table
    largest, count = next(iter(groups.counts.items()))
    rows = (snapshot.capacity(largest).counts >= count).nonzero()[0]  # usually few: only these are checked further
    for mask in (within, *(snapshot.mask(shape) for shape in groups.counts if shape is not largest)):
        if mask is not None:
            rows = rows[mask.take(rows)]
    for column, value in groups.together:
        if not len(rows):
            return None
        rows = rows[table.free[column].take(rows) >= value]
    if not len(rows):
        return None
    row = int(rows[table.key.take(rows).argmin()])
    snapshot.take_rows(groups.together, {row: 1})
    return {shape: {row: count} for shape, count in groups.counts.items()}


def _on_several(
    snapshot: NodeSnapshot, groups: Mapping[PodClass, int], keep: Sequence[int], rows: Rows | None = None
) -> Found | PodClass:
    """Take capacity for all groups in order or, if that fails, in reverse order.

    If both fail, nothing is taken, and the class that did not fit is returned.
    """
    found = _in_order(snapshot, list(groups.items()), keep, rows)
    if isinstance(found, PodClass) and len(groups) > 1:
        again = _in_order(snapshot, list(groups.items())[::-1], keep, rows)
        return found if isinstance(again, PodClass) else again
    return found


def _in_order(
    snapshot: NodeSnapshot, groups: Sequence[tuple[PodClass, int]], keep: Sequence[int], rows: Rows | None
) -> Found | PodClass:
    found: Found = {}
    used = list(keep)
    mark = snapshot.mark()
    for shape, count in groups:
        here = _fill(snapshot, shape, count, used) if used else {}
        rest = count - sum(here.values())
        elsewhere = _spread(snapshot, shape, rest, rows) if rest else {}
        if elsewhere is None:
            snapshot.rollback(mark)
            return shape
        found[shape] = here | elsewhere
        used += elsewhere
    snapshot.commit(mark)
    return found


def _fill(snapshot: NodeSnapshot, shape: PodClass, count: int, used: Sequence[int]) -> dict[int, int]:
    """Take capacity for up to this number of pods on the nodes that the gang uses already."""
    found: dict[int, int] = {}
    mask = snapshot.mask(shape)
    for row in used:
        fitting = snapshot.table.fitting(shape.requests, row) if mask is None or mask[row] else 0
        if fitting:
            found[row] = min(fitting, count)
            count -= found[row]
            if not count:
                break
    snapshot.take_rows(shape.requests, found)
    return found


def _spread(snapshot: NodeSnapshot, shape: PodClass, count: int, rows: Rows | None) -> dict[int, int] | None:
    """Take capacity for this number of pods on as few rows as possible; None if they do not fit."""
    capacity = snapshot.capacity(shape)
    if capacity.total < count:
        return None
    counts, keys = capacity.counts, snapshot.table.key
    if rows is not None:
        counts, keys = counts.take(rows), keys.take(rows)
    found: dict[int, int] = {}
    while True:
        most = int(np.maximum.reduce(counts, initial=0))
        if not most:
            return None
        each = min(most, count)
        enough = counts >= each
        first: Rows  # the rows with the smallest keys
        if count < 2 * each:
            first = np.where(enough, keys, _LAST).argmin(axis=0, keepdims=True)
        else:
            several = enough.nonzero()[0]
            first = several.take(keys.take(several).argsort()[: count // each])
        nodes = first if rows is None else rows.take(first)
        found |= dict.fromkeys(nodes.tolist(), each)
        count -= each * len(first)
        if not count:
            break
        counts = counts.copy()
        counts[first] = 0
    snapshot.take_rows(shape.requests, found)
    return found


def _in_domains(
    snapshot: NodeSnapshot, groups: Mapping[PodClass, int], keep: Sequence[int], locality: TopologyRequest
) -> Found | PodClass:
    """Take capacity in the smallest domain that holds the gang or, unless one is required, in as few as possible.

    Domains that the gang uses already come first. If a domain is required, only these are used.
    """
    domains = snapshot.domains(locality.label)
    at_home = {int(domains.of_row[row]) for row in keep} - {len(domains.rows)}
    sums = {shape: domains.sums(snapshot.capacity(shape).counts) for shape in groups}
    for rows in _scopes(domains, groups, sums, at_home, locality):
        inside = set(rows.tolist()) if keep else ()
        found = _on_several(snapshot, groups, [row for row in keep if row in inside], rows)
        if isinstance(found, dict):
            return found
    return next(iter(groups)) if locality.required else _on_several(snapshot, groups, keep)


def _scopes(
    domains: TopologyDomains,
    groups: Mapping[PodClass, int],
    sums: Mapping[PodClass, Ints],
    at_home: set[int],
    locality: TopologyRequest,
) -> Iterator[Rows]:
    """The rows to try: single domains, and then the fewest domains that may suffice together."""
    size = sums[next(iter(groups))]
    fitting = np.logical_and.reduce([sums[shape] >= count for shape, count in groups.items()]).nonzero()[0]
    if at_home:
        inside = np.isin(fitting, list(at_home))
        fitting, others = fitting[inside], fitting[~inside]
        yield from _smallest_first(domains, size, fitting)
        fitting = others[:0] if locality.required else others
    yield from _smallest_first(domains, size, fitting)
    if not locality.required:
        several = _fewest_domains(groups, sums, at_home)
        if several:
            yield np.concatenate([domains.rows[domain] for domain in several])


def _smallest_first(domains: TopologyDomains, size: Ints, some: Rows) -> Iterator[Rows]:
    for domain in some[size[some].argsort(kind="stable")].tolist():
        yield domains.rows[domain]


def _fewest_domains(groups: Mapping[PodClass, int], sums: Mapping[PodClass, Ints], at_home: set[int]) -> list[int]:
    """Two or more domains that together hold these pods: the largest, and a last domain that is just large enough.

    Empty if all domains together cannot hold them.
    """
    size = sums[next(iter(groups))].copy()
    chosen: list[int] = []
    missing = dict(groups)

    def choose(domain: int) -> None:
        chosen.append(domain)
        size[domain] = -1
        for shape in missing:
            missing[shape] -= int(sums[shape][domain])

    for domain in sorted(at_home):
        choose(domain)
    while len(chosen) < 2 or max(missing.values()) > 0:
        enough = np.logical_and.reduce([sums[shape] >= count for shape, count in missing.items()]) & (size >= 0)
        last = enough.nonzero()[0]
        if chosen and len(last) and max(missing.values()) > 0:
            choose(int(last[size[last].argmin()]))
        elif len(size) and size.max() > 0:
            choose(int(size.argmax()))
        else:
            return []
    return chosen


class AssumedPods:
    """Nodes and the pods assumed on them. If ``sees_nodes`` is False, nodes cannot be listed, and any pods fit."""

    def __init__(self, *, sees_nodes: bool = True) -> None:
        self.sees_nodes = sees_nodes
        self.snapshot = NodeSnapshot(())
        """The nodes, without the capacity of assumed pods."""
        self.capacity: dict[str, Decimal] = {}
        """The sum over all nodes."""
        self.epoch = 0
        """Increases whenever capacity becomes free."""
        self.version = 0
        """Increases with every change of free capacity."""
        self.layout = 0
        """Increases when nodes are added, removed or changed."""
        self.failed_searches = 0
        """The number of gangs for which no nodes were found although each member fits alone."""
        self.unavailable: Mapping[str, UnavailableNode] = {}
        """The nodes that currently accept no pods."""
        self._empty: NodeSnapshot | None = None
        self._with_unavailable: NodeSnapshot | None = None
        self._assumed: dict[str, dict[PodClass, int]] = {}  # by node
        self._unassigned: Counter[PodClass] = Counter()  # assumed pods without a node
        self._settled: list[PodsOnNode] | None = None  # the nodes where these count; None: they are not counted

    # -- nodes --

    def put_node(self, node: Node) -> None:
        """Add or update a node, keeping the pods assumed on it."""
        self._lift()
        known = self.snapshot.node(node.name) if node.name in self.snapshot else None
        self.snapshot.put_node(node)
        for shape, count in self._assumed.get(node.name, {}).items():
            self.snapshot.take(shape, node.name, count)
        self._freed()
        before = known and (known.allocatable, known.labels, known.taints)
        if before != (node.allocatable, node.labels, node.taints):
            self._lay_out(known.allocatable if known else {}, node.allocatable)
            if self._empty is not None:
                self._empty.put_node(replace(node, free=node.allocatable))

    def remove_node(self, name: str) -> None:
        """Remove a node that is deleted or accepts no more pods. An unknown node is ignored."""
        if name in self.snapshot:
            self._lift()
            self._lay_out(self.snapshot.node(name).allocatable, {})
            self.snapshot.remove_node(name)
            self._freed()
            if self._empty is not None:
                self._empty.remove_node(name)

    def put_unavailable(self, nodes: Mapping[str, UnavailableNode]) -> None:
        """Replace the nodes that currently accept no pods, by name."""
        self.unavailable = nodes
        for one in nodes.values():
            self.snapshot.catalogue.offer(one.node.allocatable.keys())
        self._lay_out({}, {})

    def _lay_out(self, before: Resources, now: Resources) -> None:
        self.layout += 1
        self._with_unavailable = None
        for sign, resources in ((-1, before), (1, now)):
            for resource, value in resources.items():
                self.capacity[resource] = self.capacity.get(resource, Decimal(0)) + sign * value

    def _freed(self) -> None:
        self.epoch += 1
        self.version += 1

    # -- assumed pods --

    def assume(self, coming: Iterable[PodsOnNode], anywhere: Iterable[tuple[PodClass, int]]) -> None:
        """Assume ``coming`` pods on their nodes, and pods ``anywhere``, without a node."""
        for shape, node, count in coming:
            assumed = self._assumed.setdefault(node, {})
            assumed[shape] = assumed.get(shape, 0) + count
            if node in self.snapshot:
                self.snapshot.take(shape, node, count)
                self.version += 1
        for shape, count in anywhere:
            self._lift()
            self._unassigned[shape] += count

    def forget(self, coming: Iterable[PodsOnNode], anywhere: Iterable[tuple[PodClass, int]]) -> None:
        """Drop assumed pods that were bound, or will not be created."""
        for shape, node, count in coming:
            assumed = self._assumed[node]
            assumed[shape] -= count
            if not assumed[shape]:
                del assumed[shape]
            if node in self.snapshot:
                self._lift()  # an assumed pod without a node may not have fitted before
                self.snapshot.give(shape, node, count)
                self._freed()
        for shape, count in anywhere:
            self._lift()
            self._unassigned[shape] -= count
            if not self._unassigned[shape]:
                del self._unassigned[shape]

    def settle(self) -> None:
        """Take capacity for assumed pods without a node, on any nodes, the most demanding first.

        The scheduler may bind a pod to a node that it has refused for the pod before, so the pod counts there if it
        fits nowhere else. If not all pods fit, the others still count. Pods with equal requests are counted together,
        across gangs, because their number may be in the thousands.
        """
        if not self._unassigned or self._settled is not None:
            return
        self._settled = []
        for shape in sorted(self._unassigned, key=lambda s: (-s.accelerators, -s.cpu, s.requests, s.signature)):
            ways = [shape]
            if REFUSED_NODES in shape.constraints:
                ways.append(self.snapshot.catalogue.without(shape, REFUSED_NODES))
            left = self._unassigned[shape]
            for way in ways:
                found = place_gang(self.snapshot, [(way, self.snapshot.most(way, left))]) if left else 0
                for node, count in found[0].items() if not isinstance(found, int) else ():
                    self._settled.append(PodsOnNode(way, node, count))
                    left -= count
        self.version += 1

    def _lift(self) -> None:
        """Return the capacity that ``settle`` has taken, before any other change."""
        if self._settled is not None:
            for shape, node, count in self._settled:
                self.snapshot.give(shape, node, count)
            self._settled = None
            self._freed()

    # -- looking for nodes --

    def takes(self, shape: PodClass, node: str) -> bool:
        """Whether a node accepts such pods at all. The reconciler uses the same rule (``pod_index.takes_pod``)."""
        return node in self.snapshot and not untolerated_taint(shape.constraints, self.snapshot.node(node).taints)

    def look(self, request: GangRequest, counts: Counts) -> NodeAssignments | None:
        """The nodes on which these pods of each member fit, or None. Nothing is taken."""
        # Count first if the request did not fit before: it usually does not fit now, and counting is faster.
        if self.lacks(request, counts) or (counts in request.lacking and self.surely_lacks(request, counts)):
            return None
        found = self.fit(request, counts)
        if found is None and not self.surely_lacks(request, counts):
            request.unplaced[counts] = self.version
            self.failed_searches += 1
        return found

    def surely_lacks(self, request: GangRequest, counts: Counts) -> bool:
        """Whether some member does not fit even alone; cached until capacity becomes free."""
        lacks = self.short(request, counts) is not None
        if lacks:
            request.lacking[counts] = self.epoch
        return lacks

    def lacks(self, request: GangRequest, counts: Counts) -> bool:
        """Whether the cache shows that these pods do not fit."""
        return request.lacking.get(counts) == self.epoch or request.unplaced.get(counts) == self.version

    def fit(self, request: GangRequest, counts: Counts, keep: Mapping[str, int] = _NOWHERE) -> NodeAssignments | None:
        """Like ``look``, without the cache: for hypothetical capacity, or with nodes to ``keep``."""
        found = _try(self.snapshot, request, counts, keep) if self.sees_nodes else [{} for _ in counts]
        return None if isinstance(found, int) else found

    def short(self, request: GangRequest, counts: Counts) -> int | None:
        """The index of the first member that does not fit even alone, or None."""
        wants = enumerate(_pairs(request, counts)) if self.sees_nodes else ()
        return next((at for at, (shape, count) in wants if self.snapshot.most(shape) < count), None)

    def missing(self, request: GangRequest, counts: Counts) -> int:
        """The number of pods that do not fit, for the member with the largest such number."""
        wants = _pairs(request, counts) if self.sees_nodes else ()
        return max((count - self.snapshot.most(shape, count) for shape, count in wants if count), default=0)

    def never(self, request: GangRequest) -> int | None:
        """The index of the member that does not fit together with the others, even on empty nodes and with minimums."""
        if not self.sees_nodes:
            return None
        if request.never[0] != self.layout:
            self._empty = self._empty or self.snapshot.emptied()
            found = _try(self._empty, request, request.least)
            request.never = (self.layout, found if isinstance(found, int) else None)
        return request.never[1]

    def fits_with_unavailable(self, request: GangRequest) -> bool:
        """Whether the minimum would fit on empty nodes if all nodes accepted pods."""
        if not self.unavailable:
            return False
        if self._with_unavailable is None:
            more = [self.unavailable[name].node for name in sorted(self.unavailable)]
            self._with_unavailable = self.snapshot.emptied(more)
        return not isinstance(_try(self._with_unavailable, request, request.least), int)


def _try(
    snapshot: NodeSnapshot, request: GangRequest, counts: Counts, keep: Mapping[str, int] = _NOWHERE
) -> NodeAssignments | int:
    mark = snapshot.mark()
    found = place_gang(snapshot, _pairs(request, counts), locality=request.locality, keep=keep)
    snapshot.rollback(mark)
    return found


def _pairs(request: GangRequest, counts: Counts) -> list[tuple[PodClass, int]]:
    return [(want.shape, count) for want, count in zip(request.wants, counts, strict=True)]
