"""Nodes for a whole gang, or none: packed on few nodes, within a topology domain where one is requested.

The rule: on the node that holds all of them, if there is one; else as many as possible on the node that holds the most
of them, and so on with the rest. Among nodes that are equally good, ``NodeTable.key`` decides. ``IndexedSearch`` asks
the ladder once for every node; ``FullScan`` looks at all nodes, or those of a domain, at once. Both find the same.

One node if it holds all of them; else the pods that need accelerators first (of those the most), on as few nodes as
possible, and the other members where the gang is already. Of nodes that are equally good the one is taken that has no
accelerators, then the fewest free, then the least free CPU (``Table.key``), so that large pieces stay whole.

The order in which members are placed can matter: if the first one fails, its reverse is tried. Both may fail where a
cleverer choice would do: how often, ``tests/core/gang/placement/test_search_properties.py`` counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.placement.node_filter import ALL_NODES, NodeFilter, TopologyDomains
from tf_dist.core.gang.placement.node_index import TooManyNodes, pods_per_node
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.node_table import Ints, NodeTable, Rows
from tf_dist.core.gang.placement.pod_classes import PodClass, PodGroups, Requests, group_by_class
from tf_dist.core.gang.types import TopologyRequest

# row -> pods, for each shape
Found = dict[PodClass, dict[int, int]]
# Up to so many nodes are looked at one by one.
_ONE_BY_ONE: Final = 16


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """There was no room for all pods of this shape."""

    shape: PodClass


class Search(Protocol):
    """A way to find nodes."""

    def whole(self, requests: Requests, masks: Sequence[NodeFilter]) -> int | None:
        """The node that holds all of this, None if there is none. Takes nothing."""

    def spread(self, shape: PodClass, count: int) -> dict[int, int] | None:
        """Take room for so many pods; None if there is not enough (some may have been taken)."""


class FullScan:
    """Looks at all nodes, or at some rows, at once."""

    def __init__(self, room: NodeSnapshot, rows: Rows | None = None) -> None:
        self._room = room
        self._rows = rows

    def whole(self, requests: Requests, masks: Sequence[NodeFilter]) -> int | None:
        """See Search."""
        table, rows = self._room.table, self._rows
        rows = _with_room(table, requests, rows)
        for mask in masks:
            if mask.rows is not None:
                rows = rows[mask.rows[rows]]
        table.derive()
        return int(rows[table.key[rows].argmin()]) if len(rows) else None

    def spread(self, shape: PodClass, count: int) -> dict[int, int] | None:
        """See Search."""
        capacity = self._room.capacity(shape)
        self._room.table.derive()
        if capacity.total < count:
            return None
        counts = capacity.counts if self._rows is None else capacity.counts[self._rows]
        found: dict[int, int] = {}
        taken: list[Rows] = []
        times: list[int] = []
        while count:
            most = int(np.maximum.reduce(counts, initial=0))
            if not most:
                return None
            each, nodes = (count, 1) if most >= count else (most, count // most)
            at = (counts >= each).nonzero()[0]
            rows = at if self._rows is None else self._rows[at]
            first = _smallest_keys(self._room.table.key[rows], nodes)
            taken.append(rows[first])
            times.append(each)
            found |= dict.fromkeys(taken[-1].tolist(), each)
            count -= each * len(first)
            if count:
                counts = counts.copy() if counts is capacity.counts else counts
                counts[at[first]] = 0
        self._room.take_rows(shape.requests, np.concatenate(taken), np.array(times).repeat([*map(len, taken)]))
        return found


def _smallest_keys(keys: Ints, nodes: int) -> Rows:
    """Where the ``nodes`` smallest keys are, the smallest first."""
    if nodes == 1:
        return np.array([keys.argmin()])
    if nodes >= len(keys):
        return keys.argsort()
    first = np.argpartition(keys, nodes - 1)[:nodes]
    return first[keys[first].argsort()]


def _with_room(table: NodeTable, requests: Requests, rows: Rows | None) -> Rows:
    """Those of the rows (None: of all) that have room for the requests once."""
    if rows is not None:
        return rows[pods_per_node(table.free, requests, ALL_NODES, rows) > 0]
    enough: NDArray[np.bool_] = np.ones(table.size, bool)
    for column, value in requests:
        enough &= table.free[column] >= value
    return enough.nonzero()[0]


class IndexedSearch:
    """Looks at one node after the other; for few pods faster, however many nodes there are."""

    def __init__(self, room: NodeSnapshot) -> None:
        self._room = room

    def whole(self, requests: Requests, masks: Sequence[NodeFilter]) -> int | None:
        """See Search."""
        try:
            return self._room.ladder.best(requests, masks)
        except TooManyNodes:
            return FullScan(self._room).whole(requests, masks)

    def spread(self, shape: PodClass, count: int) -> dict[int, int] | None:
        """See Search."""
        masks = (self._room.mask(shape),)
        found: dict[int, int] = {}
        ladder = self._room.ladder
        each = ladder.at_most(shape, count)
        try:
            while count and each > 0:
                each = min(each, count)
                row = ladder.best(shape.requests, masks, each)
                if row is not None:
                    # It keeps its old rung until all are placed; no more of these pods fit on it anyway.
                    self._room.take_at(shape.requests, row, each)
                    found[row] = each
                    count -= each
                else:
                    each -= 1
        except TooManyNodes:
            rest = FullScan(self._room).spread(shape, count)
            return None if rest is None else found | rest
        return None if count else found


def place_on_one_node(
    room: NodeSnapshot, search: Search, groups: PodGroups, within: NodeFilter = ALL_NODES
) -> Found | None:
    """Take room for all groups on one node, of those ``within``; None: no node has so much."""
    largest = room.table.largest
    for column, value in groups.together:
        if value > largest[column]:
            return None
    row = search.whole(groups.together, [*map(room.mask, groups.counts), within])
    if row is None:
        return None
    room.take_at(groups.together, row, 1)
    return {shape: {row: count} for shape, count in groups.counts.items()}


def place_on_several(
    room: NodeSnapshot, search: Search, groups: Mapping[PodClass, int], keep: Sequence[int]
) -> Found | NoCapacity:
    """Take room for all groups in their order or, if that fails, in the reverse; nothing is taken if both do."""
    found = _in_order(room, search, list(groups.items()), keep)
    if isinstance(found, NoCapacity) and len(groups) > 1:
        again = _in_order(room, search, list(groups.items())[::-1], keep)
        return found if isinstance(again, NoCapacity) else again
    return found


def _in_order(
    room: NodeSnapshot, search: Search, groups: Sequence[tuple[PodClass, int]], keep: Sequence[int]
) -> Found | NoCapacity:
    found: Found = {}
    used = list(keep)
    begin = room.begin()
    for shape, count in groups:
        here = _fill(room, shape, count, used) if used else {}
        rest = count - sum(here.values())
        elsewhere = search.spread(shape, rest) if rest else {}
        if elsewhere is None:
            room.end(begin, keep=False)
            return NoCapacity(shape)
        found[shape] = here | elsewhere
        used += elsewhere
    room.end(begin, keep=True)
    return found


def _fill(room: NodeSnapshot, shape: PodClass, count: int, used: Sequence[int]) -> dict[int, int]:
    """Take room for up to so many pods on the nodes that the gang uses already."""
    if count > _ONE_BY_ONE and len(used) > _ONE_BY_ONE:
        found = _fill_at_once(room, shape, count, used[:count])  # mostly enough of them
        left = count - sum(found.values())
        return found | _fill(room, shape, left, used[count:]) if left and used[count:] else found
    found = {}
    allowed = room.mask(shape).cells
    for row in used[:_ONE_BY_ONE]:
        fitting = room.table.fitting(shape.requests, row) if allowed is None or allowed[row] else 0
        if fitting:
            found[row] = fitting if fitting < count else count
            room.take_at(shape.requests, row, found[row])
            count -= found[row]
            if not count:
                return found
    return found | _fill_at_once(room, shape, count, used[_ONE_BY_ONE:]) if len(used) > _ONE_BY_ONE else found


def _fill_at_once(room: NodeSnapshot, shape: PodClass, count: int, used: Sequence[int]) -> dict[int, int]:
    rows = np.array(used)
    counts = pods_per_node(room.table.free, shape.requests, room.mask(shape), rows).astype(np.int64)
    before = counts.cumsum() - counts  # how many the nodes before it have room for
    some = ((counts > 0) & (before < count)).nonzero()[0]
    rows, taken = rows[some], np.minimum(counts[some], count - before[some])
    room.take_rows(shape.requests, rows, taken)
    return dict(zip(rows.tolist(), taken.tolist(), strict=True))


def place_in_domains(
    room: NodeSnapshot, search: Search, groups: Mapping[PodClass, int], keep: Sequence[int], locality: TopologyRequest
) -> Found | NoCapacity:
    """The smallest domain that holds the gang; else, unless it is required, as few domains as possible.

    The domains that the gang is in already come first; if one is required, there is no other.
    """
    domains = room.domains(locality.label)
    at_home = {int(domains.of_row[row]) for row in keep} - {len(domains.rows)}
    sums = {shape: room.capacity(shape).by_domain(domains.label, domains.of_row, len(domains.rows)) for shape in groups}
    for rows in _scopes(domains, groups, sums, at_home, locality):
        inside = set(rows.tolist()) if keep else ()
        found = place_on_several(room, FullScan(room, rows), groups, [row for row in keep if row in inside])
        if not isinstance(found, NoCapacity):
            return found
    return NoCapacity(next(iter(groups))) if locality.required else place_on_several(room, search, groups, keep)


def _scopes(
    domains: TopologyDomains,
    groups: Mapping[PodClass, int],
    sums: Mapping[PodClass, Ints],
    at_home: set[int],
    locality: TopologyRequest,
) -> Iterator[Rows]:
    """The rows to try, one domain after the other, and then the fewest domains that may do together."""
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
        if len(several) > 1:
            yield np.concatenate([domains.rows[domain] for domain in several])


def _smallest_first(domains: TopologyDomains, size: Ints, some: Rows) -> Iterator[Rows]:
    if len(some):
        first = int(some[size[some].argmin()])  # nearly always it will do
        yield domains.rows[first]
        for domain in some[size[some].argsort(kind="stable")].tolist():
            if domain != first:
                yield domains.rows[domain]


def _fewest_domains(groups: Mapping[PodClass, int], sums: Mapping[PodClass, Ints], at_home: set[int]) -> list[int]:
    """Domains that hold so many pods together: the largest, and a last one that is just large enough.

    Empty when all of them do not.
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
    while any(count > 0 for count in missing.values()):
        enough = np.logical_and.reduce([sums[shape] >= count for shape, count in missing.items()]) & (size >= 0)
        last = enough.nonzero()[0]
        if len(last):
            choose(int(last[size[last].argmin()]))
        elif len(size) and size.max() > 0:
            choose(int(size.argmax()))
        else:
            return []
    return chosen


Wants = Sequence[tuple[PodClass, int]]

# Up to so many pods are placed one look at a time, more by looking at all nodes at once.
FEW: Final = 16
_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


def place_gang(
    room: NodeSnapshot, wants: Wants, *, locality: TopologyRequest | None = None, keep: Mapping[str, int] = _NOWHERE
) -> list[dict[str, int]] | int:
    """Take room for all pods of ``wants``, and say per want how many go to which node.

    An int: nothing was taken; the index of the want that lacked room. (With a required ``locality`` it may have room,
    but not where the others have.) ``keep``: nodes that the gang is on already; they come first.
    """
    groups = group_by_class(tuple(wants))
    if not groups.counts:
        return [{} for _ in wants]
    room.ready()
    lacking = None
    if not room.surely_lacks(groups.counts):
        rows = room.table.row
        found = _placed(room, groups, locality, [rows[node] for node in keep if node in rows])
        if not isinstance(found, NoCapacity):
            return _distribute(room.table.names, wants, groups.counts, found)
        lacking = found.shape
    # Which one is named must not depend on what happens to be known: first those that lack room even alone.
    lacking = next((shape for shape, count in groups.counts.items() if room.most(shape) < count), lacking)
    return next(at for at, (shape, count) in enumerate(wants) if shape is lacking and count > 0)


def _placed(
    room: NodeSnapshot, groups: PodGroups, locality: TopologyRequest | None, keep: list[int]
) -> Found | NoCapacity:
    search: Search = IndexedSearch(room) if groups.pods <= FEW else FullScan(room)
    if not keep:
        found = place_on_one_node(room, search, groups, room.domains(locality.label).inside if locality else ALL_NODES)
        if found is not None:
            return found
    if locality is None:
        return place_on_several(room, search, groups.counts, keep)
    return place_in_domains(room, search, groups.counts, keep, locality)


def _distribute(
    names: Sequence[str], wants: Wants, groups: Mapping[PodClass, int], found: Found
) -> list[dict[str, int]]:
    """What each want has of what was found for its shape."""
    shares: list[dict[str, int]] = []
    for shape, count in wants:
        if count <= 0:
            shares.append({})
            continue
        nodes = found[shape] if count == groups[shape] else _first_pods(found[shape], count)
        shares.append({names[row]: there for row, there in nodes.items()})
    return shares


def _first_pods(nodes: dict[int, int], count: int) -> dict[int, int]:
    """The first so many pods, taken out of ``nodes``."""
    share: dict[int, int] = {}
    while count > 0:
        row = next(iter(nodes))
        there = nodes.pop(row)
        share[row] = min(there, count)
        if there > count:
            nodes[row] = there - count
        count -= there
    return share
