"""Preemption: the gangs that shrink or are requeued for a waiting gang, with as little loss as possible.

Surplus pods are preempted first: pods beyond the requested size, then pods beyond the minimum. Whole gangs follow, the
lowest priority first, and the youngest gang first among gangs of equal priority. Only as many pods are preempted as the
gang needs. Nothing is preempted if the gang would still not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final

from tf_dist.core.gang import messages
from tf_dist.core.gang.backfill import Release, WhatIf, fewest_releases, find_now, placed_pods, releases_underway
from tf_dist.core.gang.cache import (
    SchedulerCache,
    Workload,
    assigned_counts,
    assigned_placement,
    last_nodes,
    subtract_pods,
)
from tf_dist.core.gang.placement.pod_sets import Counts, PodSetRequest, PodsOnNode, total_resources
from tf_dist.core.gang.placement.search import NodeAssignments
from tf_dist.core.gang.resources.pod_requests import add_resources, subtract_resources
from tf_dist.core.gang.types import AdmissionPolicy, Resources
from tf_dist.core.model.assignment import Preempt, Resize, Verdict
from tf_dist.core.model.gang_queue import PreemptionPolicy

_FEW: Final = 16
"""The maximum number of steps that are checked one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionPlan:
    """The pods that other gangs give up for a gang."""

    fewer: dict[str, dict[str, int]]
    """The numbers of given-up pods by type, by uid."""
    whole: list[Workload]
    """The gangs that are requeued."""

    @property
    def cost(self) -> tuple[object, ...]:
        """The cost of the plan. The plan with the smallest cost is the best."""
        pods = sum(entry.held.pods for entry in self.whole)
        lost = sum(sum(types.values()) for types in self.fewer.values())
        return max((entry.gang.priority for entry in self.whole), default=-(2**63)), len(self.whole), pods, lost


def may_preempt(cache: SchedulerCache, entry: Workload) -> bool:
    """Whether a gang to preempt may exist. This check is fast. If it returns False, no such gang exists."""
    return bool(cache.elastic) or _may_evict(cache, entry)


def plan_preemption(
    cache: SchedulerCache,
    entry: Workload,
    counts: Counts,
    now: float,
    policy: AdmissionPolicy,
    spared: Container[str] = (),
) -> PreemptionPlan | None:
    """The gangs to preempt so that a gang can start with these pods; None if this is not possible.

    ``spared``: uids of gangs that must not be preempted.
    """
    planner = _Planner(cache, entry, counts, now - entry.since, policy, spared)
    found = planner.plan(cache.youngest)
    if found is None or not 1 < len(found.whole) <= _FEW:
        return found
    largest = {
        queue: sorted((rank[0], rank[2], rank[1], rank[3]) for rank in ranks) for queue, ranks in cache.youngest.items()
    }
    other = planner.plan(largest)
    return found if other is None else min(found, other, key=lambda plan: plan.cost)


def _may_evict(cache: SchedulerCache, entry: Workload) -> bool:
    allowed = _allowed(cache, entry)
    if not entry.gang.preempts or allowed is PreemptionPolicy.NEVER:
        return False
    ranks = cache.youngest.get(entry.queue)
    others = len(cache.youngest) - (ranks is not None)
    return bool(ranks and ranks[0][0] < entry.gang.priority) or (allowed is PreemptionPolicy.RECLAIM and others > 0)


def _allowed(cache: SchedulerCache, entry: Workload) -> PreemptionPolicy:
    queue = cache.queues.get(entry.queue)
    return queue.preemption if queue else PreemptionPolicy.NEVER


@dataclass(frozen=True, slots=True, eq=False)
class _Planner:
    cache: SchedulerCache
    """The gangs, nodes and quotas."""
    entry: Workload
    """The gang that should start."""
    counts: Counts
    """The number of pods of each member."""
    waited: float
    """The seconds for which the gang has waited."""
    policy: AdmissionPolicy
    """The policy, with the waits after which other gangs shrink for the gang."""
    spared: Container[str]
    """Uids of gangs that are not preempted."""

    @property
    def need(self) -> Resources:
        return self.entry.request.need(self.counts)

    def plan(self, order: dict[str, list[tuple[int, float, float, str]]]) -> PreemptionPlan | None:
        """The plan that preempts whole gangs in this ``order``, which the cache keeps by queue."""
        underway = releases_underway(self.cache)
        with WhatIf(self.cache, iter(underway)) as released:
            released.to(len(underway))
            with WhatIf(self.cache, self._steps(order)) as supposing:
                nodes = fewest_releases(self.cache, supposing, self.entry, self.counts)
                if nodes is None:
                    return None
                steps = self._needed_on(nodes, supposing.steps)
            steps = self._needed_anywhere(steps)
        fewer: dict[str, dict[str, int]] = {}
        whole = {step.entry.uid: step.entry for step in steps if not step.type}
        for step in steps:
            if step.type and step.entry.uid not in whole:
                types = fewer.setdefault(step.entry.uid, {})
                types[step.type] = types.get(step.type, 0) + 1
        return PreemptionPlan(fewer, list(whole.values()))

    def _steps(self, order: dict[str, list[tuple[int, float, float, str]]]) -> Iterator[Release]:
        # If the quota is sufficient already, released quota need not be counted.
        counted = len(self.cache.youngest) > 1 or not self.cache.quotas.fits(self.entry.queue, self.need)
        dropped: dict[str, list[Release]] = {}
        for step in self._shrinking():
            dropped.setdefault(step.entry.uid, []).append(step)
            yield step
        for victim in self._victims(order) if _may_evict(self.cache, self.entry) else ():
            pods: Sequence[PodsOnNode] = victim.held.remaining
            quota = victim.held.remaining_quota
            if victim.uid in dropped:  # only the pods that earlier steps have not released
                steps = dropped[victim.uid]
                pods = subtract_pods(pods, [pods for step in steps for pods in step.pods])
                quota = subtract_resources(quota, add_resources(step.quota for step in steps))
            yield Release(victim, pods, quota if counted else {})

    def _shrinking(self) -> Iterator[Release]:
        """Surplus pods, one by one, from gangs with the largest surplus first.

        Pods beyond the requested size are released for any gang that has waited for ``shrink_after``. Pods beyond the
        minimum are released for a gang of at least equal priority that has waited for ``shrink_below_spec_after``. For
        a gang of higher priority, both are released immediately.
        """
        others = [
            one
            for uid, one in sorted(self.cache.elastic.items())
            if not (one.releasing or uid in self.spared) and one.gang.preemptable and self._is_open(one)
        ]
        gang, policy = self.entry.gang, self.policy
        higher = [one for one in others if gang.preempts and one.gang.priority < gang.priority]
        squeezed = [one for one in others if one.gang.priority <= gang.priority]
        left: dict[tuple[str, str], list[str]] = {}
        yield from _surplus(others if self.waited >= policy.shrink_after else higher, lambda want: want.count, left)
        long = self.waited >= policy.shrink_below_spec_after
        yield from _surplus(squeezed if long else higher, lambda want: want.least, left)

    def _is_open(self, victim: Workload) -> bool:
        """Whether gangs of other queues may take from the victim's queue (Volcano's ``reclaimable``)."""
        queue = self.cache.queues.get(victim.queue)
        return victim.queue == self.entry.queue or queue is None or queue.reclaimable

    def _victims(self, order: dict[str, list[tuple[int, float, float, str]]]) -> Iterator[Workload]:
        """Whole gangs: gangs of lower priority in the queue, and gangs of other queues that borrow this queue's quota.

        A queue can always take back the quota that it lent, as in Kueue. A gang that is not preemptable comes after all
        others, and only if its queue still uses more than its own quota.
        """
        ranks = [order.get(self.entry.queue, [])]
        protected: list[Workload] = []
        if _allowed(self.cache, self.entry) is PreemptionPolicy.RECLAIM:
            ranks += [others for queue, others in sorted(order.items()) if queue != self.entry.queue]
        for priority, _, _, uid in merge(*ranks):
            victim = self.cache.running[uid]
            if victim.releasing or uid in self.spared:
                continue
            if not victim.gang.preemptable:
                protected += [victim] if len(ranks) > 1 and victim.queue != self.entry.queue else []
                continue
            if victim.queue == self.entry.queue:
                if priority >= self.entry.gang.priority:
                    if len(ranks) == 1:
                        return
                    continue
            elif not self._may_take_back(victim):
                continue
            yield victim
        yield from filter(self._may_take_back, protected)

    def _may_take_back(self, victim: Workload) -> bool:
        """Whether a gang of another queue still uses lent quota, after the earlier steps."""
        return self._is_open(victim) and self.cache.quotas.reclaims(self.entry.queue, self.need, victim.queue)

    # -- only necessary preemptions --

    def _needed_on(self, nodes: NodeAssignments, steps: list[Release]) -> list[Release]:
        """The steps that are needed on these nodes. The most important gangs are spared first."""
        cache, need, snapshot = self.cache, self.need, self.cache.assumed_pods.snapshot
        before = cache.mark()
        pods = placed_pods(self.entry, nodes)
        named = {one.node for one in pods}
        cache.suppose(self.entry.queue, {}, pods)
        spared: set[int] = set()
        evicted: set[str] = set()
        reclaimed = Counter(step.entry.queue for step in steps if self._reclaims(step))
        for at in range(len(steps) - 1, -1, -1):
            step = steps[at]
            if step.entry.uid in evicted:
                continue  # the whole gang is preempted, including these pods
            others = reclaimed - Counter([step.entry.queue]) if self._reclaims(step) else reclaimed
            here = [pods for pods in step.pods if pods.node in named]
            mark = cache.mark()
            cache.suppose(step.entry.queue, step.quota, here)
            fits = cache.quotas.fits(self.entry.queue, need) and self._may_reclaim(others)
            if fits and not snapshot.is_exceeded(here):
                spared.add(at)
                reclaimed = others
                continue
            cache.rollback(mark)
            if not step.type:
                evicted.add(step.entry.uid)
        cache.rollback(before)
        return [step for at, step in enumerate(steps) if at not in spared]

    def _needed_anywhere(self, steps: list[Release]) -> list[Release]:
        """The needed steps on any nodes. Each check repeats the search, so plans with many steps are not checked."""
        for step in reversed(steps) if len(steps) <= _FEW else ():
            rest = [other for other in steps if other is not step]
            with WhatIf(self.cache, iter(rest)) as fewer:
                fewer.to(len(rest))
                others = {step.entry.queue for step in rest if self._reclaims(step)}
                if self._may_reclaim(others) and find_now(self.cache, self.entry, self.counts) is not None:
                    steps = rest
        return steps

    def _reclaims(self, step: Release) -> bool:
        """Whether a gang of another queue is preempted."""
        return not step.type and step.entry.queue != self.entry.queue

    def _may_reclaim(self, queues: Iterable[str]) -> bool:
        """Whether the gang may preempt gangs of these other queues now.

        The queue of the gang must stay within its nominal quota. Beyond this quota, the preempted gangs would preempt
        the gang in turn.
        """
        return all(self.cache.quotas.entitled(self.entry.queue, self.need, queue) for queue in queues)


def _surplus(
    entries: list[Workload], floor: Callable[[PodSetRequest], int], left: dict[tuple[str, str], list[str]]
) -> Iterator[Release]:
    """Pods beyond the floor, as steps. ``left``: the nodes of the remaining pods."""
    order = []
    for entry in entries:
        for want in entry.request.wants:
            nodes = left.get((entry.uid, want.type)) or list(entry.nodes_by_index(want.type))
            if len(nodes) > floor(want):
                left[entry.uid, want.type] = nodes
                at = entry.gang.assigned.at if entry.gang.assigned else 0.0
                rank = entry.gang.priority, floor(want) - len(nodes), -at, entry.uid, want.type
                order.append((rank, entry, want, nodes))
    for _, entry, want, nodes in sorted(order, key=lambda one: one[0]):
        while len(nodes) > floor(want):
            node = nodes.pop()
            pods = [PodsOnNode(want.shape, node, 1)] if node else []
            yield Release(entry, pods, want.member.requests, want.type)


def issue_preemptions(cache: SchedulerCache, plan: PreemptionPlan, entry: Workload) -> dict[str, Verdict]:
    """Carry out a plan for a gang. Returns the verdicts on the other gangs, by uid."""
    verdicts: dict[str, Verdict] = {}
    for uid, fewer in plan.fewer.items():
        victim = cache.entries[uid]
        before = assigned_counts(victim.gang)
        sizes = {type_: size - fewer.get(type_, 0) for type_, size in before.items()}
        verdicts[uid] = Resize(
            sizes=sizes,
            placement=assigned_placement(victim.gang, sizes),
            message=messages.shrink_text(before, sizes, messages.gang_text(entry.gang, victim.gang.key)),
        )
        pods: list[PodsOnNode] = []
        for want in victim.request.wants:
            last = last_nodes(victim.nodes_by_index(want.type), fewer.get(want.type, 0))
            pods += [PodsOnNode(want.shape, node, count) for node, count in sorted(last.items()) if node]
        gone = total_resources((member.requests, fewer.get(member.type, 0)) for member in victim.gang.members)
        cache.release(victim, pods, gone)
    for victim in plan.whole:
        why = messages.preempted_text(victim.gang, entry.gang)
        verdicts[victim.uid] = Preempt(by=entry.gang.key, message=why, queue=entry.gang.queue)
        cache.release(victim, victim.held.remaining, victim.held.remaining_quota)
    return verdicts
