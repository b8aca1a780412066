"""Gang admission: when it decides, and which of its verdicts are not yet in the jobs' statuses.

The cycles of the loop (``Controller``) take in changes, decide here, and let workers write the verdicts:
``status.admission`` is written over the version of the decision, and the job's next pass reacts to it. This module
never waits for a server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.job_index import JobChanges, JobEntry
from tf_dist.controller.observability.metrics_interface import Metric
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.gang.admission import Admitter
from tf_dist.core.gang.quota import QueueUsage
from tf_dist.core.gang.types import AdmissionRequest
from tf_dist.core.model.assignment import Verdict, Wait
from tf_dist.core.model.reasons import Reason

_LOG = logging.getLogger(__name__)
# Changes that come while it rests are decided about together: so deciding takes no more than a fifth of the time of a
# controller that is busy, and the first change after a while waits for nothing. However long it took, no job waits
# longer.
_REST_FACTOR: Final = 4.0
_MAX_REST: Final = 0.1
# So many gangs are admitted before the first of them is written: a decision about a thousand takes a while.
_AT_A_TIME: Final = 32


class GangAdmission:
    """Gets verdicts from the core and keeps them until they are in the jobs' statuses. Thread-safe."""

    def __init__(self, context: ControllerContext, informers: InformerSet) -> None:
        self._informers = informers
        self._recorder, self._clock, self._monotonic = context.recorder, context.clock, context.monotonic
        self._lock = context.runtime.lock()
        # The jobs that have a part in it, and those of them that are not decided about as they are now.
        self._known: dict[str, JobEntry] = {}
        self._changed: dict[str, None] = {}
        # Jobs with a new reason why they wait.
        self._unreported: set[JobRef] = set()
        # Jobs whose status is refused, by the version for which that is so: admitted, they would hold what others need.
        self._set_aside: dict[str, str] = {}
        self._begin()
        self._rested = -math.inf
        self.wanted = True

    def _begin(self) -> None:
        self._admitter = Admitter(namespaces=self._informers.labels_of)
        # Whether it is to be told everything, and whether it has decided on what it knows.
        self._whole, self._has_decided = True, False
        # Verdicts that change what a job holds, with the version of the job that they are for.
        self._given: dict[str, tuple[Verdict, str]] = {}

    # When it is asked

    def want(self) -> bool:
        """Record that capacity or jobs may have changed. Returns whether that is new."""
        before, self.wanted = self.wanted, True
        return not before

    def restart(self) -> None:
        """Start a new term of leadership. Verdicts of the last term will never be written."""
        with self._lock:
            self._begin()
        self.want()

    def clock_stepped(self) -> None:
        """Compute all due times again after a step of the wall clock."""
        with self._lock:
            self._admitter.reset()
            self._has_decided = False
        self.want()

    def pause(self) -> float:
        """Seconds until the next decision; inf: until something changes."""
        rest = max(0.0, self._rested - self._monotonic())
        if self.wanted:
            return rest
        with self._lock:
            now = self._clock()
            due = self._admitter.wake_at(now) - now if self._has_decided else math.inf
        return max(rest, due)

    # What it says

    def verdict(self, known: JobEntry) -> Verdict | None:
        """The verdict that may be written into a job.

        A worker that writes an admission does not wait for the decision about others: it takes no lock.
        """
        given = self._given.get(known.uid)
        if given is not None:
            return given[0] if given[1] == known.version else None
        with self._lock:
            if not self._has_decided or not known.waits:
                return None
            try:
                waits = self._admitter.explain(known.uid)
            except KeyError:  # it has not been decided about yet
                return None
            return waits if isinstance(waits, Wait) else None

    def outdated(self, known: JobEntry) -> bool:
        """Whether the verdict on a job was for an earlier version, so that it must be decided again.

        It takes no lock: every pass calls it, and a decision about a thousand jobs takes time.
        """
        given = self._given.get(known.uid)
        return given is not None and given[1] != known.version

    def queue_usages(self) -> Mapping[str, QueueUsage]:
        """The usage of the queues at the last decision."""
        with self._lock:
            return self._admitter.queue_usages() if self._has_decided else {}

    def withdraw(self, uid: str, *, set_aside: bool = False) -> None:
        """Decide again about a job whose verdict was not written.

        ``set_aside``: only after the job has changed, or ``readmit`` is called.
        """
        with self._lock:
            if uid not in self._given:
                return
            if set_aside:
                self._set_aside[uid] = self._given[uid][1]
                self._changed[uid] = None
            self._revert(uid)
        self.want()

    def readmit(self, uid: str) -> None:
        """Record that a pass of a job succeeded after failures."""
        with self._lock:
            if self._set_aside.pop(uid, None) is None:
                return
            self._changed[uid] = None
        self.want()

    def unreported_waits(self) -> set[JobRef]:
        """Jobs with a new wait reason since the last call."""
        unreported, self._unreported = self._unreported, set()
        return unreported

    # How it decides

    def decide(self, changes: Callable[[], JobChanges]) -> list[JobRef]:
        """Decide about as many gangs as will be written next.

        Returns the jobs with a verdict that changes their resources. ``changes`` returns the changed jobs.
        """
        begun, self.wanted = self._monotonic(), False
        try:
            with self._lock:
                self._take_in(changes())
                verdicts, more = self._cycle()
                return self._hand_out(verdicts)
        except BaseException:
            more = False
            self.want()
            raise
        finally:
            end = self._monotonic()
            self._rested = end + min(_MAX_REST, 0.0 if more else _REST_FACTOR * (end - begun))
            if more:
                self.want()

    def _take_in(self, changes: JobChanges) -> None:
        """Drop verdicts on jobs that have changed since: they are written, or never will be."""
        gone = dict.fromkeys(self._known.keys() - changes.jobs.keys()) if changes.whole else {}
        for uid, known in {**gone, **changes.jobs}.items():
            if known is not None:
                self._known[uid] = known
            else:
                self._set_aside.pop(uid, None)
                if self._known.pop(uid, None) is None:
                    continue
            self._changed[uid] = None
        for uid in self._changed:
            known, given = self._known.get(uid), self._given.get(uid)
            if given is not None and (known is None or known.version != given[1]):
                self._revert(uid)

    def _revert(self, uid: str) -> None:
        del self._given[uid]
        self._admitter.revert(uid)

    def _cycle(self) -> tuple[Mapping[str, Verdict], bool]:
        """New verdicts, and whether more will follow."""
        uids = self._known if self._whole else self._changed
        try:
            if self._whole:  # only now is it known how far the rights reach
                self._admitter.reset(sees_nodes=self._informers.sees_nodes)
            requests = {uid: self._request(uid) for uid in uids}
            self._admitter.update(self._informers.changes(requests, whole=self._whole))
            self._whole = False
            decisions = self._admitter.cycle(self._clock(), limit=_AT_A_TIME)
        except BaseException:
            self._whole, self._has_decided = True, False
            raise
        for uid, error in decisions.failed.items():
            _LOG.error("leaving out undecidable gang job=%s", self._known[uid].ref, exc_info=error)
        self._has_decided = True
        self._changed.clear()
        return decisions.verdicts, decisions.more

    def _request(self, uid: str) -> AdmissionRequest | None:
        known = self._known.get(uid)
        if known is None or self._set_aside.get(uid) == known.version:
            return None
        return known.claim()

    def _hand_out(self, verdicts: Mapping[str, Verdict]) -> list[JobRef]:
        given = {uid: verdict for uid, verdict in verdicts.items() if not isinstance(verdict, Wait)}
        self._given |= {uid: (verdict, self._known[uid].version) for uid, verdict in given.items()}
        waits = [verdict for verdict in verdicts.values() if isinstance(verdict, Wait)]
        unreadable = sum(wait.reason == Reason.UNREADABLE for wait in waits)
        self._recorder.record(Metric.UNDECIDABLE_GANGS, value=unreadable)
        self._unreported.update(self._known[uid].ref for uid in verdicts if uid not in given)
        return [self._known[uid].ref for uid in given]
