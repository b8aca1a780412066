"""Growth of elastic gangs into capacity that no waiting gang needs.

Another worker saves more time if the gang runs longer and has fewer workers. Beyond its requested size, a gang grows
only on nodes that it uses already, because the network slows down a worker on another node, which then slows down the
other workers. Gangs do not grow while other gangs wait, shortly after a change of any gang, or twice within a short
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from tf_dist.core.gang.cache import (
    SchedulerCache,
    Workload,
    assigned_count,
    assigned_counts,
    assigned_placement,
    expected_end,
)
from tf_dist.core.gang.placement.pod_sets import Counts, PodSetRequest
from tf_dist.core.gang.placement.search import NodeAssignments, place_gang
from tf_dist.core.gang.types import AdmissionPolicy, AssignedPods, Gang

_SYNC_OVERHEAD: Final = 0.03
"""Each further worker slows down all workers by this fraction, so further workers gain less and less."""
_WORTH: Final = 3.0
"""If growing needs a restart, it must save this multiple of the restart's cost."""
_AT_LEAST: Final = 300.0
"""Seconds. A gang without an estimate is assumed to run for as long again as it has run, and at least for this time.
Without this minimum, gangs that have just started would not grow, although they gain most.
"""


@dataclass(slots=True, eq=False)
class _Growth:
    """Growth of one member of a gang."""

    entry: Workload
    """The gang."""
    want: PodSetRequest
    """The member that grows."""
    size: int
    """The number of its pods before the growth."""
    remaining: float
    """The expected remaining run time of the gang in seconds."""
    nodes: Counter[str]
    """The number of the gang's pods by node, including new pods."""
    extra: list[str] = field(default_factory=list)
    """The nodes of the new pods; "": any node."""

    @property
    def now(self) -> int:
        """Its current number of pods."""
        return self.size + len(self.extra)

    @property
    def rank(self) -> tuple[bool, float, str, str]:
        """Sort key: members below their requested size first, then members that gain most."""
        saved = self.remaining * (1 - _speed(self.now) / _speed(self.now + 1))
        return self.now >= self.want.count, -saved, self.entry.uid, self.want.type

    @property
    def one_more(self) -> Counts:
        """Counts with one pod of this member, and no pods of other members."""
        return tuple(int(want is self.want) for want in self.entry.request.wants)


def _speed(pods: int) -> float:
    return pods / (1 + _SYNC_OVERHEAD * (pods - 1)) if pods else 0.0


def growth_allowed_at(cache: SchedulerCache, policy: AdmissionPolicy) -> float:
    """The time from which on gangs may grow if no gang waits: epoch seconds, some time after the last change."""
    return (cache.moves[-1][0] if cache.moves else -inf) + policy.grow_after


def resize_cooldown_until(entry: Workload, policy: AdmissionPolicy) -> float:
    """The time from which on a gang may be resized again: epoch seconds."""
    assigned = entry.gang.assigned
    return -inf if assigned is None or assigned.resized is None else assigned.resized + policy.steady


def grow_gangs(cache: SchedulerCache, now: float, policy: AdmissionPolicy) -> list[Gang]:
    """The gangs that grow now, with their new sizes. No capacity is taken yet."""
    heap = [(one.rank, one) for entry in cache.elastic.values() for one in _growths(cache, entry, now, policy)]
    heapify(heap)
    done: list[_Growth] = []
    mark = cache.mark()
    while heap:
        _, one = heappop(heap)
        node = _take_one_more(cache, one)
        if node is None:
            done.append(one)
            continue
        one.extra.append(node)
        cache.resource_quotas.suppose(one.entry.gang, one.one_more)
        one.nodes[node] += 1
        cache.suppose(one.entry.queue, one.want.member.requests)
        if one.now < one.want.most:
            heappush(heap, (one.rank, one))
        else:
            done.append(one)
    cache.rollback(mark)
    cache.resource_quotas.forget()
    grown: dict[str, list[_Growth]] = {}
    for one in done:
        saved = one.remaining * (1 - _speed(one.size) / _speed(one.now)) if one.extra else 0.0
        if one.extra and (one.entry.gang.live or saved > _WORTH * policy.restart_cost):
            grown.setdefault(one.entry.uid, []).append(one)
    gangs = []
    for _, growths in sorted(grown.items()):
        entry = growths[0].entry
        more = {one.want.type: one.extra for one in growths}
        counts = tuple(len(more.get(want.type, ())) for want in entry.request.wants)
        nodes = [dict(Counter(filter(None, more.get(want.type, ())))) for want in entry.request.wants]
        gangs.append(with_more(entry, counts, nodes, now))
    return gangs


def _growths(cache: SchedulerCache, entry: Workload, now: float, policy: AdmissionPolicy) -> Iterator[_Growth]:
    gang = entry.gang
    if gang.assigned is None or gang.inadmissible or entry.releasing or entry.uid in cache.partial:
        return
    if now < resize_cooldown_until(entry, policy):
        return
    snapshot = cache.assumed_pods.snapshot
    if snapshot.is_exceeded(pods for pods in entry.held.assumed if pods.node in snapshot):
        return  # others have filled a node of its pods, which will need the free capacity of another node
    known = expected_end(gang, now)
    remaining = max(_AT_LEAST, now - gang.assigned.at) if known == inf else max(1.0, known - now)
    on = Counter(node for want in entry.request.wants for node in entry.nodes_by_index(want.type) if node)
    for want in entry.request.wants:
        size = assigned_count(gang, want.member)
        if size < want.most:
            yield _Growth(entry, want, size, remaining, on)


def with_more(entry: Workload, counts: Counts, nodes: NodeAssignments, now: float) -> Gang:
    """The gang with these further pods of each member, on these nodes."""
    gang = entry.gang
    sizes = assigned_counts(gang)
    placement = {type_: Counter(pods) for type_, pods in assigned_placement(gang, sizes).items()}
    for want, count, pods in zip(entry.request.wants, counts, nodes, strict=True):
        sizes[want.type] += count
        if gang.pinned and pods:
            placement.setdefault(want.type, Counter()).update(pods)
    at = gang.assigned.at if gang.assigned else now
    chosen = {type_: dict(sorted(pods.items())) for type_, pods in placement.items()}
    return replace(gang, assigned=AssignedPods(at=at, sizes=sizes, placement=chosen, resized=now))


def _take_one_more(cache: SchedulerCache, one: _Growth) -> str | None:
    """Take capacity for one more pod. Returns its node ("": any node), or None if the pod does not fit."""
    if not cache.quotas.fits(one.entry.queue, one.want.member.requests):
        return None
    if cache.resource_quotas.beyond(one.entry.gang, one.one_more, more=True) is not None:
        return None
    if not cache.assumed_pods.sees_nodes:
        return ""
    snapshot, shape = cache.assumed_pods.snapshot, one.want.shape
    for node, _ in sorted(one.nodes.items(), key=lambda item: (-item[1], item[0])):
        if node in snapshot and snapshot.capacity(shape).counts[snapshot.table.row[node]] >= 1:
            snapshot.take(shape, node, 1)
            return node
    locality = one.entry.gang.locality
    if one.now >= one.want.count or (locality is not None and locality.required):
        return None
    found = place_gang(snapshot, [(shape, 1)], keep=one.nodes)
    return None if isinstance(found, int) else next(iter(found[0]))
