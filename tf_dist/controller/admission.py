"""Gang admission: when it decides, and which of its verdicts are not yet in the jobs' statuses."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.job_index import JobChanges, JobEntry
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.api.assignment import Admit, PendingReason, Verdict, Wait
from tf_dist.core.api.job import Job
from tf_dist.core.gang.admission import Admitter, CacheSync
from tf_dist.core.gang.quota import QueueUsage
from tf_dist.core.gang.snapshot import AdmissionRequest, SnapshotChanges
from tf_dist.core.gang.types import AssignedPods, GangDecisionError

_LOG = logging.getLogger(__name__)

# Changes that come while it rests are decided about together: so deciding takes no more than a fifth of the time of a
# controller that is busy, and the first change after a while waits for nothing. However long it took, no job waits
# longer.
_REST_FACTOR: Final = 4.0
_MAX_REST: Final = 0.1


class GangAdmission:
    """Asks the core for verdicts and keeps them until the jobs have taken them over. Thread-safe."""

    def __init__(self, context: ControllerContext, informers: InformerSet) -> None:
        self._informers = informers
        self._recorder, self._clock, self._monotonic = context.recorder, context.clock, context.monotonic
        self._lock = context.runtime.lock()
        # The jobs that have a part in it, and those of them that are not decided about as they are now.
        self._known: dict[str, JobEntry] = {}
        self._changed: dict[str, None] = {}
        # Jobs with a new reason why they wait.
        self._unreported: set[JobRef] = set()
        # Jobs that cannot take their places (their status is refused), by the version for which that is so.
        self._set_aside: dict[str, str] = {}
        self._begin()
        self._rested = float("-inf")
        self.wanted = True

    def _begin(self) -> None:
        self._admitter: Admitter | None = None
        self._cache_sync: CacheSync | None = None
        # Verdicts that change what a job holds, with the version of the job that they are for.
        self._given: dict[str, tuple[Verdict, str]] = {}
        # Jobs that could not be decided about, and why: left out until they are edited.
        self._left_out: dict[str, tuple[Job | None, str]] = {}

    # When it is asked

    def want(self) -> bool:
        """There may be more room, or other jobs, than at the last decision; whether that is new."""
        before, self.wanted = self.wanted, True
        return not before

    def restart(self) -> None:
        """Leadership was won anew: what was given under the last one will never be written."""
        with self._lock:
            self._begin()
        self.want()

    def clock_stepped(self) -> None:
        """The wall clock was set: whose time has come, and what falls due when, is reckoned anew."""
        with self._lock:
            self._admitter = self._cache_sync = None
        self.want()

    def pause(self) -> float:
        """Seconds until it should be asked (again); inf: until something changes."""
        rest = max(0.0, self._rested - self._monotonic())
        if self.wanted:
            return rest
        with self._lock:
            now = self._clock()
            due = self._admitter.wake_at(now) - now if self._admitter is not None else math.inf
        return max(rest, due)

    # What it says

    def verdict(self, known: JobEntry) -> Verdict | None:
        """The verdict that may be written into a job."""
        with self._lock:
            given = self._given.get(known.uid)
            if given is not None:
                return given[0] if given[1] == known.version else None
            if self._admitter is None or not known.waits:
                return None
            with suppress(KeyError):  # it has not been decided about yet
                waits = self._admitter.explain(known.uid)
                return waits if isinstance(waits, Wait) else None
            return None

    def outdated(self, known: JobEntry) -> bool:
        """Whether what was given to a job was for an earlier version of it, so that it has to be decided anew."""
        with self._lock:
            given = self._given.get(known.uid)
            return given is not None and given[1] != known.version

    def queue_usages(self) -> Mapping[str, QueueUsage]:
        """How the queues stand as of the last decision."""
        with self._lock:
            return self._admitter.queue_usages() if self._admitter is not None else {}

    def withdraw(self, uid: str, *, set_aside: bool = False) -> None:
        """The verdict did not reach the job, and will not: it is to be decided again.

        ``set_aside``: not before the job has changed, or ``readmit`` is called: it would hold the place in between.
        """
        with self._lock:
            if uid not in self._given:
                return
            if set_aside:
                self._set_aside[uid] = self._given[uid][1]
                self._changed[uid] = None
            self._drop(uid)
        self.want()

    def readmit(self, uid: str) -> None:
        """A job whose passes failed has had one that did not."""
        with self._lock:
            if self._set_aside.pop(uid, None) is None:
                return
            self._changed[uid] = None
        self.want()

    # How it decides

    def decide(self, changes: Callable[[], JobChanges]) -> list[JobRef]:
        """Decide; the jobs with a new verdict that changes what they hold. See ``unreported_waits`` for the others.

        ``changes``: returns the jobs that take part in admission and have changed.
        """
        begun, self.wanted = self._monotonic(), False
        try:
            with self._lock:
                self._take(changes())
                return self._decide()
        except BaseException:
            self.want()
            raise
        finally:
            end = self._monotonic()
            self._rested = end + min(_MAX_REST, _REST_FACTOR * (end - begun))

    def unreported_waits(self) -> set[JobRef]:
        """Jobs with a new reason why they wait, since this was asked last."""
        unreported, self._unreported = self._unreported, set()
        return unreported

    def _take(self, changes: JobChanges) -> None:
        gone = dict.fromkeys(self._known.keys() - changes.jobs.keys()) if changes.whole else {}
        for uid, known in {**gone, **changes.jobs}.items():
            if known is not None:
                self._known[uid] = known
            else:
                self._set_aside.pop(uid, None)
                if self._known.pop(uid, None) is None:
                    continue
            self._changed[uid] = None

    def _decide(self) -> list[JobRef]:
        self._settle()
        verdicts = self._verdicts()
        given = {uid: verdict for uid, verdict in verdicts.items() if not isinstance(verdict, Wait)}
        self._given |= {uid: (verdict, self._known[uid].version) for uid, verdict in given.items()}
        self._recorder.undecidable(sum(_is_unreadable(verdict) for verdict in verdicts.values()))
        self._unreported.update(self._known[uid].ref for uid in verdicts if uid not in given)
        return [self._known[uid].ref for uid in given]

    def _verdicts(self) -> dict[str, Verdict]:
        """What is new. A gang that cannot be decided about is left out, and the others are decided about all the same.

        Half a decision is none: the admitter is made anew then, with what was given before and is not written yet.
        """
        while True:
            try:
                admitter, now = self._fed(), self._clock()
                verdicts = admitter.decide(now)
            except GangDecisionError as error:
                self._admitter = self._cache_sync = None
                if error.uid in self._left_out:
                    raise
                entry = self._known[error.uid]
                _LOG.exception("leaving out undecidable gang job=%s", entry.ref)
                self._left_out[error.uid] = entry.job, f"it cannot be decided about: {error}"
            except BaseException:
                self._admitter = self._cache_sync = None
                raise
            else:
                self._changed.clear()
                return verdicts

    def _fed(self) -> Admitter:
        """An admitter that knows everything there is."""
        whole = self._admitter is None
        admitter, cache_sync = self._ready()
        uids = self._known if whole else self._changed
        claims = {uid: self._claim(uid) for uid in uids}
        cache_sync.take(self._without_left_out(self._informers.changes(claims, whole=whole)))
        for uid, (verdict, _) in self._given.items() if whole else ():
            if isinstance(verdict, Admit):
                place = AssignedPods(at=self._clock(), sizes=verdict.sizes, placement=verdict.placement)
                cache_sync.assume(uid, place, verdict.fallback)
        return admitter

    def _claim(self, uid: str) -> AdmissionRequest | None:
        known = self._known.get(uid)
        if known is None or self._set_aside.get(uid) == known.version:
            return None
        return known.claim()

    def _without_left_out(self, seen: SnapshotChanges) -> SnapshotChanges:
        found = {
            uid: replace(gang, members=(), problem=self._left_out[uid][1])
            for uid in self._left_out
            if (gang := seen.gangs.get(uid)) is not None
        }
        return replace(seen, gangs={**seen.gangs, **found}) if found else seen

    def _ready(self) -> tuple[Admitter, CacheSync]:
        if self._admitter is None or self._cache_sync is None:
            self._admitter = Admitter(sees_nodes=self._informers.sees_nodes)
            self._cache_sync = CacheSync(self._admitter)
        return self._admitter, self._cache_sync

    def _settle(self) -> None:
        """What was given to a job that has changed since is in it by now, or will never be."""
        for uid in self._changed:
            known, given = self._known.get(uid), self._given.get(uid)
            if given is not None and (known is None or known.version != given[1]):
                self._drop(uid)
            if uid in self._left_out and (known is None or known.job is not self._left_out[uid][0]):
                del self._left_out[uid]
                self._again(uid)

    def _drop(self, uid: str) -> None:
        del self._given[uid]
        self._again(uid)

    def _again(self, uid: str) -> None:
        if self._cache_sync is not None:
            self._cache_sync.again(uid)


def _is_unreadable(verdict: Verdict) -> bool:
    return isinstance(verdict, Wait) and verdict.reason == PendingReason.UNREADABLE
