"""``place``: nodes for a whole gang, or none.

One node if it holds all of them; else the pods that need accelerators first (of those the most), on as few nodes as
possible, and the other members where the gang is already. Of nodes that are equally good the one is taken that has no
accelerators, then the fewest free, then the least free CPU (``Table.key``), so that large pieces stay whole.

The order in which members are placed can matter: if the first one fails, its reverse is tried. Both may fail where a
cleverer choice would do: how often, ``tests/core/gang/test_pack_oracle.py`` counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tf_dist.core.gang.masks import EVERYWHERE
from tf_dist.core.gang.model import Locality
from tf_dist.core.gang.near import on_near_ones
from tf_dist.core.gang.room import Room
from tf_dist.core.gang.search import Few, Found, Search, Short, Sweep, on_one_node, on_several
from tf_dist.core.gang.shapes import Groups, Shape, grouped

Wants = Sequence[tuple[Shape, int]]

# Up to so many pods are placed one look at a time, more by looking at all nodes at once.
FEW: Final = 16
_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


def place(
    room: Room, wants: Wants, *, locality: Locality | None = None, keep: Mapping[str, int] = _NOWHERE
) -> list[dict[str, int]] | int:
    """Take room for all pods of ``wants``, and say per want how many go to which node.

    An int: nothing was taken; the index of the want that lacked room. (With a required ``locality`` it may have room,
    but not where the others have.) ``keep``: nodes that the gang is on already; they come first.
    """
    groups = grouped(tuple(wants))
    if not groups.counts:
        return [{} for _ in wants]
    room.ready()
    lacking = None
    if not room.surely_lacks(groups.counts):
        rows = room.table.row
        found = _placed(room, groups, locality, [rows[node] for node in keep if node in rows])
        if not isinstance(found, Short):
            return _shared_out(room.table.names, wants, groups.counts, found)
        lacking = found.shape
    # Which one is named must not depend on what happens to be known: first those that lack room even alone.
    lacking = next((shape for shape, count in groups.counts.items() if room.most(shape) < count), lacking)
    return next(at for at, (shape, count) in enumerate(wants) if shape is lacking and count > 0)


def _placed(room: Room, groups: Groups, locality: Locality | None, keep: list[int]) -> Found | Short:
    search: Search = Few(room) if groups.pods <= FEW else Sweep(room)
    if not keep:
        found = on_one_node(room, search, groups, room.domains(locality.label).inside if locality else EVERYWHERE)
        if found is not None:
            return found
    if locality is None:
        return on_several(room, search, groups.counts, keep)
    return on_near_ones(room, search, groups.counts, keep, locality)


def _shared_out(names: Sequence[str], wants: Wants, groups: Mapping[Shape, int], found: Found) -> list[dict[str, int]]:
    """What each want has of what was found for its shape."""
    shares: list[dict[str, int]] = []
    for shape, count in wants:
        if count <= 0:
            shares.append({})
            continue
        nodes = found[shape] if count == groups[shape] else _first(found[shape], count)
        shares.append({names[row]: there for row, there in nodes.items()})
    return shares


def _first(nodes: dict[int, int], count: int) -> dict[int, int]:
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
