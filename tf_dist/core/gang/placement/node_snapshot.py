"""Node snapshot: the nodes and what is free on them, with an undo log for what is tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from tf_dist.errors import MissingPackage

try:
    import numpy as np
except ModuleNotFoundError as error:  # whatever admits gangs imports this module before the others that need it
    raise MissingPackage(
        "Admitting and running jobs needs the package numpy",
        hint="pip install 'tf-dist[controller]', in a checkout '.[controller]'",
    ) from error

from tf_dist.core.gang.placement.node_table import (
    ALL_NODES,
    Ints,
    Mask,
    NodeMask,
    NodeTable,
    PodCapacity,
    Rows,
    pods_per_node,
)
from tf_dist.core.gang.placement.pod_sets import PodClass, PodClassRegistry, Requests, from_units
from tf_dist.core.gang.placement.predicates import InvalidConstraints, matches_node_affinity, untolerated_taint
from tf_dist.core.gang.types import Node, PodSet
from tf_dist.core.model.job import Document

# Counts are kept for so many classes; the one not asked for longest is forgotten.
_MAX_CAPACITIES: Final = 512
# And the domains of so many labels, and the nodes for so many sets of constraints: jobs that name hosts bring new ones.
_MAX_LABELS: Final = 16
_MAX_FILTERS: Final = 256


class NodeFilters:
    """For each signature of constraints that was asked for, the nodes that its pods may go to.

    ``before``: what is known of nodes that were laid out otherwise; ``source``: for each row the one it had, or -1.
    """

    def __init__(self, nodes: Sequence[Node], before: NodeFilters | None = None, source: Rows | None = None) -> None:
        self._nodes = list(nodes)
        self._tainted = {row for row, node in enumerate(nodes) if node.taints}
        self._known: dict[str, tuple[Document, Mask]] = {}
        self._unreadable: dict[str, InvalidConstraints] = {}
        if before is None or source is None:
            return
        for signature, (constraints, mask) in before._known.items():
            if len(mask) and signature not in before._unreadable:
                rows = mask[source]
                for row in (source < 0).nonzero()[0].tolist():
                    rows[row] = self._allows(signature, constraints, row)
                self._known[signature] = constraints, rows

    def of(self, shape: PodClass) -> NodeMask:
        """The nodes that a class of pods may go to: none, if its constraints cannot be read."""
        if not shape.signature and not self._tainted:
            return ALL_NODES
        known = self._known.get(shape.signature)
        if known is None:
            rows = np.ones(len(self._nodes), bool)
            for row in range(len(self._nodes)) if shape.signature else self._tainted:
                rows[row] = self._allows(shape.signature, shape.constraints, row)
            known = self._known[shape.signature] = shape.constraints, rows
            if len(self._known) > _MAX_FILTERS:
                self._known.pop(next(iter(self._known)))
        return known[1]

    def check(self, shape: PodClass) -> None:
        """Raise InvalidConstraints if some node showed that the constraints make no sense."""
        self.of(shape)
        if shape.signature in self._unreadable:
            raise self._unreadable[shape.signature]

    def put(self, row: int, node: Node) -> bool:
        """A node has changed; whether any mask may have."""
        before, self._nodes[row] = self._nodes[row], node
        if node.labels == before.labels and node.taints == before.taints:
            return False
        (self._tainted.add if node.taints else self._tainted.discard)(row)
        for signature in self._unreadable:  # perhaps only this node showed it
            self._known.pop(signature, None)
        self._unreadable.clear()
        for signature, (constraints, mask) in self._known.items():
            mask[row] = self._allows(signature, constraints, row)
        return True

    def _allows(self, signature: str, constraints: Document, row: int) -> bool:
        node = self._nodes[row]
        try:
            return matches_node_affinity(constraints, node.name, node.labels) and (
                not node.taints or untolerated_taint(constraints, node.taints) is None
            )
        except InvalidConstraints as error:
            self._unreadable[signature] = error
            return False


class TopologyDomains:
    """The values of a label, in their order, with the rows of the nodes that have each. Other nodes are in none."""

    def __init__(self, label: str, nodes: Sequence[Node]) -> None:
        self.label = label
        values = [node.labels.get(label) for node in nodes]
        self.names = sorted({value for value in values if value is not None})
        number = {name: at for at, name in enumerate(self.names)}
        self.of_row: Rows = np.array([number.get(value, len(number)) for value in values], np.intp)  # type: ignore[arg-type]
        by_domain = np.argsort(self.of_row, kind="stable")
        ends = np.searchsorted(self.of_row[by_domain], np.arange(len(number) + 1))
        self.rows: list[Rows] = [by_domain[ends[at] : ends[at + 1]] for at in range(len(number))]
        inside = self.of_row < len(number)
        self.inside: NodeMask = ALL_NODES if inside.all() else inside

    def sums(self, counts: Ints) -> Ints:
        """The sum of a number per row, for each domain."""
        return np.bincount(self.of_row, weights=counts, minlength=len(self.names) + 1).astype(np.int64)[:-1]


class NodeSnapshot:
    """What is free on the nodes. Nodes that take no pods (cordoned, not ready) must not be among them.

    Pod classes belong to the catalogue; snapshots that share it understand the same classes.
    """

    def __init__(self, nodes: Iterable[Node], catalogue: PodClassRegistry | None = None) -> None:
        self.catalogue = catalogue or PodClassRegistry()
        self._nodes = {node.name: node for node in nodes}
        self._unread: set[str] = set()  # nodes whose amounts the table does not have
        self._stale = False  # whether the table has other nodes
        self._log: list[tuple[Requests, Mapping[int, int]]] = []  # what was taken, as for take_rows
        self._marks: list[int] = []  # lengths of the log
        listed = [self._nodes[name] for name in sorted(self._nodes)]
        self._filters = NodeFilters(listed)
        self._lay_out(NodeTable(self.catalogue, listed))

    # -- nodes --

    def put_node(self, node: Node) -> None:
        """A node that is new, or has changed. ``node.free`` holds from now on; no mark may be open."""
        self._check_no_mark()
        known = self._nodes.get(node.name)
        self._nodes[node.name] = node
        new_resources = any("/" in one and one not in self.catalogue.columns for one in node.allocatable)
        if known is None or node.name in self._unread or new_resources:
            self._unread.add(node.name)
            self._stale = True
            return
        row = self.table.row[node.name]
        self.table.put(row, node)
        if self._filters.put(row, node):
            self._capacities.clear()
        if known.labels != node.labels:
            self._domains.clear()

    def remove_node(self, name: str) -> None:
        """The node is gone, with all that was taken of it. One that is not known is no error; no mark may be open."""
        self._check_no_mark()
        if self._nodes.pop(name, None) is not None:
            self._unread.discard(name)
            self._stale = True

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def node(self, name: str) -> Node:
        """The node as it was put; KeyError when there is none."""
        return self._nodes[name]

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, in their order."""
        self.ready()
        return self.table.names

    def free(self, node: str) -> dict[str, Decimal]:
        """What is free on a node now, of all that pods have asked for; KeyError when there is no such node."""
        self.ready()
        row = self.table.row[node]
        return {
            resource: from_units(resource, self.table.cells[column][row])
            for resource, column in self.catalogue.columns.items()
        }

    def emptied(self, more: Iterable[Node] = ()) -> NodeSnapshot:
        """A snapshot of the same nodes without any pods, and of ``more``, which understands the same classes."""
        empty = (
            Node(name=n.name, allocatable=n.allocatable, free=n.allocatable, labels=n.labels, taints=n.taints)
            for n in self._nodes.values()
        )
        return NodeSnapshot([*empty, *more], self.catalogue)

    def _check_no_mark(self) -> None:
        if self._marks:
            raise ValueError("a node cannot change between a mark and its rollback")

    def ready(self) -> None:
        """Bring the table up to date with the nodes and the resources there are."""
        if self._stale or self.table.columns < len(self.catalogue.columns):
            nodes = [self._nodes[name] for name in sorted(self._nodes)]
            before = self.table.row
            source = np.array([-1 if n.name in self._unread else before.get(n.name, -1) for n in nodes], np.intp)
            self._filters = NodeFilters(nodes, self._filters, source)
            self._lay_out(NodeTable(self.catalogue, nodes, self.table, source))

    def _lay_out(self, table: NodeTable) -> None:
        self.table = table
        self._unread.clear()
        self._stale = False
        self._capacities: dict[PodClass, PodCapacity] = {}
        self._domains: dict[str, TopologyDomains] = {}

    def domains(self, label: str) -> TopologyDomains:
        """The domains of a node label."""
        self.ready()
        if label not in self._domains:
            if len(self._domains) >= _MAX_LABELS:
                self._domains.clear()
            self._domains[label] = TopologyDomains(label, [self._nodes[name] for name in self.table.names])
        return self._domains[label]

    # -- pod classes --

    def shape(self, member: PodSet) -> PodClass:
        """The class of a member's pods; predicates.InvalidConstraints if the constraints make no sense."""
        shape = self.catalogue.shape(member)
        self.ready()
        self._filters.check(shape)
        return shape

    def mask(self, shape: PodClass) -> NodeMask:
        """The nodes its pods may go to."""
        self.ready()
        return self._filters.of(shape)

    def capacity(self, shape: PodClass) -> PodCapacity:
        """How many of its pods fit on each node now."""
        self.ready()
        known = self._capacities.pop(shape, None)
        if known is None:
            known = PodCapacity(self.table, shape.requests, self.mask(shape))
            if len(self._capacities) >= _MAX_CAPACITIES:
                self._capacities.pop(next(iter(self._capacities)))
        self._capacities[shape] = known
        known.refresh()
        return known

    def most(self, shape: PodClass, limit: int | None = None) -> int:
        """How many of its pods fit now, over all nodes; ``limit`` if more do."""
        total = self.capacity(shape).total
        return total if limit is None else min(total, limit)

    def most_ever(self, shape: PodClass) -> int:
        """How many would fit if all nodes were empty."""
        self.ready()
        return int(pods_per_node(self.table.whole, shape.requests, self.mask(shape)).sum())

    # -- pods --

    def take(self, shape: PodClass, node: str, count: int) -> None:
        """Take the capacity of pods that are there; it may go below zero. KeyError when there is no such node."""
        self.ready()
        self.take_rows(shape.requests, {self.table.row[node]: count})

    def give(self, shape: PodClass, node: str, count: int) -> None:
        """The pods are gone: their capacity is free. KeyError when there is no such node."""
        self.take(shape, node, -count)

    def take_rows(self, requests: Requests, times: Mapping[int, int]) -> None:
        """Take these requests so many times on the nodes of some rows."""
        if self._marks:
            self._log.append((requests, times))
        self.table.add(requests, times, -1)

    # -- undo --

    def mark(self) -> int:
        """From here on changes are on record, until ``rollback`` or ``commit`` with this mark."""
        self._marks.append(len(self._log))
        return len(self._marks) - 1

    def rollback(self, mark: int) -> None:
        """Take back all changes since the mark, and marks made since."""
        length = self._marks[mark]
        while len(self._log) > length:
            self.table.add(*self._log.pop(), 1)
        self.commit(mark)

    def commit(self, mark: int) -> None:
        """Keep the changes since the mark (an outer mark can still take them back), and forget marks made since."""
        del self._marks[mark:]
        if not self._marks:
            self._log.clear()
