"""What admission says to people: why a gang waits, what it waits for, who gives way to whom. Short, and true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from tf_dist.core import times
from tf_dist.core.gang.asks import Ask, Counts, Want
from tf_dist.core.gang.fit import REFUSED
from tf_dist.core.gang.model import Gang, Resources, Sizes
from tf_dist.core.gang.room import Room
from tf_dist.core.model import JobKey
from tf_dist.core.quantity import format_quantity

NAMED = 3


def listed(keys: Iterable[object], count: int) -> str:
    """The first of ``count`` things by name, and how many more there are."""
    named = ", ".join(map(str, islice(keys, NAMED)))
    return named + (f" and {count - NAMED} more" if count > NAMED else "")


def moment(time: float, now: float) -> str:
    """A time of day; with its date if that is not today's."""
    then, today = times.moment(time), times.moment(now)
    return f"{then:%H:%M} UTC" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M} UTC"


def pods(want: Want, count: int) -> str:
    """``4 × (nvidia.com/gpu 1) for worker``."""
    return f"{count} × ({_text(want.member.requests)}) for {want.type}"


def _text(requests: Resources) -> str:
    shown = {r: v for r, v in requests.items() if r != "pods"} or requests
    return ", ".join(f"{resource} {format_quantity(value, resource)}" for resource, value in sorted(shown.items()))


# -- no room --


def never(room: Room, ask: Ask, lacking: int) -> str:
    """Why even empty nodes could not hold a gang. ``lacking``: the member for which there is no room."""
    return _never(room, ask, lacking) + _left_out(ask)


def _never(room: Room, ask: Ask, lacking: int) -> str:
    if not room.nodes:
        return "the cluster has no node"
    want, count = ask.wants[lacking], ask.least[lacking]
    if not _open(room, want).any():
        return f"needs {pods(want, count)}, but no node matches its node selector, affinity and tolerations"
    if want.shape is not None and room.most_ever(want.shape) >= count:
        return f"needs {_all(ask, ask.least)}, and even the empty cluster has no room for all of them{_where(ask)}"
    return f"needs {pods(want, count)}, and even the empty cluster has only {_there(room, want, whole=True)}"


def shortage(room: Room, ask: Ask, counts: Counts, short: int | None) -> str:
    """What is missing now. ``short``: the member that alone lacks room; None: only all of them together do."""
    if short is None:
        return f"needs {_all(ask, counts)}, and there is no room for all of them{_where(ask)}{_left_out(ask)}"
    want, count = ask.wants[short], counts[short]
    more = count - (room.most(want.shape) if want.shape else 0)
    free = _there(room, want, whole=False)
    return f"needs {pods(want, count)}, {more} more than have room; free: {free}{_left_out(ask)}"


def refused(ask: Ask) -> list[str]:
    """The nodes that are left out because the cluster's scheduler refused them."""
    return sorted({node for want in ask.wants for node in want.member.constraints.get(REFUSED, ())})


def _left_out(ask: Ask) -> str:
    nodes = refused(ask)
    return f"; left out for now, refused by the cluster's scheduler: {listed(nodes, len(nodes))}" if nodes else ""


def _all(ask: Ask, counts: Counts) -> str:
    return " and ".join(pods(want, count) for want, count in zip(ask.wants, counts, strict=True) if count)


def _where(ask: Ask) -> str:
    required = ask.locality is not None and ask.locality.required
    return f" within one {ask.locality.label}" if ask.locality and required else " at once"


def _open(room: Room, want: Want) -> NDArray[np.bool_]:
    """The nodes its pods may go to."""
    rows = room.mask(want.shape).rows if want.shape else None
    return np.ones(len(room.nodes), np.bool_) if rows is None else rows


def _there(room: Room, want: Want, *, whole: bool) -> str:
    """What the nodes that its pods may go to have of what they ask for, and how many nodes that are."""
    open_ = _open(room, want)
    amounts_of = room.table.whole if whole else room.table.free
    shown = [r for r in sorted(want.member.requests) if r != "pods"] or ["pods"]
    totals = {r: int(amounts_of[room.catalogue.column(r), open_].clip(0).sum()) for r in shown}
    count = int(open_.sum())
    amounts = {r: Decimal(total) / (1000 if r == "cpu" else 1) for r, total in totals.items()}
    found = f"{_text(amounts)} on {count} node" + ("s" if count != 1 else "")
    for one in want.member.exclusives:
        left = int((amounts_of[room.catalogue.column(one.name), open_] >= one.amount).sum())
        found += f", {left} of them with its {one.text} free"
    return found


# -- in line --


def behind(number: int, ahead: Iterable[JobKey], queue: str) -> str:
    """Where a gang stands in its line, ``number`` others being before it."""
    whose = f" in queue {queue}" if queue else ""
    return f"; position {number + 1}{whose}" + (f", behind {listed(ahead, number)}" if number else "")


def starts(after: JobKey | None, start: float, now: float, leaving: Iterable[JobKey]) -> str:
    """When a gang that has a reservation starts."""
    gone = sorted(leaving)
    if after is None:
        have = "have" if len(gone) > 1 else "has"
        return f"; starts when {listed(gone, len(gone))} {have} given up the room" if gone else ""
    when = f" (about {moment(start, now)})" if start < inf else ""
    return f"; starts when {after} ends{when} or is stopped"


# -- who gives way, who grows --


def shrinks(before: Sizes, sizes: Sizes, other: JobKey) -> str:
    """A gang becomes smaller for another one."""
    return f"goes from {_change(before, sizes)}: {other} waits for the room"


def grows(before: Sizes, sizes: Sizes) -> str:
    """A gang becomes larger."""
    return f"goes from {_change(before, sizes)}: nobody waits for the room"


def _change(before: Sizes, sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{before[t]} to {sizes[t]} {t}" for t in sizes if sizes[t] != before.get(t))


def preempted(victim: Gang, gang: Gang) -> str:
    """A gang gives up its place to another one."""
    if gang.priority > victim.priority and (gang.queue or "") == (victim.queue or ""):
        return f"gives up its place to {gang.key}, whose priority is higher ({gang.priority} > {victim.priority})"
    return f"gives up its place to {gang.key}: its queue takes back what is its own"
