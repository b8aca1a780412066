"""Leader election: acquires and renews a Lease, of one process or shared by replicas."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from tf_dist.cluster.api import LEASES, Cluster, Object
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.leases.lease import (
    DRIVER_CONTROLLER,
    DRIVER_INLINE,
    LEASE_DURATION,
    RENEW_INTERVAL,
    TAKEOVER_DELAY,
    LeaseObservation,
    LeaseRecord,
    LeaseRef,
    acquired_lease,
    boottime,
    broken_lease,
    create_lease,
    new_lease,
    released_lease,
    renewed_lease,
    unique_identity,
)
from tf_dist.controller.observability.metrics_recorder import MetricsRecorder
from tf_dist.core.api import names
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound, Throttled

_LOG = logging.getLogger(__name__)
# Leadership ends this much before its Lease: clocks may differ in speed, and a check takes time to become an act.
_SAFETY_MARGIN: Final = 0.2
# Between two looks at another's Lease, and after a failure: this part of the time between two renewals.
_RETRY: Final = 0.4


class ValidInterval(NamedTuple):
    """When the Lease is surely held, in seconds of our monotonic clock."""

    since: float
    until: float


_NEVER: Final = ValidInterval(math.inf, -math.inf)


class LeaderElector:
    """Holds the Lease ``ref`` as ``identity``, or waits for it; see ``tf_dist.controller.leases.lease`` for why that
    is safe.

    ``shared``: several processes stand for one Lease, which outlives them; else it is this process's own: its name
    was never used before (``unique_lease_ref``), it is created at once and deleted at the end. ``duration``:
    seconds that it holds unrenewed; ``renew_every``: seconds between renewals; ``clock``: epoch seconds, for people
    only.
    ``wanted``: whether the Lease is wanted; one that is held and not wanted any more is given back. ``fenced``: what is
    done under it does no harm when two believe to hold it, so that one that is absent need not be waited for.

    ``start`` runs ``step`` in a thread until ``stop``. ``problem`` is why the last step did not come through, if so;
    ``epoch`` counts how often the Lease was won: between two of them others may have held it.
    """

    def __init__(
        self,
        cluster: Cluster,
        ref: LeaseRef,
        identity: str = "",
        *,
        shared: bool,
        duration: float = LEASE_DURATION,
        renew_every: float = RENEW_INTERVAL,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        wanted: Callable[[], bool] = lambda: True,
        fenced: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = boottime,
        recorder: MetricsRecorder | None = None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self._cluster = cluster
        self.ref = ref
        self.identity = identity or unique_identity()
        self.problem: ClusterError | None = None
        self.epoch = 0
        self._listeners: list[Callable[[bool], None]] = []
        self._shared = shared
        self._duration = duration
        self._renew_every = renew_every
        self._retry_every = renew_every * _RETRY
        self._wanted = wanted
        self._fenced = fenced
        self._labels = {names.DRIVER: DRIVER_CONTROLLER if shared else DRIVER_INLINE, **(labels or {})}
        self._annotations = annotations or {}
        self._clock = clock
        self._monotonic = monotonic
        self._recorder = recorder or MetricsRecorder()
        self._valid_interval = _NEVER
        self._held: Object | None = None  # the Lease as we wrote it last
        self._unused = not shared  # a Lease that never was is known to no other driver
        self._maybe_contested = False  # another driver may believe that its holder is dead
        self._contested_until = -math.inf  # and has done so until this moment, though the Lease is ours
        self._seen = LeaseObservation(duration)
        self._wrote = False
        self._notified = False
        self._runtime = runtime
        self._state = runtime.condition()
        self._stopped, self._woken = runtime.event(), runtime.event()
        self._thread: threading.Thread | None = None

    # What others ask

    def valid(self) -> bool:
        """Whether the Lease is ours for sure at this moment. Cheap: ask before every write."""
        interval = self._valid_interval
        return interval.since <= self._monotonic() < interval.until

    def remaining(self) -> float:
        """For how many seconds from now on it is ours for sure (0: it is not)."""
        now, interval = self._monotonic(), self._valid_interval
        return max(0.0, interval.until - now) if interval.since <= now else 0.0

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until it is held (by a started elector); whether it is."""
        with self._state:
            return self._state.wait_for(self.valid, timeout)

    def listen(self, listener: Callable[[bool], None]) -> None:
        """Call ``listener`` with whether it is held, whenever that changes, from the thread that noticed."""
        self._listeners.append(listener)

    # Its life

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread = self._runtime.thread(self._run, "leader-elector")
        self._thread.start()

    def wake(self) -> None:
        """Take the next step now: whether the Lease is wanted has changed."""
        self._woken.set()

    def stop(self) -> None:
        """Give the Lease back (a shared one) or delete it. From here on it is not valid. Waits for the thread."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        self._valid_interval = _NEVER
        self._notify()
        if self._wrote:
            with suppress(ClusterError):  # it runs out by itself
                self._give_back()

    def _run(self) -> None:
        due = self._monotonic()
        while not self._stopped.is_set():
            if self._woken.is_set() or self._monotonic() >= due:
                self._woken.clear()
                # Replicas that started together should not ask together.
                due = self._monotonic() + self._safe_step() * self._runtime.uniform(0.8, 1.0)
            self._notify()
            self._woken.wait(max(min(due - self._monotonic(), self._until_change()), 0.0))

    def _safe_step(self) -> float:
        try:
            return self.step()
        except Exception:
            # Without this thread the process would lose its jobs in silence.
            _LOG.exception("leader election failed, going on lease=%s", self.ref)
            return self._retry_every

    def _give_back(self) -> None:
        stored = self._get()
        if stored is None or LeaseRecord.of(stored).holder != self.identity:
            return
        if self._shared:
            released = released_lease(stored, self._clock())
            if self._maybe_contested or self._monotonic() < self._contested_until:
                # The next would use it at once, and others go on believing that its holder is dead.
                released = broken_lease(released, self.identity)
            self._cluster.replace(LEASES, *self.ref, released)
        else:
            self._cluster.delete(LEASES, *self.ref, uid=stored["metadata"]["uid"])

    # One attempt

    def step(self) -> float:
        """One attempt to acquire or to renew; seconds until the next is due. Raises no ClusterError."""
        before = self._held is not None
        try:
            pause = self._attempt()
            self.problem = None
        except ClusterError as error:
            pause = max(self._retry_every, (error.after or 0.0) if isinstance(error, Throttled) else 0.0)
            self._report_problem(error)
        if before or self._held is not None:
            self._recorder.heartbeat(self._held is not None and self.problem is None)
        self._notify()
        return pause

    def _attempt(self) -> float:
        if not self._wanted():
            return self._stand_down()
        if self._monotonic() >= self._valid_interval.until:
            # Another may hold it by now. Its version need not show that: a restored etcd gives the same ones again.
            self._held = None
        stored = self._held or self._observe()
        if stored is None:
            return self._absent()
        record = LeaseRecord.of(stored)
        if record.holder != self.identity:
            self._valid_interval = (
                _NEVER  # another has it (by a person, by a backup): nothing is done under it any more
            )
        self._maybe_contested = self._maybe_contested or record.broken
        if record.holder == self.identity:
            return self._write(lambda: self._replace(renewed_lease(stored, self._duration, self._clock())))
        if record.holder and not self._seen.expired(self._monotonic()):
            return min(self._retry_every, record.duration - self._seen.age(self._monotonic()))
        body = acquired_lease(stored, self.identity, self._duration, self._clock(), self._annotations)
        return self._write(lambda: self._replace(body))

    def _stand_down(self) -> float:
        """Leave it to others. It is observed all the same: a dead holder is to be recognised in time."""
        held, self._held, self._valid_interval = self._held, None, _NEVER
        if held is not None:
            self._notify()
            self._give_back()
        self._observe()
        return self._retry_every

    def _observe(self) -> Object | None:
        stored = self._get()
        self._seen.note(stored, self._monotonic())
        return stored

    def _absent(self) -> float:
        """The Lease was deleted, or never was. Its last holder may be sure of it for a whole duration yet."""
        if not (self._unused or self._fenced):
            waiting_logged, self._maybe_contested = self._maybe_contested, True
            now = self._monotonic()
            if now >= self._valid_interval.until and not self._seen.expired(now):
                rest = self._seen.duration - self._seen.age(now)
                if not waiting_logged:
                    text = "waiting for the possible holder of a deleted lease lease=%s seconds=%.0f"
                    _LOG.info(text, self.ref, rest)
                return min(self._retry_every, rest)
        body = new_lease(self.ref, self.identity, self._duration, self._clock(), self._labels, self._annotations)
        if not self._shared:
            return self._write(lambda: self._cluster.create(LEASES, self.ref.namespace, body))
        return self._write(lambda: create_lease(self._cluster, self.ref, body))

    def _write(self, write: Callable[[], Object]) -> float:
        """Send it; if the server takes it the Lease is ours, counted from before it was sent."""
        sent = self._monotonic()
        self._wrote = True
        try:
            self._held = write()
        except (Conflict, AlreadyExists):
            # Another was faster, or it was us and the answer was lost: look soon.
            self._held = None
            return self._retry_every / 10
        self._extend(sent, self._monotonic())
        return self._renew_every

    def _replace(self, body: Object) -> Object:
        try:
            return self._cluster.replace(LEASES, *self.ref, body)
        except NotFound:
            raise Conflict(f"lease {self.ref} was deleted") from None

    def _extend(self, sent: float, received: float) -> None:
        since = self._valid_interval.since
        if received >= self._valid_interval.until:
            # A Lease of a single process is never broken: another driver that saw it lapse may believe us dead.
            lapsed = not self._shared and not self._unused
            self.epoch += 1
            since = received + (TAKEOVER_DELAY if self._maybe_contested or lapsed else 0.0)
            self._contested_until = since
        self._valid_interval = ValidInterval(since, sent + self._duration * (1 - _SAFETY_MARGIN))
        self._maybe_contested = self._unused = False

    # Small things

    def _get(self) -> Object | None:
        try:
            return self._cluster.get(LEASES, *self.ref)
        except NotFound:
            return None

    def _until_change(self) -> float:
        """Seconds until validity begins or ends by itself."""
        now, interval = self._monotonic(), self._valid_interval
        return next((moment - now for moment in interval if now < moment < math.inf), math.inf)

    def _notify(self) -> None:
        valid = self.valid()
        if valid == self._notified:
            return
        self._notified = valid
        verb = "won" if valid else "released" if self._stopped.is_set() else "lost"
        _LOG.info("%s leader election lease=%s holder=%s", verb, self.ref, self.identity)
        self._recorder.leading(valid)
        with self._state:
            self._state.notify_all()
        for listener in self._listeners:
            listener(valid)

    def _report_problem(self, error: ClusterError) -> None:
        if str(error) != str(self.problem):
            _LOG.warning(
                "cannot acquire or renew lease=%s: %s%s", self.ref, error, f" ({error.hint})" if error.hint else ""
            )
        self.problem = error
