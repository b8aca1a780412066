"""Node filters for each set of constraints, and the topology domains of a node label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tf_dist.core.api.job import Document
from tf_dist.core.gang.placement import predicates
from tf_dist.core.gang.placement.node_table import ALL_NODES, Ints, Mask, NodeMask, Rows
from tf_dist.core.gang.placement.pod_sets import PodClass
from tf_dist.core.gang.types import Node

# So many sets of constraints are remembered; jobs that name their hosts each bring a new one.
_KEPT: Final = 256


class NodeFilters:
    """For each signature of constraints that was asked for, the nodes that its pods may go to."""

    def __init__(self, nodes: Sequence[Node], before: NodeFilters | None = None, source: Rows | None = None) -> None:
        self._nodes = list(nodes)
        self._tainted = {row for row, node in enumerate(nodes) if node.taints}
        self._known: dict[str, tuple[Document, Mask]] = {}
        self._unreadable: dict[str, predicates.InvalidConstraints] = {}
        if before is not None and source is not None:
            self._take_over(before, source)

    def _take_over(self, before: NodeFilters, source: Rows) -> None:
        """Masks of nodes that were laid out otherwise; ``source``: for each row the one it had there, -1 for none."""
        new = (source < 0).nonzero()[0].tolist()
        for signature, (constraints, mask) in before._known.items():
            if len(mask) and signature not in before._unreadable:
                rows = mask[source]
                for row in new:
                    rows[row] = self._allows(signature, constraints, row)
                self._known[signature] = constraints, rows

    def of(self, shape: PodClass) -> NodeMask:
        """The nodes that a class of pods may go to: none, if its constraints cannot be read."""
        if not shape.signature and not self._tainted:
            return ALL_NODES
        known = self._known.get(shape.signature)
        if known is None:
            known = self._known[shape.signature] = shape.constraints, self._made(shape)
            if len(self._known) > _KEPT:
                self._known.pop(next(iter(self._known)))
        return known[1]

    def check(self, shape: PodClass) -> None:
        """Raise predicates.InvalidConstraints if some node showed that the constraints make no sense."""
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

    def _made(self, shape: PodClass) -> Mask:
        if shape.signature:
            every = range(len(self._nodes))
            rows = np.array([self._allows(shape.signature, shape.constraints, row) for row in every], bool)
        else:
            rows = np.ones(len(self._nodes), bool)
            for row in self._tainted:
                rows[row] = self._allows("", shape.constraints, row)
        return rows

    def _allows(self, signature: str, constraints: Document, row: int) -> bool:
        node = self._nodes[row]
        try:
            return predicates.matches_node_affinity(constraints, node.name, node.labels) and (
                not node.taints or predicates.untolerated_taint(constraints, node.taints) is None
            )
        except predicates.InvalidConstraints as error:
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
