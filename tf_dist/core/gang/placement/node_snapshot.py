"""Node snapshot: free resources of the nodes, with an undo log for what is tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import count as counter
from typing import Any, Final

import numpy as np

from tf_dist.core.gang.placement.node_filter import NodeFilter, NodeFilters, TopologyDomains
from tf_dist.core.gang.placement.node_index import NodeIndex, PodCapacity, pods_per_node
from tf_dist.core.gang.placement.node_table import Ints, NodeTable, Rows
from tf_dist.core.gang.placement.pod_classes import PodClass, PodClassRegistry, Requests, from_units
from tf_dist.core.gang.types import Node, PodSet

# Counts are kept for so many shapes; the one not asked for longest is forgotten.
_KEPT: Final = 512
# And the domains of so many labels.
_LABELS: Final = 16

_Change = tuple[Requests, int | Rows, Any]  # requests, row or rows, times or times for each


class NodeSnapshot:
    """What is free on the nodes. Nodes that take no pods (cordoned, not ready) must not be among them.

    ``epoch`` names a state of the room: as long as it has the same value, nothing has room that had none before.
    Shapes belong to the catalogue; rooms that share it understand the same shapes.
    """

    def __init__(self, nodes: Iterable[Node], catalogue: PodClassRegistry | None = None) -> None:
        self.catalogue = catalogue or PodClassRegistry()
        self._nodes = {node.name: node for node in nodes}
        self._put: set[str] = set()  # nodes whose free room the table does not have
        self._log: list[_Change] = []
        self._marks: list[tuple[int, int, int]] = []  # length of the log, epoch before, epoch from then on
        self._trials = 0
        self._epochs = counter(1)
        self.epoch = 0
        self._grown = 0
        listed = [self._nodes[name] for name in sorted(self._nodes)]
        self._masks = NodeFilters(listed)
        self._lay_out(NodeTable(self.catalogue, listed))

    # -- nodes --

    def put_node(self, node: Node) -> None:
        """A node that is new, or has changed. ``node.free`` holds from now on; no mark may be open."""
        self._no_marks()
        known = self._nodes.get(node.name)
        self._nodes[node.name] = node
        self._grow()
        if known is None or node.name in self._put or self._has_new_resources(node):
            self._put.add(node.name)
            self._stale = True
            return
        row = self.table.row[node.name]
        self.table.put(row, node)
        if self._masks.put(row, node):
            self._capacities.clear()
        if known.labels != node.labels:
            self._domains.clear()
        self._ever.clear()

    def remove_node(self, name: str) -> None:
        """The node is gone, with whatever was taken of it. One that is not known is no error; no mark may be open."""
        self._no_marks()
        if self._nodes.pop(name, None) is not None:
            self._put.discard(name)
            self._stale = True

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def node(self, name: str) -> Node:
        """The node as it was put; KeyError when there is none."""
        return self._nodes[name]

    def free(self, node: str) -> dict[str, Decimal]:
        """What is free on a node now, of all that pods have asked for; KeyError when there is no such node."""
        self.ready()
        row = self.table.row[node]
        return {
            resource: from_units(resource, int(self.table.cells[column][row]))
            for resource, column in self.catalogue.columns.items()
        }

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, in their order."""
        self.ready()
        return self.table.names

    def emptied(self) -> NodeSnapshot:
        """Another room of the same nodes without any pods, which understands the same shapes."""
        empty = (
            Node(name=n.name, allocatable=n.allocatable, free=n.allocatable, labels=n.labels, taints=n.taints)
            for n in self._nodes.values()
        )
        return NodeSnapshot(empty, self.catalogue)

    def _no_marks(self) -> None:
        if self._marks or self._trials:
            raise ValueError("a node cannot change between a mark and its rollback")

    def _has_new_resources(self, node: Node) -> bool:
        return any("/" in resource and resource not in self.catalogue.columns for resource in node.allocatable)

    def ready(self) -> None:
        """Bring the table up to date with the nodes and the columns there are."""
        if self._stale:
            names = sorted(self._nodes)
            before = self.table.row
            source = np.array([-1 if n in self._put else before.get(n, -1) for n in names], np.intp)
            nodes = [self._nodes[name] for name in names]
            self._masks = NodeFilters(nodes, self._masks, source)
            self._lay_out(NodeTable(self.catalogue, nodes, self.table, source))
        elif self.table.columns < len(self.catalogue.columns):
            self.table.add_columns([self._nodes[name] for name in self.table.names])

    def _lay_out(self, table: NodeTable) -> None:
        self.table = table
        self._put.clear()
        self._stale = False
        self._capacities: dict[PodClass, PodCapacity] = {}
        self._ever: dict[PodClass, int] = {}
        self._domains: dict[str, TopologyDomains] = {}
        self._ladder: NodeIndex | None = None

    # -- shapes --

    def shape(self, member: PodSet) -> PodClass:
        """The shape of a member's pods; fit.Unreadable if the constraints make no sense."""
        shape = self.catalogue.shape(member)
        self.ready()
        self._masks.check(shape)
        return shape

    def mask(self, shape: PodClass) -> NodeFilter:
        """The nodes its pods may go to."""
        return self._masks.of(shape)

    def capacity(self, shape: PodClass) -> PodCapacity:
        """How many of its pods each node has room for now."""
        self.ready()
        known = self._capacities.pop(shape, None)
        if known is None:
            known = PodCapacity(self.table, shape.requests, self.mask(shape))
            if len(self._capacities) >= _KEPT:
                self._capacities.pop(next(iter(self._capacities)))
        else:
            known.refresh()
        self._capacities[shape] = known
        known.grown = self._grown
        return known

    def most(self, shape: PodClass, limit: int | None = None) -> int:
        """For how many of its pods there is room now, over all nodes; ``limit`` if for more."""
        total = self.capacity(shape).total
        return total if limit is None else min(total, limit)

    def most_ever(self, shape: PodClass) -> int:
        """For how many there would be room if all nodes were empty."""
        self.ready()
        if shape not in self._ever:
            if len(self._ever) >= _KEPT:
                self._ever.clear()
            self._ever[shape] = int(pods_per_node(self.table.whole, shape.requests, self.mask(shape)).sum())
        return self._ever[shape]

    def surely_lacks(self, groups: Mapping[PodClass, int]) -> bool:
        """Whether it is known without counting that one of the shapes has no room for so many; False: perhaps not."""
        for shape, wanted in groups.items():
            known = self._capacities.get(shape)
            if known is not None and known.grown == self._grown:
                total = known.known_total
                if total is not None and total < wanted:
                    return True
        return False

    def domains(self, label: str) -> TopologyDomains:
        """The domains of a node label."""
        self.ready()
        if label not in self._domains:
            if len(self._domains) >= _LABELS:
                self._domains.clear()
            self._domains[label] = TopologyDomains(label, [self._nodes[name] for name in self.table.names])
        return self._domains[label]

    @property
    def ladder(self) -> NodeIndex:
        """The nodes in their order, up to date."""
        if self._ladder is None:
            self._ladder = NodeIndex(self.table)
        self._ladder.refresh()
        return self._ladder

    # -- pods --

    def take(self, shape: PodClass, node: str, count: int) -> None:
        """Take the room of pods that are there; it may go below zero. KeyError when there is no such node."""
        self.ready()
        self.take_at(shape.requests, self.table.row[node], count)

    def give(self, shape: PodClass, node: str, count: int) -> None:
        """The pods are gone: their room is free. KeyError when there is no such node."""
        self.ready()
        self.take_at(shape.requests, self.table.row[node], -count)
        self._grow()

    def take_at(self, requests: Requests, row: int, times: int) -> None:
        """Take room on the node of a row."""
        if self._marks or self._trials:
            self._log.append((requests, row, -times))
        self.table.add(requests, row, -times)

    def take_rows(self, requests: Requests, rows: Rows, times: Ints) -> None:
        """Take room on several nodes, none of them twice."""
        if self._marks or self._trials:
            self._log.append((requests, rows, -times))
        self.table.add_rows(requests, rows, -times)

    def _grow(self) -> None:
        self.epoch = next(self._epochs)
        self._grown += 1

    # -- back and forth --

    def mark(self) -> int:
        """From here on changes are on record, until ``rollback`` or ``commit`` with this mark."""
        given = next(self._epochs)
        self._marks.append((len(self._log), self.epoch, given))
        self.epoch = given
        return len(self._marks) - 1

    def rollback(self, mark: int) -> None:
        """Take back all changes since the mark, and marks made since: the room, and its epoch, are as they were."""
        length, before, _ = self._marks[mark]
        del self._marks[mark:]
        self._undo(length)
        self._forget()
        self.epoch = before

    def commit(self, mark: int) -> None:
        """Keep the changes since the mark (an outer mark can still take them back), and forget marks made since."""
        _, before, given = self._marks[mark]
        del self._marks[mark:]
        if self.epoch == given:  # things were only taken: what lacked room before lacks it still
            self.epoch = before
        self._forget()

    def begin(self) -> int:
        """A mark that nobody else sees, for one attempt, until ``end``."""
        self._trials += 1
        return len(self._log)

    def end(self, begin: int, *, keep: bool) -> None:
        """Keep what the attempt has taken, or take it back."""
        self._trials -= 1
        if not keep:
            self._undo(begin)
        self._forget()

    def _forget(self) -> None:
        if not self._marks and not self._trials:
            self._log.clear()

    def _undo(self, length: int) -> None:
        if len(self._log) > length:
            self._grown += 1
        while len(self._log) > length:
            requests, where, times = self._log.pop()
            if isinstance(where, int):
                self.table.add(requests, where, -times)
            else:
                self.table.add_rows(requests, where, -times)
