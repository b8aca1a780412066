"""Search: nodes for all pods of a gang, or for none.

A gang is placed on one node if all of it fits there. Otherwise its pod classes are placed one after the other, those
with most accelerators first: on the nodes that the gang uses already, and the rest on as few nodes as possible. That
is, as many pods as possible on the node where most fit, and so on; the last node is one where the rest just fits. Of
equally good nodes, that with the smallest ``NodeTable.key`` is used, to keep large free parts whole. The same rules
apply within a topology domain.

The order of the classes can matter: if it fails, the reverse is tried. Both may fail although a placement exists;
``tests/core/gang/placement/test_search_properties.py`` measures how often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from tf_dist.core.gang.placement.node_snapshot import (
    ALL_NODES,
    Ints,
    Mask,
    NodeMask,
    NodeSnapshot,
    Rows,
    TopologyDomains,
)
from tf_dist.core.gang.placement.pod_sets import PodClass, PodGroups, group_by_class
from tf_dist.core.gang.types import TopologyRequest

Found = dict[PodClass, dict[int, int]]
"""For each class, the number of pods by row."""
Wants = Sequence[tuple[PodClass, int]]

_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})
_LAST: Final = np.iinfo(np.int64).max  # behind every key


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """Not all pods fit."""

    shape: PodClass
    """The first class with a pod that does not fit."""


def place_gang(
    snapshot: NodeSnapshot, wants: Wants, *, locality: TopologyRequest | None = None, keep: Mapping[str, int] = _NOWHERE
) -> list[dict[str, int]] | int:
    """Take capacity for all pods of ``wants``.

    Returns the number of pods by node for each want. An int means that nothing was taken: the index of the want that
    did not fit. (With a required ``locality`` it may fit, but not together with the others.) ``keep``: nodes that the
    gang uses already, which come first.
    """
    groups = group_by_class(tuple(wants))
    if not groups.counts:
        return [{} for _ in wants]
    snapshot.ready()
    rows = snapshot.table.row
    found = _placed(snapshot, groups, locality, [rows[node] for node in keep if node in rows])
    if not isinstance(found, NoCapacity):
        return _distribute(snapshot.table.names, wants, groups.counts, found)
    # A member that does not fit even alone is the better answer.
    lacking = next((shape for shape, count in groups.counts.items() if snapshot.most(shape) < count), found.shape)
    return next(at for at, (shape, count) in enumerate(wants) if shape is lacking and count > 0)


def _placed(
    snapshot: NodeSnapshot, groups: PodGroups, locality: TopologyRequest | None, keep: list[int]
) -> Found | NoCapacity:
    if not keep and (locality or len(groups.counts) > 1):  # for one class the other way comes to the same
        found = _on_one_node(snapshot, groups, snapshot.domains(locality.label).inside if locality else ALL_NODES)
        if found is not None:
            return found
    if locality is None:
        return _on_several(snapshot, groups.counts, keep)
    return _in_domains(snapshot, groups.counts, keep, locality)


def _distribute(
    names: Sequence[str], wants: Wants, groups: Mapping[PodClass, int], found: Found
) -> list[dict[str, int]]:
    """The part of each want in the result for its shape."""
    shares: list[dict[str, int]] = []
    for shape, count in wants:
        if count <= 0:
            shares.append({})
            continue
        nodes = found[shape] if count == groups[shape] else _first_pods(found[shape], count)
        shares.append({names[row]: there for row, there in nodes.items()})
    return shares


def _first_pods(nodes: dict[int, int], count: int) -> dict[int, int]:
    """The first pods, removed from ``nodes``."""
    share: dict[int, int] = {}
    while count > 0:
        row = next(iter(nodes))
        there = nodes.pop(row)
        share[row] = min(there, count)
        if there > count:
            nodes[row] = there - count
        count -= there
    return share


def _on_one_node(snapshot: NodeSnapshot, groups: PodGroups, within: NodeMask) -> Found | None:
    """Take capacity for all groups on one node ``within`` the mask; None: no node has enough."""
    table = snapshot.table
    largest, count = next(iter(groups.counts.items()))
    rows = (snapshot.capacity(largest).counts >= count).nonzero()[0]  # mostly few: the rest is asked of these alone
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
) -> Found | NoCapacity:
    """Take capacity for all groups in order or, if that fails, in reverse order. If both fail, nothing is taken."""
    found = _in_order(snapshot, list(groups.items()), keep, rows)
    if isinstance(found, NoCapacity) and len(groups) > 1:
        again = _in_order(snapshot, list(groups.items())[::-1], keep, rows)
        return found if isinstance(again, NoCapacity) else again
    return found


def _in_order(
    snapshot: NodeSnapshot, groups: Sequence[tuple[PodClass, int]], keep: Sequence[int], rows: Rows | None
) -> Found | NoCapacity:
    found: Found = {}
    used = list(keep)
    mark = snapshot.mark()
    for shape, count in groups:
        here = _fill(snapshot, shape, count, used) if used else {}
        rest = count - sum(here.values())
        elsewhere = _spread(snapshot, shape, rest, rows) if rest else {}
        if elsewhere is None:
            snapshot.rollback(mark)
            return NoCapacity(shape)
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
    """Take capacity for this number of pods on as few rows as possible; None: there is not enough."""
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
        first = _smallest(keys, counts >= each, count // each)
        nodes = first if rows is None else rows.take(first)
        found |= dict.fromkeys(nodes.tolist(), each)
        count -= each * len(first)
        if not count:
            break
        counts = counts.copy()
        counts[first] = 0
    snapshot.take_rows(shape.requests, found)
    return found


def _smallest(keys: Ints, enough: Mask, number: int) -> Rows:
    """The positions of the ``number`` smallest keys among those that are ``enough`` (one or more), in order."""
    if number == 1:
        at: Rows = np.where(enough, keys, _LAST).argmin(axis=0, keepdims=True)
        return at
    rows = enough.nonzero()[0]
    return rows.take(keys.take(rows).argsort()[:number])


def _in_domains(
    snapshot: NodeSnapshot, groups: Mapping[PodClass, int], keep: Sequence[int], locality: TopologyRequest
) -> Found | NoCapacity:
    """The smallest domain that holds the gang; otherwise, unless one is required, as few domains as possible.

    Domains that the gang uses already come first; if one is required, only that is used.
    """
    domains = snapshot.domains(locality.label)
    at_home = {int(domains.of_row[row]) for row in keep} - {len(domains.rows)}
    sums = {shape: domains.sums(snapshot.capacity(shape).counts) for shape in groups}
    for rows in _scopes(domains, groups, sums, at_home, locality):
        inside = set(rows.tolist()) if keep else ()
        found = _on_several(snapshot, groups, [row for row in keep if row in inside], rows)
        if not isinstance(found, NoCapacity):
            return found
    return NoCapacity(next(iter(groups))) if locality.required else _on_several(snapshot, groups, keep)


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
    """Two or more domains that together hold these pods: the largest, and a last one that is just large enough.

    Empty if all domains together do not.
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
