"""When admission is asked, what for, and what it has promised that is not written yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core.gang.admit import admit
from tf_dist.core.gang.model import Admit, Verdict
from tf_dist.core.gang.snapshot import Claim, snapshot
from tf_dist.core.status import Admission as Place
from tf_dist.driver.caches import Caches
from tf_dist.driver.intents import Alone, Intents
from tf_dist.driver.ledger import Known

# While jobs come faster than admission decides, it rests this many times as long as it takes: the others go on.
_REST: Final = 4.0


class Admission:
    """Asks the core for verdicts and keeps them until the jobs have taken them over.

    ``clock``: epoch seconds; ``monotonic``: seconds that only go forward. ``intents``: where places are written down
    before they are given away.
    """

    def __init__(
        self,
        caches: Caches,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        intents: Intents | None = None,
    ) -> None:
        self._caches = caches
        self._clock = clock
        self._monotonic = monotonic
        self._intents = intents or Alone()
        self._verdicts: dict[str, Verdict] = {}
        # Whose place is written down as intended, and for which version of the job: only these may be told of it. In
        # a later version somebody may have made sure that it never gets there.
        self._intended: dict[str, str] = {}
        self._lock = threading.Lock()
        self._rested = float("-inf")
        self.wanted = True

    def want(self) -> None:
        """There may be more room, or other jobs, than at the last decision."""
        self.wanted = True

    def rest(self) -> float:
        """Seconds for which it should not be asked again."""
        return max(0.0, self._rested - self._monotonic())

    def open(self, epoch: int) -> bool:
        """Begin to decide under a mandate; whether that is new, and all that was seen before out of date."""
        anew = self._intents.open(epoch)
        if anew:
            with self._lock:
                self._verdicts, self._intended = {}, {}
            self.want()
        return anew

    def verdict(self, known: Known) -> Verdict | None:
        """What a job that waits may be told."""
        with self._lock:
            verdict = self._verdicts.get(known.uid)
            mine = self._intended.get(known.uid) == known.version
            return verdict if mine or not isinstance(verdict, Admit) else None

    def withdraw(self, uid: str) -> None:
        """The verdict did not reach the job, and will not: it is to be decided again."""
        with self._lock:
            self._verdicts.pop(uid, None)
            self._intended.pop(uid, None)
        self._intents.settle((uid,))
        self.want()

    def decide(self, known: Iterable[Known]) -> frozenset[str]:
        """Decide about every job of ``known`` that waits; the uids of those about which something new is to be said."""
        begun, self.wanted = self._monotonic(), False
        try:
            return self._decide(known)
        finally:
            end = self._monotonic()
            self._rested = end + _REST * (end - begun)

    def _decide(self, known: Iterable[Known]) -> frozenset[str]:
        claims: list[Claim] = []
        waiting: dict[str, Known] = {}
        for entry in known:
            claim = entry.claim()
            if claim is not None:
                claims.append(claim)
                if claim.status.admission is None and not claim.status.finished:
                    waiting[entry.uid] = entry
        promised = self._promised(waiting)
        verdicts = self._ask(claims, promised) if waiting.keys() - promised else {}
        with self._lock:
            # A promise stands until the job has it in writing, or did not get it.
            before = {uid: verdict for uid, verdict in self._verdicts.items() if uid in waiting}
            now = {uid: verdict for uid, verdict in verdicts.items() if uid in waiting}
            self._verdicts = {**before, **now}
        new = {uid for uid, verdict in now.items() if before.get(uid) != verdict and not isinstance(verdict, Admit)}
        return frozenset(new) | self._intend(waiting)

    def _promised(self, waiting: Mapping[str, Known]) -> set[str]:
        """The waiting jobs whose place is given away. Those that wait no more have it in writing."""
        with self._lock:
            kept = {uid: v for uid, v in self._intended.items() if uid in waiting and waiting[uid].version == v}
            for uid in self._intended.keys() - kept.keys():
                self._verdicts.pop(uid, None)
            self._intended = kept
        self._intents.settle(self._intents.declared() - waiting.keys())
        return set(kept)

    def _intend(self, waiting: Mapping[str, Known]) -> frozenset[str]:
        """Write down whose place is given away next; the jobs that may be told now."""
        with self._lock:
            given = {
                uid for uid, verdict in self._verdicts.items() if isinstance(verdict, Admit)
            } - self._intended.keys()
        written = self._intents.declare({uid: waiting[uid].ref for uid in sorted(given)}) if given else frozenset()
        with self._lock:
            self._intended |= {uid: waiting[uid].version for uid in written}
        if len(written) < len(given):
            self.want()
        return written

    def _ask(self, claims: list[Claim], promised: set[str]) -> dict[str, Verdict]:
        if not self._caches.knows_room:
            return {claim.job.uid: Admit() for claim in claims}
        held = [self._placed(claim) if claim.job.uid in promised else claim for claim in claims]
        return dict(admit(snapshot(held, self._caches.nodes(), self._caches.all_pods())))

    def _placed(self, claim: Claim) -> Claim:
        return replace(claim, status=replace(claim.status, admission=Place(self._clock())))
