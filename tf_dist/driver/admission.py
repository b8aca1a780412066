"""When admission is asked, what for, and what it has promised that is not written yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tf_dist.core.gang.admit import admit
from tf_dist.core.gang.model import Admit, Verdict
from tf_dist.core.gang.snapshot import Claim, snapshot
from tf_dist.core.status import Admission as Place
from tf_dist.driver.caches import Caches
from tf_dist.driver.ledger import Known

# While jobs come faster than admission decides, it rests this many times as long as it takes: the others go on.
_REST: Final = 4.0


class Admission:
    """Asks the core for verdicts and keeps them until the jobs have taken them over.

    ``clock``: epoch seconds; ``monotonic``: seconds that only go forward.
    """

    def __init__(
        self, caches: Caches, clock: Callable[[], float], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._caches = caches
        self._clock = clock
        self._monotonic = monotonic
        self._verdicts: dict[str, Verdict] = {}
        self._lock = threading.Lock()
        self._rested = float("-inf")
        self.wanted = True

    def want(self) -> None:
        """There may be more room, or other jobs, than at the last decision."""
        self.wanted = True

    def rest(self) -> float:
        """Seconds for which it should not be asked again."""
        return max(0.0, self._rested - self._monotonic())

    def verdict(self, uid: str) -> Verdict | None:
        """What was decided about a job that waits."""
        return self._verdicts.get(uid)

    def withdraw(self, uid: str) -> None:
        """The verdict did not reach the job: it is to be decided again."""
        with self._lock:
            self._verdicts.pop(uid, None)
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
        claims = [claim for entry in known if (claim := entry.claim()) is not None]
        waiting = {claim.job.uid for claim in claims if claim.status.admission is None and not claim.status.finished}
        with self._lock:
            promised = {uid for uid, verdict in self._verdicts.items() if isinstance(verdict, Admit)} & waiting
        verdicts = self._ask(claims, promised) if waiting - promised else {}
        with self._lock:
            # A promise stands until the job has it in writing, or did not get it.
            before = {uid: verdict for uid, verdict in self._verdicts.items() if uid in waiting}
            now = {uid: verdict for uid, verdict in verdicts.items() if uid in waiting}
            self._verdicts = {**before, **now}
            return frozenset(uid for uid, verdict in now.items() if before.get(uid) != verdict)

    def _ask(self, claims: list[Claim], promised: set[str]) -> dict[str, Verdict]:
        if not self._caches.knows_room:
            return {claim.job.uid: Admit() for claim in claims}
        held = [self._placed(claim) if claim.job.uid in promised else claim for claim in claims]
        return dict(admit(snapshot(held, self._caches.nodes(), self._caches.all_pods())))

    def _placed(self, claim: Claim) -> Claim:
        return replace(claim, status=replace(claim.status, admission=Place(self._clock())))
