"""One scheduling cycle: queues by fair share, gangs in queue order; which start, are preempted or grow.

Queues are served in turn, the one with the smallest share first, and in each the gangs in queue order. A gang starts if
quota and room suffice. If not, others may be preempted for it; or, once it has waited long enough, room is reserved for
it, and later gangs only get what does not delay it. A blocked gang blocks those behind it only in a strict queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from math import inf

from tf_dist.core.api.assignment import Admit, Resize, Sizes, Verdict
from tf_dist.core.gang import elastic, messages, preemption, usage
from tf_dist.core.gang.backfill import ReservationCache, Reservations
from tf_dist.core.gang.cache import SchedulerCache, WorkloadInfo
from tf_dist.core.gang.placement.assumed_pods import NodeAssignments
from tf_dist.core.gang.placement.pod_sets import Counts, GangRequest
from tf_dist.core.gang.preemption import issue_preemptions
from tf_dist.core.gang.queue import EquivalentGangs, FairSharingIterator, PendingQueues, QueueIterator
from tf_dist.core.gang.types import AdmissionPolicy, AssignedPods, Gang, GangDecisionError, QueueingStrategy


class SchedulingCycle:
    """The decisions at ``now``. ``verdicts``: on gangs that start, are preempted or grow, by uid.

    ``nominated``: gangs for which others are preempted. ``confirmed``: gangs whose assignment is known to be written;
    ``awaits_confirmation``: there may be more to decide once others are.
    """

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
        self.nominated: list[str] = []
        self.reservations = Reservations(cache, now, known)
        self._idle = self._relief = self.awaits_confirmation = False
        self._cache = cache
        self._pending = pending
        self._policy = policy
        self._confirmed = confirmed
        # By job, the fallback with which it starts in this cycle, unless a better way has its turn yet and fits.
        self._provisional: dict[str, Gang] = {}
        self._exchanged = False
        self._failed_searches = self._count_failed_searches()

    def run(self) -> None:
        """Decide."""
        self._serve()
        self._settle_fallbacks()
        self._start_rest(overdue=False)
        self._idle = bool(self._cache.elastic) and not self._anybody_waits()
        if self._idle and elastic.growth_allowed_at(self._cache, self._policy) <= self.now:
            self._grow()

    @property
    def is_settled(self) -> bool:
        """Whether another cycle would surely decide nothing more, should nothing change."""
        if (
            self._exchanged
            or self.reservations
            or len(self._pending.lines) > 1
            or self._failed_searches != self._count_failed_searches()
        ):
            return False
        return all(isinstance(verdict, Admit) for verdict in self.verdicts.values()) and not self._relief

    def _count_failed_searches(self) -> int:
        return self._cache.assumed_pods.failed_searches if self._cache.assumed_pods else 0

    # -- queue order --

    def _serve(self) -> None:
        iterators = {queue: self._queue_iterator(queue) for queue in self._pending.lines if queue in self._cache.quotas}
        while nominated := [iterator for iterator in iterators.values() if iterator and iterator.next.nominated]:
            self._step(min(nominated, key=lambda iterator: iterator.next))
        self._start_rest(overdue=True)
        if len(iterators) == 1:
            (alone,) = iterators.values()
            while alone:
                self._step(alone)
            return
        ties = {queue: iterator.next for queue, iterator in iterators.items() if iterator}
        priorities = {queue: self._cache.queues[queue].priority for queue in ties}
        turns = FairSharingIterator(self._cache.quotas, ties, priorities)
        while turns:
            queue = turns.next()
            iterator = iterators[queue]
            self._step(iterator)
            while iterator and not turns:
                self._step(iterator)
            if iterator:
                turns.back(queue, iterator.next)

    def _queue_iterator(self, queue: str) -> QueueIterator:
        strict = self._cache.queues[queue].order is QueueingStrategy.STRICT_FIFO
        return QueueIterator(
            self._pending.lines[queue], strict=strict, asleep=self._asleep, due=self._due_for_reservation
        )

    def _step(self, iterator: QueueIterator) -> None:
        rank, group = iterator.pop()
        if rank not in group.ranks[:1]:
            iterator.again(group)  # the job has started in another way
            return
        entry = self._cache.entries[rank.uid]
        try:
            self._serve_one(iterator, entry, group)
        except Exception as error:
            raise GangDecisionError(entry.gang.job_uid, error) from error

    def _serve_one(self, iterator: QueueIterator, entry: WorkloadInfo, group: EquivalentGangs) -> None:
        if entry.gang.fallback_of and self._preempts(entry.gang.fallback_of):
            return  # others are preempted for the way in which it would rather start
        worse = self._withdraw_fallback(entry)
        for counts in self._choices(entry):
            if self._start(entry, counts):
                iterator.again(group)
                return
        possible = not self._never(entry)
        coming = possible and self._make_way(entry, group)
        if worse is not None:
            self._keep_fallback(worse)
            return
        if not possible:
            return
        if not coming and not iterator.owns and self._is_due(entry):
            iterator.owns = True
            self.reservations.want(entry, self._at_least(entry))
        if iterator.strict and not entry.gang.fallback_of:
            # Its own fallbacks stand right behind it.
            iterator.stop(keep=lambda rank: self._is_fallback_of(rank.uid, entry))

    def _waited(self, entry: WorkloadInfo) -> float:
        return self.now - entry.since

    def _first(self, group: EquivalentGangs) -> WorkloadInfo:
        return self._cache.entries[group.ranks[0].uid]

    def _asleep(self, group: EquivalentGangs) -> bool:
        """Whether its first gang could not start before, and nothing has changed since."""
        entry = self._first(group)
        if not all(self._known_to_lack(entry, counts) for counts in self._choices(entry)):
            return False
        return not self._cache.departing and (
            bool(entry.gang.fallback_of)
            or not preemption.may_preempt(self._cache, entry)
            or group.no_preemption_at == self._state(entry)
        )

    def _due_for_reservation(self, group: EquivalentGangs) -> bool:
        entry = self._first(group)
        return self._is_due(entry) and not self._never(entry)

    def _is_due(self, entry: WorkloadInfo) -> bool:
        """Whether it has waited so long that room is reserved for it; of a job, for the first way that can be."""
        if self._waited(entry) < self._policy.patience_of(entry.gang):
            return False
        return all(one.request is None or self._never(one) for one in self._better(entry))

    def _never(self, entry: WorkloadInfo) -> bool:
        """Whether it could not even start as the only gang, or with all the room there is.

        A ResourceQuota is no matter of queues: a gang that waits for one blocks no other.
        """
        request = _ask(entry)
        if self._cache.bounds.beyond(entry.gang, request.least) is not None:
            return True
        if not self._cache.quotas.could_fit(entry.queue, request.need(request.least)):
            return True
        return self._cache.assumed_pods is not None and self._cache.assumed_pods.never(request) is not None

    # -- starting --

    def _choices(self, entry: WorkloadInfo) -> Iterator[Counts]:
        """The numbers of pods it may start with: all it wants, or the minimum.

        A job that is smaller then has to have waited for a while; the minimum of one that is not is no size, and the
        rest of it starts as room appears.
        """
        request = _ask(entry)
        yield request.full
        if request.elastic and (request.starts_early or self._waited(entry) >= self._policy.shrink_after):
            yield request.least

    def _at_least(self, entry: WorkloadInfo) -> Counts:
        """The minimum with which it may start now."""
        return list(self._choices(entry))[-1]

    def _known_to_lack(self, entry: WorkloadInfo, counts: Counts) -> bool:
        return self._cache.assumed_pods is not None and self._cache.assumed_pods.lacks(_ask(entry), counts)

    def _start(self, entry: WorkloadInfo, counts: Counts) -> bool:
        if self._known_to_lack(entry, counts):
            return False
        places = self._find(entry, counts)
        if places is None:
            return False
        request = _ask(entry)
        if counts != request.full:
            counts, places = self._largest(entry, counts, request.full, places)
        types = [want.type for want in request.wants]
        sizes = dict(zip(types, counts, strict=True))
        named = zip(types, places, strict=True) if entry.gang.pinned else ()
        placement = {type_: dict(sorted(nodes.items())) for type_, nodes in named if nodes}
        self._pending.remove(entry.uid)
        assigned = AssignedPods(at=self.now, sizes=sizes, placement=placement)
        if entry.gang.fallback_of:
            self._start_provisionally(replace(entry.gang, assigned=assigned))
        else:
            self._admit(entry.gang, assigned, entry.gang.fallback)
        return True

    # -- fallbacks --
    #
    # Each way in which a job may start stands in a queue with the job's age, and holds nothing while it waits. Queues
    # have their turns side by side, so a fallback may have its turn before a better way: then it starts provisionally.

    def _admit(self, gang: Gang, assigned: AssignedPods, fallback: int) -> None:
        """The job starts in this way, and leaves all queues."""
        for one in gang.fallbacks:
            self._pending.remove(one.uid)
            self._cache.remove(one.uid)
        self._pending.remove(gang.uid)
        self._cache.put(gang.admitted(assigned, fallback))
        self.verdicts[gang.uid] = Admit(placement=assigned.placement, sizes=assigned.sizes, fallback=fallback)

    def _start_provisionally(self, gang: Gang) -> None:
        """A fallback takes its room; those behind it are out of question."""
        self._cache.put(gang)
        self._provisional[gang.fallback_of] = gang
        self._exchanged = True
        others = self._cache.entries[gang.fallback_of].gang.fallbacks
        for one in others[[one.uid for one in others].index(gang.uid) + 1 :]:
            self._pending.remove(one.uid)

    def _withdraw_fallback(self, entry: WorkloadInfo) -> Gang | None:
        """The fallback with which the job has started though this way is better; its room is free again."""
        held = self._provisional.pop(entry.gang.job_uid, None)
        if held is not None:
            self._cache.put(replace(held, assigned=None))
        return held

    def _preempts(self, uid: str) -> bool:
        """Whether others are preempted for a gang."""
        return uid in self.nominated or self._cache.entries[uid].gang.nominated

    def _keep_fallback(self, gang: Gang) -> None:
        """The job starts with this fallback after all, unless others were preempted just now for a better way."""
        if not self._preempts(gang.fallback_of):
            self._cache.put(gang)
            self._provisional[gang.fallback_of] = gang
            return
        for one in self._cache.entries[gang.fallback_of].gang.fallbacks:
            self._pending.put(self._cache.entries[one.uid])

    def _settle_fallbacks(self) -> None:
        for uid, gang in self._provisional.items():
            if gang.assigned is not None:
                self._admit(self._cache.entries[uid].gang, gang.assigned, gang.fallback)

    def _better(self, entry: WorkloadInfo) -> Iterator[WorkloadInfo]:
        """The ways in which the job of a fallback would rather start."""
        if entry.gang.fallback_of:
            job = self._cache.entries[entry.gang.fallback_of]
            yield job
            for one in job.gang.fallbacks:
                if one.uid == entry.uid:
                    return
                yield self._cache.entries[one.uid]

    def _is_fallback_of(self, uid: str, entry: WorkloadInfo) -> bool:
        other = self._cache.entries.get(uid)
        return other is not None and other.gang.fallback_of == entry.uid

    def _find(self, entry: WorkloadInfo, counts: Counts) -> NodeAssignments | None:
        if self._cache.bounds.beyond(entry.gang, counts, more=entry.runs) is not None:
            return None
        return self.reservations.find_more(entry, counts) if entry.runs else self.reservations.find(entry, counts)

    # -- the rest of gangs that have started with their minimum --

    def _start_rest(self, *, overdue: bool) -> None:
        """Start replicas of gangs that run without all of them, as far as there is room: the oldest first.

        They come after the gangs that wait, as in Volcano, but only for so long: those that are ``overdue`` come
        before gangs that have not waited as long, or a steady stream of small jobs would keep them from ever starting.
        Nothing is preempted for them.
        """
        oldest = self._oldest() if overdue and self._cache.partial else inf
        for entry in sorted(self._cache.partial.values(), key=lambda entry: (-entry.gang.priority, entry.moved)):
            if overdue and (entry.moved >= oldest or self.now - entry.moved < self._policy.patience):
                continue
            if entry.releasing or entry.gang.inadmissible or entry.uid in self.verdicts:
                continue
            if entry.uid not in self._confirmed:
                self.awaits_confirmation = True
                continue
            try:
                self._start_rest_of(entry)
            except Exception as error:
                raise GangDecisionError(entry.uid, error) from error

    def _oldest(self) -> float:
        """Since when the gang waits that has waited longest, of those that can start at all; inf: there is none."""
        groups = (group for line in self._pending.lines.values() for group in line.groups.values())
        return min((entry.since for entry in map(self._first, groups) if not self._never(entry)), default=inf)

    def _start_rest_of(self, entry: WorkloadInfo) -> None:
        has, request = usage.assigned_counts(entry.gang), _ask(entry)
        missing = tuple(max(0, want.least - has[want.type]) for want in request.wants)
        needed = tuple(max(0, want.start - has[want.type]) for want in request.wants)
        first = [needed] if any(needed) else _single_pods(entry, missing)
        for counts in first:
            places = None if self._known_to_lack(entry, counts) else self._find(entry, counts)
            if places is not None:
                gang = elastic.with_more(entry, *self._largest(entry, counts, missing, places), self.now)
                self._resized(gang, messages.rest_text)
                return

    def _resized(self, gang: Gang, text: Callable[[Sizes, Sizes], str]) -> None:
        """Write down that a gang has more pods from now on."""
        before = usage.assigned_counts(self._cache.entries[gang.uid].gang)
        self._cache.put(gang)
        if gang.assigned is not None:
            message = text(before, gang.assigned.sizes)
            self.verdicts[gang.uid] = Resize(
                sizes=gang.assigned.sizes, placement=gang.assigned.placement, message=message
            )

    def _largest(
        self, entry: WorkloadInfo, counts: Counts, full: Counts, places: NodeAssignments
    ) -> tuple[Counts, NodeAssignments]:
        """As many pods as have room, between ``counts`` (which have it at ``places``) and ``full``, by member."""
        for at in _by_priority(entry):
            low, high = counts[at], full[at]
            while low < high:
                middle = (low + high + 1) // 2
                tried = (*counts[:at], middle, *counts[at + 1 :])
                found = self._find(entry, tried)
                if found is None:
                    high = middle - 1
                else:
                    low, counts, places = middle, tried, found
        return counts, places

    # -- preemption --

    def _make_way(self, entry: WorkloadInfo, group: EquivalentGangs) -> bool:
        """Whether room becomes free for the gang, if need be by preempting others. It is reserved."""
        counts = self._at_least(entry)
        if entry.gang.fallback_of:
            return False  # it takes what is free
        if self._cache.departing and self.reservations.when_left(entry, counts):
            return True
        state = self._state(entry)
        if not preemption.may_preempt(self._cache, entry) or group.no_preemption_at == state:
            return False
        self._relief = True
        with self.reservations.taken():
            unheard = self._unheard()
            plan = preemption.plan_preemption(
                self._cache, entry, counts, self.now, self._policy, self.verdicts.keys() | unheard
            )
        if plan is None:
            self.awaits_confirmation = self.awaits_confirmation or bool(unheard)
            busy = self.reservations or self.verdicts or self._provisional
            group.no_preemption_at = None if busy else state
            return False
        self.nominated.append(entry.uid)
        self.verdicts |= issue_preemptions(self._cache, plan, entry)
        return self.reservations.when_left(entry, counts)

    def _unheard(self) -> Set[str]:
        """The running gangs whose assignment may not be written yet."""
        running = self._cache.running
        return running.keys() - self._confirmed if len(running) != len(self._confirmed) else frozenset()

    def _state(self, entry: WorkloadInfo) -> object:
        """A value that is equal as long as no further gang could be preempted."""
        waited = self._waited(entry)
        stage = (waited >= self._policy.shrink_after) + (waited >= self._policy.shrink_below_spec_after)
        return self._cache.state, entry.uid, stage

    # -- growing --

    def _anybody_waits(self) -> bool:
        """Whether a gang waits for room. One that waits for quota is not helped by room."""
        for queue, line in self._pending.lines.items():
            for group in line.groups.values() if queue in self._cache.quotas else ():
                entry = self._first(group)
                need = group.request.need(group.request.least)
                if self._cache.quotas.fits(queue, need) and not self._never(entry):
                    return True
        return False

    def _grow(self) -> None:
        for gang in elastic.grow_gangs(self._cache, self.now, self._policy):
            if gang.uid not in self._confirmed:
                continue
            self._resized(gang, messages.grow_text)

    # -- when to decide again --

    def due(self) -> float:
        """When time alone may lead to another decision: epoch seconds; inf: never."""
        return min((time for time in self._times() if time > self.now), default=inf)

    def _times(self) -> Iterator[float]:
        policy = self._policy
        yield self._pending.next_wake()
        yield from (entry.moved + policy.patience for entry in self._cache.partial.values())
        for line in self._pending.lines.values():
            for group in line.groups.values():
                since = self._first(group).since
                yield since + policy.patience_of(self._first(group).gang)
                if group.request.elastic or self._cache.elastic:
                    yield since + policy.shrink_after
                    yield since + policy.shrink_below_spec_after
        if self.reservations:
            yield self._cache.ends.first
        if self._idle:
            yield elastic.growth_allowed_at(self._cache, policy)
            yield from (elastic.resize_cooldown_until(entry, policy) for entry in self._cache.elastic.values())


def _by_priority(entry: WorkloadInfo) -> list[int]:
    """The members of a gang by number, those whose pods come first in front."""
    wants = _ask(entry).wants
    return sorted(range(len(wants)), key=lambda at: -wants[at].member.priority)


def _single_pods(entry: WorkloadInfo, counts: Counts) -> list[Counts]:
    """One pod of each member of which there are any."""
    return [tuple(int(at == one) for at in range(len(counts))) for one in _by_priority(entry) if counts[one]]


def _ask(entry: WorkloadInfo) -> GangRequest:
    """The request of a queued gang: gangs that cannot be read are not queued."""
    assert entry.request is not None
    return entry.request
