"""Scheduler of gangs: the cache and the queues that it keeps up to date, and one cycle of decisions at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from tf_dist.core.gang.backfill import ReservationCache
from tf_dist.core.gang.cache import SchedulerCache
from tf_dist.core.gang.cycle import SchedulingCycle
from tf_dist.core.gang.messages import explain_wait, unsatisfiable
from tf_dist.core.gang.queue import PendingQueues
from tf_dist.core.gang.quota import QueueUsage, queue_usage
from tf_dist.core.gang.types import AdmissionPolicy, AssignedPods, Gang, Node
from tf_dist.core.model.assignment import Admit, Verdict, Wait
from tf_dist.core.model.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The result of a cycle."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """By the uid of the job, in the order decided."""
    more: bool = False
    """The limit was reached: there may be more to decide at once. Why gangs wait is said with the last part."""
    failed: Mapping[str, Exception] = field(default_factory=dict)
    """By uid, the jobs that made deciding fail."""


class Scheduler:
    """The gangs, nodes, queues and quotas, piece by piece, and what follows from them.

    Verdicts of ``cycle`` are assumed to hold: an admitted gang uses its nodes, and a gang is preempted only once. They
    hold until ``put_gang`` or ``remove_gang`` reports the outcome: the gang with what it is assigned if that was
    written, without if not. The capacity of a preempted gang is free only then, and when its pods are gone. The gang
    for which others are preempted comes first from then on: it waits with the reason ``Preempting``, and is put as
    ``nominated``, so that this outlives the scheduler.

    ``sees_nodes`` False: nodes cannot be listed, and quotas alone decide. Not thread-safe.
    """

    def __init__(self, policy: AdmissionPolicy | None = None, *, sees_nodes: bool = True) -> None:
        self._policy = policy or AdmissionPolicy()
        self.cache = SchedulerCache()
        """Nodes, queues and quotas are put there; gangs here."""
        self._pending = PendingQueues(self._policy)
        self._known = ReservationCache()
        # Gangs whose assignment is written. Only those can be preempted.
        self._confirmed: set[str] = set()
        self._awaits_confirmation = False
        self._now = 0.0
        self._seen = -1
        self._due = inf
        self._new: set[str] = set()
        self._limits: tuple[int, int] | None = None
        if sees_nodes:
            self.cache.track_nodes()

    def put_gang(self, gang: Gang) -> None:
        """Add or update a gang; also to report whether a verdict on it was carried out."""
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
        self._confirm(gang)
        if entry.admitted:
            self._pending.remove(gang.uid)
            self._new.discard(gang.uid)
        elif known != (_queue_facts_key(gang), entry.request, entry.problem):
            self._pending.put(entry)
            self._new.add(gang.job_uid)

    def _confirm(self, gang: Gang) -> None:
        if gang.assigned is None:
            self._confirmed.discard(gang.uid)
        elif gang.uid not in self._confirmed:
            self._confirmed.add(gang.uid)
            if self._awaits_confirmation:
                self.cache.changes += 1
                self.cache.state += 1

    def assume(self, uid: str, assigned: AssignedPods, fallback: int) -> None:
        """A waiting gang has been admitted, and it is not known whether that is written."""
        gang = self.cache.entries[uid].gang
        for one in gang.fallbacks:
            self._drop(one.uid)
        self._pending.remove(uid)
        self._new.discard(uid)
        self.cache.put(gang.admitted(assigned, fallback))

    def remove_gang(self, uid: str) -> None:
        """Remove a gang that has ended or is gone. An unknown one is no error."""
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
        """One cycle at ``now`` (epoch seconds): the new verdicts, at most about ``limit`` of them.

        With ``reasons`` also why gangs wait that came or changed since, or became able or unable to start at all. Why
        the others wait changes all the time: ask ``explain`` when it is needed. GangDecisionError: the decision about
        one gang failed, and this scheduler must not be used any more.
        """
        self._now = now
        self.cache.ends.advance(now)
        woken, tries_again = self._pending.wake(now)
        self._new.update(entry.gang.job_uid for entry in tries_again)  # it waits for another reason now
        if self._seen == self.cache.changes and not woken and now < self._due:
            return Decisions()
        if self.cache.assumed_pods is not None:
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
        """Report at once when a gang becomes able or unable to start at all: clients stop waiting for the latter."""
        moved, self._limits = self._limits != self.cache.limits, self.cache.limits
        for queue in self._pending.queues.values():
            for group in queue.groups.values():
                if moved or group.blocked_by is None:
                    found = unsatisfiable(self.cache, self.cache.entries[group.ranks[0].uid], group.request)
                    before, group.blocked_by = group.blocked_by, found.reason if found is not None else ""
                    if before not in (None, group.blocked_by):
                        self._new.update(self.cache.entries[rank.uid].gang.job_uid for rank in group.ranks)

    def wake_at(self, now: float) -> float:
        """When to decide next: ``now`` if something has changed, else when time alone may (inf: never)."""
        return now if self._seen != self.cache.changes else self._due

    def gang(self, uid: str) -> Gang:
        """A gang as it is as of the last decision, with the assigned that it was given then. KeyError: no such gang."""
        return self.cache.entries[uid].gang

    def explain(self, uid: str) -> Verdict:
        """The state of a gang as of the last decision: why it waits, and its position; or its assignment.

        KeyError: no such gang.
        """
        entry = self.cache.entries[uid]
        assigned = entry.gang.assigned
        if assigned is not None:
            return Admit(placement=assigned.placement, sizes=assigned.sizes, fallback=entry.gang.fallback)
        try:
            wait = explain_wait(self.cache, self._pending, self._policy, entry, self._now, self._known)
        except Exception as error:
            # The decision stands; a message that fails must not undo it, nor affect other gangs.
            return Wait(
                reason=Reason.WAITING_IN_QUEUE,
                message=f"waits; why cannot be said ({type(error).__name__}: {error})",
            )
        # Queues are served side by side, and a gang without a position after those that have one.
        return replace(wait, rank=wait.position * len(self._pending.queues) or self._pending.number)

    def queue_usages(self) -> dict[str, QueueUsage]:
        """Usage of every queue that has a document."""
        cache = self.cache
        return {
            name: queue_usage(cache.quotas, name, pending=cache.pending[name], admitted=cache.admitted[name])
            for name in cache.queues
            if name in cache.quotas
        }

    @property
    def gangs(self) -> list[Gang]:
        """The gangs of all jobs as of the last decision, in arbitrary order."""
        return [entry.gang for entry in self.cache.entries.values() if not entry.gang.fallback_of]

    @property
    def nodes(self) -> list[Node]:
        """The nodes that take pods, by name; without what is assumed on them."""
        snapshot = self.cache.assumed_pods.snapshot if self.cache.assumed_pods else None
        return [snapshot.node(name) for name in snapshot.nodes] if snapshot else []


def _queue_facts_key(gang: Gang) -> tuple[object, ...]:
    """What the position of a gang in its queue depends on, besides its request."""
    line = gang.charges, gang.queue, gang.priority, gang.preempts, gang.nominated, gang.estimate
    way = gang.fallback, gang.tried_from, tuple(one.uid for one in gang.fallbacks)
    return *line, gang.inadmissible, gang.created_at, gang.not_before, gang.key, gang.assigned is None, way
