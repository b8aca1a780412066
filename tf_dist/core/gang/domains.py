"""The domains of a node label, racks or zones: which nodes are in each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tf_dist.core.gang.masks import Mask
from tf_dist.core.gang.model import Node
from tf_dist.core.gang.table import Rows


class Domains:
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
        self.inside = Mask(inside, inside.data) if not inside.all() else Mask()
