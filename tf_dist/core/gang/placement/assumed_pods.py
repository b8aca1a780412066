"""Free capacity of the nodes without assumed pods, which are admitted and not yet bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import Counts, GangRequest, PodClass, PodsOnNode
from tf_dist.core.gang.placement.predicates import REFUSED_NODES, untolerated_taint
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import Node, Resources, UnavailableNode

NodeAssignments = list[dict[str, int]]
"""For each member of a gang: the number of its pods by node."""

_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


class AssumedPods:
    """Nodes and the pods assumed on them. ``sees_nodes`` False: nodes cannot be listed, and any pods fit."""

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
        self._unassigned: Counter[PodClass] = Counter()  # those that may come to any node
        self._settled: list[PodsOnNode] | None = None  # where these are counted meanwhile; None: nowhere

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
        """Assume pods, some of them on unknown nodes."""
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
                self._lift()  # one of those that may come to any node may have fitted nowhere yet
                self.snapshot.give(shape, node, count)
                self._freed()
        for shape, count in anywhere:
            self._lift()
            self._unassigned[shape] -= count
            if not self._unassigned[shape]:
                del self._unassigned[shape]

    def settle(self) -> None:
        """Take capacity for assumed pods without a node, on any nodes, the most demanding first. The scheduler may bind
        a pod to a node that has refused it before, so it counts there if it fits nowhere else.

        If not all fit, the others still count. Pods with equal requests are counted together, across gangs, because
        there may be thousands.
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
        """Return that capacity before any other change."""
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
        # To count first is quicker for those who will find nothing: mostly those who found nothing before.
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
        """The number of the first member that does not fit even alone, or None."""
        wants = enumerate(_pairs(request, counts)) if self.sees_nodes else ()
        return next((at for at, (shape, count) in wants if self.snapshot.most(shape) < count), None)

    def missing(self, request: GangRequest, counts: Counts) -> int:
        """The number of pods that do not fit, for the member with most of them."""
        wants = _pairs(request, counts) if self.sees_nodes else ()
        return max((count - self.snapshot.most(shape, count) for shape, count in wants if count), default=0)

    def never(self, request: GangRequest) -> int | None:
        """The number of the member that does not fit together with the others, even on empty nodes and with
        minimums.
        """
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
