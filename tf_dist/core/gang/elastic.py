"""Growing elastic gangs into capacity that no waiting gang needs.

One more worker saves the more time the longer a gang still has to run and the fewer workers it has. Beyond what it
wanted a gang grows only onto nodes it is on already: a worker elsewhere is slowed down by the network, and slows down
others. Gangs do not grow while others wait, nor soon after, nor twice at short intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from tf_dist.core.gang import usage
from tf_dist.core.gang.cache import SchedulerCache, expected_end
from tf_dist.core.gang.placement.assumed_pods import NodeAssignments
from tf_dist.core.gang.placement.pod_sets import Counts, PodSetRequest
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import AdmissionPolicy, AssignedPods, Gang
from tf_dist.core.gang.workload import Workload

# One more worker slows every worker down by this fraction: the more workers, the less another one brings.
_SYNC_OVERHEAD = 0.03
# Growing must save so many times what a restart costs, if it needs one.
_WORTH = 3.0
# A gang without an estimate is assumed to run for as long again as it has, and at least for this (seconds): else gangs
# that have just started would not grow, and they have most to gain by it.
_AT_LEAST = 300.0


@dataclass(slots=True, eq=False)
class _Growth:
    """Growth of one member of a gang. ``extra``: on which nodes the new ones are ("": anywhere)."""

    entry: Workload
    want: PodSetRequest
    size: int
    remaining: float
    nodes: Counter[str]
    extra: list[str] = field(default_factory=list)

    @property
    def now(self) -> int:
        """How many pods it has by now."""
        return self.size + len(self.extra)

    def saves(self, pods: int) -> float:
        """Seconds that so many pods, instead of those it has, would save."""
        return self.remaining * (1 - _speed(self.now) / _speed(pods))

    @property
    def turn(self) -> tuple[bool, float, str, str]:
        """Sort key: members below what they wanted first, then those that gain most."""
        return self.now >= self.want.count, -self.saves(self.now + 1), self.entry.uid, self.want.type


def _speed(pods: int) -> float:
    return pods / (1 + _SYNC_OVERHEAD * (pods - 1)) if pods else 0.0


def growth_allowed_at(cache: SchedulerCache, policy: AdmissionPolicy) -> float:
    """When gangs may grow if none waits (epoch seconds): some time after the last one got or gave up room."""
    return (cache.moves[-1][0] if cache.moves else -inf) + policy.grow_after


def resize_cooldown_until(entry: Workload, policy: AdmissionPolicy) -> float:
    """When a gang may be resized again."""
    at = entry.gang.assigned
    return -inf if at is None or at.resized is None else at.resized + policy.steady


def grow_gangs(cache: SchedulerCache, now: float, policy: AdmissionPolicy) -> list[Gang]:
    """The gangs that grow now, with their new size; nothing is taken yet."""
    heap = [(one.turn, one) for entry in cache.elastic.values() for one in _growths(cache, entry, now, policy)]
    heapify(heap)
    done: list[_Growth] = []
    mark = cache.assumed_pods.snapshot.mark() if cache.assumed_pods else 0
    while heap:
        _, one = heappop(heap)
        node = _another(cache, one)
        if node is None:
            done.append(one)
            continue
        one.extra.append(node)
        cache.bounds.suppose(one.entry.gang, _one_more(one))
        one.nodes[node] += 1
        cache.quotas.take(one.entry.queue, one.want.member.requests)
        if one.now < one.want.most:
            heappush(heap, (one.turn, one))
        else:
            done.append(one)
    if cache.assumed_pods:
        cache.assumed_pods.snapshot.rollback(mark)
    cache.bounds.forget()
    for one in done:
        for _ in one.extra:
            cache.quotas.give(one.entry.queue, one.want.member.requests)
    return _gangs([one for one in done if one.extra and _worth(one, policy)], now)


def _growths(cache: SchedulerCache, entry: Workload, now: float, policy: AdmissionPolicy) -> Iterator[_Growth]:
    if (
        entry.releasing
        or now < resize_cooldown_until(entry, policy)
        or entry.gang.assigned is None
        or entry.gang.inadmissible
        or entry.uid in cache.partial
    ):
        return
    known = expected_end(entry.gang, now)
    remaining = max(_AT_LEAST, now - entry.gang.assigned.at) if known == inf else max(1.0, known - now)
    on = Counter(node for want in _wants(entry) for node in entry.nodes_by_index(want.type) if node)
    for want in _wants(entry):
        size = usage.assigned_count(entry.gang, want.member)
        if size < want.most:
            yield _Growth(entry, want, size, remaining, on)


def with_more(entry: Workload, counts: Counts, places: NodeAssignments, now: float) -> Gang:
    """The gang with so many more pods of each member, at these places."""
    gang = entry.gang
    sizes = usage.assigned_counts(gang)
    placement = {type_: Counter(nodes) for type_, nodes in usage.assigned_placement(gang, sizes).items()}
    for want, count, nodes in zip(_wants(entry), counts, places, strict=True):
        sizes[want.type] += count
        if gang.pinned and nodes:
            placement.setdefault(want.type, Counter()).update(nodes)
    at = gang.assigned.at if gang.assigned else now
    chosen = {type_: dict(sorted(nodes.items())) for type_, nodes in placement.items()}
    return replace(gang, assigned=AssignedPods(at=at, sizes=sizes, placement=chosen, resized=now))


def _wants(entry: Workload) -> tuple[PodSetRequest, ...]:
    return entry.request.wants if entry.request else ()


def _another(cache: SchedulerCache, one: _Growth) -> str | None:
    """Take room for one more pod; its node, None if there is no room."""
    if not cache.quotas.fits(one.entry.queue, one.want.member.requests):
        return None
    if cache.bounds.beyond(one.entry.gang, _one_more(one), more=True) is not None:
        return None
    if cache.assumed_pods is None or one.want.shape is None:
        return ""
    snapshot, shape = cache.assumed_pods.snapshot, one.want.shape
    for node, _ in sorted(one.nodes.items(), key=lambda item: (-item[1], item[0])):
        if node in snapshot and snapshot.capacity(shape).counts[snapshot.table.row[node]] >= 1:
            snapshot.take(shape, node, 1)
            return node
    bound = one.entry.gang.locality is not None and one.entry.gang.locality.required
    if one.now >= one.want.count or bound:
        return None
    found = place_gang(snapshot, [(shape, 1)], keep=one.nodes)
    return None if isinstance(found, int) else next(iter(found[0]))


def _one_more(one: _Growth) -> tuple[int, ...]:
    """Counts with one pod of this member, and none of the others."""
    return tuple(int(want is one.want) for want in _wants(one.entry))


def _worth(one: _Growth, policy: AdmissionPolicy) -> bool:
    """Whether growing saves enough to be worth a restart, if it needs one."""
    saved = one.remaining * (1 - _speed(one.size) / _speed(one.now))
    return one.entry.gang.live or saved > _WORTH * policy.restart_cost


def _gangs(growths: list[_Growth], now: float) -> list[Gang]:
    by_uid: dict[str, list[_Growth]] = {}
    for one in growths:
        by_uid.setdefault(one.entry.uid, []).append(one)
    return [_gang(by_uid[uid], now) for uid in sorted(by_uid)]


def _gang(growths: list[_Growth], now: float) -> Gang:
    gang = growths[0].entry.gang
    sizes = usage.assigned_counts(gang)
    placement = {type_: dict(nodes) for type_, nodes in usage.assigned_placement(gang, sizes).items()}
    for one in growths:
        sizes[one.want.type] = one.now
        nodes = placement.setdefault(one.want.type, {})
        for node in filter(None, one.extra) if gang.pinned else ():
            nodes[node] = nodes.get(node, 0) + 1
    at = gang.assigned.at if gang.assigned else now
    return replace(gang, assigned=AssignedPods(at=at, sizes=sizes, placement=placement, resized=now))
