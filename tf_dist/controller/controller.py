"""Controller: informers, an admission loop, a work queue with its workers, events and metrics, under one leadership.

The core makes all decisions. If the reconcile of a job fails, the error is reported on that job, and the job is retried
with its own back-off. Other jobs continue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from tf_dist.cluster.api import QUEUES, Cluster
from tf_dist.cluster.client.event_recorder import EventRecorder
from tf_dist.cluster.client.workqueue import Lane, ResyncSchedule, WorkQueue
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.gang_admission import GangAdmission
from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.job_index import JobChanges, JobEntry, JobIndex
from tf_dist.controller.leader_election import Leadership, LeadershipLost, Standalone
from tf_dist.controller.observability.metrics_interface import ControllerStats, Metric, MetricsRecorder, gangs_by_queue
from tf_dist.controller.plan_executor import PlanExecutor
from tf_dist.controller.queue_statuses import QueueStatusWriter
from tf_dist.controller.settings import ControllerContext, ControllerSettings, JobRef
from tf_dist.controller.workers import Workers
from tf_dist.core.model.job import Job
from tf_dist.core.reconciler.ownership import managed_elsewhere
from tf_dist.errors import ClusterError

_LOG = logging.getLogger(__name__)
# Seconds between two cycles of the loop: if nothing changes; until the informers have synced; after an error.
_IDLE_WAIT: Final = 15.0
_STANDBY_WAIT: Final = 0.25
_ERROR_WAIT: Final = 1.0
# Seconds: slewing of a clock, and delays between the two readings, cause smaller differences.
_CLOCK_TOLERANCE: Final = 1.0


class ClockStepDetector:
    """Detects steps of the wall clock ``clock`` (epoch seconds), whose offset from ``monotonic`` then changes.

    The suspension of the machine also counts as a step, and slow corrections add up to a step.
    """

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._offset = clock() - monotonic()

    def noticed(self) -> bool:
        """Whether the clock has stepped since the last detected step."""
        offset = self._clock() - self._monotonic()
        step = offset - self._offset
        if abs(step) < _CLOCK_TOLERANCE:
            return False
        self._offset = offset
        _LOG.warning("detected a clock step, reconciling all jobs step=%+.1fs", step)
        return True


class Controller:
    """Admits and reconciles the jobs of its scope while it leads them.

    ``start`` watches the cluster and works in threads until ``stop``. ``step`` is one pass in the caller's thread, with
    fresh lists. ``on_change`` is called, from any thread, with each job that has changed or owns a changed object. For
    the other arguments, see ``ControllerContext``.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: ControllerSettings | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        recorder: MetricsRecorder | None = None,
        leadership: Leadership | None = None,
        on_change: Callable[[JobRef], object] = lambda _: None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self._settings = settings or ControllerSettings()
        self._context = context = ControllerContext(
            cluster=cluster,
            settings=self._settings,
            clock=clock,
            monotonic=monotonic,
            recorder=recorder or MetricsRecorder(),
            runtime=runtime,
        )
        self._monotonic, self._runtime = monotonic, runtime
        self._leadership = leadership or Standalone()
        self._on_change = on_change
        self._clock_steps = ClockStepDetector(clock, monotonic)
        # A namespace with slow or very many passes leaves workers to other namespaces.
        most = max(1, self._settings.workers * 3 // 4) if self._settings.namespace is None else None
        self._queue: WorkQueue[JobRef] = WorkQueue(monotonic, runtime, group=lambda ref: ref.namespace, most=most)
        self._events = EventRecorder(
            cluster,
            clock,
            self._settings.component,
            monotonic=monotonic,
            tried=partial(context.recorder.record, Metric.ACTIONS, "EmitEvent"),
            runtime=runtime,
            permission=self._leading_for,
        )
        self.informers = InformerSet(
            context, on_job=self._job_changed, on_owned=self._owned_changed, on_capacity_freed=self._capacity_changed
        )
        self._job_index = JobIndex(self._settings)
        self._admission = GangAdmission(context, self.informers)
        self._queue_statuses = QueueStatusWriter(context, self.informers)
        self._executor = PlanExecutor(
            context, self.informers, self._events, wrote=self._queue.wrote, remaining=self._remaining
        )
        self._workers = Workers(
            context,
            self.informers,
            self._job_index,
            self._admission,
            self._executor,
            self._queue,
            self._events,
            lookup=self._lookup,
            on_leadership_lost=self._doubt,
        )
        self._round_began = monotonic()
        self._lock = threading.Lock()
        self._dirty: dict[JobRef, bool] = {}  # changed jobs, and whether a worker must reconcile them
        # The term of leadership that has begun, and the term in which the informers have synced.
        self._begun: Hashable = ()
        self._term: Hashable = ()
        self._everything = True  # the next cycle reads and reconciles all jobs
        self._resync: ResyncSchedule[JobRef] = ResyncSchedule(self._settings.resync, monotonic())
        self._resync_waiting: ResyncSchedule[JobRef] = ResyncSchedule(self._settings.resync_waiting, monotonic())
        self._stopped, self._woken = runtime.event(), runtime.event()
        self._thread: threading.Thread | None = None
        self._reporter: Executor | None = None
        context.recorder.attach(self.readings)

    # Lifecycle

    def start(self) -> None:
        """Watch the cluster, and admit and reconcile its jobs in threads until ``stop``."""
        self._leadership.listen(self.wake)
        self._leadership.busy = lambda: bool(self._queue.passes())
        self._events.start()
        self._executor.start(self._settings.workers)
        self._workers.start()
        self._reporter = self._runtime.pool(1, "queue-statuses")
        self._thread = self._runtime.thread(self._run, "admission-loop")
        self._thread.start()

    def stop(self) -> None:
        """End the threads after their current work. Jobs and pods are not changed."""
        self._stopped.set()
        self._woken.set()
        self._queue.close()
        if self._thread is not None:
            self._thread.join()
        self._workers.stop()
        self._executor.stop()
        if self._reporter is not None:
            self._reporter.shutdown(wait=True, cancel_futures=True)
        self._events.stop()
        self.informers.stop()

    def wake(self) -> None:
        """Start a cycle of the loop now, because leadership may have changed."""
        self._woken.set()

    def synced(self) -> bool:
        """Whether all informers have synced."""
        return self.informers.synced()

    def job(self, ref: JobRef, uid: str) -> Job | None:
        """The job in force of the stored job ``uid``, as last read; None if it was not read or is invalid."""
        known = self._job_index.get(ref)
        return known.job if known is not None and known.uid == uid else None

    def readings(self) -> ControllerStats:
        """The current statistics of this controller."""
        kinds = self._leadership.kinds()
        mine = {key: count for key, count in self._job_index.metrics_counts().items() if key.resource in kinds}
        phases: Counter[str] = Counter()
        for key, count in mine.items():
            phases[key.phase] += count
        queues = [queue["metadata"]["name"] for queue in self.informers.rules(QUEUES)] if mine else []
        return ControllerStats(
            work=self._workers.reading(),
            informers=tuple(self.informers.readings()),
            jobs=phases,
            gangs=gangs_by_queue(mine, queues) if mine else {},
            loop_age=self._monotonic() - self._round_began if self._thread is not None else 0.0,
        )

    # The loop

    def _run(self) -> None:
        logged = ""  # a repeated error is logged once
        while not self._stopped.is_set():
            self._round_began = self._monotonic()
            self._woken.clear()
            try:
                pause = self._round()
            except Exception as error:
                # If the loop ended here, every job would be without a controller, and nothing would report it.
                defect = None if isinstance(error, ClusterError) else error
                level = logging.DEBUG if str(error) == logged else logging.WARNING
                hint = f" ({error.hint})" if isinstance(error, ClusterError) and error.hint else ""
                _LOG.log(level, "control loop failed, trying again: %s%s", error, hint, exc_info=defect)
                logged = str(error)
                self._stopped.wait(_ERROR_WAIT)
            else:
                logged = ""
                self._woken.wait(pause)

    def _round(self) -> float:
        """One cycle of the loop. Returns the longest pause before the next cycle."""
        listed = () if self.informers.followed else self._leadership.term
        self.informers.start()
        if not self._leadership.kinds():
            self._begun = self._term = ()
            self._queue.clear()
            return _STANDBY_WAIT if not self.informers.synced() else _IDLE_WAIT
        self._begin_term(listed)
        if not self.informers.wait_synced(_STANDBY_WAIT):
            return 0.0
        self._term = self._begun
        self._decide()
        pause = min(_IDLE_WAIT, self._admission.pause(), self._queue_statuses.pause())
        for schedule in (self._resync, self._resync_waiting):
            pause = schedule.pause(self._monotonic(), pause)
        return pause

    def _begin_term(self, listed: Hashable = ()) -> None:
        """List everything again after a new election, because another controller may have acted in between.

        ``listed`` is the term in which the informers started their first list.
        """
        term = self._leadership.term
        if self._begun == term:
            return
        self._begun, self._term = term, ()
        if term != listed:
            self.informers.relist()
        self._queue.clear()
        self._job_index.mark_all_changed()
        self._admission.restart()
        self._everything = True

    def _decide(self) -> None:
        """A cycle of admission: read changes, decide, and queue the affected jobs for the workers."""
        # After a step of the wall clock, all due times are different.
        if self._clock_steps.noticed():
            self._everything = True
            self._admission.clock_stepped()
        everything, self._everything = self._everything, False
        failed: Exception | None = None
        try:
            changed = self._take_in(everything)
            decided: list[JobRef] = []
            try:
                decided = self._admit()
            except Exception as error:
                failed = error  # running jobs must not wait
            changed |= self._admission.unreported_waits()
        except BaseException:
            self._everything |= everything
            raise
        for ref in decided:
            self._queue.add(ref, lane=Lane.FIRST)
        now = self._monotonic()
        routine = set(self._job_index if everything else [*self._resync.due(now), *self._resync_waiting.due(now)])
        for lane, refs in (
            (Lane.NORMAL, changed.difference(decided)),
            (Lane.ROUTINE, routine.difference(decided, changed)),
        ):
            for ref in sorted(refs, key=str):
                if not self._awaits_first_decision(ref):
                    self._queue.add(ref, lane=lane)
        if failed is not None:
            raise failed

    def _take_in(self, everything: bool) -> set[JobRef]:
        """Read the changed jobs. Returns those that a worker must reconcile."""
        with self._lock:
            if not self.informers.synced():  # a relist has begun in this cycle: later changes must wait for the lists
                self._doubt()
                return set()
            dirty, self._dirty = self._dirty, {}
        if everything:
            dirty |= dict.fromkeys({*self._job_index, *(ref for ref, _ in self.informers.jobs())} - dirty.keys(), False)
        for ref in dirty:
            self._refresh_entry(ref)
        return {ref for ref, look in dirty.items() if look}

    def _admit(self) -> list[JobRef]:
        """Decide about gangs if anything may have changed. Returns the jobs with a verdict other than ``Wait``."""
        decided: list[JobRef] = []
        if self._admission.pause() <= 0:
            decided = self._admission.decide(self._changes)
            self._queue_statuses.want()
        if self._queue_statuses.pause() <= 0:
            usages = self._admission.queue_usages()
            if self._reporter is None:
                self._queue_statuses.write(usages)
            else:
                self._queue_statuses.begin()
                self._reporter.submit(self._queue_statuses.write, usages)
        return decided

    def _awaits_first_decision(self, ref: JobRef) -> bool:
        """Whether a new job has no decision yet. Its first status must report the decision."""
        known = self._job_index.get(ref)
        if known is None or known.status.created is not None or not known.waits:
            return False
        return known.claim() is not None and self._admission.verdict(known) is None

    def _changes(self) -> JobChanges:
        """The jobs that have changed since the last decision. Jobs of other leaders count as deleted."""
        kinds, found = self._leadership.kinds(), self._job_index.changes()
        jobs = {uid: one if one is not None and one.ref.resource in kinds else None for uid, one in found.jobs.items()}
        return JobChanges(jobs, found.whole)

    # Permission to write

    def _remaining(self, ref: JobRef) -> float:
        """The seconds for which a job may certainly be written. Called before each attempt to write."""
        seconds = self._leadership.remaining(ref.resource)
        # A pass of an earlier term is based on caches from before another controller led.
        if self._stopped.is_set() or self._term != self._leadership.term or self._queue.cleared(ref):
            return 0.0
        return seconds

    def _leading_for(self) -> float:
        """The remaining seconds for writing Events. Events of earlier actions may be written after ``stop``."""
        seconds = max((self._leadership.remaining(kind) for kind in self._leadership.kinds()), default=0.0)
        if seconds <= 0:
            raise LeadershipLost("the write is skipped: another controller leads")
        return seconds

    # Notifications

    def _job_changed(self, ref: JobRef, version: int) -> None:
        """Let admission decide about a new job first, so that the job's first status contains the decision."""
        self._on_change(ref)
        noticed = self._queue.noticed(ref, version)
        with self._lock:
            self._dirty[ref] = self._dirty.get(ref, False) or not noticed
        self._woken.set()

    def _owned_changed(self, ref: JobRef, version: int) -> None:
        self._on_change(ref)
        if self._term == self._begun != ():  # otherwise all jobs are queued once the informers have synced
            self._queue.notice(ref, version)

    def _capacity_changed(self) -> None:
        # The next decision reads all changes that precede it, so one request is enough.
        if self._admission.want():
            self._woken.set()

    def _doubt(self) -> None:
        self._everything = True
        self._woken.set()

    # Jobs

    def _lookup(self, ref: JobRef) -> JobEntry | None:
        """The current entry of a job, if this controller is its leader."""
        known = self._refresh_entry(ref)
        return known if known is not None and self._remaining(ref) > 0 else None

    def _refresh_entry(self, ref: JobRef) -> JobEntry | None:
        before = self._job_index.get(ref)
        after = self._read_entry(ref)
        if after is None:
            self._job_index.forget(ref)
            self._workers.forget(ref)
            self._resync.discard(ref)
        elif before is None:
            self._resync.add(ref)
        waits = after is not None and after.waits
        if waits != (before is not None and before.waits):
            (self._resync_waiting.add if waits else self._resync_waiting.discard)(ref)
        changed = (before.admission_inputs if before else ()) != (after.admission_inputs if after else ())
        if changed or (after is not None and self._admission.outdated(after)):
            self._capacity_changed()
        return after

    def _read_entry(self, ref: JobRef) -> JobEntry | None:
        """Read a job into the index. Repeat this if another thread caches a newer version in the meantime."""
        while True:
            stored = self.informers.job(ref)
            entry = None if stored is None or managed_elsewhere(stored) else self._job_index.read(ref, stored)
            if entry is None or self.informers.job(ref) is stored:
                return entry

    # Without threads

    def step(self, due: Iterable[JobRef] | None = None) -> int:
        """One pass over ``due`` jobs and jobs with a verdict (None: all jobs). Returns the number of actions.

        Raises ClusterError if the cluster cannot be listed. Errors of single jobs are reported on these jobs.
        """
        if not self._leadership.kinds():
            return 0
        self.informers.prepare()
        self._begin_term()
        self.informers.refresh()
        self._term = self._begun
        self._everything |= due is None
        try:
            self._decide()
        finally:
            for ref in due or ():
                self._queue.add(ref)
            taken = sum(self._workers.work() for _ in range(self._queue.ready()))
        return taken
