"""Nodes for a gang whose pods are to be near each other: in one domain of a node label, a rack or a zone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tf_dist.core.gang.domains import Domains
from tf_dist.core.gang.model import Locality
from tf_dist.core.gang.room import Room
from tf_dist.core.gang.search import Found, Search, Short, Sweep, on_several
from tf_dist.core.gang.shapes import Shape
from tf_dist.core.gang.table import Ints, Rows


def on_near_ones(
    room: Room, search: Search, groups: Mapping[Shape, int], keep: Sequence[int], locality: Locality
) -> Found | Short:
    """The smallest domain that holds the gang; else, unless it is required, as few domains as possible.

    The domains that the gang is in already come first; if one is required, there is no other.
    """
    domains = room.domains(locality.label)
    at_home = {int(domains.of_row[row]) for row in keep} - {len(domains.rows)}
    sums = {shape: room.capacity(shape).by_domain(domains.label, domains.of_row, len(domains.rows)) for shape in groups}
    for rows in _scopes(domains, groups, sums, at_home, locality):
        inside = set(rows.tolist()) if keep else ()
        found = on_several(room, Sweep(room, rows), groups, [row for row in keep if row in inside])
        if not isinstance(found, Short):
            return found
    return Short(next(iter(groups))) if locality.required else on_several(room, search, groups, keep)


def _scopes(
    domains: Domains, groups: Mapping[Shape, int], sums: Mapping[Shape, Ints], at_home: set[int], locality: Locality
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
        several = _several(groups, sums, at_home)
        if len(several) > 1:
            yield np.concatenate([domains.rows[domain] for domain in several])


def _smallest_first(domains: Domains, size: Ints, some: Rows) -> Iterator[Rows]:
    if len(some):
        first = int(some[size[some].argmin()])  # nearly always it will do
        yield domains.rows[first]
        for domain in some[size[some].argsort(kind="stable")].tolist():
            if domain != first:
                yield domains.rows[domain]


def _several(groups: Mapping[Shape, int], sums: Mapping[Shape, Ints], at_home: set[int]) -> list[int]:
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
