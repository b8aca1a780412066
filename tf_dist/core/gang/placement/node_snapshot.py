"""Node snapshot: the nodes and their free resources, with an undo log for hypothetical changes.

``NodeTable`` has the amounts as arrays of integers, and ``PodCapacity`` the number of pods of a class that fit. Rows
are in the order of the nodes' names, so that results do not depend on the order of a list.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.placement.pod_sets import (
    CPU,
    UNLIMITED,
    PodClass,
    PodClassRegistry,
    PodsOnNode,
    Requests,
    is_extended_resource,
    units,
)
from tf_dist.core.gang.placement.predicates import InvalidConstraints, matches_node_affinity, untolerated_taint
from tf_dist.core.gang.types import Node, PodSet
from tf_dist.core.model.job import Document

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
NodeMask = Mask | None
"""True for the rows of eligible nodes; None: all nodes."""
ALL_NODES: Final[NodeMask] = None

# If a node has more pieces of a resource (such as shared network cards), gangs do not compete for them.
_MOST_PIECES: Final = 128
# Up to this number of rows are counted again one by one.
_FEW_ROWS: Final = 8
# If the number of changes exceeds this number, repeated rows are removed.
_MANY_ROWS: Final = 256
# The parts of a key, from the lowest bit on: the row, and the free CPU in thousandths.
_ROW_BITS: Final = 20
_CPU_BITS: Final = 24
_LEVEL_BITS: Final = _ROW_BITS + _CPU_BITS
_MOST_ROWS: Final = (1 << _ROW_BITS) - 1
_MOST_CPU: Final = (1 << _CPU_BITS) - 1


class NodeTable:
    """Allocatable and free resources, by column (resource) and row (node).

    ``cells`` is ``free``, faster for single numbers. ``key`` is the order of equally good nodes: nodes without
    accelerators first, then those with the fewest free accelerators, then the least free CPU, then the name.
    ``touched``: the changed rows in order, from the ``base``-th change.
    """

    def __init__(
        self,
        catalogue: PodClassRegistry,
        nodes: Sequence[Node],
        before: NodeTable | None = None,
        source: Rows | None = None,
    ) -> None:
        """``nodes``: in the order of their names; ``source``: their rows in ``before``, with kept amounts, or -1."""
        self.names = [node.name for node in nodes]
        self.size = len(nodes)
        if self.size > _MOST_ROWS:
            raise ValueError(f"{self.size} nodes are more than the {_MOST_ROWS} that admission can count")
        self.row = {name: row for row, name in enumerate(self.names)}
        for node in nodes:
            catalogue.offer(node.allocatable.keys())
        self._resources = list(catalogue.columns)
        self.columns = len(self._resources)
        self.free: Ints = np.zeros((self.columns, self.size), np.int64)
        self.whole: Ints = self.free.copy()
        if before is None or source is None:
            before, source = None, np.full(self.size, -1, np.intp)
        kept = source >= 0
        known = before.columns if before else 0
        if before:
            self.free[:known, kept] = before.free[:, source[kept]]
            self.whole[:known, kept] = before.whole[:, source[kept]]
        for row in range(self.size) if known < self.columns else (~kept).nonzero()[0].tolist():
            self._read(row, nodes[row], known if kept[row] else 0)
        self.cells = [line.data for line in self.free]
        self._extended = [c for c, resource in enumerate(self._resources) if is_extended_resource(resource)]
        # A key is the sum of the row, of the free amounts in these columns, and of a bit for nodes with accelerators. A
        # free amount is limited to a maximum and multiplied by a weight, which is 0 on nodes that have more than this
        # maximum.
        self._keyed = [(CPU, _MOST_CPU, _ROW_BITS), *((c, _MOST_PIECES, _LEVEL_BITS) for c in self._extended)]
        self._weights: Ints = np.zeros((self.columns, self.size), np.int64)
        self._bare_keys: Ints = np.arange(self.size, dtype=np.int64)
        self._weigh(np.arange(self.size))
        self.key: Ints = np.zeros(self.size, np.int64)
        self._find_keys(np.arange(self.size))
        self._key_cells = self.key.data
        self._key_parts = {column: (most, self._weights[column].data) for column, most, _ in self._keyed}
        self.touched = array("q")
        self.base = 1  # so that since(0) is all rows

    def _read(self, row: int, node: Node, first: int = 0) -> None:
        """Write the amounts of a node, starting at a column."""
        for column in range(first, self.columns):
            self.free[column, row] = units(self._resources[column], node.free)
            self.whole[column, row] = units(self._resources[column], node.allocatable)

    def _weigh(self, rows: Rows) -> None:
        """Compute the weights of these rows, and their keys without free amounts."""
        for column, most, shift in self._keyed:
            whole = self.whole[column].take(rows)
            self._weights[column, rows] = ((whole > 0) & (whole <= most)).astype(np.int64) << shift
        special = np.logical_or.reduce(self._weights[self._extended][:, rows] > 0)
        self._bare_keys[rows] = rows + (special.astype(np.int64) << _LEVEL_BITS)

    def _find_keys(self, rows: Rows) -> None:
        """Compute the keys of these rows."""
        key = self._bare_keys.take(rows)
        for column, most, _ in self._keyed:
            free = self.free[column].take(rows)
            np.minimum(np.maximum(free, 0, out=free), most, out=free)
            key += np.multiply(free, self._weights[column].take(rows), out=free)
        self.key[rows] = key

    def put(self, row: int, node: Node) -> None:
        """Write a changed node."""
        self._read(row, node)
        self._weigh(np.array([row]))
        self._find_keys(np.array([row]))
        self._touch((row,))

    def add(self, requests: Requests, times: Mapping[int, int], sign: int) -> None:
        """Add the requests, ``times`` by row, to the free amounts (``sign`` -1: subtract them)."""
        if len(times) > _FEW_ROWS:
            rows = np.fromiter(times, np.intp, len(times))
            amounts = np.fromiter(times.values(), np.int64, len(times)) * sign
            for column, value in requests:
                line = self.free[column]
                line[rows] += value * amounts
            self._find_keys(rows)
        else:
            # Update the key with each column. For a few rows, this is faster than computing the key again.
            for column, value in requests:
                line, part = self.cells[column], self._key_parts.get(column)
                for row, number in times.items():
                    before = line[row]
                    after = line[row] = before + value * number * sign
                    if part is not None:
                        most, weights = part
                        weight = weights[row]
                        if weight:
                            # Conditions, because calls of min and max would take half of the time.
                            counted = most if after > most else after if after > 0 else 0
                            counted -= most if before > most else before if before > 0 else 0
                            self._key_cells[row] += counted * weight
        self._touch(times)

    def _touch(self, rows: Iterable[int]) -> None:
        self.touched.extend(rows)
        if len(self.touched) > 4 * self.size + 1024:
            self.base += len(self.touched)
            del self.touched[:]

    @property
    def changes(self) -> int:
        """The number of changes."""
        return self.base + len(self.touched)

    def since(self, change: int) -> Rows | None:
        """The rows changed since the ``change``-th change, possibly repeated; None if too many, or too long ago."""
        if change < self.base or self.changes - change > self.size:
            return None
        rows = np.frombuffer(self.touched[change - self.base :], np.int64)
        if len(rows) <= _MANY_ROWS:
            return rows
        seen = np.zeros(self.size, np.bool_)
        seen[rows] = True
        rows = seen.nonzero()[0]
        return rows if 2 * len(rows) < self.size else None

    def fitting(self, requests: Requests, row: int) -> int:
        """The number of times that the requests fit on a node."""
        cells = self.cells
        return max(0, min([cells[column][row] // value for column, value in requests], default=UNLIMITED))


class PodCapacity:
    """The number of pods of a class that fit on each node: ``counts``, at the last ``refresh``."""

    def __init__(self, table: NodeTable, requests: Requests, mask: NodeMask) -> None:
        self._table = table
        self._requests = requests
        self._mask = mask
        self.counts: Ints = np.zeros(table.size, np.int64)
        self._cells = self.counts.data
        self._total: int | None = None
        self._change = 0
        self.refresh()

    @property
    def total(self) -> int:
        """The sum over all nodes."""
        if self._total is None:
            self._total = int(np.add.reduce(self.counts))
        return self._total

    def refresh(self) -> None:
        """Count the changed rows again."""
        table = self._table
        if self._change != table.changes:
            rows = table.since(self._change)
            self._change = table.changes
            if rows is not None and len(rows) <= _FEW_ROWS:
                for row in rows.tolist():
                    now = table.fitting(self._requests, row) if self._mask is None or self._mask[row] else 0
                    if self._total is not None:
                        self._total += now - self._cells[row]
                    self._cells[row] = now
            else:
                counts = pods_per_node(table.free, self._requests, self._mask, rows)
                self.counts[slice(None) if rows is None else rows] = counts
                self._total = None


def pods_per_node(amounts: Ints, requests: Requests, mask: NodeMask, rows: Rows | None = None) -> Ints:
    """The number of such pods that fit in each row (or each of ``rows``), with amounts by column and row."""
    found: Ints | None = None
    for column, value in requests:
        there = (amounts[column] if rows is None else amounts[column].take(rows)) // value
        found = there if found is None else np.minimum(found, there, out=found)
    if found is None:
        found = np.full(amounts.shape[1] if rows is None else len(rows), UNLIMITED, np.int64)
    np.maximum(found, 0, out=found)
    if mask is None:
        return found
    return found * (mask if rows is None else mask.take(rows))


# The maximum number of classes with cached counts. The least recently used class is dropped.
_MAX_CAPACITIES: Final = 512
# The maximum numbers of labels with cached domains, and of sets of constraints with cached nodes: jobs that name hosts
# add new sets.
_MAX_LABELS: Final = 16
_MAX_FILTERS: Final = 256


class NodeFilters:
    """The eligible nodes for each signature of constraints.

    ``before``: the results of an earlier layout of nodes; ``source``: the earlier row of each row, or -1.
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
        """The eligible nodes of a class of pods: no nodes if its constraints are malformed."""
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
        """Raise InvalidConstraints if the constraints are malformed."""
        self.of(shape)
        if shape.signature in self._unreadable:
            raise self._unreadable[shape.signature]

    def put(self, row: int, node: Node) -> bool:
        """Update a changed node. Returns whether any mask may have changed."""
        before, self._nodes[row] = self._nodes[row], node
        if node.labels == before.labels and node.taints == before.taints:
            return False
        (self._tainted.add if node.taints else self._tainted.discard)(row)
        for signature in self._unreadable:  # perhaps only this node caused the error
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
    """The values of a label, in order, with the rows of the nodes that have each value."""

    def __init__(self, label: str, nodes: Sequence[Node]) -> None:
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
        """The sum of ``counts``, which has a number for each row, for each domain."""
        return np.bincount(self.of_row, weights=counts, minlength=len(self.names) + 1).astype(np.int64)[:-1]


class NodeSnapshot:
    """The free resources of nodes. It must not include nodes that accept no pods (cordoned, not ready).

    Pod classes belong to the catalogue, which snapshots can share.
    """

    def __init__(self, nodes: Iterable[Node], catalogue: PodClassRegistry | None = None) -> None:
        self.catalogue = catalogue or PodClassRegistry()
        self._nodes = {node.name: node for node in nodes}
        self._unread: set[str] = set()  # nodes whose amounts the table does not have
        self._stale = False  # whether the table has different nodes
        self._log: list[tuple[Requests, Mapping[int, int]]] = []  # taken amounts, as arguments of take_rows
        self._marks: list[int] = []  # lengths of the log
        listed = [self._nodes[name] for name in sorted(self._nodes)]
        self._filters = NodeFilters(listed)
        self._lay_out(NodeTable(self.catalogue, listed))

    # -- nodes --

    def put_node(self, node: Node) -> None:
        """Add or update a node with its ``node.free``. No mark may be open."""
        self._check_no_mark()
        known = self._nodes.get(node.name)
        self._nodes[node.name] = node
        self.catalogue.offer(node.allocatable.keys())
        new_resources = self.table.columns < len(self.catalogue.columns)
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
        """Remove a node. An unknown node is ignored. No mark may be open."""
        self._check_no_mark()
        if self._nodes.pop(name, None) is not None:
            self._unread.discard(name)
            self._stale = True

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def node(self, name: str) -> Node:
        """The node as added. Raises KeyError if it is unknown."""
        return self._nodes[name]

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, in their order."""
        self.ready()
        return self.table.names

    def emptied(self, more: Iterable[Node] = ()) -> NodeSnapshot:
        """A snapshot of the same nodes without pods, and of ``more``, with the same catalogue."""
        empty = (replace(node, free=node.allocatable) for node in self._nodes.values())
        return NodeSnapshot([*empty, *more], self.catalogue)

    def _check_no_mark(self) -> None:
        if self._marks:
            raise ValueError("a node cannot change between a mark and its rollback")

    def ready(self) -> None:
        """Update the table for new nodes and resources."""
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
        """The class of a member's pods. Raises InvalidConstraints if its constraints are malformed."""
        shape = self.catalogue.shape(member)
        self.ready()
        self._filters.check(shape)
        return shape

    def mask(self, shape: PodClass) -> NodeMask:
        """The eligible nodes of a class of pods."""
        self.ready()
        return self._filters.of(shape)

    def capacity(self, shape: PodClass) -> PodCapacity:
        """The number of pods of a class that fit on each node now."""
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
        """The number of pods of a class that fit now on all nodes, up to ``limit``."""
        total = self.capacity(shape).total
        return total if limit is None else min(total, limit)

    def most_ever(self, shape: PodClass) -> int:
        """The number of pods of a class that would fit on empty nodes."""
        self.ready()
        return int(pods_per_node(self.table.whole, shape.requests, self.mask(shape)).sum())

    # -- pods --

    def take(self, shape: PodClass, node: str, count: int) -> None:
        """Take the capacity of existing pods. It may become negative. Raises KeyError if the node is unknown."""
        self.ready()
        self.take_rows(shape.requests, {self.table.row[node]: count})

    def give(self, shape: PodClass, node: str, count: int) -> None:
        """Return the capacity of deleted pods. Raises KeyError if the node is unknown."""
        self.take(shape, node, -count)

    def take_rows(self, requests: Requests, times: Mapping[int, int]) -> None:
        """Take these requests, ``times`` by row."""
        if self._marks:
            self._log.append((requests, times))
        self.table.add(requests, times, -1)

    def is_exceeded(self, pods: Iterable[PodsOnNode]) -> bool:
        """Whether the nodes of these pods have a negative free amount of a resource that the pods request."""
        cells, row = self.table.cells, self.table.row
        return any(cells[column][row[node]] < 0 for shape, node, _ in pods for column, _ in shape.requests)

    # -- undo --

    def mark(self) -> int:
        """Start to record changes, until ``rollback`` or ``commit`` with this mark."""
        self._marks.append(len(self._log))
        return len(self._marks) - 1

    def rollback(self, mark: int) -> None:
        """Undo all changes since the mark, and drop later marks."""
        length = self._marks[mark]
        while len(self._log) > length:
            self.table.add(*self._log.pop(), 1)
        self.commit(mark)

    def commit(self, mark: int) -> None:
        """Keep the changes since the mark (an outer mark can still undo them), and drop later marks."""
        del self._marks[mark:]
        if not self._marks:
            self._log.clear()
