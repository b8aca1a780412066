"""Leader election by Leases, with client-go's rules, and with one more: a namespace yields to the cluster.

A holder counts its leadership from before it sent the renewal that the server accepted, and ends it early by a margin;
a candidate takes a Lease that is free, or that has not changed for its own duration by the candidate's monotonic clock,
by a write over the version that it saw. So two processes never lead one scope, with any clocks and networks.
docs/decisions/one-leader-for-each-scope.md describes how a namespace yields to the cluster.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from tf_dist.cluster.api import JOB_KINDS, LEASES, Cluster, Object, Resource, Stream, WatchEvent
from tf_dist.cluster.api_errors import Unauthorized
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.cluster.lease import (
    LEASE_DURATION,
    RENEW_INTERVAL,
    LeaseObservation,
    LeaseRecord,
    LeaseRef,
    acquired_lease,
    boottime,
    leader_lease,
    new_lease,
    released_lease,
    renewed_lease,
    unique_identity,
)
from tf_dist.controller.observability.metrics_interface import MetricsRecorder
from tf_dist.core.model import names
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, Forbidden, NotFound, Throttled

_LOG = logging.getLogger(__name__)
# Leadership ends this much before its Lease: clocks may differ in speed, and a check takes time to become an act.
_SAFETY_MARGIN: Final = 0.2
# Between two looks at another's Lease that cannot be watched, and after a failure: this part of a renewal's time.
_RETRY: Final = 0.4
# Seconds for which a cluster's Lease that was given back counts as held: most often its next replica takes it.
_HANDOVER: Final = 2.0
# Seconds between two looks whether namespaces are still led by others.
_CLEARING: Final = 1.0
# Seconds after which a namespace's Lease was left behind by a process that was killed: more than clocks differ, that of
# a machine in the wrong time zone included.
_LEFT_BEHIND: Final = 86_400.0
# A process that stops tries so often to release its Lease, but not again after so many seconds. Then the Lease expires.
_RELEASE_ATTEMPTS: Final = 3
_RELEASE_SECONDS: Final = 5.0
# Seconds for which a candidate for several kinds leaves the others to the leader of the first: that is mostly another
# replica, which takes them all.
_HESITATION: Final = 2.0


class LeadershipLost(ClusterError):
    """Leadership has ended: what was about to be done is for another controller now."""


class ValidInterval(NamedTuple):
    """When the Lease is surely held, in seconds of our monotonic clock."""

    since: float
    until: float


_NEVER: Final = ValidInterval(math.inf, -math.inf)


class LeaderElector:
    """Holds the Lease ``ref`` as ``identity``, or waits for it. ``start`` runs ``step`` in a thread until ``stop``.

    ``wider``: the Lease of the cluster, where ``ref`` is that of a namespace. ``wanted``: whether the Lease is wanted;
    one that is held and not wanted any more is given back. ``busy``: whether a request may be under way that was sent
    under the Lease, which is not given back to others before. ``duration``: seconds that it holds unrenewed;
    ``renew_every``: seconds between renewals; ``clock``: epoch seconds, for people and for what was left behind.
    """

    def __init__(
        self,
        cluster: Cluster,
        ref: LeaseRef,
        identity: str = "",
        *,
        wider: LeaseRef | None = None,
        wanted: Callable[[], bool] = lambda: True,
        busy: Callable[[], bool] = lambda: False,
        duration: float = LEASE_DURATION,
        renew_every: float = RENEW_INTERVAL,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = boottime,
        recorder: MetricsRecorder | None = None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self._cluster = cluster
        self.ref = ref
        self.identity = identity or unique_identity()
        self.problem: ClusterError | None = None  # why the last step failed
        self.epoch = 0  # how often the Lease was won: in between, others may have held it
        self.other_since = (
            math.inf
        )  # monotonic seconds: the start of another process's leadership (inf: no other leads)
        self._wider = wider
        self._wanted, self._busy = wanted, busy
        self._duration = duration
        self._renew_every = renew_every
        self._retry_every = renew_every * _RETRY
        self._clock = clock
        self._monotonic = monotonic
        self._recorder = recorder or MetricsRecorder()
        self._listeners: list[Callable[[], object]] = []
        self._interval = _NEVER
        self._held: Object | None = None  # the Lease as we wrote it last
        self._left_until: float | None = None  # until when one that we have left, and not given back yet, was ours
        self._seen, self._wider_seen = LeaseObservation(), LeaseObservation()
        self._wrote = self._notified = False
        self._named = False  # whether the stored Lease may name us
        self._runtime = runtime
        self._stopped, self._woken = runtime.event(), runtime.event()
        self._lock = runtime.lock()
        self._watched: dict[LeaseRef, Object] = {}  # as a watch that goes on has shown them last
        self._streams: dict[LeaseRef, Stream[WatchEvent]] = {}
        self._threads: list[threading.Thread] = []

    # What others ask

    def valid(self) -> bool:
        """Whether the Lease is surely held at this moment. Cheap: ask before every write."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """For how many seconds from now on it is surely held (0: it is not)."""
        now, interval = self._monotonic(), self._interval
        return max(0.0, interval.until - now) if interval.since <= now else 0.0

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` when ``valid`` has changed, from the thread that noticed."""
        self._listeners.append(listener)

    # Its life

    def start(self) -> None:
        """Begin, in threads."""
        refs = (self.ref,) if self._wider is None else (self.ref, self._wider)
        self._threads = [self._runtime.thread(partial(self._watch, ref), "lease-watch") for ref in refs]
        self._threads.append(self._runtime.thread(self._run, "leader-elector"))
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Take the next step now: the holder has changed, or whether the Lease is wanted."""
        self._woken.set()

    def stop(self) -> None:
        """Give the Lease back; that of a namespace is deleted. From here on it is not valid. Waits for the threads."""
        self._stopped.set()
        self._woken.set()
        with self._lock:
            streams = tuple(self._streams.values())
        for stream in streams:
            stream.close()
        for thread in self._threads:
            thread.join()
        self._interval = _NEVER
        self._notify()
        deadline = self._monotonic() + _RELEASE_SECONDS
        for _ in range(_RELEASE_ATTEMPTS if self._wrote else 0):
            with suppress(ClusterError):
                self._give_back()
                return
            if self._monotonic() >= deadline:
                return

    def _run(self) -> None:
        due = self._monotonic()
        while not self._stopped.is_set():
            if self._woken.is_set() or self._monotonic() >= due:
                self._woken.clear()
                try:
                    pause = self.step()
                except Exception:
                    # Without this thread the process would lose its jobs in silence.
                    _LOG.exception("leader election failed, continuing lease=%s", self.ref)
                    pause = self._retry_every
                # Replicas that started together should not ask together.
                due = self._monotonic() + pause * self._runtime.uniform(0.8, 1.0)
            self._notify()
            now = self._monotonic()
            # Validity may begin or end by itself.
            change = next((moment for moment in self._interval if now < moment < math.inf), math.inf)
            self._woken.wait(max(min(due, change) - now, 0.0))

    def _watch(self, ref: LeaseRef) -> None:
        """Wake the election whenever a Lease has changed. Where it may not be watched, it is asked for now and then."""
        while not self._stopped.is_set():
            with suppress(ClusterError):
                fields = f"metadata.name={ref.name}"
                # Listed first: Kubernetes since 1.34 begins no watch without a version where etcd is old.
                found, since, _ = self._cluster.list(LEASES, ref.namespace, fields=fields)
                with self._cluster.watch(LEASES, ref.namespace, fields=fields, since=since) as stream:
                    with self._lock:
                        self._streams[ref] = stream
                        if self._stopped.is_set():
                            stream.close()
                    for lease in found:
                        self._noticed(ref, WatchEvent("ADDED", lease))
                    if not found:
                        self.wake()  # it was deleted before this watch began, and nothing else will say so
                    for event in stream:
                        self._noticed(ref, event)
            with self._lock:
                self._streams.pop(ref, None)
                self._watched.pop(ref, None)
            self._stopped.wait(self._retry_every)

    def _noticed(self, ref: LeaseRef, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        lease = event.object
        with self._lock:
            if event.type == "DELETED":
                self._watched.pop(ref, None)
            else:
                self._watched[ref] = lease
        held = self._held
        same = ref == self.ref and held is not None and lease["metadata"].get("uid") == held["metadata"].get("uid")
        if not same or event.type == "DELETED" or LeaseRecord.of(lease).holder != self.identity:
            self.wake()  # our own renewals are not news

    # One attempt

    def step(self) -> float:
        """One attempt to acquire or to renew; seconds until the next is due. Raises no ClusterError."""
        before = self._held is not None
        try:
            pause = self._attempt()
            self.problem = None
        except ClusterError as error:
            # A leader that waited as long as a busy server asks would lose its Lease, and list everything again.
            asked = error.after if isinstance(error, Throttled) and not self.valid() else None
            pause = max(self._retry_every, min(asked or 0.0, self._duration))
            if str(error) != str(self.problem):
                hint = f" ({error.hint})" if error.hint else ""
                _LOG.warning("cannot acquire or renew lease=%s: %s%s", self.ref, error, hint)
            self.problem = error
        if before or self._held is not None:
            self._recorder.heartbeat(self._held is not None and self.problem is None)
        self._notify()
        return pause

    def _attempt(self) -> float:
        """Read who leads, and acquire or renew the Lease unless another process leads."""
        if self._left_until is not None and not self._give_back_left():
            return self._retry_every / 10
        if not self._wanted():
            self._stand_down()
            return self._others()[0] or self._retry_every
        if self._monotonic() >= self._interval.until:
            # Another may hold it by now. Its version need not show that: a restored etcd gives the same ones again.
            self._held = None
        stored = self._held
        if stored is None:
            pause, stored = self._others()
            if pause:
                self._stand_down()  # its own may have lapsed: others would wait for its holder
                return pause
        now = self._clock()
        if stored is None:
            created = new_lease(self.ref, self.identity, self._duration, now)
            return self._write(lambda: self._create(created))
        if LeaseRecord.of(stored).holder == self.identity:
            body = renewed_lease(stored, self._duration, now)
        else:
            body = acquired_lease(stored, self.identity, self._duration, now)
        return self._write(lambda: self._replace(body))

    def _others(self) -> tuple[float, Object | None]:
        """Seconds until it should be looked again, while another leads this scope or the wider one (0: nobody does);
        and the Lease."""
        rest = self._rest_of_wider(asked=False)
        # Observe this Lease in the meantime: its holder may have died together with the cluster's leader.
        stored = self._watched.get(self.ref) if rest else self._look(self.ref)
        if stored is not None and (record := LeaseRecord.of(stored)).holder not in ("", self.identity):
            self._seen.note(stored, self._monotonic())
            if not rest:
                self._interval, self._named = _NEVER, False
                rest = max(0.0, record.duration - self._seen.age(self._monotonic()))
        if not rest:
            self.other_since = math.inf
            return 0.0, stored
        self.other_since = min(self.other_since, self._monotonic())
        watched = self._wider in self._watched or self.ref in self._watched
        return rest if watched else min(rest, self._retry_every), stored

    def _rest_of_wider(self, *, asked: bool) -> float:
        """For how many more seconds the cluster counts as led by its own controller; 0: it is not.

        ``asked``: what a watch shows is not enough, only the server's answer is.
        """
        if self._wider is None:
            return 0.0
        for fresh in (True,) if asked else (False, True):
            try:
                stored = self._look(self._wider, fresh=fresh)
            except Unauthorized:
                raise  # it says nothing about the Lease
            except Forbidden:
                return 0.0  # everybody may read it where tf-dist is installed for the cluster
            if stored is None:
                return 0.0
            self._wider_seen.note(stored, self._monotonic())
            record = LeaseRecord.of(stored)
            lasts = record.duration if record.holder else _HANDOVER
            if (rest := lasts - self._wider_seen.age(self._monotonic())) > 0:
                return rest
        return 0.0

    def _look(self, ref: LeaseRef, *, fresh: bool = False) -> Object | None:
        """A Lease as it is, or as a watch shows it; None: there is none."""
        with self._lock:
            watched = self._watched.get(ref)
        if watched is not None and not fresh:
            return watched
        try:
            return self._cluster.get(LEASES, *ref)
        except NotFound:
            return None

    def _stand_down(self) -> None:
        """Leave the Lease to others."""
        if self._named:
            self._left_until = self._interval.until
            self._held, self._interval = None, _NEVER
            self._notify()
            self._give_back_left()

    def _give_back_left(self) -> bool:
        """Give it back, unless something is under way yet that was sent under it: then its time is waited for."""
        if self._left_until is not None and self._monotonic() < self._left_until and self._busy():
            return False
        self._left_until = None
        self._give_back()
        return True

    def _write(self, write: Callable[[], Object]) -> float:
        """Send it; if the server takes it, and nobody leads the cluster, the Lease is ours from before it was sent."""
        sent = self._monotonic()
        self._wrote = self._named = True
        try:
            self._held = write()
        except (Conflict, AlreadyExists):
            # Another was faster, or it was us and the answer was lost: look soon.
            self._held = None
            with self._lock:
                self._watched.pop(self.ref, None)
            return self._retry_every / 10
        if self._rest_of_wider(asked=True):
            _LOG.info("yielding to the controller of the cluster lease=%s wider=%s", self.ref, self._wider)
            self.other_since = min(self.other_since, self._monotonic())
            self._stand_down()
            return self._retry_every
        return self._extend(sent, self._monotonic())

    def _create(self, body: Object) -> Object:
        try:
            return self._cluster.create(LEASES, self.ref.namespace, body)
        except Forbidden as error:
            # Usual for one that was installed: roles name Leases, and a creation has no name.
            text = f"there is no lease {self.ref}, and it may not be created: {error}"
            hint = "create it again: tf-dist install | kubectl apply -f -" if self._wider is None else error.hint
            raise Forbidden(text, hint=hint) from error

    def _replace(self, body: Object) -> Object:
        try:
            return self._cluster.replace(LEASES, *self.ref, body)
        except NotFound:
            raise Conflict(f"lease {self.ref} was deleted") from None

    def _extend(self, sent: float, received: float) -> float:
        since = self._interval.since
        if received >= self._interval.until:
            self.epoch += 1
            since = received if self._wider is not None else sent + self._duration
        if received < since and not self._namespaces_are_led():
            since = received
        self._interval = ValidInterval(since, sent + self._duration * (1 - _SAFETY_MARGIN))
        self.other_since = math.inf
        return self._renew_every if received >= since else min(_CLEARING, since - received)

    def _namespaces_are_led(self) -> bool:
        """Whether a process leads a single namespace; True where Leases of namespaces may not be listed."""
        try:
            # By its name there is one in a namespace: of others, as large as they may be, tenants can write thousands.
            fields = f"metadata.name={self.ref.name}"
            found = self._cluster.list(LEASES, None, labels=names.LEADER, fields=fields).items
        except Forbidden:
            return True
        records = [LeaseRecord.of(lease) for lease in found if lease["metadata"]["namespace"] != self.ref.namespace]
        oldest = self._clock() - _LEFT_BEHIND
        return any(one.holder and one.renewed is not None and one.renewed >= oldest for one in records)

    def _give_back(self) -> None:
        stored = self._look(self.ref, fresh=True)
        self._named = stored is not None and LeaseRecord.of(stored).holder == self.identity
        if stored is None or not self._named:
            return
        if self._wider is not None:
            with suppress(Forbidden):  # then it is given back only
                self._cluster.delete(LEASES, *self.ref, uid=stored["metadata"]["uid"])
                self._named = False
                return
        self._cluster.replace(LEASES, *self.ref, released_lease(stored, self._clock()))
        self._named = False

    def _notify(self) -> None:
        valid = self.valid()
        if valid == self._notified:
            return
        self._notified = valid
        verb = "won" if valid else "released" if self._stopped.is_set() else "lost"
        _LOG.info("%s leader election lease=%s holder=%s", verb, self.ref, self.identity)
        self._recorder.leading(str(self.ref), valid)
        for listener in self._listeners:
            listener()


class LeaseLeadership:
    """Leads ``kinds`` of jobs in ``namespace`` (None: in the cluster), each while its Lease is held.

    The leader of the first kind also leads the others, unless another process leads only those. ``system``: the
    namespace of the cluster's Leases. The other arguments, and ``busy``: see ``LeaderElector``.
    """

    busy: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        cluster: Cluster,
        kinds: Collection[Resource],
        namespace: str | None,
        *,
        system: str = names.SYSTEM_NAMESPACE,
        identity: str = "",
        duration: float = LEASE_DURATION,
        renew_every: float = RENEW_INTERVAL,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = boottime,
        recorder: MetricsRecorder | None = None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self.identity = identity or unique_identity()
        self._monotonic = monotonic
        self._listeners: list[Callable[[], object]] = []
        ordered = [kind for kind in JOB_KINDS if kind in kinds]
        self.electors = {
            kind: LeaderElector(
                cluster,
                leader_lease(kind, namespace, system),
                self.identity,
                wider=leader_lease(kind, None, system) if namespace is not None else None,
                busy=lambda: self.busy(),
                wanted=(lambda: True) if kind is ordered[0] else self._leaves_no_other,
                duration=duration,
                renew_every=renew_every,
                clock=clock,
                monotonic=monotonic,
                recorder=recorder,
                runtime=runtime,
            )
            for kind in ordered
        }
        self._first, *self._others = self.electors.values()
        for elector in self.electors.values():
            elector.listen(self._changed)

    def _leaves_no_other(self) -> bool:
        return self._first.valid() or self._monotonic() - self._first.other_since >= _HESITATION

    def _changed(self) -> None:
        for elector in self._others:
            elector.wake()
        for listener in self._listeners:
            listener()

    # What a controller asks

    def kinds(self) -> frozenset[Resource]:
        """The kinds that are led at this moment."""
        return frozenset(kind for kind, elector in self.electors.items() if elector.valid())

    def remaining(self, kind: Resource) -> float:
        """For how many seconds a kind is surely led (0: it is not)."""
        elector = self.electors.get(kind)
        return elector.remaining() if elector is not None else 0.0

    @property
    def term(self) -> Hashable:
        """Changes whenever a Lease was won anew: what was observed before may be out of date."""
        return tuple((kind, elector.epoch) for kind, elector in self.electors.items() if elector.valid())

    def problem(self) -> ClusterError | None:
        """Why it cannot lead; None while nothing is wrong."""
        return next((one.problem for one in self.electors.values() if one.problem is not None), None)

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener``, from any thread, when what is led has changed."""
        self._listeners.append(listener)

    # Its life

    def step(self) -> None:
        """One attempt, in this thread, before ``start``; ``problem`` says what came of it."""
        for elector in self.electors.values():
            elector.step()

    def start(self) -> None:
        """Start the election for each kind, in threads."""
        for elector in self.electors.values():
            elector.start()

    def stop(self) -> None:
        """Give back what is held, once nothing is written under it any more."""
        for elector in reversed(self.electors.values()):
            elector.stop()


class Standalone:
    """Leadership without competitors: it never ends."""

    term: Hashable = None
    busy: Callable[[], bool] = staticmethod(lambda: False)

    def kinds(self) -> frozenset[Resource]:
        """All."""
        return frozenset(JOB_KINDS)

    def remaining(self, kind: Resource) -> float:
        """For ever."""
        return math.inf

    def listen(self, listener: Callable[[], object]) -> None:
        """Nothing ever changes."""

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""


Leadership = LeaseLeadership | Standalone
"""The right of a controller to write."""
