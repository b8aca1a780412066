"""Gang admission: the times of its decisions, and the verdicts that are not yet in the jobs' statuses.

The cycles of the loop (``Controller``) read changes, decide here, and let workers write the verdicts. A worker writes
``status.admission`` over the version of the job that was decided about, and the job's next pass reacts to it. This
module never waits for a server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
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
# After a decision, admission pauses for this multiple of the decision's duration, up to the maximum in seconds. The
# changes in a pause are decided about together, so short decisions use at most a fifth of a busy controller's time. A
# change after a longer idle time is decided about immediately.
_REST_FACTOR: Final = 4.0
_MAX_REST: Final = 0.1
# The number of gangs that a decision admits before their statuses are written: a decision about a thousand is slow.
_AT_A_TIME: Final = 32


class GangAdmission:
    """Gets verdicts from the core and keeps them until they are in the jobs' statuses. Thread-safe."""

    def __init__(self, context: ControllerContext, informers: InformerSet) -> None:
        self._informers = informers
        self._recorder, self._clock, self._monotonic = context.recorder, context.clock, context.monotonic
        self._lock = context.runtime.lock()
        # The jobs of this leader by uid, and the uids of those that have changed since the last decision.
        self._known: dict[str, JobEntry] = {}
        self._changed: dict[str, None] = {}
        # Jobs with a new wait reason.
        self._unreported: set[JobRef] = set()
        # Jobs whose writes fail repeatedly, by uid, with the job's version. They are not admitted, because they would
        # block other jobs. Admitted jobs keep their capacity, because they may still create pods.
        self._set_aside: dict[str, str] = {}
        self._begin()
        self._rested = -math.inf
        self.wanted = True

    def _begin(self) -> None:
        self._admitter = Admitter(namespaces=self._informers.labels_of)
        # Whether the next cycle passes all jobs and objects to the admitter, and whether its verdicts are current.
        self._whole, self._has_decided = True, False
        # Verdicts that change the resources of a job, with the version of the job that was decided about.
        self._given: dict[str, tuple[Verdict, str]] = {}

    # Requests for decisions

    def want(self) -> bool:
        """Record that capacity or jobs may have changed. Returns whether this was not recorded already."""
        before, self.wanted = self.wanted, True
        return not before

    def restart(self) -> None:
        """Start a new term of leadership. Verdicts of the last term are never written."""
        with self._lock:
            self._begin()
            # The failures of the last term are forgotten, so that no later success would call ``readmit``.
            self._set_aside.clear()
        self.want()

    def clock_stepped(self) -> None:
        """Compute all due times again after a step of the wall clock."""
        with self._lock:
            self._admitter.reset()
            self._has_decided = False
        self.want()

    def pause(self) -> float:
        """Seconds until the next decision; inf if a change has to come first."""
        rest = max(0.0, self._rested - self._monotonic())
        if self.wanted:
            return rest
        with self._lock:
            now = self._clock()
            due = self._admitter.wake_at(now) - now if self._has_decided else math.inf
        return max(rest, due)

    # Verdicts

    def verdict(self, known: JobEntry) -> Verdict | None:
        """The verdict that may be written into a job.

        This takes no lock for an admission, so a worker that writes it does not wait for decisions about other jobs.
        """
        given = self._given.get(known.uid)
        if given is not None:
            return given[0] if given[1] == known.version else None
        with self._lock:
            if not self._has_decided or not known.waits:
                return None
            try:
                waits = self._admitter.explain(known.uid)
            except KeyError:  # no decision about this job yet
                return None
            return waits if isinstance(waits, Wait) else None

    def outdated(self, known: JobEntry) -> bool:
        """Whether the verdict on a job was for an earlier version, so that admission must decide again.

        This takes no lock: every pass calls it, and a decision about a thousand jobs takes time.
        """
        given = self._given.get(known.uid)
        return given is not None and given[1] != known.version

    def queue_usages(self) -> Mapping[str, QueueUsage]:
        """The usage of the queues at the last decision."""
        with self._lock:
            return self._admitter.queue_usages() if self._has_decided else {}

    def withdraw(self, uid: str, *, set_aside: bool = False) -> None:
        """Decide again about a job whose verdict was not written.

        ``set_aside``: not before the job has changed or ``readmit`` is called.
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
        """Record that a reconcile of a job succeeded after failures."""
        with self._lock:
            if self._set_aside.pop(uid, None) is None:
                return
            self._changed[uid] = None
        self.want()

    def unreported_waits(self) -> set[JobRef]:
        """Jobs with a new wait reason since the last call."""
        unreported, self._unreported = self._unreported, set()
        return unreported

    # Decisions

    def decide(self, changes: Callable[[], JobChanges]) -> list[JobRef]:
        """Decide about the next batch of gangs.

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
        """Record changed jobs, and drop earlier verdicts on them. These are written already, or never will be."""
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
        """New verdicts, and whether the next cycle has more."""
        uids = self._known if self._whole else self._changed
        try:
            if self._whole:  # the informers now know whether all nodes can be listed
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
        claim = known.claim() if known is not None else None
        if claim is None or known is None or self._set_aside.get(uid) != known.version:
            return claim
        return replace(claim, stalled=True) if known.status.admission is not None else None

    def _hand_out(self, verdicts: Mapping[str, Verdict]) -> list[JobRef]:
        given = {uid: verdict for uid, verdict in verdicts.items() if not isinstance(verdict, Wait)}
        self._given |= {uid: (verdict, self._known[uid].version) for uid, verdict in given.items()}
        waits = [verdict for verdict in verdicts.values() if isinstance(verdict, Wait)]
        unreadable = sum(wait.reason == Reason.UNREADABLE for wait in waits)
        self._recorder.record(Metric.UNDECIDABLE_GANGS, value=unreadable)
        self._unreported.update(self._known[uid].ref for uid in verdicts if uid not in given)
        return [self._known[uid].ref for uid in given]
