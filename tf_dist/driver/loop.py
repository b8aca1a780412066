"""The driver: wakes when something changed or is due, admits, and has every job that needs it looked at.

Nothing is decided here. A job whose pass fails is reported on that job and tried again later, with a pause of its own;
the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tf_dist.cluster.api import QUEUES, Cluster
from tf_dist.cluster.runtime import MACHINE, Runtime
from tf_dist.core.claims import managed_elsewhere
from tf_dist.core.gang.model import Admit, Verdict, Wait
from tf_dist.driver import arbiter as arbiters
from tf_dist.driver import readings
from tf_dist.driver.admission import Admission
from tf_dist.driver.apply import Applier
from tf_dist.driver.arbiter import Arbiter, admissions_lease
from tf_dist.driver.caches import Caches
from tf_dist.driver.clock_steps import ClockSteps
from tf_dist.driver.crew import Crew
from tf_dist.driver.deciding import Deciding
from tf_dist.driver.events import EventWriter
from tf_dist.driver.intents import Alone, Intents, LeaseIntents
from tf_dist.driver.lease import LeaseRef
from tf_dist.driver.ledger import Delta, Known, Ledger
from tf_dist.driver.mandate import Always, Mandate
from tf_dist.driver.others import Others
from tf_dist.driver.pulse import Pulse
from tf_dist.driver.queue_reports import QueueReports
from tf_dist.driver.readings import Readings
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JobRef
from tf_dist.driver.resync import Resync
from tf_dist.driver.settings import DriverSettings
from tf_dist.driver.steward import Steward
from tf_dist.driver.workqueue import WorkQueue
from tf_dist.errors import ClusterError

_LOG = logging.getLogger(__name__)
# Seconds: between two beats of the loop though nothing happens; while it may not drive; while it cannot see.
_BEAT: Final = 15.0
_STANDBY: Final = 0.25
_BLIND: Final = 1.0


class Driver:
    """Drives the jobs of a cluster, of a namespace, or one job.

    ``start`` follows the cluster and acts in threads until ``stop``. ``step`` is one pass in the caller's thread, over
    lists made for it unless ``start`` or ``caches.start`` came before. ``rung`` is called, from any thread, with every
    job around which something has changed. ``clock``: epoch seconds, for what is written down and compared with it;
    ``monotonic``: seconds that only go forward, for every pause; ``runtime``: its threads and what they wait with.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: DriverSettings | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        recorder: Recorder | None = None,
        mandate: Mandate | None = None,
        arbiter: Arbiter | None = None,
        rung: Callable[[JobRef], object] = lambda _: None,
        runtime: Runtime = MACHINE,
    ) -> None:
        self._settings = settings or DriverSettings()
        self._monotonic = monotonic
        self._steps = ClockSteps(clock, monotonic)
        self._recorder = recorder or Recorder()
        self._mandate = mandate or Always()
        self._rung = rung
        self._runtime = runtime
        self._queue: WorkQueue[JobRef] = WorkQueue(monotonic, runtime)
        self._events = EventWriter(cluster, clock, self._settings.component, monotonic=monotonic)
        self.caches = Caches(
            cluster,
            self._settings,
            rung=self._ring,
            room=self._ring_room,
            recorder=self._recorder,
            monotonic=monotonic,
            runtime=runtime,
        )
        self._ledger = Ledger(self._settings.default_gang, others=self._settings.other_schedulers)
        self._admission = Admission(self.caches, clock, monotonic, self._recorder, runtime)
        arbiter = arbiter or arbiters.Alone()
        arbiter.listen(self._ring_room)
        self._deciding = Deciding(
            arbiter,
            self._admission,
            QueueReports(cluster, self.caches, monotonic),
            own=self._intents(cluster, self._settings.admissions),
            common=self._intents(cluster, admissions_lease(self._settings.system_namespace)),
            reporting=self._settings.only is None,
            monotonic=monotonic,
        )
        applier = Applier(
            cluster,
            self.caches,
            clock=clock,
            events=self._events,
            may_act=self._may_act,
            remaining=self._remaining,
            recorder=self._recorder,
        )
        self._steward = Steward(
            cluster,
            self.caches,
            self._ledger,
            applier,
            clock=clock,
            mandate=self._mandate,
            recorder=self._recorder,
        )
        self._others = Others(self._mandate, self._settings, self._steward, self._queue, clock=clock)
        self._crew = Crew(
            self._steward,
            self._admission,
            self._queue,
            self.caches,
            self._events,
            self._recorder,
            clock=clock,
            monotonic=monotonic,
            look=self._look,
            tells=self._tells,
            lost=self._look_at_all,
            runtime=runtime,
        )
        self.pulse = Pulse()
        self._lock = threading.Lock()
        self._dirty: set[JobRef] = set()
        self._everything = True
        self._taken_up = self._right()
        self._resync = Resync(self._settings.resync, monotonic())
        self._stopped = runtime.event()
        self._thread: threading.Thread | None = None
        self._recorder.attach(self.readings)

    def _intents(self, cluster: Cluster, place: LeaseRef | None) -> Intents:
        if place is None:
            return Alone()
        return LeaseIntents(
            cluster,
            place,
            lambda ref, stored: self.caches.wrote(ref.resource, stored),
            room=self._settings.intents,
            may_act=self._may_act,
        )

    # Its life

    def start(self) -> None:
        """Follow the cluster and drive its jobs in threads until ``stop``."""
        self._mandate.listen(self.wake)
        self._crew.start(self._settings.workers)
        self._thread = self._runtime.thread(self._run, "driver")
        self._thread.start()

    def stop(self) -> None:
        """End the loop after what it is in the middle of; jobs and pods stay as they are."""
        self._stopped.set()
        self._queue.close()
        if self._thread is not None:
            self._thread.join()
        self._crew.stop()
        self._deciding.stop()
        self.caches.stop()

    def wake(self) -> None:
        """Have the loop come round now: the mandate may have changed."""
        self._queue.wake()

    def synced(self) -> bool:
        """Whether it sees all it decides on."""
        return self.caches.synced()

    def readings(self) -> Readings:
        """How it stands at this moment."""
        mine = self._others.mine(self._ledger) if self._mandate.valid() else {}
        queues = [queue["metadata"]["name"] for queue in self.caches.rules(QUEUES)] if mine else []
        return Readings(
            work=self._crew.reading(),
            informers=tuple(self.caches.readings()),
            jobs=readings.phases(mine),
            gangs=readings.gangs(mine, queues) if mine else {},
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.pulse.beat()
            try:
                pause = self._round()
            except Exception as error:
                # A loop that ended here would leave every job without a driver, and nobody would be told.
                defect = None if isinstance(error, ClusterError) else error
                _LOG.warning("cannot look at the cluster: %s", error, exc_info=defect)
                self._everything, pause = True, _BLIND
            self._stopped.wait(pause)

    def _round(self) -> float:
        """Once round the loop; how long to stay away from it."""
        if not self._follows():
            return 0.0 if self._mandate.valid() else _STANDBY
        if not self._mandate.valid():
            self._everything = True
            return _STANDBY
        due = self._queue.wait(0 if self._everything else self._longest_wait())
        if self._mandate.valid() and not self._stopped.is_set():
            self.step(due)
        return 0.0

    def _follows(self) -> bool:
        """Whether the caches can be believed; begins to follow, and lists anew after the mandate was won anew."""
        if not self.caches.followed:
            self.caches.start()
        self.caches.prepare()
        if self._mandate.valid():
            self._take_up()
        return self.caches.wait_synced(_STANDBY)

    def _take_up(self) -> bool:
        """Begin under a right that was won anew; whether it was, so that all that was seen before is out of date."""
        self.caches.prepare()
        right = self._right()
        if self._deciding.open(right, sees_all=self.caches.sees_all) or self._taken_up != right:
            self._taken_up, self._everything = right, True
            self._ledger.touch_all()
            self.caches.relist()
            return True
        return False

    def _right(self) -> object:
        """The mandate and the view as they are: under another one, what was seen and given before is out of date."""
        return self._mandate.epoch, self.caches.generation

    def _longest_wait(self) -> float:
        # How other drivers fare nobody rings about.
        longest = _BLIND if self._others.any(self._ledger.drivers()) else _BEAT
        longest = self._resync.pause(self._monotonic(), longest)
        return min(longest, self._deciding.pause(waiting=self._ledger.any_waits))

    def _may_act(self) -> bool:
        """Asked before every write: a job of a thousand pods must not hold back who wants to stop."""
        return self._mandate.valid() and not self._stopped.is_set()

    def _remaining(self) -> float:
        """Asked again before every attempt of a write."""
        return 0.0 if self._stopped.is_set() else self._mandate.remaining()

    # What rings

    def _ring(self, ref: JobRef) -> None:
        self._rung(ref)
        with self._lock:
            if ref in self._dirty:
                return  # it is in the queue, and will be read after this
            self._dirty.add(ref)
        self._queue.add(ref)

    def _ring_room(self) -> None:
        self._admission.want()
        self._queue.wake()

    # A pass

    def step(self, due: Iterable[JobRef] | None = None) -> int:
        """One pass over ``due`` jobs and those that wait for a place (None: all jobs); how many actions it took.

        ClusterError when the cluster could not be listed; errors of single jobs are reported on them.
        """
        if not self._mandate.valid():
            return 0
        if not self._crew.started and self._take_up() and self.caches.followed:
            return 0  # what is followed is listed anew first
        self.caches.refresh()
        # What is due by the wall clock is due at another moment than was reckoned once that clock was set.
        stepped = self._steps.noticed()
        if stepped:
            self._admission.clock_set()
        everything = due is None or self._everything or stepped
        self._everything = False
        # Those that something has happened to, but not all there are when a driver begins: what happens next is urgent.
        changed = {ref for ref in due or () if not everything or ref in self._ledger}
        also = self._resync.due(self._monotonic())
        self._read(everything, {*changed, *also})
        died, turned = self._others.look(self._ledger.drivers())
        if turned:
            self._ledger.touch(turned)
            self._admission.want()
        changed.update(self._ledger.of(died), self._others.undone(died))
        heard, failed = self._admitted()
        # Whoever waits for an answer has it first.
        taken = self._dispatch(heard)
        taken += self._dispatch(self._concerned(changed.difference(heard)))
        taken += self._dispatch(
            self._concerned({*(self._ledger if everything else also)}.difference(heard, changed)), urgent=False
        )
        if failed is not None:
            raise failed
        return taken

    def _dispatch(self, refs: Iterable[JobRef], *, urgent: bool = True) -> int:
        return sum(self._crew.dispatch(ref, urgent=urgent) for ref in refs)

    def _concerned(self, refs: Iterable[JobRef]) -> list[JobRef]:
        return sorted((ref for ref in refs if self._concerns(self._ledger.get(ref))), key=str)

    def _read(self, everything: bool, due: Iterable[JobRef]) -> None:
        """Take in what changed."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        dirty.update(due)
        if everything:
            dirty |= {*self._ledger, *(ref for ref, _ in self.caches.jobs())}
        for ref in dirty:
            self._others.tend(ref, self._know(ref))

    def _know(self, ref: JobRef) -> Known | None:
        stored, before = self.caches.job(ref), self._ledger.get(ref)
        after = None if stored is None or managed_elsewhere(stored) else self._ledger.read(ref, stored)
        if after is None:
            self._ledger.forget(ref)
            self._crew.forget(ref)
            self._resync.discard(ref)
        elif before is None:
            self._resync.add(ref)
        changed = (before and before.stake) != (after and after.stake)
        if changed or (after is not None and self._admission.outdated(after)):
            self._ring_room()
        return after

    def _look(self, ref: JobRef) -> tuple[Known | None, bool]:
        known = self._know(ref)
        return known, self._others.drives(known)

    def _look_at_all(self) -> None:
        self._everything = True

    def _concerns(self, known: Known | None) -> bool:
        """Whether there is something to be done for a job here: to drive it, or to tell it what has not reached it."""
        return known is not None and (self._others.drives(known) or self._crew.has_to_hear(known))

    def _admitted(self) -> tuple[list[JobRef], Exception | None]:
        """The jobs that have a verdict to hear; and what made deciding fail, which must not hold up those that run."""
        try:
            return self._admit(), None
        except Exception as error:
            return [], error

    def _admit(self) -> list[JobRef]:
        """Have admission decide if it may come to another verdict; the jobs that have one to hear."""
        if not self._deciding.ours(self._right()):
            self._ledger.touch_all()
            self._admission.others_decide()
            return []
        heard: list[JobRef] = []
        if self._admission.pause() <= 0 or (self._admission.wanted and not self._crew.started):
            heard = self._deciding.decide(self._changes, self._tells)
        self._deciding.report()
        return heard

    def _changes(self) -> Delta:
        """The jobs that have changed since the last decision; those without a part in it are as if they were gone."""
        found = self._ledger.changes()
        counts = self._others.counts
        return replace(found, jobs={uid: one if one and counts(one) else None for uid, one in found.jobs.items()})

    def _tells(self, known: Known, verdict: Verdict) -> bool:
        """Who decides for all tells all. Else each driver its jobs, and one of many also who gives something up."""
        if self._deciding.for_all() or self._others.drives(known):
            return True
        return self._settings.only is None and not isinstance(verdict, Admit | Wait)
