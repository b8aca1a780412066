"""Leader election by Leases, with client-go's rules and an additional rule: a namespace yields to the cluster.

A holder measures its leadership from before it sent the renewal that the server accepted, and ends it early by a
margin. A candidate acquires a Lease that is free, or that has not changed for the Lease's duration by the candidate's
monotonic clock. The candidate writes over the version that it observed. Therefore two processes never lead the same
scope, regardless of clocks and networks. docs/decisions/one-leader-for-each-scope.md describes how a namespace yields
to the cluster.
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
# The part of its Lease's duration by which leadership ends early: clocks may differ in speed, and a write takes place
# some time after the check of the Lease.
_SAFETY_MARGIN: Final = 0.2
# The part of the renewal interval after which another process's Lease that cannot be watched is read again, and after
# which a failed attempt is repeated.
_RETRY: Final = 0.4
# Seconds for which a released Lease of the cluster counts as held: usually another replica acquires it.
_HANDOVER: Final = 2.0
# Seconds between two checks whether namespaces still have leaders.
_CLEARING: Final = 1.0
# Seconds after which a namespace's Lease counts as abandoned by a killed process: more than the difference between
# clocks, even if a machine is in the wrong time zone.
_LEFT_BEHIND: Final = 86_400.0
# A stopping process makes at most this number of attempts to release its Lease, and no attempt after this number of
# seconds. The Lease then expires.
_RELEASE_ATTEMPTS: Final = 3
_RELEASE_SECONDS: Final = 5.0
# Seconds for which a candidate for several kinds leaves the other kinds to the leader of the first kind: usually
# another replica, which acquires all Leases.
_HESITATION: Final = 2.0


class LeadershipLost(ClusterError):
    """Leadership has ended. Another controller is now responsible for the pending work."""


class ValidInterval(NamedTuple):
    """The interval in which the Lease is certainly held, in seconds of this process's monotonic clock."""

    since: float
    until: float


_NEVER: Final = ValidInterval(math.inf, -math.inf)


class LeaderElector:
    """Holds the Lease ``ref`` as ``identity``, or waits for it. ``start`` runs ``step`` in a thread until ``stop``.

    ``wider``: the Lease of the cluster if ``ref`` is the Lease of a namespace. ``wanted``: whether the Lease is wanted;
    a held Lease that is no longer wanted is released. ``busy``: whether a request that was sent under the Lease may be
    in progress; if so, the release waits, at most until the Lease expires. ``duration``: seconds for which the Lease is
    valid without renewal; ``renew_every``: seconds between renewals; ``clock``: epoch seconds, for people and to detect
    abandoned Leases.
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
        self.epoch = 0  # how often the Lease was acquired: in between, other processes may have held it
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
        self._held: Object | None = None  # the Lease as last written by this process
        self._left_until: float | None = None  # the end of validity of a Lease that was left but not released yet
        self._seen, self._wider_seen = LeaseObservation(), LeaseObservation()
        self._wrote = self._notified = False
        self._named = False  # whether the stored Lease may name this process as its holder
        self._runtime = runtime
        self._stopped, self._woken = runtime.event(), runtime.event()
        self._lock = runtime.lock()
        self._watched: dict[LeaseRef, Object] = {}  # the last version from each open watch
        self._streams: dict[LeaseRef, Stream[WatchEvent]] = {}
        self._threads: list[threading.Thread] = []

    # Queries

    def valid(self) -> bool:
        """Whether the Lease is certainly held now. The call is cheap: make it before every write."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """The seconds for which the Lease is certainly held from now on (0: it is not held)."""
        now, interval = self._monotonic(), self._interval
        return max(0.0, interval.until - now) if interval.since <= now else 0.0

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` when ``valid`` has changed, from the thread that detects the change."""
        self._listeners.append(listener)

    # Lifecycle

    def start(self) -> None:
        """Start the election and the watches of Leases, in threads."""
        refs = (self.ref,) if self._wider is None else (self.ref, self._wider)
        self._threads = [self._runtime.thread(partial(self._watch, ref), "lease-watch") for ref in refs]
        self._threads.append(self._runtime.thread(self._run, "leader-elector"))
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Take the next step now, because the holder or ``wanted`` has changed."""
        self._woken.set()

    def stop(self) -> None:
        """Wait for the threads, end the validity and release the Lease. The Lease of a namespace is deleted."""
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
                    # Without this thread, the process would silently lose its leadership.
                    _LOG.exception("leader election failed, continuing lease=%s", self.ref)
                    pause = self._retry_every
                # Replicas that started at the same time should not send their requests at the same time.
                due = self._monotonic() + pause * self._runtime.uniform(0.8, 1.0)
            self._notify()
            now = self._monotonic()
            # Validity may begin or end without a step.
            change = next((moment for moment in self._interval if now < moment < math.inf), math.inf)
            self._woken.wait(max(min(due, change) - now, 0.0))

    def _watch(self, ref: LeaseRef) -> None:
        """Wake the election whenever a Lease has changed. ``step`` polls a Lease that cannot be watched."""
        while not self._stopped.is_set():
            with suppress(ClusterError):
                fields = f"metadata.name={ref.name}"
                # List first: Kubernetes 1.34 and later start no watch without a version if etcd is old.
                found, since, _ = self._cluster.list(LEASES, ref.namespace, fields=fields)
                with self._cluster.watch(LEASES, ref.namespace, fields=fields, since=since) as stream:
                    with self._lock:
                        self._streams[ref] = stream
                        if self._stopped.is_set():
                            stream.close()
                    for lease in found:
                        self._noticed(ref, WatchEvent("ADDED", lease))
                    if not found:
                        self.wake()  # the Lease was deleted before this watch began, so no event reports it
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
            self.wake()  # own renewals need no step

    # One attempt

    def step(self) -> float:
        """One attempt to acquire or renew. Returns the seconds until the next attempt. Raises no ClusterError."""
        before = self._held is not None
        try:
            pause = self._attempt()
            self.problem = None
        except ClusterError as error:
            # If a leader waited as long as a busy server requests, it would lose its Lease and list everything again.
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
        """Read the current leader, and acquire or renew the Lease unless another process leads."""
        if self._left_until is not None and not self._give_back_left():
            return self._retry_every / 10
        if not self._wanted():
            self._stand_down()
            return self._others()[0] or self._retry_every
        if self._monotonic() >= self._interval.until:
            # Another process may hold the Lease now, even if its version is the same: a restored etcd repeats versions.
            self._held = None
        stored = self._held
        if stored is None:
            pause, stored = self._others()
            if pause:
                self._stand_down()  # an expired Lease may still name this process, and others would wait for it
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
        """Seconds until the next check if another process leads this scope or the cluster (else 0), and the Lease."""
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
        """The seconds for which the cluster's controller still counts as its leader; 0 if the cluster has no leader.

        ``asked``: only a response of the server is sufficient, not an event of a watch.
        """
        if self._wider is None:
            return 0.0
        for fresh in (True,) if asked else (False, True):
            try:
                stored = self._look(self._wider, fresh=fresh)
            except Unauthorized:
                raise  # the error says nothing about the Lease
            except Forbidden:
                return 0.0  # everybody may read this Lease where tf-dist is installed for the cluster
            if stored is None:
                return 0.0
            self._wider_seen.note(stored, self._monotonic())
            record = LeaseRecord.of(stored)
            lasts = record.duration if record.holder else _HANDOVER
            if (rest := lasts - self._wider_seen.age(self._monotonic())) > 0:
                return rest
        return 0.0

    def _look(self, ref: LeaseRef, *, fresh: bool = False) -> Object | None:
        """A Lease as last reported by a watch, else or if ``fresh`` from the server; None if it does not exist."""
        with self._lock:
            watched = self._watched.get(ref)
        if watched is not None and not fresh:
            return watched
        try:
            return self._cluster.get(LEASES, *ref)
        except NotFound:
            return None

    def _stand_down(self) -> None:
        """Leave the Lease to other processes."""
        if self._named:
            self._left_until = self._interval.until
            self._held, self._interval = None, _NEVER
            self._notify()
            self._give_back_left()

    def _give_back_left(self) -> bool:
        """Release the Lease that was left; False while it is valid and requests sent under it may be in progress."""
        if self._left_until is not None and self._monotonic() < self._left_until and self._busy():
            return False
        self._left_until = None
        self._give_back()
        return True

    def _write(self, write: Callable[[], Object]) -> float:
        """Write the Lease, and leave it if the cluster has a leader. Returns the seconds until the next step.

        The Lease's duration counts from before the write is sent.
        """
        sent = self._monotonic()
        self._wrote = self._named = True
        try:
            self._held = write()
        except (Conflict, AlreadyExists):
            # Another process was faster and may lead now, or this process has written it and the response was lost.
            self._held = None
            with self._lock:
                self._watched.pop(self.ref, None)
            pause, _ = self._others()
            if pause:
                self._stand_down()
            return pause or self._retry_every / 10
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
            # This is usual for an installed controller: its roles name Leases, and a create request has no name.
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
        """Whether a process leads a single namespace; True if Leases of namespaces may not be listed."""
        try:
            # A namespace has at most one Lease of this name. Tenants can write thousands of other, large Leases.
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
            with suppress(Forbidden):  # then the Lease is only released
                # Not if another candidate has taken the Lease in the meantime, because it had expired.
                metadata = stored["metadata"]
                self._cluster.delete(LEASES, *self.ref, uid=metadata["uid"], version=metadata["resourceVersion"])
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

    The leader of the first kind also leads the other kinds, unless another process leads only those. ``system`` is the
    namespace of the cluster's Leases. For the other arguments and ``busy``, see ``LeaderElector``.
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

    # Queries

    def kinds(self) -> frozenset[Resource]:
        """The kinds of jobs that this process leads now."""
        return frozenset(kind for kind, elector in self.electors.items() if elector.valid())

    def remaining(self, kind: Resource) -> float:
        """The seconds for which this process certainly leads a kind (0: it does not)."""
        elector = self.electors.get(kind)
        return elector.remaining() if elector is not None else 0.0

    @property
    def term(self) -> Hashable:
        """A value that changes when a Lease is acquired or lost. Earlier observations may then be out of date."""
        return tuple((kind, elector.epoch) for kind, elector in self.electors.items() if elector.valid())

    def problem(self) -> ClusterError | None:
        """The error of the last attempt to acquire or renew a Lease; None if no attempt failed."""
        return next((one.problem for one in self.electors.values() if one.problem is not None), None)

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener``, from any thread, when the kinds that this process leads have changed."""
        self._listeners.append(listener)

    # Lifecycle

    def step(self) -> None:
        """One attempt for each kind in this thread, before ``start``. ``problem`` returns its error."""
        for elector in self.electors.values():
            elector.step()

    def start(self) -> None:
        """Start the election for each kind, in threads."""
        for elector in self.electors.values():
            elector.start()

    def stop(self) -> None:
        """Release the held Leases. Call it after the last write under them."""
        for elector in reversed(self.electors.values()):
            elector.stop()


class Standalone:
    """Leadership without competitors: it never ends."""

    term: Hashable = None
    busy: Callable[[], bool] = staticmethod(lambda: False)

    def kinds(self) -> frozenset[Resource]:
        """All kinds of jobs."""
        return frozenset(JOB_KINDS)

    def remaining(self, kind: Resource) -> float:
        """Unlimited time."""
        return math.inf

    def listen(self, listener: Callable[[], object]) -> None:
        """Do nothing, because leadership never changes."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


Leadership = LeaseLeadership | Standalone
"""The right of a controller to write."""
