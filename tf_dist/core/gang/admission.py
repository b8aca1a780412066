"""Gang admission: which gangs start, with how many pods and where, who is preempted, and why the others wait.

``Admitter`` is kept up to date piece by piece and decides when asked; ``admit`` decides about a whole snapshot at once,
and comes to the same. Nothing here knows a clock: time is an argument, and must not go backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from tf_dist.core.api.assignment import Admit, PendingReason, Verdict, Wait
from tf_dist.core.gang.backfill import ReservationCache
from tf_dist.core.gang.cache import SchedulerCache
from tf_dist.core.gang.cycle import SchedulingCycle
from tf_dist.core.gang.messages import explain_wait, unsatisfiable
from tf_dist.core.gang.queue import PendingQueues
from tf_dist.core.gang.quota import QueueUsage, queue_usage
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas
from tf_dist.core.gang.snapshot import SnapshotChanges
from tf_dist.core.gang.types import (
    AdmissionPolicy,
    AssignedPods,
    Gang,
    Node,
    Queue,
    Resources,
    Snapshot,
    UnavailableNode,
)


class Admitter:
    """Incremental admission: it is fed changes, and ``decide`` works on what has changed.

    Verdicts of ``decide`` are assumed to hold: an admitted gang takes its room, and a gang is preempted only once. They
    hold until ``put_gang`` or ``remove_gang`` reports the outcome: the gang with its assignment if that was written (as
    decided, or otherwise), without one if not. The room of a preempted gang is free only then, and when its pods are
    gone; the gang it is preempted for comes first from then on. (That gang waits with the reason ``Preempting``, and
    is put as ``nominated``, so that this outlives the admitter.)

    ``sees_nodes`` False: nodes cannot be listed, and quotas alone decide. Not thread-safe.
    """

    def __init__(self, policy: AdmissionPolicy | None = None, *, sees_nodes: bool = True) -> None:
        self._policy = policy or AdmissionPolicy()
        self._cache = SchedulerCache()
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
            self._cache.track_nodes()

    def put_node(self, node: Node) -> None:
        """Add or update a node; ``free`` is what all pods on it leave, those of gangs included."""
        self._cache.put_node(node)

    def remove_node(self, name: str) -> None:
        """Remove a node that is gone or unschedulable. An unknown one is no error."""
        self._cache.remove_node(name)

    def put_unavailable(self, nodes: Mapping[str, UnavailableNode]) -> None:
        """Replace the nodes that take no pods for now: a gang that fits with them only waits for them."""
        self._cache.put_unavailable(nodes)

    def put_queues(self, queues: Iterable[Queue]) -> None:
        """Replace all queues. ValueError: two of one name."""
        self._cache.put_queues(tuple(queues))

    def put_resource_quotas(self, quotas: ResourceQuotas) -> None:
        """Replace all ResourceQuotas, by namespace."""
        self._cache.put_resource_quotas(quotas)

    def put_orphans(self, orphans: Mapping[str, Resources]) -> None:
        """Replace what pods without a gang use of the quota of each queue."""
        self._cache.put_orphans(orphans)

    def put_gang(self, gang: Gang) -> None:
        """Add or update a gang; also to report whether a verdict on it was carried out."""
        before = self._cache.entries.get(gang.uid)
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
        before = self._cache.entries.get(gang.uid)
        known = before and gang.assigned is None and (_queue_facts_key(before.gang), before.request, before.problem)
        entry = self._cache.put(gang)
        self._confirm(gang)
        if entry.runs:
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
                self._cache.changes += 1
                self._cache.state += 1

    def remove_gang(self, uid: str) -> None:
        """Remove a gang that has ended or is gone. An unknown one is no error."""
        entry = self._cache.entries.get(uid)
        for one in entry.gang.fallbacks if entry is not None else ():
            self._drop(one.uid)
        self._drop(uid)

    def _drop(self, uid: str) -> None:
        self._pending.remove(uid)
        self._cache.remove(uid)
        self._confirmed.discard(uid)
        self._new.discard(uid)

    def decide(self, now: float, *, reasons: bool = True) -> dict[str, Verdict]:
        """New verdicts at ``now`` (epoch seconds), by uid: which gangs start, grow or are preempted; with ``reasons``
        also why gangs wait that came or changed since the last call, or that became able or unable to start at all.
        GangDecisionError: the decision about one gang failed, and this admitter must not be used any more.

        Why the others wait changes all the time: ask ``explain`` when it is needed.
        """
        self._now = now
        self._cache.ends.advance(now)
        woken = self._pending.wake(now, self._cache.entries)
        changed = self._seen != self._cache.changes
        if not changed and not woken and now < self._due:
            return {}
        if self._cache.assumed_pods is not None:
            self._cache.assumed_pods.settle()
        self._seen = self._cache.changes
        self._due = self._pending.next_wake()
        verdicts = self._decide(now) if self._pending.lines or self._cache.elastic else {}
        self._note_blocked()
        for uid in sorted(self._new - verdicts.keys()) if reasons else ():
            verdicts[uid] = self.explain(uid)
        self._new.clear()
        return verdicts

    def _decide(self, now: float) -> dict[str, Verdict]:
        cycle = SchedulingCycle(self._cache, self._pending, self._policy, now, self._known, self._confirmed)
        cycle.run()
        self._due = cycle.due()
        self._awaits_confirmation = cycle.awaits_confirmation
        if cycle.is_settled:
            self._seen = self._cache.changes
        for uid in cycle.nominated:
            self.put_gang(replace(self._cache.entries[uid].gang, nominated=True))
            self._new.add(uid)
        return cycle.verdicts

    def _note_blocked(self) -> None:
        """Report at once when a gang becomes able or unable to start at all: clients stop waiting for the latter."""
        moved, self._limits = self._limits != self._cache.limits, self._cache.limits
        for line in self._pending.lines.values():
            for group in line.groups.values():
                if moved or group.blocked_by is None:
                    found = unsatisfiable(self._cache, self._cache.entries[group.ranks[0].uid], group.request)
                    before, group.blocked_by = group.blocked_by, found.reason if found is not None else ""
                    if before not in (None, group.blocked_by):
                        self._new.update(self._cache.entries[rank.uid].gang.job_uid for rank in group.ranks)

    def wake_at(self, now: float) -> float:
        """When to decide next: ``now`` if something has changed, else when time alone may (inf: never)."""
        return now if self._seen != self._cache.changes else self._due

    def gang(self, uid: str) -> Gang:
        """A gang as it is as of the last decision, with the assigned that it was given then. KeyError: no such gang."""
        return self._cache.entries[uid].gang

    def explain(self, uid: str) -> Verdict:
        """The state of a gang as of the last decision: why it waits, and its position; or its assignment.

        KeyError: no such gang.
        """
        entry = self._cache.entries[uid]
        assigned = entry.gang.assigned
        if assigned is not None:
            return Admit(placement=assigned.placement, sizes=assigned.sizes, fallback=entry.gang.fallback)
        try:
            wait = explain_wait(self._cache, self._pending, self._policy, entry, self._now, self._known)
        except Exception as error:
            # The decision stands; a message that fails must not undo it, nor affect other gangs.
            return Wait(
                reason=PendingReason.WAITING_IN_QUEUE,
                message=f"waits; why cannot be said ({type(error).__name__}: {error})",
            )
        # Queues have their turns side by side; a gang that has no position has its turn after those that have one.
        return replace(wait, rank=wait.position * len(self._pending.lines) or self._pending.number)

    def queue_usages(self) -> dict[str, QueueUsage]:
        """Usage of every queue that has a document."""
        cache = self._cache
        return {
            name: queue_usage(cache.quotas, name, pending=cache.pending[name], admitted=cache.admitted[name])
            for name in cache.queues
            if name in cache.quotas
        }

    @property
    def waiting(self) -> list[str]:
        """The uids of all pending gangs, in arbitrary order."""
        waits = (entry.gang for entry in self._cache.entries.values() if not entry.runs)
        return [gang.uid for gang in waits if not gang.fallback_of]


def admit(snapshot: Snapshot) -> dict[str, Verdict]:
    """The verdict on every gang, by its uid."""
    admitter = Admitter(snapshot.policy, sees_nodes=snapshot.nodes is not None)
    admitter.put_queues(snapshot.queues)
    admitter.put_resource_quotas(snapshot.bounds)
    for node in snapshot.nodes or ():
        admitter.put_node(node)
    admitter.put_unavailable(snapshot.unavailable)
    admitter.put_orphans(snapshot.orphans)
    for gang in snapshot.gangs:
        admitter.put_gang(gang)
    verdicts = admitter.decide(snapshot.now)
    return {gang.uid: verdicts.get(gang.uid) or admitter.explain(gang.uid) for gang in snapshot.gangs}


def _queue_facts_key(gang: Gang) -> tuple[object, ...]:
    """What the position of a gang in its queue depends on, besides its request."""
    line = gang.charges, gang.queue, gang.priority, gang.preempts, gang.nominated, gang.estimate
    way = gang.fallback, gang.tried_from, tuple(one.uid for one in gang.fallbacks)
    return *line, gang.inadmissible, gang.created_at, gang.not_before, gang.key, gang.assigned is None, way


class CacheSync:
    """What an admitter has been fed so far. The first changes it takes have to be complete."""

    def __init__(self, admitter: Admitter) -> None:
        self._admitter = admitter
        self._gangs: dict[str, Gang] = {}
        self._again: dict[str, None] = {}
        self._queues: tuple[Queue, ...] | None = None
        self._bounds: ResourceQuotas = {}

    def take(self, seen: SnapshotChanges) -> None:
        """Feed it what is new, what has changed and what is gone."""
        if seen.queues != self._queues:
            self._queues = seen.queues
            self._admitter.put_queues(seen.queues)
        if seen.bounds != self._bounds:
            self._bounds = seen.bounds
            self._admitter.put_resource_quotas(seen.bounds)
        for name, node in seen.nodes.items():
            if node is not None:
                self._admitter.put_node(node)
            else:
                self._admitter.remove_node(name)
        self._admitter.put_unavailable(seen.unavailable)
        self._admitter.put_orphans(seen.orphans)
        for uid, gang in seen.gangs.items():
            if gang is not None:
                self._gangs[uid] = gang
                self._again[uid] = None
            elif self._gangs.pop(uid, None) is not None:
                self._admitter.remove_gang(uid)
        again, self._again = self._again, {}
        for uid in again:
            if uid in self._gangs:
                self._admitter.put_gang(self._gangs[uid])

    def assume(self, uid: str, assigned: AssignedPods, fallback: int = 0) -> None:
        """Assume an assignment that another admitter decided and that is not written yet."""
        gang = self._gangs.get(uid)
        if gang is not None and gang.assigned is None:
            self._admitter.put_gang(gang.admitted(assigned, fallback))

    def again(self, uid: str) -> None:
        """Its verdict on this gang was not carried out: feed it the gang anew."""
        self._again[uid] = None
