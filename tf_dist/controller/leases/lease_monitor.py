"""Lease monitor: which other drivers are dead, so that their jobs may be taken over."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from tf_dist.cluster.api import LEASES, Cluster, Object
from tf_dist.controller.leases.lease import (
    DEAD_VERDICT_VALID_FOR,
    DRIVER_INLINE,
    LeaseObservation,
    LeaseRecord,
    LeaseRef,
    boottime,
    broken_lease,
    is_inline_lease,
)
from tf_dist.core.api import names
from tf_dist.core.api.timestamps import parse_time
from tf_dist.errors import ClusterError, Conflict, Forbidden, NotFound

_LOG = logging.getLogger(__name__)
LEASE_POLL_INTERVAL: Final = 2.0
# From so many Leases of one namespace on, one list is cheaper than a GET each.
_LIST_THRESHOLD: Final = 4
_DAY: Final = 86_400.0


class _MonitoredLease:
    """One driver's Lease: how long it has looked the same, and until when we may say that it is dead."""

    def __init__(self) -> None:
        self.seen = LeaseObservation()
        self.due = -math.inf
        self.stale_until = -math.inf
        self.unknown = False


class LeaseMonitor:
    """Watches the Leases of other drivers. ``me`` is who breaks a dead one, for people who look at it.

    A driver is stale when its Lease was unchanged for the Lease's duration (see ``tf_dist.controller.leases.lease``),
    or absent for as long: a driver creates its Lease before its first job, so absence means that it ended, or that
    its Lease was deleted under it, and then it has a duration to notice. A Lease that replicas share must also have
    been broken, by us or by another. One that we may not read, or would have to break and may not, is never stale,
    but unknown; so is one without a driver's label, which any job may name, and which is not ours to write.
    """

    def __init__(self, cluster: Cluster, me: str, *, monotonic: Callable[[], float] = boottime) -> None:
        self._cluster = cluster
        self._me = me
        self._monotonic = monotonic
        self._entries: dict[LeaseRef, _MonitoredLease] = {}
        self._lock = threading.Lock()

    def watch_drivers(self, refs: Collection[str]) -> None:
        """These drivers are asked for from now on, and no others. Those without a Lease are passed over."""
        wanted = {ref for text in refs if (ref := LeaseRef.parse(text)) is not None}
        with self._lock:
            if wanted != self._entries.keys():
                self._entries = {ref: self._entries.get(ref) or _MonitoredLease() for ref in wanted}

    def stale(self) -> frozenset[str]:
        """The drivers that are dead for sure at this moment. A verdict is good for a few seconds only: ask again."""
        now = self._monotonic()
        return self._matching(lambda entry: now < entry.stale_until)

    def unknown(self) -> frozenset[str]:
        """The drivers of which nothing can be known: we may not read their Leases, or not break them."""
        return self._matching(lambda entry: entry.unknown)

    def _matching(self, condition: Callable[[_MonitoredLease], bool]) -> frozenset[str]:
        with self._lock:
            return frozenset(str(ref) for ref, entry in self._entries.items() if condition(entry))

    def poll(self) -> float:
        """Look at each Lease that is due; seconds until the next is. Not for two threads at once.

        Due is one whose last look is ``LEASE_POLL_INTERVAL`` seconds old, or whose time is over.
        """
        now = self._monotonic()
        with self._lock:
            due = {ref: entry for ref, entry in self._entries.items() if now >= entry.due}
        spaces: dict[str, list[LeaseRef]] = {}
        for ref in due:
            spaces.setdefault(ref.namespace, []).append(ref)
        try:
            for namespace, refs in spaces.items():
                sent = self._monotonic()
                listed = self._list(namespace) if len(refs) >= _LIST_THRESHOLD else {}
                for ref in refs:
                    self._update(ref, due[ref], listed.get(ref.name), sent)
        except ClusterError as error:
            # The others would fail, too; no verdict outlives its time.
            _LOG.debug("failed to list leases: error=%s", error)
            return LEASE_POLL_INTERVAL
        now = self._monotonic()
        return max(min((entry.due - now for entry in due.values()), default=LEASE_POLL_INTERVAL), 0.0)

    def _list(self, namespace: str) -> dict[str, Object]:
        """The drivers' Leases of a namespace by name, as far as they carry our label and we may list them."""
        try:
            found = self._cluster.list(LEASES, namespace, labels=names.DRIVER).items
        except (Forbidden, NotFound):
            return {}
        return {stored["metadata"]["name"]: stored for stored in found}

    def _update(self, ref: LeaseRef, entry: _MonitoredLease, listed: Object | None, sent: float) -> None:
        try:
            if listed is None:
                sent = self._monotonic()
            stored = listed or self._get(ref)
            received = self._monotonic()
            if stored is not None and names.DRIVER not in (stored["metadata"].get("labels") or {}):
                raise Forbidden(f"lease {ref} is no driver's: it has no label {names.DRIVER}")
            entry.seen.note(stored, received)
            rest = entry.seen.duration - entry.seen.age(received)
            entry.due = received + (min(rest, LEASE_POLL_INTERVAL) if rest > 0 else LEASE_POLL_INTERVAL)
            before, stale = entry.stale_until, self._is_stale(ref, entry, stored, sent)
            entry.stale_until = sent + DEAD_VERDICT_VALID_FOR if stale else -math.inf
            if stale and before < sent:
                _LOG.warning("declared driver dead, its lease was not renewed driver=%s", ref)
            entry.unknown = False
        except Forbidden as error:
            if not entry.unknown:
                _LOG.warning("cannot monitor lease of driver=%s: %s", ref, error)
            entry.due = self._monotonic() + LEASE_POLL_INTERVAL
            entry.unknown = True

    def _is_stale(self, ref: LeaseRef, entry: _MonitoredLease, stored: Object | None, sent: float) -> bool:
        if stored is None:
            return entry.seen.expired(sent)
        record = LeaseRecord.of(stored)
        if record.broken and not record.holder:
            return True
        if is_inline_lease(stored):
            return entry.seen.expired(sent)  # it looked so when it was asked for, or later
        return entry.seen.expired(self._monotonic()) and self._break(ref, stored)

    def _break(self, ref: LeaseRef, stored: Object) -> bool:
        """Take the Lease away from its dead holder; False when another was faster."""
        try:
            self._cluster.replace(LEASES, *ref, broken_lease(stored, self._me))
        except (Conflict, NotFound):
            return False
        return True

    def _get(self, ref: LeaseRef) -> Object | None:
        try:
            return self._cluster.get(LEASES, *ref)
        except NotFound:
            return None


def delete_expired_leases(cluster: Cluster, namespace: str, *, clock: Callable[[], float] = time.time) -> int:
    """Delete the Leases of inline drivers in a namespace that were not renewed for a day; how many.

    Killed drivers leave theirs behind; each inline driver clears its namespace of them. ClusterError when they may not
    be listed or deleted. A day is more than clocks differ, and a driver that lives makes its Lease anew.
    """
    listed = cluster.list(LEASES, namespace, labels=f"{names.DRIVER}={DRIVER_INLINE}").items
    return sum(_delete(cluster, stored) for stored in _expired(listed, clock() - _DAY))


def _expired(listed: Iterable[Object], before: float) -> Iterable[Object]:
    for stored in listed:
        renewed = parse_time((stored.get("spec") or {}).get("renewTime"))
        if renewed is not None and renewed < before:
            yield stored


def _delete(cluster: Cluster, stored: Object) -> bool:
    metadata = stored["metadata"]
    try:
        cluster.delete(LEASES, metadata["namespace"], metadata["name"], uid=metadata["uid"])
    except (NotFound, Conflict):
        return False
    return True
