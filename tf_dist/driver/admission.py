"""When admission is asked, what for, and what it has promised that is not written yet."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tf_dist.cluster.runtime import MACHINE, Runtime
from tf_dist.core.gang.admit import Admitter
from tf_dist.core.gang.feed import Feed
from tf_dist.core.gang.model import UNREADABLE, Admit, Place, Snapshot, Undecidable, Verdict, Wait
from tf_dist.core.gang.queue_report import QueueFacts
from tf_dist.core.model import Job
from tf_dist.driver.caches import Caches
from tf_dist.driver.intents import Alone, Intents
from tf_dist.driver.ledger import Known
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JobRef

_LOG = logging.getLogger(__name__)

# While jobs come faster than admission decides, it rests this many times as long as it takes: the others go on.
_REST: Final = 4.0


class Admission:
    """Asks the core for verdicts and keeps them until the jobs have taken them over. Thread-safe.

    ``clock``: epoch seconds; ``monotonic``: seconds that only go forward.
    """

    def __init__(
        self,
        caches: Caches,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        recorder: Recorder | None = None,
        runtime: Runtime = MACHINE,
    ) -> None:
        self._caches = caches
        self._recorder = recorder or Recorder()
        self._clock = clock
        self._monotonic = monotonic
        self._intents: Intents = Alone()
        self._opened = False
        self._epoch: object = None
        self._lock = runtime.lock()
        self._begin()
        self._rested = float("-inf")
        self.wanted = True

    def _begin(self) -> None:
        self._admitter: Admitter | None = None
        self._feed: Feed | None = None
        # Verdicts that change what a job holds, with the version of the job that they are for: in a later version
        # somebody may have made sure that they never get there.
        self._given: dict[str, tuple[Verdict, str]] = {}
        # Those of them that are written down as intended: only these may be told.
        self._intended: frozenset[str] = frozenset()
        # Jobs that could not be decided about, and why: left out until they are edited.
        self._left_out: dict[str, tuple[Job | None, str]] = {}

    # When it is asked

    def want(self) -> None:
        """There may be more room, or other jobs, than at the last decision."""
        self.wanted = True

    def pause(self) -> float:
        """Seconds until it should be asked (again); inf: until something changes."""
        rest = max(0.0, self._rested - self._monotonic())
        if self.wanted:
            return rest
        with self._lock:
            now = self._clock()
            due = self._admitter.wake_at(now) - now if self._admitter is not None else math.inf
        return max(rest, due)

    def open(self, epoch: object, intents: Intents) -> bool:
        """Begin to decide, under a right won as ``epoch``; whether that is new, and what was seen before out of date.

        ``intents``: where places are written down before they are given away.
        """
        anew = intents.open(epoch) or (self._opened and (intents is not self._intents or epoch != self._epoch))
        self._intents, self._opened, self._epoch = intents, True, epoch
        if anew:
            with self._lock:
                self._begin()
            self.want()
        return anew

    # What it says

    def verdict(self, known: Known) -> Verdict | None:
        """What a job may be told."""
        with self._lock:
            given = self._given.get(known.uid)
            if given is not None:
                return given[0] if given[1] == known.version and known.uid in self._intended else None
            if self._admitter is None or not known.waits:
                return None
            with suppress(KeyError):  # it has not been decided about yet
                waits = self._admitter.explain(known.uid)
                # A place is announced only once it is written down as intended.
                return waits if isinstance(waits, Wait) else None
            return None

    def outdated(self, known: Known) -> bool:
        """Whether what was given to a job was for an earlier version of it, so that it has to be decided anew."""
        with self._lock:
            given = self._given.get(known.uid)
            return given is not None and given[1] != known.version

    def queue_facts(self) -> Mapping[str, QueueFacts]:
        """How the queues stand as of the last decision."""
        with self._lock:
            return self._admitter.queue_facts() if self._admitter is not None else {}

    def withdraw(self, uid: str) -> None:
        """The verdict did not reach the job, and will not: it is to be decided again."""
        with self._lock:
            if self._given.pop(uid, None) is None:
                return
            # Given again, it is written down again: somebody else may decide by now, and that shows there alone.
            self._intended -= {uid}
            if self._feed is not None:
                self._feed.again(uid)
        self._intents.settle((uid,))
        self.want()

    # How it decides

    def decide(self, known: Iterable[Known], tells: Callable[[Known, Verdict], bool]) -> frozenset[str]:
        """Decide about every job of ``known``; the uids of those about which something new is to be said.

        ``tells``: whether this driver is the one to tell a job its verdict. What others are to tell is reserved.
        """
        begun, self.wanted = self._monotonic(), False
        try:
            with self._lock:
                return self._decide({entry.uid: entry for entry in known}, tells)
        except BaseException:
            self.want()
            raise
        finally:
            end = self._monotonic()
            self._rested = end + _REST * (end - begun)

    def _decide(self, known: Mapping[str, Known], tells: Callable[[Known, Verdict], bool]) -> frozenset[str]:
        _, feed = self._ready()
        self._settle(known, feed)
        self._left_out = {uid: why for uid, why in self._left_out.items() if uid in known and known[uid].job is why[0]}
        claims = [claim for entry in known.values() if (claim := entry.claim()) is not None]
        seen = self._caches.snapshot(claims, self._clock())
        verdicts = self._verdicts(seen, known)
        self._recorder.undecidable(sum(_is_unreadable(verdict) for verdict in verdicts.values()))
        new = {uid for uid, verdict in verdicts.items() if isinstance(verdict, Wait)}
        self._given |= {uid: (verdicts[uid], known[uid].version) for uid in verdicts.keys() - new}
        ours = (known[uid] for uid, (verdict, _) in self._given.items() if tells(known[uid], verdict))
        return frozenset(new) | self._intend({entry.uid: entry.ref for entry in ours})

    def _verdicts(self, seen: Snapshot, known: Mapping[str, Known]) -> dict[str, Verdict]:
        """What is new. A gang that cannot be decided about is left out, and the others are decided about all the same.

        Half a decision is none: the admitter is made anew then, with what was given before and is not written yet.
        """
        while True:
            anew = self._admitter is None
            admitter, feed = self._ready()
            feed.take(self._without_left_out(seen))
            for uid, (verdict, _) in self._given.items() if anew else ():
                if isinstance(verdict, Admit):
                    feed.assume(uid, Place(at=seen.now, sizes=verdict.sizes, placement=verdict.placement))
            try:
                return admitter.decide(seen.now)
            except Undecidable as error:
                self._admitter = self._feed = None
                if error.uid in self._left_out:
                    raise
                entry = known[error.uid]
                _LOG.exception("%s cannot be decided about, and is left out", entry.ref)
                self._left_out[error.uid] = entry.job, f"it cannot be decided about: {error}"

    def _without_left_out(self, seen: Snapshot) -> Snapshot:
        if not self._left_out:
            return seen
        problems = {uid: why for uid, (_, why) in self._left_out.items()}
        gangs = (replace(g, members=(), problem=problems[g.uid]) if g.uid in problems else g for g in seen.gangs)
        return replace(seen, gangs=tuple(gangs))

    def _ready(self) -> tuple[Admitter, Feed]:
        if self._admitter is None or self._feed is None:
            self._admitter = Admitter(sees_nodes=self._caches.knows_room)
            self._feed = Feed(self._admitter)
        return self._admitter, self._feed

    def _settle(self, known: Mapping[str, Known], feed: Feed) -> None:
        """What was given to a job that has changed since is in it by now, or will never be."""
        over = {uid for uid, (_, version) in self._given.items() if uid not in known or known[uid].version != version}
        for uid in over:
            del self._given[uid]
            feed.again(uid)
        self._intended -= over
        self._intents.settle(self._intents.declared() - self._given.keys())

    def _intend(self, jobs: Mapping[str, JobRef]) -> frozenset[str]:
        """Write down what is given next; the jobs that may be told now."""
        waiting = {uid: jobs[uid] for uid in sorted(jobs.keys() - self._intended)}
        if not waiting:
            return frozenset()
        written = self._intents.declare(waiting)
        self._intended |= written
        if len(written) < len(waiting):
            self.want()
        return written


def _is_unreadable(verdict: Verdict) -> bool:
    return isinstance(verdict, Wait) and verdict.reason == UNREADABLE
