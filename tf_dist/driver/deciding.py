"""Admission, while it is this driver that decides about places."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from tf_dist.core.gang.model import Verdict
from tf_dist.driver.admission import Admission
from tf_dist.driver.arbiter import Arbiter
from tf_dist.driver.intents import Intents
from tf_dist.driver.ledger import Delta, Known
from tf_dist.driver.mandate import NotDriving
from tf_dist.driver.queue_reports import QueueReports
from tf_dist.driver.refs import JobRef
from tf_dist.errors import ClusterError

_LOG = logging.getLogger(__name__)
# Seconds until it is tried again to begin, after that has failed.
_PAUSE: Final = 5.0


class Deciding:
    """Decides, or leaves it to another driver.

    ``own``: where this driver writes down what it is about to give away; ``common``: where all do that decide for all.
    ``reporting``: whether it says how the queues stand although it decides for its own jobs only. ``monotonic``:
    seconds that only go forward.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        admission: Admission,
        reports: QueueReports,
        *,
        own: Intents,
        common: Intents,
        reporting: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._arbiter = arbiter
        self._admission = admission
        self._reports = reports
        self._own = own
        self._common = common
        self._reporting = reporting
        self._opened: object = None
        self._monotonic = monotonic
        self._again = -math.inf

    def open(self, epoch: object, *, sees_all: bool) -> bool:
        """Begin, if it is ours to decide, under the mandate and with the view that ``epoch`` stands for.

        Whether that is new: only what is seen from then on is all that anybody before has given away. Where that cannot
        be made sure of, nothing is decided for a while: places can wait, jobs that run cannot. NotDriving when somebody
        else is at it.
        """
        self._arbiter.start(sees_all=sees_all)
        if not self._arbiter.decides() or self._rest() > 0:
            return False
        right, self._opened = self._right(epoch), None
        try:
            anew = self._admission.open(right, self._common if self._arbiter.for_all() else self._own)
        except NotDriving:
            raise
        except ClusterError as error:
            _LOG.warning("no places can be given: %s%s", error, f" ({error.hint})" if error.hint else "")
            self._again = self._monotonic() + _PAUSE
            return False
        self._opened = right
        return anew

    def _rest(self) -> float:
        """Seconds until it is tried again."""
        return max(0.0, self._again - self._monotonic())

    def _right(self, epoch: object) -> object:
        return epoch, self._arbiter.epoch, self._arbiter.for_all()

    def stop(self) -> None:
        """Let another driver decide."""
        self._arbiter.stop()

    def ours(self, epoch: object) -> bool:
        """Whether it is ours to decide, and begun."""
        return self._arbiter.decides() and self._opened == self._right(epoch)

    def for_all(self) -> bool:
        """Whether we decide for the jobs of all drivers."""
        return self._arbiter.for_all()

    def pause(self, *, waiting: bool) -> float:
        """Seconds until there may be something to decide. ``waiting``: whether any job waits."""
        if self._arbiter.decides():
            reports = self._reports.pause() if self._reports_queues() else math.inf
            return self._rest() or min(self._admission.pause(), reports)
        return self._arbiter.pause() if waiting else float("inf")

    def decide(self, changes: Callable[[], Delta], tells: Callable[[Known, Verdict], bool]) -> list[JobRef]:
        """Decide, and say how the queues stand; the jobs that have something to hear. See ``Admission.decide``."""
        heard = self._admission.decide(changes, tells)
        self._reports.want()
        return heard

    def report(self) -> None:
        """Bring the queues' statuses up to date, if it is time."""
        if self._reports_queues():
            self._reports.write(self._admission.queue_facts)

    def _reports_queues(self) -> bool:
        return self._reporting or self._arbiter.for_all()
