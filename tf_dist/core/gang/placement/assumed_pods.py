"""Free resources of the nodes less the assumed pods: admitted, and not yet bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import Counts, GangRequest, PodClass, PodsOnNode
from tf_dist.core.gang.placement.predicates import REFUSED_NODES
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import Node, Resources, UnavailableNode

NodeAssignments = list[dict[str, int]]
"""For each member of a gang: on which nodes how many of its pods are."""

_NONE: Final = Decimal(0)
_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


class AssumedPods:
    """Nodes and what is granted on them.

    ``epoch`` grows whenever room becomes free, ``version`` with every change of the room, ``layout`` when nodes come,
    go, or become others; ``failed_searches`` counts the gangs that were not placed though each member alone had room.
    ``capacity``: what all nodes have together.
    """

    def __init__(self) -> None:
        self.snapshot = NodeSnapshot(())
        self.capacity: dict[str, Decimal] = {}
        self.epoch = 0
        self.version = 0
        self.layout = 0
        self.failed_searches = 0
        self.unavailable: Mapping[str, UnavailableNode] = {}
        self._empty: NodeSnapshot | None = None
        self._with_unavailable: NodeSnapshot | None = None
        self._claims: dict[str, dict[PodClass, int]] = {}
        self._anywhere: Counter[PodClass] = Counter()
        self._settled: list[PodsOnNode] | None = None

    # -- nodes --

    def put_node(self, node: Node) -> None:
        """A node that is new or has changed; what gangs are to have on it is taken again."""
        self._lift()
        known = self.snapshot.node(node.name) if node.name in self.snapshot else None
        self.snapshot.put_node(node)
        for shape, count in self._claims.get(node.name, {}).items():
            self.snapshot.take(shape, node.name, count)
        self._grown()
        if known is None or _what(known) != _what(node):
            self._lay_out(known.allocatable if known else {}, node.allocatable)
            if self._empty is not None:
                self._empty.put_node(replace(node, free=node.allocatable))

    def remove_node(self, name: str) -> None:
        """A node is gone or takes no more pods. One that is not known is no error."""
        if name in self.snapshot:
            self._lift()
            self._lay_out(self.snapshot.node(name).allocatable, {})
            self.snapshot.remove_node(name)
            self._grown()
            if self._empty is not None:
                self._empty.remove_node(name)

    def put_unavailable(self, nodes: Mapping[str, UnavailableNode]) -> None:
        """Replace the nodes that take no pods for now, by name."""
        self.unavailable = nodes
        self._lay_out({}, {})

    def _lay_out(self, before: Resources, now: Resources) -> None:
        self.layout += 1
        self._with_unavailable = None
        for sign, resources in ((-1, before), (1, now)):
            for resource, value in resources.items():
                self.capacity[resource] = self.capacity.get(resource, _NONE) + sign * value

    def _grown(self) -> None:
        self.epoch += 1
        self.version += 1

    # -- what is granted --

    def assume(self, coming: Iterable[PodsOnNode], anywhere: Iterable[tuple[PodClass, int]]) -> None:
        """Room for pods that are to come, some of them to nodes that are not known."""
        for shape, node, count in coming:
            claims = self._claims.setdefault(node, {})
            claims[shape] = claims.get(shape, 0) + count
            if node in self.snapshot:
                self.snapshot.take(shape, node, count)
                self.version += 1
        for shape, count in anywhere:
            self._lift()
            self._anywhere[shape] += count

    def forget(self, coming: Iterable[PodsOnNode], anywhere: Iterable[tuple[PodClass, int]]) -> None:
        """They are there, or will not come."""
        for shape, node, count in coming:
            claims = self._claims[node]
            claims[shape] -= count
            if not claims[shape]:
                del claims[shape]
            if node in self.snapshot:
                self._lift()  # one of those that may come to any node may have had no room yet
                self.snapshot.give(shape, node, count)
                self._grown()
        for shape, count in anywhere:
            self._lift()
            self._anywhere[shape] -= count
            if not self._anywhere[shape]:
                del self._anywhere[shape]

    def settle(self) -> None:
        """Take room for those that may come to any node: wherever there is some, the most demanding first.

        A node that has refused one of a gang's pods may have room for it by now, and the scheduler is free to send it
        there: it is taken where no other has any. Where not all of them fit now, the others still count. Those that ask
        for the same are placed together, whichever gang they are of: after a rush there are thousands.
        """
        if not self._anywhere or self._settled is not None:
            return
        self._settled = []
        for shape in sorted(self._anywhere, key=lambda s: (-s.accelerators, -s.cpu, s.requests, s.signature)):
            left = self._anywhere[shape] - self._take(shape, self._anywhere[shape])
            if left and REFUSED_NODES in shape.constraints:
                self._take(self.snapshot.catalogue.without(shape, REFUSED_NODES), left)
        self.version += 1

    def _take(self, shape: PodClass, most: int) -> int:
        """Take room for so many pods, as far as there is any; for how many."""
        found = place_gang(self.snapshot, [(shape, self.snapshot.most(shape, most))])
        seated = (
            [PodsOnNode(shape, node, count) for node, count in found[0].items()] if not isinstance(found, int) else []
        )
        self._settled = [*(self._settled or ()), *seated]
        return sum(pods.number for pods in seated)

    def _lift(self) -> None:
        """Give that back before anything else changes."""
        if self._settled is not None:
            for shape, node, count in self._settled:
                self.snapshot.give(shape, node, count)
            self._settled = None
            self._grown()

    # -- looking for room --

    def look(self, request: GangRequest, counts: Counts) -> NodeAssignments | None:
        """Where there is room for so many pods of each member; None: not for all of them. Nothing is taken."""
        # To count first is quicker for those who will find nothing: mostly those who found nothing before.
        if self.lacks(request, counts) or (counts in request.lacking and self.surely_lacks(request, counts)):
            return None
        found = self.fit(request, counts)
        if found is None and not self.surely_lacks(request, counts):
            request.unplaced[counts] = self.version
            self.failed_searches += 1
        return found

    def surely_lacks(self, request: GangRequest, counts: Counts) -> bool:
        """Whether some member alone has not room enough, which is remembered until room becomes free."""
        lacks = self.short(request, counts) is not None
        if lacks:
            request.lacking[counts] = self.epoch
        return lacks

    def lacks(self, request: GangRequest, counts: Counts) -> bool:
        """Whether it is known already that there is no room for so many."""
        return request.lacking.get(counts) == self.epoch or request.unplaced.get(counts) == self.version

    def fit(self, request: GangRequest, counts: Counts, keep: Mapping[str, int] = _NOWHERE) -> NodeAssignments | None:
        """As ``look``, but nothing is remembered: for a room that is only supposed, or beside nodes to ``keep``."""
        mark = self.snapshot.mark()
        found = place_gang(self.snapshot, _pairs(request, counts), locality=request.locality, keep=keep)
        self.snapshot.rollback(mark)
        return None if isinstance(found, int) else found

    def short(self, request: GangRequest, counts: Counts) -> int | None:
        """The first member that alone has not room enough, by number; None: each has."""
        wants = enumerate(_pairs(request, counts))
        return next((at for at, (shape, count) in wants if self.snapshot.most(shape) < count), None)

    def never(self, request: GangRequest) -> int | None:
        """The member for which not even empty nodes have room beside the others, by number, at their least."""
        if request.never[0] != self.layout:
            if self._empty is None:
                self._empty = self.snapshot.emptied()
            mark = self._empty.mark()
            found = place_gang(self._empty, _pairs(request, request.least), locality=request.locality)
            self._empty.rollback(mark)
            request.never = (self.layout, found if isinstance(found, int) else None)
        return request.never[1]

    def fits_with_unavailable(self, request: GangRequest) -> bool:
        """Whether empty nodes would hold its least if those that take no pods for now took some."""
        if not self.unavailable:
            return False
        if self._with_unavailable is None:
            self._with_unavailable = self.snapshot.emptied(
                [self.unavailable[name].node for name in sorted(self.unavailable)]
            )
        mark = self._with_unavailable.mark()
        found = place_gang(self._with_unavailable, _pairs(request, request.least), locality=request.locality)
        self._with_unavailable.rollback(mark)
        return not isinstance(found, int)


def _what(node: Node) -> tuple[object, ...]:
    return node.allocatable, node.labels, node.taints


def _pairs(request: GangRequest, counts: Counts) -> list[tuple[PodClass, int]]:
    return [(want.shape, count) for want, count in zip(request.wants, counts, strict=True) if want.shape is not None]
