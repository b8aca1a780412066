"""Scheduler of gangs, and a cycle of its decisions: which gangs start, are preempted or grow.

``SchedulingCycle.run`` contains all steps of a cycle. ``Scheduler`` keeps the cache and the queues between cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from tf_dist.core.gang import elastic, messages, preemption
from tf_dist.core.gang.backfill import ReservationCache, Reservations
from tf_dist.core.gang.cache import EquivalentGangs, SchedulerCache, Workload, assigned_counts
from tf_dist.core.gang.messages import explain_wait, unsatisfiable
from tf_dist.core.gang.placement.pod_sets import Counts
from tf_dist.core.gang.placement.search import NodeAssignments
from tf_dist.core.gang.queue import FairSharingIterator, PendingQueues, QueueIterator
from tf_dist.core.gang.quota import QueueUsage, queue_usage
from tf_dist.core.gang.types import AdmissionPolicy, AssignedPods, Gang, GangDecisionError
from tf_dist.core.model.assignment import Admit, Resize, Sizes, Verdict, Wait
from tf_dist.core.model.gang_queue import QueueingStrategy
from tf_dist.core.model.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The result of a cycle."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """Verdicts by the uid of the job, in the order of the decisions."""
    more: bool = False
    """Whether the limit was reached and the next cycle continues. The last cycle has the reasons of waiting gangs."""
    failed: Mapping[str, Exception] = field(default_factory=dict)
    """The errors of jobs about which the decision failed, by uid."""


class Scheduler:
    """The scheduler, which is updated with single gangs, nodes, queues and quotas.

    Verdicts of ``cycle`` are assumed to hold: an admitted gang uses its nodes, and a gang is preempted only once. The
    assumption ends when ``put_gang`` or ``remove_gang`` reports the outcome: the gang has its assignment if it was
    written, otherwise none. The capacity of a preempted gang is free only after this report, and when its pods are
    gone. The gang for which others are preempted comes first from then on. It waits with the reason ``Preempting``, and
    is put as ``nominated``, so that this state outlives the scheduler.

    If ``sees_nodes`` is False, nodes cannot be listed, and quotas alone decide. Not thread-safe.
    """

    def __init__(self, policy: AdmissionPolicy | None = None, *, sees_nodes: bool = True) -> None:
        self._policy = policy or AdmissionPolicy()
        self.cache = SchedulerCache(sees_nodes=sees_nodes)
        """The cache. Callers put nodes, queues and quotas into the cache, and gangs into the scheduler."""
        self._pending = PendingQueues(self._policy)
        self._known = ReservationCache()
        # Gangs with a written assignment that can be changed. Only these can be preempted.
        self._confirmed: set[str] = set()
        self._awaits_confirmation = False
        self._now = 0.0
        self._seen = -1
        self._due = inf
        self._new: set[str] = set()
        self._limits: tuple[int, int] | None = None

    def put_gang(self, gang: Gang) -> None:
        """Add or update a gang. This also reports whether a verdict on the gang was carried out."""
        before = self.cache.entries.get(gang.uid)
        nominated = gang.assigned is None and (gang.nominated or (before is not None and before.gang.nominated))
        if nominated != gang.nominated:
            gang = replace(gang, nominated=nominated)
        stays = {one.uid for one in gang.fallbacks}
        for one in before.gang.fallbacks if before is not None else ():
            if one.uid not in stays:
                self._drop(one.uid)
        self._put(gang)
        for one in gang.fallbacks:
            self._put(one)

    def _put(self, gang: Gang) -> None:
        before = self.cache.entries.get(gang.uid)
        known = before and gang.assigned is None and (_queue_facts_key(before.gang), before.request, before.problem)
        entry = self.cache.put(gang)
        if not entry.admitted or gang.stalled:
            self._confirmed.discard(gang.uid)
        elif gang.uid not in self._confirmed:
            self._confirmed.add(gang.uid)
            if self._awaits_confirmation:
                self.cache.changes += 1
                self.cache.state += 1
        if entry.admitted:
            self._pending.remove(gang.uid)
            self._new.discard(gang.uid)
        elif known != (_queue_facts_key(gang), entry.request, entry.problem):
            self._pending.put(entry)
            self._new.add(gang.job_uid)

    def assume(self, uid: str, assigned: AssignedPods, fallback: int) -> None:
        """Assume the admission of a waiting gang, although it may not be written yet."""
        gang = self.cache.entries[uid].gang
        for one in gang.fallbacks:
            self._drop(one.uid)
        self._pending.remove(uid)
        self._new.discard(uid)
        self.cache.put(gang.admitted(assigned, fallback))

    def remove_gang(self, uid: str) -> None:
        """Remove a gang that has ended or was deleted. An unknown gang is ignored."""
        entry = self.cache.entries.get(uid)
        for one in entry.gang.fallbacks if entry is not None else ():
            self._drop(one.uid)
        self._drop(uid)

    def _drop(self, uid: str) -> None:
        self._pending.remove(uid)
        self.cache.remove(uid)
        self._confirmed.discard(uid)
        self._new.discard(uid)

    def cycle(self, now: float, *, limit: int | None = None, reasons: bool = True) -> Decisions:
        """A cycle at ``now`` (epoch seconds): the new verdicts, at most about ``limit`` of them.

        With ``reasons``, the result includes the reasons of new and changed waiting gangs, and of gangs that can now,
        or can no longer, start at all. Reasons of other gangs change continuously: use ``explain`` for them. Raises
        GangDecisionError if the decision about a gang failed. This scheduler must then not be used again.
        """
        self._now = now
        self.cache.ends.advance(now)
        woken, tries_again = self._pending.wake(now)
        self._new.update(entry.gang.job_uid for entry in tries_again)  # these now wait for another reason
        for entry in self.cache.recount() if self.cache.outdated else ():
            if not entry.admitted:
                self._pending.put(entry)
                self._new.add(entry.gang.job_uid)
        if self._seen == self.cache.changes and not woken and now < self._due:
            return Decisions()
        self.cache.assumed_pods.settle()
        self._seen = self.cache.changes
        self._due = self._pending.next_wake()
        verdicts: dict[str, Verdict] = {}
        if self._pending.queues or self.cache.elastic or self.cache.unstarted:
            cycle = SchedulingCycle(self.cache, self._pending, self._policy, now, self._known, self._confirmed)
            cycle.run(inf if limit is None else limit)
            verdicts = cycle.verdicts
            self._due = cycle.due()
            self._awaits_confirmation = cycle.awaits_confirmation
            if cycle.is_settled:
                self._seen = self.cache.changes
            for uid in cycle.nominated:
                self.put_gang(replace(self.cache.entries[uid].gang, nominated=True))
                self._new.add(uid)
            self._new -= verdicts.keys()
            if cycle.has_more:
                self._seen = -1
                return Decisions(verdicts=verdicts, more=True)
        self._note_blocked()
        for uid in sorted(self._new) if reasons else ():
            verdicts[uid] = self.explain(uid)
        self._new.clear()
        return Decisions(verdicts=verdicts)

    def _note_blocked(self) -> None:
        """Report immediately if a gang can, or can no longer, start at all: clients stop waiting for such gangs."""
        moved, self._limits = self._limits != self.cache.limits, self.cache.limits
        for queue in self._pending.queues.values():
            for group in queue.groups.values():
                if moved or group.blocked_by is None:
                    found = unsatisfiable(self.cache, self.cache.entries[group.ranks[0].uid])
                    before, group.blocked_by = group.blocked_by, found.reason if found is not None else ""
                    if before not in (None, group.blocked_by):
                        self._new.update(self.cache.entries[rank.uid].gang.job_uid for rank in group.ranks)

    def wake_at(self, now: float) -> float:
        """The time of the next cycle: ``now`` after changes, otherwise when time alone may matter (inf: never)."""
        return now if self._seen != self.cache.changes else self._due

    def explain(self, uid: str) -> Verdict:
        """The state of a gang at the last decision: its assignment, or why it waits and its position.

        Raises KeyError for an unknown gang.
        """
        entry = self.cache.entries[uid]
        assigned = entry.gang.assigned
        if assigned is not None:
            return Admit(placement=assigned.placement, sizes=assigned.sizes, fallback=entry.gang.fallback)
        try:
            wait = explain_wait(self.cache, self._pending, self._policy, entry, self._now, self._known)
        except Exception as error:
            # The decision remains valid. An error in a message must not undo it or affect other gangs.
            return Wait(
                reason=Reason.WAITING_IN_QUEUE,
                message=f"waits; the reason cannot be determined ({type(error).__name__}: {error})",
            )
        # Queues are served in parallel. A gang without a position comes after gangs with a position.
        return replace(wait, rank=wait.position * len(self._pending.queues) or self._pending.number)

    def queue_usages(self) -> dict[str, QueueUsage]:
        """The usage of every queue that has a document."""
        cache = self.cache
        return {
            name: queue_usage(cache.quotas, name, pending=cache.pending[name], admitted=cache.admitted[name])
            for name in cache.queues
            if name in cache.quotas
        }


def _queue_facts_key(gang: Gang) -> tuple[object, ...]:
    """The properties that determine a gang's position in its queue, in addition to its request."""
    line = gang.charges, gang.queue, gang.priority, gang.preempts, gang.nominated, gang.estimate
    way = gang.fallback, gang.tried_from, tuple(one.uid for one in gang.fallbacks)
    return *line, gang.inadmissible, gang.created_at, gang.not_before, gang.key, gang.assigned is None, way


_Head = tuple[QueueIterator, Workload, EquivalentGangs]


class SchedulingCycle:
    """The decisions at ``now``. ``confirmed``: gangs whose admission is known to be written."""

    def __init__(
        self,
        cache: SchedulerCache,
        pending: PendingQueues,
        policy: AdmissionPolicy,
        now: float,
        known: ReservationCache,
        confirmed: Set[str],
    ) -> None:
        self.now = now
        self.verdicts: dict[str, Verdict] = {}
        """Verdicts on gangs that start, are preempted or grow, by uid."""
        self.nominated: list[str] = []
        """Gangs for which others are preempted."""
        self.awaits_confirmation = False
        """Whether more decisions may be possible after further admissions are confirmed."""
        self.has_more = False
        """Whether the cycle ended at its limit."""
        self._cache = cache
        self._pending = pending
        self._policy = policy
        self._confirmed = confirmed
        self._reservations = Reservations(cache, now, known)
        # By job, the fallback that is provisionally admitted, unless a better alternative fits in this cycle.
        self._provisional: dict[str, Gang] = {}
        self._is_idle = self._has_preempted = self._has_exchanged = False
        self._failed_searches = cache.assumed_pods.failed_searches

    def run(self, limit: float = inf) -> None:
        """Make the decisions of the cycle, with at most about ``limit`` verdicts."""
        # 0. Assign other nodes to pods of admitted gangs that do not exist yet, if their nodes no longer accept pods.
        self._leave_closed_nodes()
        # 1. Heads of the queues, one at a time: gangs for which others were preempted, then the queue with the smallest
        #    share. Equal gangs of a queue form a group: if the first cannot start, none can.
        for queue, entry, group in self._heads():
            if len(self.verdicts) >= limit and not self._provisional:
                self.has_more = True
                return
            try:
                # 2. Nominate: find quota and nodes in addition to all reservations and to earlier admissions of this
                #    cycle. If the job is provisionally admitted with a worse fallback, withdraw this admission first.
                if entry.gang.fallback_of and self._preempts(entry.gang.fallback_of):
                    continue  # others are preempted for a better alternative of the job
                withdrawn = self._provisional.pop(entry.gang.job_uid, None)
                if withdrawn is not None:
                    self._cache.put(replace(withdrawn, assigned=None))
                found = self._nominate(entry)
                # 3. Admit: the gang uses its nodes and quota from now on, and the next gang of its group is a head.
                if found is not None:
                    self._start(entry, *found)
                    queue.push(group)
                    continue
                # 4. Preempt others for the gang, or wait for capacity that is already being released.
                possible = not self._can_never_start(entry)
                coming = possible and self._make_way(entry, group)
                # 5. Reserve, if the gang has waited for its patience: later gangs must not delay it.
                if withdrawn is not None:
                    self._keep_fallback(withdrawn)
                elif possible:
                    if not coming and not queue.has_reservation and self._is_due(entry):
                        queue.has_reservation = True
                        self._reservations.want(entry, self._least_counts(entry))
                    # 6. Requeue: the gang stays in its queue. Only in a strict queue, it blocks the gangs behind it,
                    #    except its own fallbacks.
                    if queue.is_strict and not entry.gang.fallback_of:
                        queue.stop(keep={fallback.uid for fallback in entry.gang.fallbacks})
            except Exception as error:
                raise GangDecisionError(entry.gang.job_uid, error) from error
        # 7. Admit the provisionally admitted fallbacks. Start remaining replicas of gangs that have started with their
        #    minimum. Elastic gangs grow if no gang waits for capacity.
        for uid, gang in self._provisional.items():
            if gang.assigned is not None:
                self._admit(self._cache.entries[uid].gang, gang.assigned, gang.fallback)
        self._start_rest(overdue=False)
        self._is_idle = bool(self._cache.elastic) and not self._any_gang_waits()
        if self._is_idle and elastic.growth_allowed_at(self._cache, self._policy) <= self.now:
            for gang in elastic.grow_gangs(self._cache, self.now, self._policy):
                if gang.uid in self._confirmed and gang.uid not in self.verdicts:
                    self._resize(gang, messages.grow_text)

    @property
    def is_settled(self) -> bool:
        """Whether another cycle without changes would decide nothing."""
        if self._has_exchanged or self._reservations or len(self._pending.queues) > 1:
            return False
        if self._failed_searches != self._cache.assumed_pods.failed_searches or self._has_preempted:
            return False
        return all(isinstance(verdict, Admit) for verdict in self.verdicts.values())

    def due(self) -> float:
        """The time at which time alone may change a decision: epoch seconds; inf: never."""
        policy = self._policy
        times = [self._pending.next_wake()]
        times += [entry.changed_at + policy.patience for entry in self._cache.partial.values()]
        for group in self._groups():
            entry = self._first(group)
            times.append(entry.since + policy.patience_of(entry.gang))
            if group.request.elastic or self._cache.elastic:
                times += [entry.since + policy.shrink_after, entry.since + policy.shrink_below_spec_after]
        if self._reservations:
            times.append(self._cache.ends.first)
        if self._is_idle:
            times.append(elastic.growth_allowed_at(self._cache, policy))
            times += [elastic.resize_cooldown_until(entry, policy) for entry in self._cache.elastic.values()]
        return min((time for time in times if time > self.now), default=inf)

    # -- heads --

    def _heads(self) -> Iterator[_Head]:
        """The gangs that may start, in order, each with its queue and its group."""
        queues: dict[str, QueueIterator] = {}
        for name, pending in self._pending.queues.items():
            if name in self._cache.quotas:
                strict = self._cache.queues[name].order is QueueingStrategy.STRICT_FIFO
                queues[name] = QueueIterator(
                    pending,
                    strict=strict,
                    asleep=self._is_unchanged,
                    due=lambda group: self._is_due(self._first(group)),
                )
        while nominated := [queue for queue in queues.values() if queue and queue.head.nominated]:
            if head := self._head(min(nominated, key=lambda queue: queue.head)):
                yield head
        self._start_rest(overdue=True)
        heads = {name: queue.head for name, queue in queues.items() if queue}
        order = FairSharingIterator(
            self._cache.quotas, heads, {name: self._cache.queues[name].priority for name in heads}
        )
        while order:
            name = order.next()
            queue = queues[name]
            if head := self._head(queue):
                yield head
            while queue and not order:  # no other queue is left
                if head := self._head(queue):
                    yield head
            if queue:
                order.back(name, queue.head)

    def _head(self, queue: QueueIterator) -> _Head | None:
        rank, group = queue.pop()
        if rank in group.ranks[:1]:
            return queue, self._cache.entries[rank.uid], group
        queue.push(group)  # the job has started with another alternative
        return None

    def _groups(self) -> Iterator[EquivalentGangs]:
        for queue in self._pending.queues.values():
            yield from queue.groups.values()

    def _first(self, group: EquivalentGangs) -> Workload:
        return self._cache.entries[group.ranks[0].uid]

    def _is_unchanged(self, group: EquivalentGangs) -> bool:
        """Whether its first gang could not start, and nothing has changed since."""
        entry = self._first(group)
        if not all(self._cache.assumed_pods.lacks(entry.request, counts) for counts in self._choices(entry)):
            return False
        return not self._cache.departing and (
            bool(entry.gang.fallback_of)
            or not preemption.may_preempt(self._cache, entry)
            or group.no_preemption_at == self._preemption_state(entry)
        )

    def _is_due(self, entry: Workload) -> bool:
        """Whether a gang gets a reservation: it has waited long enough, and can start.

        Of a job's alternatives, the first that can start gets the reservation.
        """
        if self._waited(entry) < self._policy.patience_of(entry.gang) or self._can_never_start(entry):
            return False
        job = self._cache.entries[entry.gang.job_uid]
        uids = [job.uid, *(fallback.uid for fallback in job.gang.fallbacks)]
        better = [self._cache.entries[uid] for uid in uids[: uids.index(entry.uid)]]
        return all(way.problem or self._can_never_start(way) for way in better)

    def _waited(self, entry: Workload) -> float:
        return self.now - entry.since

    def _can_never_start(self, entry: Workload) -> bool:
        """Whether a gang could not start even as the only gang.

        ResourceQuotas are independent of queues, so a gang that waits for a ResourceQuota does not block others.
        """
        request = entry.request
        if self._cache.resource_quotas.beyond(entry.gang, request.least) is not None:
            return True
        if not self._cache.quotas.could_fit(entry.queue, request.need(request.least)):
            return True
        return self._cache.assumed_pods.never(request) is not None

    # -- nominate and admit --

    def _nominate(self, entry: Workload) -> tuple[Counts, NodeAssignments] | None:
        """The pods and nodes with which a gang can start now, or None."""
        for counts in self._choices(entry):
            nodes = self._find(entry, counts)
            if nodes is not None:
                full = entry.request.full
                return (counts, nodes) if counts == full else self._largest(entry, counts, full, nodes)
        return None

    def _choices(self, entry: Workload) -> Iterator[Counts]:
        """The numbers of pods with which a gang may start: all requested pods, or the minimum.

        An elastic gang starts smaller only after it has waited for a while. For other gangs, the minimum is not a size:
        the other replicas start as capacity becomes free.
        """
        request = entry.request
        yield request.full
        if request.elastic and (request.starts_early or self._waited(entry) >= self._policy.shrink_after):
            yield request.least

    def _least_counts(self, entry: Workload) -> Counts:
        """The smallest numbers of pods with which a gang may start now."""
        return list(self._choices(entry))[-1]

    def _find(self, entry: Workload, counts: Counts) -> NodeAssignments | None:
        if self._cache.assumed_pods.lacks(entry.request, counts):
            return None
        if self._cache.resource_quotas.beyond(entry.gang, counts, more=entry.admitted) is not None:
            return None
        return self._reservations.find_more(entry, counts) if entry.admitted else self._reservations.find(entry, counts)

    def _largest(
        self, entry: Workload, counts: Counts, full: Counts, nodes: NodeAssignments
    ) -> tuple[Counts, NodeAssignments]:
        """As many pods of each member as fit, between ``counts`` (which fit on ``nodes``) and ``full``."""
        for at in _by_priority(entry):
            low, high = counts[at], full[at]
            while low < high:
                middle = (low + high + 1) // 2
                tried = (*counts[:at], middle, *counts[at + 1 :])
                found = self._find(entry, tried)
                if found is None:
                    high = middle - 1
                else:
                    low, counts, nodes = middle, tried, found
        return counts, nodes

    def _start(self, entry: Workload, counts: Counts, nodes: NodeAssignments) -> None:
        """Admit a gang, or provisionally a fallback. Later fallbacks of the job are no longer considered."""
        types = [want.type for want in entry.request.wants]
        named = zip(types, nodes, strict=True) if entry.gang.pinned else ()
        placement = {type_: dict(sorted(pods.items())) for type_, pods in named if pods}
        assigned = AssignedPods(at=self.now, sizes=dict(zip(types, counts, strict=True)), placement=placement)
        self._pending.remove(entry.uid)
        if not entry.gang.fallback_of:
            self._admit(entry.gang, assigned, entry.gang.fallback)
            return
        gang = replace(entry.gang, assigned=assigned)
        self._cache.put(gang)
        self._provisional[gang.fallback_of] = gang
        self._has_exchanged = True
        others = [fallback.uid for fallback in self._cache.entries[gang.fallback_of].gang.fallbacks]
        for uid in others[others.index(gang.uid) + 1 :]:
            self._pending.remove(uid)

    def _admit(self, gang: Gang, assigned: AssignedPods, fallback: int) -> None:
        """Admit the job with this alternative, and remove it from all queues."""
        for one in gang.fallbacks:
            self._pending.remove(one.uid)
            self._cache.remove(one.uid)
        self._pending.remove(gang.uid)
        self._cache.put(gang.admitted(assigned, fallback))
        self.verdicts[gang.uid] = Admit(placement=assigned.placement, sizes=assigned.sizes, fallback=fallback)

    # -- fallbacks --
    #
    # Each alternative of a job waits in a queue with the job's age, and uses no capacity while it waits. A fallback may
    # come before a better alternative in a queue with a larger share. It is then admitted provisionally.

    def _keep_fallback(self, gang: Gang) -> None:
        """Admit the job provisionally with this fallback, unless others are preempted for a better alternative."""
        if not self._preempts(gang.fallback_of):
            self._cache.put(gang)
            self._provisional[gang.fallback_of] = gang
            return
        for one in self._cache.entries[gang.fallback_of].gang.fallbacks:
            self._pending.put(self._cache.entries[one.uid])

    def _preempts(self, uid: str) -> bool:
        """Whether others are preempted for a gang."""
        return uid in self.nominated or self._cache.entries[uid].gang.nominated

    # -- preemption --

    def _make_way(self, entry: Workload, group: EquivalentGangs) -> bool:
        """Whether capacity becomes free for the gang, if necessary by preemption. The capacity is then reserved."""
        if entry.gang.fallback_of:
            return False  # a fallback only uses free capacity
        counts = self._least_counts(entry)
        if self._cache.departing and self._reservations.when_left(entry, counts):
            return True
        state = self._preemption_state(entry)
        if not preemption.may_preempt(self._cache, entry) or group.no_preemption_at == state:
            return False
        self._has_preempted = True
        running = self._cache.running
        unconfirmed = running.keys() - self._confirmed if len(running) != len(self._confirmed) else frozenset()
        with self._reservations.taken():
            spared = self.verdicts.keys() | unconfirmed
            plan = preemption.plan_preemption(self._cache, entry, counts, self.now, self._policy, spared)
        if plan is None:
            self.awaits_confirmation = self.awaits_confirmation or bool(unconfirmed)
            busy = self._reservations or self.verdicts or self._provisional
            group.no_preemption_at = None if busy else state
            return False
        self.nominated.append(entry.uid)
        self.verdicts |= preemption.issue_preemptions(self._cache, plan, entry)
        return self._reservations.when_left(entry, counts)

    def _preemption_state(self, entry: Workload) -> object:
        """A value that stays equal as long as no further gang can be preempted."""
        waited = self._waited(entry)
        stage = (waited >= self._policy.shrink_after) + (waited >= self._policy.shrink_below_spec_after)
        return self._cache.state, entry.uid, stage

    # -- nodes that no longer accept pods --

    def _leave_closed_nodes(self) -> None:
        """Assign other nodes to pods that do not exist yet, and whose nodes no longer accept pods (a drain).

        Their gang keeps its quota, and these pods have precedence over waiting gangs. If not all of them fit on other
        nodes, no nodes are assigned. The pods then count on any nodes with free capacity until the cluster's scheduler
        has bound them. If a topology domain is required, the reconciler decides.
        """
        found = self._cache.on_closed_nodes()
        for entry, left in sorted(found, key=lambda one: (-one[0].gang.priority, one[0].changed_at, one[0].uid)):
            locality = entry.gang.locality
            if not entry.releasing and not (locality is not None and locality.required):
                self._change(entry, partial(self._assign_other_nodes, entry, left))
        if self.verdicts:
            self._cache.assumed_pods.settle()

    def _assign_other_nodes(self, entry: Workload, left: dict[str, Counter[str]]) -> None:
        """Give up the nodes ``left``, and assign other nodes to these pods if all of them fit."""
        gang, request, assigned = entry.gang, entry.request, entry.gang.assigned
        if assigned is None:
            return
        placement = {type_: Counter(nodes) - left.get(type_, Counter()) for type_, nodes in assigned.placement.items()}
        counts = tuple(left.get(want.type, Counter()).total() for want in request.wants)
        keep = sum(placement.values(), Counter[str]())
        found = self._cache.assumed_pods.fit(request, counts, keep) if gang.pinned else None
        for want, nodes in zip(request.wants, found or (), strict=False):
            placement[want.type] = placement.get(want.type, Counter()) + Counter(nodes)
        chosen = {type_: dict(sorted(nodes.items())) for type_, nodes in placement.items() if nodes}
        moved = replace(assigned, sizes=assigned_counts(gang), placement=chosen)
        self._resize(replace(gang, assigned=moved), lambda *_: messages.leaves_nodes_text(left, found))

    # -- remaining replicas of gangs that have started with their minimum, and growth --

    def _start_rest(self, *, overdue: bool) -> None:
        """Start remaining replicas of running gangs as far as they fit, the oldest first.

        Waiting gangs have precedence, as in Volcano, but only for a time. ``overdue`` replicas have precedence over
        gangs that have waited less, because a steady stream of small jobs would otherwise starve them. Nothing is
        preempted for them.
        """
        oldest = inf
        if overdue and self._cache.partial:
            entries = map(self._first, self._groups())
            oldest = min((entry.since for entry in entries if not self._can_never_start(entry)), default=inf)
        for entry in sorted(self._cache.partial.values(), key=lambda entry: (-entry.gang.priority, entry.changed_at)):
            if overdue and (entry.changed_at >= oldest or self.now - entry.changed_at < self._policy.patience):
                continue
            if not (entry.releasing or entry.gang.inadmissible or entry.uid in self.verdicts):
                self._change(entry, partial(self._start_rest_of, entry))

    def _start_rest_of(self, entry: Workload) -> None:
        has, request = assigned_counts(entry.gang), entry.request
        missing = tuple(max(0, want.least - has[want.type]) for want in request.wants)
        needed = tuple(max(0, want.start - has[want.type]) for want in request.wants)
        first = [at for at in _by_priority(entry) if missing[at]]
        single_pods = [tuple(int(at == one) for at in range(len(missing))) for one in first]
        for counts in [needed] if any(needed) else single_pods:
            nodes = self._find(entry, counts)
            if nodes is not None:
                gang = elastic.with_more(entry, *self._largest(entry, counts, missing, nodes), self.now)
                self._resize(gang, messages.rest_text)
                # The next gangs must not get the capacity that counts for pods without assigned nodes.
                self._cache.assumed_pods.settle()
                return

    def _change(self, entry: Workload, decide: Callable[[], None]) -> None:
        """Decide about an admitted gang if its admission is written."""
        if entry.uid not in self._confirmed:
            self.awaits_confirmation = True
            return
        try:
            decide()
        except Exception as error:
            raise GangDecisionError(entry.uid, error) from error

    def _resize(self, gang: Gang, text: Callable[[Sizes, Sizes], str]) -> None:
        """Record that a gang has more pods, or pods on other nodes."""
        before = assigned_counts(self._cache.entries[gang.uid].gang)
        self._cache.put(gang)
        if gang.assigned is not None:
            sizes = gang.assigned.sizes
            message = text(before, sizes)
            self.verdicts[gang.uid] = Resize(sizes=sizes, placement=gang.assigned.placement, message=message)

    def _any_gang_waits(self) -> bool:
        """Whether a gang waits for capacity, not for quota."""
        return any(
            self._cache.quotas.fits(group.queue, group.request.need(group.request.least))
            and not self._can_never_start(self._first(group))
            for group in self._groups()
        )


def _by_priority(entry: Workload) -> list[int]:
    """The indexes of a gang's members, in the order in which their pods start."""
    wants = entry.request.wants
    return sorted(range(len(wants)), key=lambda at: -wants[at].member.priority)
