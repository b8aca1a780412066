"""Runs admission while this driver leads it, and writes the statuses of queues."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from tf_dist.cluster.api import QUEUES, Object
from tf_dist.controller.driver_settings import DriverContext, JobRef
from tf_dist.controller.gang_admission.admission_leader import AdmissionLeader
from tf_dist.controller.gang_admission.pending_admissions import PendingAdmissions
from tf_dist.controller.gang_admission.verdicts import GangAdmission
from tf_dist.controller.informers.driver_informers import DriverInformers
from tf_dist.controller.job_index import JobChanges, JobEntry
from tf_dist.controller.leases.leadership import LeadershipLost
from tf_dist.core.api.assignment import Verdict
from tf_dist.core.gang.quota import QueueUsage, queue_status
from tf_dist.core.gang.resources.queue_resource import read_queue
from tf_dist.errors import ClusterError, InvalidQueue, Unavailable

_LOG = logging.getLogger(__name__)
# Seconds between two looks: queues change with every job, and people read them at their leisure.
_WRITE_INTERVAL: Final = 2.0


class QueueStatusWriter:
    """Writes them, where they have changed, and no more often than people can read."""

    def __init__(self, context: DriverContext, informers: DriverInformers) -> None:
        self._cluster, self._monotonic = context.cluster, context.monotonic
        self._informers = informers
        self._due = float("-inf")
        self._wanted = False

    def want(self) -> None:
        """Queues may stand otherwise than at the last report."""
        self._wanted = True

    def pause(self) -> float:
        """Seconds until it is to write (inf: until something changes)."""
        return max(0.0, self._due - self._monotonic()) if self._wanted else math.inf

    def write(self, facts: Callable[[], Mapping[str, QueueUsage]]) -> None:
        """Bring the statuses up to date, if it is time. What cannot be written now is written with the next change."""
        if self.pause() > 0:
            return
        self._wanted = False
        self._due = self._monotonic() + _WRITE_INTERVAL
        stored = self._informers.rules(QUEUES)
        found = facts() if stored else {}
        for queue in stored:
            name = queue["metadata"]["name"]
            status = queue_status(found[name]) if name in found else {"message": _queue_problem(queue)}
            try:
                self._report(queue, status)
            except Unavailable as error:
                # The others would wait for as long: the loop that calls this has more to do.
                _LOG.debug("failed to write queue status: queue=%s error=%s", name, error)
                self._wanted = True
                return

    def _report(self, queue: Object, status: Object) -> None:
        if queue.get("status") == status:
            return
        name = queue["metadata"]["name"]
        try:
            body = {**queue, "status": status}
            self._informers.wrote(QUEUES, self._cluster.replace(QUEUES, None, name, body, subresource="status"))
        except Unavailable:
            raise
        except ClusterError as error:
            _LOG.debug("failed to write queue status: queue=%s error=%s", name, error)


def _queue_problem(queue: Object) -> str:
    try:
        read_queue(queue)
    except InvalidQueue as problem:
        return str(problem)
    return ""


# Seconds until it is tried again to begin, after that has failed.
_RETRY_AFTER: Final = 5.0


class AdmissionRunner:
    """Decides, or leaves it to another driver.

    ``own``: where this driver writes down what it is about to give away; ``common``: where all do that decide for all.
    """

    def __init__(
        self,
        context: DriverContext,
        admission_leader: AdmissionLeader,
        admission: GangAdmission,
        reports: QueueStatusWriter,
        *,
        own: PendingAdmissions,
        common: PendingAdmissions,
    ) -> None:
        self._admission_leader = admission_leader
        self._admission = admission
        self._reports = reports
        self._own = own
        self._common = common
        # The driver of one job says how the queues stand only while it decides for all.
        self._reporting = context.settings.only is None
        self._opened: object = None
        self._monotonic = context.monotonic
        self._retry_at = -math.inf

    def stand_by(self, *, sees_all: bool) -> None:
        """Observe who decides, so that a holder that died together with the leader is not waited for after it."""
        self._admission_leader.start(sees_all=sees_all)

    def open(self, epoch: object, *, sees_all: bool) -> bool:
        """Begin, if it is ours to decide, under the leadership and scope of rights that ``epoch`` stands for.

        Whether that is new: only what is seen from then on includes all earlier admissions. Where that cannot
        be made sure of, nothing is decided for a while: places can wait, jobs that run cannot. LeadershipLost when
        another driver decides.
        """
        self._admission_leader.start(sees_all=sees_all)
        if not self._admission_leader.decides() or self._retry_delay() > 0:
            return False
        right, self._opened = self._right(epoch), None
        try:
            anew = self._admission.open(right, self._common if self._admission_leader.for_all() else self._own)
        except LeadershipLost:
            raise
        except ClusterError as error:
            _LOG.warning("failed to admit gangs: error=%s%s", error, f" ({error.hint})" if error.hint else "")
            self._retry_at = self._monotonic() + _RETRY_AFTER
            return False
        self._opened = right
        return anew

    def _retry_delay(self) -> float:
        """Seconds until it is tried again."""
        return max(0.0, self._retry_at - self._monotonic())

    def _right(self, epoch: object) -> object:
        return epoch, self._admission_leader.epoch, self._admission_leader.for_all()

    def close(self, epoch: object) -> None:
        """Leave the next leader nothing to make sure of, if all verdicts are written. See ``GangAdmission.close``."""
        if self.ours(epoch):
            self._admission.close()

    def stop(self) -> None:
        """Let another driver decide."""
        self._admission_leader.stop()

    def ours(self, epoch: object) -> bool:
        """Whether it is ours to decide, and begun."""
        return self._admission_leader.decides() and self._opened == self._right(epoch)

    def for_all(self) -> bool:
        """Whether we decide for the jobs of all drivers."""
        return self._admission_leader.for_all()

    def pause(self, *, waiting: bool) -> float:
        """Seconds until there may be something to decide. ``waiting``: whether any job waits."""
        if self._admission_leader.decides():
            reports = self._reports.pause() if self._reports_queues() else math.inf
            return self._retry_delay() or min(self._admission.pause(), reports)
        return self._admission_leader.pause() if waiting else float("inf")

    def decide(self, changes: Callable[[], JobChanges], delivers: Callable[[JobEntry, Verdict], bool]) -> list[JobRef]:
        """Decide, and say how the queues stand; the jobs with new verdicts. See ``GangAdmission.decide``."""
        with_verdict = self._admission.decide(changes, delivers)
        self._reports.want()
        return with_verdict

    def report(self) -> None:
        """Bring the queues' statuses up to date, if it is time."""
        if self._reports_queues():
            self._reports.write(self._admission.queue_usages)

    def _reports_queues(self) -> bool:
        return self._reporting or self._admission_leader.for_all()
