"""Preemption: which gangs shrink or are requeued for one that waits, with as little lost as possible.

Surplus goes first: what gangs have beyond what they wanted, then what they have beyond their minimum. Whole gangs
follow, those of the lowest priority first, of these the youngest. As few are taken as let the gang start, and none that
turns out not to be needed. Nothing is preempted if that would not make the gang fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final

from tf_dist.core.api.assignment import Preempt, Resize, Verdict
from tf_dist.core.gang import messages, usage
from tf_dist.core.gang.backfill import placed_pods, releases_underway
from tf_dist.core.gang.cache import SchedulerCache
from tf_dist.core.gang.placement.assumed_pods import NodeAssignments
from tf_dist.core.gang.placement.pod_sets import Counts, PodSetRequest, PodsOnNode, total_resources
from tf_dist.core.gang.resources.pod_requests import add_resources, subtract_resources
from tf_dist.core.gang.types import AdmissionPolicy, PreemptionPolicy, Resources
from tf_dist.core.gang.what_if import Release, WhatIf, fewest_releases, find_now, retake
from tf_dist.core.gang.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionPlan:
    """``fewer``: by uid, how many pods of which type each gives up; ``whole``: the gangs that are requeued."""

    fewer: dict[str, dict[str, int]]
    whole: list[Workload]

    @property
    def cost(self) -> tuple[object, ...]:
        """The cost of the plan; the smaller the better."""
        pods = sum(entry.held.pods for entry in self.whole)
        lost = sum(sum(types.values()) for types in self.fewer.values())
        return max((entry.gang.priority for entry in self.whole), default=-(2**63)), len(self.whole), pods, lost


def may_preempt(cache: SchedulerCache, entry: Workload) -> bool:
    """Whether there may be a gang to preempt: cheap, and never wrongly False."""
    return bool(cache.elastic) or _may_evict(cache, entry)


def plan_preemption(
    cache: SchedulerCache,
    entry: Workload,
    counts: Counts,
    now: float,
    policy: AdmissionPolicy,
    spared: Container[str] = (),
) -> PreemptionPlan | None:
    """Which gangs to preempt so that one can start with so many pods; None: there are none, or it would not help.

    ``spared``: uids of gangs that are not preempted.
    """
    waited = now - entry.since
    found = _plan_within(cache, entry, counts, waited, policy, spared, largest=False)
    if found is None or not 1 < len(found.whole) <= _FEW:
        return found
    other = _plan_within(cache, entry, counts, waited, policy, spared, largest=True)
    return found if other is None else min(found, other, key=lambda plan: plan.cost)


def _plan_within(
    cache: SchedulerCache,
    entry: Workload,
    counts: Counts,
    waited: float,
    policy: AdmissionPolicy,
    spared: Container[str],
    *,
    largest: bool,
) -> PreemptionPlan | None:
    going = releases_underway(cache)
    with WhatIf(cache, iter(going)) as gone:
        gone.to(len(going))
        with WhatIf(cache, _steps(cache, entry, counts, waited, policy, spared, largest=largest)) as supposing:
            places = fewest_releases(cache, supposing, entry, counts)
            if places is None:
                return None
            steps = _needed(cache, entry, counts, supposing.steps, places)
        steps = _each_needed(cache, entry, counts, steps)
    fewer: dict[str, dict[str, int]] = {}
    whole = {step.entry.uid: step.entry for step in steps if not step.type}
    for step in steps:
        if step.type and step.entry.uid not in whole:
            types = fewer.setdefault(step.entry.uid, {})
            types[step.type] = types.get(step.type, 0) + 1
    return PreemptionPlan(fewer, list(whole.values()))


def _steps(
    cache: SchedulerCache,
    entry: Workload,
    counts: Counts,
    waited: float,
    policy: AdmissionPolicy,
    spared: Container[str],
    *,
    largest: bool,
) -> Iterator[Release]:
    # Where the quota suffices as it is, released quota need not be counted.
    counted = len(cache.youngest) > 1 or not cache.quotas.fits(entry.queue, _need(entry, counts))
    dropped: dict[str, list[Release]] = {}
    for step in _shrinking(cache, entry, waited, policy, spared):
        dropped.setdefault(step.entry.uid, []).append(step)
        yield step
    if _may_evict(cache, entry):
        for step in _evicting(cache, entry, counts, dropped, spared, largest=largest):
            yield step if counted else step._replace(quota={})


def _need(entry: Workload, counts: Counts) -> Resources:
    return entry.request.need(counts) if entry.request else {}


# -- fewer pods --


def _shrinking(
    cache: SchedulerCache, entry: Workload, waited: float, policy: AdmissionPolicy, spared: Container[str]
) -> Iterator[Release]:
    """Surplus pods, one by one, of the gangs with most of it first.

    What a gang has beyond what it wanted is taken for any gang that waits; what it has beyond its minimum for one of
    its priority that has waited long; and either at once for one of a higher priority.
    """
    others = [
        one
        for _, one in sorted(cache.elastic.items())
        if not (one.releasing or one.uid in spared) and one.gang.preemptable and _open_to(cache, entry, one)
    ]
    higher = [one for one in others if entry.gang.preempts and one.gang.priority < entry.gang.priority]
    overgrown = others if waited >= policy.shrink_after else higher
    squeezed = [one for one in others if one.gang.priority <= entry.gang.priority]
    pod_nodes: dict[tuple[str, str], list[str]] = {}
    yield from _surplus(overgrown, lambda want: want.count, pod_nodes)
    yield from _surplus(
        squeezed if waited >= policy.shrink_below_spec_after else higher, lambda want: want.least, pod_nodes
    )


def _open_to(cache: SchedulerCache, entry: Workload, victim: Workload) -> bool:
    """Whether the victim's queue lets other queues' gangs take anything from it, as Volcano's ``reclaimable`` says."""
    queue = cache.queues.get(victim.queue)
    return victim.queue == entry.queue or queue is None or queue.reclaimable


def _surplus(
    entries: list[Workload], floor: Callable[[PodSetRequest], int], pod_nodes: dict[tuple[str, str], list[str]]
) -> Iterator[Release]:
    order = []
    for entry in entries:
        for want in entry.request.wants if entry.request else ():
            left = pod_nodes.get((entry.uid, want.type)) or list(entry.nodes_by_index(want.type))
            if len(left) > floor(want):
                pod_nodes[entry.uid, want.type] = left
                at = entry.gang.assigned.at if entry.gang.assigned else 0.0
                turn = entry.gang.priority, floor(want) - len(left), -at, entry.uid, want.type
                order.append((turn, entry, want, left))
    for _, entry, want, left in sorted(order, key=lambda one: one[0]):
        while len(left) > floor(want):
            node = left.pop()
            pods = [PodsOnNode(want.shape, node, 1)] if node and want.shape is not None else []
            yield Release(entry, pods, want.member.requests, want.type)


# -- whole gangs --


def _may_evict(cache: SchedulerCache, entry: Workload) -> bool:
    allowed = _allowed(cache, entry)
    if not entry.gang.preempts or allowed is PreemptionPolicy.NEVER:
        return False
    stack = cache.youngest.get(entry.queue)
    others = len(cache.youngest) - (stack is not None)
    return bool(stack and stack[0][0] < entry.gang.priority) or (allowed is PreemptionPolicy.RECLAIM and others > 0)


def _allowed(cache: SchedulerCache, entry: Workload) -> PreemptionPolicy:
    queue = cache.queues.get(entry.queue)
    return queue.preemption if queue else PreemptionPolicy.NEVER


def _evicting(
    cache: SchedulerCache,
    entry: Workload,
    counts: Counts,
    dropped: dict[str, list[Release]],
    spared: Container[str],
    *,
    largest: bool,
) -> Iterator[Release]:
    """Whole gangs: of the queue those of lower priority, of other queues those that borrow this queue's quota."""
    need = _need(entry, counts)
    order = cache.largest if largest else cache.youngest
    stacks = [order.get(entry.queue, [])]
    if _allowed(cache, entry) is PreemptionPolicy.RECLAIM:
        stacks += [stack for queue, stack in sorted(order.items()) if queue != entry.queue]
    for priority, _, _, uid in merge(*stacks):
        victim = cache.running[uid]
        if victim.releasing or uid in spared or not victim.gang.preemptable:
            continue
        if victim.queue == entry.queue:
            if priority >= entry.gang.priority:
                if len(stacks) == 1:
                    return
                continue
        elif not (_open_to(cache, entry, victim) and cache.quotas.reclaims(entry.queue, need, victim.queue)):
            continue
        yield _whole(victim, dropped.get(uid, []))


def _whole(victim: Workload, dropped: list[Release]) -> Release:
    """What is left of a gang that has given up some pods already."""
    pods: Sequence[PodsOnNode] = victim.held.remaining
    quota = victim.held.remaining_quota
    if dropped:
        pods = usage.subtract_pods(pods, [pods for step in dropped for pods in step.pods])
        quota = subtract_resources(quota, add_resources(step.quota for step in dropped))
    return Release(victim, pods, quota)


# -- no preemption without need --

# So many steps are tried one by one for whether they are needed.
_FEW: Final = 16


def _needed(
    cache: SchedulerCache, entry: Workload, counts: Counts, steps: list[Release], places: NodeAssignments
) -> list[Release]:
    """The steps that are needed at this placement: those that matter most are spared first."""
    need = _need(entry, counts)
    pods = placed_pods(entry, places)
    nodes = {one.node for one in pods}
    mark = 0
    if cache.assumed_pods is not None:
        mark = cache.assumed_pods.snapshot.mark()
        for shape, node, count in pods:
            cache.assumed_pods.snapshot.take(shape, node, count)
    spared: set[int] = set()
    evicted: set[str] = set()
    reclaimed = Counter(step.entry.queue for step in steps if _reclaims(entry, step))
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        if step.entry.uid in evicted:
            continue  # it goes as a whole, and so do these pods
        cache.quotas.take(step.entry.queue, step.quota)
        others = reclaimed - Counter([step.entry.queue]) if _reclaims(entry, step) else reclaimed
        if (
            cache.quotas.fits(entry.queue, need)
            and _may_reclaim(cache, entry, need, others)
            and retake(cache, step, nodes)
        ):
            spared.add(at)
            reclaimed = others
            continue
        cache.quotas.give(step.entry.queue, step.quota)
        if not step.type:
            evicted.add(step.entry.uid)
    if cache.assumed_pods is not None:
        cache.assumed_pods.snapshot.rollback(mark)
    for at in spared:
        cache.quotas.give(steps[at].entry.queue, steps[at].quota)
    return [step for at, step in enumerate(steps) if at not in spared]


def _reclaims(entry: Workload, step: Release) -> bool:
    """Whether a gang of another queue is preempted."""
    return not step.type and step.entry.queue != entry.queue


def _may_reclaim(cache: SchedulerCache, entry: Workload, need: Resources, queues: Iterable[str]) -> bool:
    """Whether the gang may preempt gangs of these other queues now.

    A gang that preempts within its queue to stay within the nominal quota must not be exempt for having preempted
    others: beyond the nominal quota it would be the next to be preempted, by those others.
    """
    return all(cache.quotas.entitled(entry.queue, need, queue) for queue in queues)


def _each_needed(cache: SchedulerCache, entry: Workload, counts: Counts, steps: list[Release]) -> list[Release]:
    """The needed steps at any placement: the search is repeated for each, so only a few steps are tried."""
    for step in reversed(steps) if len(steps) <= _FEW else ():
        rest = [other for other in steps if other is not step]
        with WhatIf(cache, iter(rest)) as fewer:
            fewer.to(len(rest))
            others = {step.entry.queue for step in rest if _reclaims(entry, step)}
            if _may_reclaim(cache, entry, _need(entry, counts), others) and find_now(cache, entry, counts) is not None:
                steps = rest
    return steps


def issue_preemptions(cache: SchedulerCache, plan: PreemptionPlan, entry: Workload) -> dict[str, Verdict]:
    """Carry out a plan made for a gang: the verdicts on the others, by uid."""
    verdicts: dict[str, Verdict] = {}
    for uid, fewer in plan.fewer.items():
        victim = cache.entries[uid]
        before = usage.assigned_counts(victim.gang)
        sizes = {type_: size - fewer.get(type_, 0) for type_, size in before.items()}
        verdicts[uid] = Resize(
            sizes=sizes,
            placement=usage.assigned_placement(victim.gang, sizes),
            message=messages.shrink_text(before, sizes, messages.gang_text(entry.gang, victim.gang.key)),
        )
        goes = total_resources((member.requests, fewer.get(member.type, 0)) for member in victim.gang.members)
        cache.release(victim, _released_pods(victim, fewer), goes)
    for victim in plan.whole:
        why = messages.preempted_text(victim.gang, entry.gang)
        verdicts[victim.uid] = Preempt(by=entry.gang.key, message=why, queue=entry.gang.queue)
        cache.release(victim, victim.held.remaining, victim.held.remaining_quota)
    return verdicts


def _released_pods(victim: Workload, fewer: Mapping[str, int]) -> list[PodsOnNode]:
    """Where the last pods of each type are."""
    pods = []
    for want in victim.request.wants if victim.request else ():
        pod_nodes = usage.last_nodes(victim.nodes_by_index(want.type), fewer.get(want.type, 0))
        if want.shape is not None:
            pods += [PodsOnNode(want.shape, node, count) for node, count in sorted(pod_nodes.items()) if node]
    return pods
