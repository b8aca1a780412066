"""Driver: the control loop that admits gangs and has every job that changed or is due reconciled.

Nothing is decided here. The error of a pass that fails is reported on its job, which is tried again with a back-off of
its own; the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tf_dist.cluster.api import QUEUES, Cluster
from tf_dist.cluster.client.retries import fenced_by
from tf_dist.cluster.client.workqueue import InProgress, ResyncSchedule, WorkQueue
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.driver_settings import DriverContext, DriverSettings, JobRef
from tf_dist.controller.gang_admission.admission_leader import AdmissionLeader
from tf_dist.controller.gang_admission.admission_runner import AdmissionRunner, QueueStatusWriter
from tf_dist.controller.gang_admission.pending_admissions import LeasePendingAdmissions, PendingAdmissions
from tf_dist.controller.gang_admission.verdicts import GangAdmission
from tf_dist.controller.informers.driver_informers import DriverInformers
from tf_dist.controller.job_index import JobChanges, JobEntry, JobIndex
from tf_dist.controller.job_reconciler import JobReconciler
from tf_dist.controller.leases.leadership import Leadership, LeadershipLost, Standalone
from tf_dist.controller.leases.lease import LeaseRef, pending_admissions_lease
from tf_dist.controller.observability import metrics_recorder
from tf_dist.controller.observability.events import EventRecorder
from tf_dist.controller.observability.metrics_recorder import DriverStats, MetricsRecorder
from tf_dist.controller.plan_executor import PlanExecutor
from tf_dist.controller.takeover import TakeoverPolicy
from tf_dist.controller.worker_pool import WorkerPool
from tf_dist.core.api.assignment import Admit, Verdict, Wait
from tf_dist.core.api.job import Job
from tf_dist.core.reconciler.ownership import managed_elsewhere
from tf_dist.errors import ClusterError


class Liveness:
    """``beat`` it at every round of a loop. It is alive while the last beat is less than ``limit`` seconds old.

    A loop has as long for its first round. Thread-safe. ``monotonic``: seconds that only go forward.
    """

    def __init__(self, limit: float = 300.0, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._monotonic = monotonic
        self._last = monotonic()

    def beat(self) -> None:
        """The loop has begun another round."""
        self._last = self._monotonic()

    def age(self) -> float:
        """Seconds since the last beat."""
        return self._monotonic() - self._last

    def alive(self) -> bool:
        """Whether the loop has been round lately."""
        return self.age() < self.limit


_LOG = logging.getLogger(__name__)
# Seconds: what a clock is slewed by, and a process is held up between two readings, stays below that.
_TOLERANCE: Final = 1.0


class ClockStepDetector:
    """Compares ``clock`` (epoch seconds) with ``monotonic`` whenever it is asked. A suspended machine is a step, too.

    Slow corrections add up: they are noticed once they amount to a step.
    """

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._offset = self._read()

    def _read(self) -> float:
        return self._clock() - self._monotonic()

    def noticed(self) -> bool:
        """Whether the clock was set since it was last noticed."""
        offset = self._read()
        step = offset - self._offset
        if abs(step) < _TOLERANCE:
            return False
        self._offset = offset
        _LOG.warning("detected a clock step, reconciling all jobs step=%+.1fs", step)
        return True


# Seconds: between two beats of the loop though nothing happens; while it may not drive; while it cannot see.
_IDLE_WAIT: Final = 15.0
_STANDBY_WAIT: Final = 0.25
_ERROR_WAIT: Final = 1.0


class Driver:
    """Drives the jobs of a cluster, of a namespace, or one job.

    ``start`` watches the cluster and acts in threads until ``stop``. ``step`` is one pass in the caller's thread, over
    lists made for it unless ``start`` or ``informers.start`` came before. ``on_change`` is called, from any thread,
    with every job that has changed, or whose objects have. The other arguments: see ``DriverContext``.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: DriverSettings | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        recorder: MetricsRecorder | None = None,
        leadership: Leadership | None = None,
        admission_leader: AdmissionLeader | None = None,
        on_change: Callable[[JobRef], object] = lambda _: None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self._settings = settings or DriverSettings()
        context = DriverContext(
            cluster=cluster,
            settings=self._settings,
            clock=clock,
            monotonic=monotonic,
            recorder=recorder or MetricsRecorder(),
            runtime=runtime,
        )
        self._monotonic, self._runtime = monotonic, runtime
        self._clock_steps = ClockStepDetector(clock, monotonic)
        self._leadership = leadership or Standalone()
        self._on_change = on_change
        self._queue: WorkQueue[JobRef] = WorkQueue(monotonic, runtime)
        self._events = events = EventRecorder(
            cluster,
            clock,
            self._settings.component,
            monotonic=monotonic,
            recorder=context.recorder,
            runtime=runtime,
            permission=self._leading_for,
        )
        self.informers = DriverInformers(context, on_change=self._enqueue, on_capacity_freed=self._capacity_changed)
        self._job_index = JobIndex(self._settings)
        self._admission = GangAdmission(context, self.informers)
        admission_leader = admission_leader or Standalone()
        admission_leader.listen(self._admission_leader_changed)
        self._admission_runner = AdmissionRunner(
            context,
            admission_leader,
            self._admission,
            QueueStatusWriter(context, self.informers),
            own=self._pending_admissions(cluster, self._settings.admissions),
            common=self._pending_admissions(cluster, pending_admissions_lease(self._settings.system_namespace)),
        )
        self._in_progress: InProgress[JobRef] = InProgress()
        self._executor = executor = PlanExecutor(
            context,
            self.informers,
            events,
            wrote=self._in_progress.wrote,
            may_act=self._may_act,
            remaining=self._remaining,
        )
        self._reconciler = JobReconciler(context, self.informers, self._job_index, executor, self._leadership)
        self._takeover = TakeoverPolicy(context, self._leadership, self._reconciler, self._queue)
        self._worker_pool = WorkerPool(
            context,
            self._reconciler,
            self._admission,
            self._queue,
            self.informers,
            events,
            self._in_progress,
            lookup=self._lookup,
            delivers=self._delivers,
            requeue=self._requeue,
            on_leadership_lost=self._resync_all,
        )
        self.liveness = Liveness()
        self._lock = threading.Lock()
        self._dirty: set[JobRef] = set()
        self._everything = True
        # Jobs that have changed, and jobs whose resync has come, that were not dispatched yet.
        self._due: set[JobRef] = set()
        self._routine: set[JobRef] = set()
        self._term = self._right()
        self._resync: ResyncSchedule[JobRef] = ResyncSchedule(self._settings.resync, monotonic())
        self._resync_waiting: ResyncSchedule[JobRef] = ResyncSchedule(self._settings.resync_waiting, monotonic())
        self._stopped = runtime.event()
        self._thread: threading.Thread | None = None
        context.recorder.attach(self.readings)

    def _pending_admissions(self, cluster: Cluster, place: LeaseRef | None) -> PendingAdmissions:
        if place is None:
            return Standalone()
        return LeasePendingAdmissions(
            cluster,
            place,
            lambda ref, stored: self.informers.wrote(ref.resource, stored),
            max_jobs=self._settings.max_pending_admissions,
            may_act=self._may_act,
        )

    # Its life

    def start(self) -> None:
        """Follow the cluster and drive its jobs in threads until ``stop``."""
        self._leadership.listen(self.wake)
        self._events.start()
        self._executor.start(self._settings.workers)
        self._worker_pool.start(self._settings.workers)
        self._thread = self._runtime.thread(self._run, "driver")
        self._thread.start()

    def stop(self) -> None:
        """End the loop after what it is in the middle of; jobs and pods stay as they are."""
        self._stopped.set()
        self._queue.close()
        if self._thread is not None:
            self._thread.join()
        self._worker_pool.stop()
        self._executor.stop()
        self._events.stop()
        if self._leadership.valid():
            with suppress(ClusterError), fenced_by(self._leading_for):
                self._admission_runner.close(self._right())
        self._admission_runner.stop()
        self.informers.stop()

    def wake(self) -> None:
        """Have the loop begin a round now: leadership may have changed."""
        self._queue.wake()

    def synced(self) -> bool:
        """Whether it sees all it decides on."""
        return self.informers.synced()

    def job(self, ref: JobRef, uid: str) -> Job | None:
        """The job in force of the stored job ``uid``, as it was read last; None: it has not been, or cannot be."""
        known = self._job_index.get(ref)
        return known.job if known is not None and known.uid == uid else None

    def readings(self) -> DriverStats:
        """How it stands at this moment."""
        mine = self._takeover.mine(self._job_index) if self._leadership.valid() else {}
        queues = [queue["metadata"]["name"] for queue in self.informers.rules(QUEUES)] if mine else []
        return DriverStats(
            work=self._worker_pool.reading(),
            informers=tuple(self.informers.readings()),
            jobs=metrics_recorder.jobs_by_phase(mine),
            gangs=metrics_recorder.gangs_by_queue(mine, queues) if mine else {},
            admission_leader=self._admission_runner.for_all(),
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.liveness.beat()
            try:
                pause = self._round()
            except Exception as error:
                # A loop that ended here would leave every job without a driver, and nothing would say so.
                defect = None if isinstance(error, ClusterError) else error
                _LOG.warning(
                    "control loop failed, trying again: seconds=%g error=%s", _ERROR_WAIT, error, exc_info=defect
                )
                pause = _ERROR_WAIT
            self._stopped.wait(pause)

    def _round(self) -> float:
        """Once round the loop; how long to stay away from it."""
        if not self._follows():
            return 0.0 if self._leadership.valid() else _STANDBY_WAIT
        if not self._leadership.valid():
            self._everything = True
            self._admission_runner.stand_by(sees_all=self.informers.sees_all)
            return _STANDBY_WAIT
        outstanding = self._everything or self._due or self._routine
        self._due.update(self._queue.wait(0 if outstanding else self._longest_wait()))
        if self._leadership.valid() and not self._stopped.is_set():
            self.step(())
        return 0.0

    def _follows(self) -> bool:
        """Whether the informers have synced; starts them, and has them list anew after leadership was won anew."""
        if not self.informers.followed:
            self.informers.start()
        self.informers.prepare()
        if self._leadership.valid():
            self._begin_term()
        return self.informers.wait_synced(_STANDBY_WAIT)

    def _begin_term(self) -> bool:
        """Begin under a right that was won anew; whether it was, so that all that was seen before is out of date."""
        self.informers.prepare()
        right = self._right()
        if self._admission_runner.open(right, sees_all=self.informers.sees_all) or self._term != right:
            self._term, self._everything = right, True
            self._job_index.mark_all_changed()
            self.informers.relist()
            return True
        return False

    def _right(self) -> object:
        """Leadership and scope of rights as they are: under others, what was seen and given before is out of date."""
        return self._leadership.epoch, self.informers.generation

    def _longest_wait(self) -> float:
        # Nothing notifies the loop of the Leases of other drivers.
        longest = _ERROR_WAIT if self._takeover.any(self._job_index.drivers()) else _IDLE_WAIT
        for schedule in (self._resync, self._resync_waiting):
            longest = schedule.pause(self._monotonic(), longest)
        return min(longest, self._admission_runner.pause(waiting=self._job_index.any_pending))

    def _may_act(self) -> bool:
        """Asked before every write: a job of a thousand pods must not delay a stop."""
        return self._leadership.valid() and not self._stopped.is_set()

    def _remaining(self) -> float:
        """Asked again before every attempt of a write."""
        return 0.0 if self._stopped.is_set() else self._leadership.remaining()

    def _leading_for(self) -> float:
        """For how many more seconds events may be written: those of what was done before ``stop`` may be, after it."""
        seconds = self._leadership.remaining()
        if seconds <= 0:
            raise LeadershipLost("nothing more is written: the jobs are no longer driven from here")
        return seconds

    # Notifications

    def _enqueue(self, ref: JobRef, version: int) -> None:
        self._on_change(ref)
        if self._in_progress.notice(ref, version):
            # Most often what this very pass has written. Admission is to know it though the pass goes on for long.
            known = self._job_index.get(ref)
            if known is not None and known.stored is not self.informers.job(ref):
                self._refresh_entry(ref)
            return
        self._requeue(ref)

    def _requeue(self, ref: JobRef) -> None:
        with self._lock:
            if ref in self._dirty:
                return  # it is in the queue, and will be read after this
            self._dirty.add(ref)
        self._queue.add(ref)

    def _capacity_changed(self) -> None:
        # The next decision takes in all that has changed before it begins: it is asked for once.
        if self._admission.want():
            self._queue.wake()

    def _admission_leader_changed(self) -> None:
        self._admission.want()
        self._queue.wake()

    # A pass

    def step(self, due: Iterable[JobRef] | None = None) -> int:
        """One pass over ``due`` jobs and those that wait for a place (None: all jobs); how many actions it took.

        ClusterError when the cluster could not be listed; errors of single jobs are reported on them.
        """
        if not self._leadership.valid():
            return 0
        if not self._worker_pool.started and self._begin_term() and self.informers.followed:
            return 0  # what is followed is listed anew first
        self.informers.refresh()
        # What is due by the wall clock is due at another moment than was reckoned once that clock was set.
        stepped = self._clock_steps.noticed()
        if stepped:
            self._admission.clock_stepped()
        everything = due is None or self._everything or stepped
        self._due.update(due or ())
        self._everything = False
        try:
            taken, failed = self._pass(everything)
        except BaseException:
            self._everything |= everything  # what is due is left for the next pass, too
            raise
        self._due, self._routine = set(), set()
        if failed is not None:
            raise failed
        return taken

    def _pass(self, everything: bool) -> tuple[int, Exception | None]:
        """How many actions it took, and what made deciding about gangs fail."""
        if everything:
            # Those that something has happened to, but not all there are when a driver begins: what happens next is
            # urgent.
            self._due.intersection_update(self._job_index)
        for schedule in (self._resync, self._resync_waiting):
            self._routine.update(schedule.due(self._monotonic()))
        self._read(everything, {*self._due, *self._routine})
        died, turned = self._takeover.refresh(self._job_index.drivers())
        if turned:
            self._job_index.touch(turned)
            self._admission.want()
        self._due.update(self._job_index.of(died), self._takeover.undone(died))
        with_verdict, failed = self._admitted()
        # Jobs that wait for an answer have it first.
        taken = self._dispatch(with_verdict)
        taken += self._dispatch(self._relevant(self._due.difference(with_verdict)))
        routine = {*self._job_index} if everything else self._routine
        taken += self._dispatch(self._relevant(routine.difference(with_verdict, self._due)), urgent=False)
        return taken, failed

    def _dispatch(self, refs: Iterable[JobRef], *, urgent: bool = True) -> int:
        return sum(self._worker_pool.dispatch(ref, urgent=urgent) for ref in refs)

    def _relevant(self, refs: Iterable[JobRef]) -> list[JobRef]:
        return sorted((ref for ref in refs if self._is_relevant(self._job_index.get(ref))), key=str)

    def _read(self, everything: bool, due: Iterable[JobRef]) -> None:
        """Take in what changed."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        dirty.update(due)
        if everything:
            dirty |= {*self._job_index, *(ref for ref, _ in self.informers.jobs())}
        for ref in dirty:
            self._takeover.track_cleanup(ref, self._refresh_entry(ref))

    def _refresh_entry(self, ref: JobRef) -> JobEntry | None:
        before = self._job_index.get(ref)
        after = self._read_entry(ref)
        if after is None:
            self._job_index.forget(ref)
            self._worker_pool.forget(ref)
            self._resync.discard(ref)
        elif before is None:
            self._resync.add(ref)
        waits = after is not None and after.waits
        if waits != (before is not None and before.waits):
            (self._resync_waiting.add if waits else self._resync_waiting.discard)(ref)
        changed = (before and before.admission_inputs) != (after and after.admission_inputs)
        if changed or (after is not None and self._admission.outdated(after)):
            self._capacity_changed()
        return after

    def _read_entry(self, ref: JobRef) -> JobEntry | None:
        """Read a job into the index, again if another thread has cached a newer version in the meantime."""
        while True:
            stored = self.informers.job(ref)
            entry = None if stored is None or managed_elsewhere(stored) else self._job_index.read(ref, stored)
            if entry is None or self.informers.job(ref) is stored:
                return entry

    def _lookup(self, ref: JobRef) -> tuple[JobEntry | None, bool]:
        known = self._refresh_entry(ref)
        return known, self._takeover.drives(known)

    def _resync_all(self) -> None:
        self._everything = True

    def _is_relevant(self, known: JobEntry | None) -> bool:
        """Whether this driver drives a job, or has a verdict to write into it."""
        return known is not None and (self._takeover.drives(known) or self._worker_pool.has_pending_verdict(known))

    def _admitted(self) -> tuple[list[JobRef], Exception | None]:
        """Have admission decide if it may come to another verdict.

        The jobs that have a new verdict; and what made deciding fail, which must not hold up the jobs that run:
        admission alone is tried again.
        """
        with_verdict: list[JobRef] = []
        try:
            if not self._admission_runner.ours(self._right()):
                self._job_index.mark_all_changed()
                self._admission.others_decide()
                return with_verdict, None
            if self._admission.pause() <= 0 or (self._admission.wanted and not self._worker_pool.started):
                with_verdict = self._admission_runner.decide(self._changes, self._delivers)
            self._admission_runner.report()
        except Exception as error:
            return [*with_verdict, *self._admission.unreported_waits()], error
        return with_verdict, None

    def _changes(self) -> JobChanges:
        """The jobs that have changed since the last decision; those without a part in it are as if they were gone."""
        found = self._job_index.changes()
        counts = self._takeover.counts
        return replace(found, jobs={uid: one if one and counts(one) else None for uid, one in found.jobs.items()})

    def _delivers(self, known: JobEntry, verdict: Verdict) -> bool:
        """The admission leader writes all verdicts. Else each driver those of its jobs, and of jobs that lose
        something."""
        if self._admission_runner.for_all() or self._takeover.drives(known):
            return True
        return self._settings.only is None and not isinstance(verdict, Admit | Wait)
