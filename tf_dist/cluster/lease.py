"""Leases as values: their names, their contents, the next write, and for how long a Lease has been unchanged."""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Object, Resource
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import mapping, number, text
from tf_dist.core.model.timestamps import format_micro_time, parse_time
from tf_dist.errors import ClusterError

LEASE_DURATION: Final = 15.0
RENEW_INTERVAL: Final = 5.0
LEASE_REQUEST_TIMEOUT: Final = 5.0
"""The timeout of a request about a Lease, in seconds. A request that hangs longer would cost the holder its Lease."""
# Seconds. No Lease of tf-dist lasts longer: a longer duration was written by another program.
_MAX_DURATION: Final = 86_400

CONTROLLER_NAME: Final = "tf-dist-controller"
_LEASE_NAMES: Final = {TFJOBS.kind: CONTROLLER_NAME, VOLCANO_JOBS.kind: f"{CONTROLLER_NAME}-volcano"}
LEASE_LABELS: Final[Mapping[str, str]] = {names.LEADER: "controller"}
"""Labels of every Lease for the leader election of controllers."""

SYSTEM_NAMESPACE_VARIABLE: Final = "TF_DIST_SYSTEM_NAMESPACE"

# A clock that runs while the machine sleeps. On Linux, time.monotonic stops during sleep, and a laptop that wakes up
# would still count on a Lease that it lost hours ago. On macOS, CLOCK_MONOTONIC runs during sleep.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def boottime() -> float:
    """Seconds of a monotonic clock that also runs while the machine sleeps or this process is stopped."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def system_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """The namespace of the cluster-wide controller's Lease: $TF_DIST_SYSTEM_NAMESPACE, else the default.

    Raises ClusterError for a value that is not a namespace, with which a controller would never become the leader.
    """
    found = environ.get(SYSTEM_NAMESPACE_VARIABLE) or names.SYSTEM_NAMESPACE
    if not names.is_dns_label(found):
        what = f"{found!r} in ${SYSTEM_NAMESPACE_VARIABLE} is not a namespace"
        raise ClusterError(what, hint=f"unset it, or write {names.SYSTEM_NAMESPACE}")
    return found


def unique_identity() -> str:
    """A unique name for this process: the name of its machine, and a random part."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class LeaseRef(NamedTuple):
    """The namespace and name of a Lease."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def leader_lease(kind: Resource, namespace: str | None, system: str = names.SYSTEM_NAMESPACE) -> LeaseRef:
    """The Lease whose holder leads the jobs of ``kind`` in a namespace (None: in the cluster)."""
    return LeaseRef(namespace or system, _LEASE_NAMES[kind.kind])


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The content of a stored Lease, whichever program wrote it."""

    holder: str  # "": none
    duration: float  # seconds for which the Lease is valid without a renewal
    renewed: float | None  # the last renewal: epoch seconds of the holder's clock

    @classmethod
    def of(cls, stored: Object) -> LeaseRecord:
        """Read a Lease of any writer."""
        spec = mapping(stored.get("spec"))
        seconds = number(spec.get("leaseDurationSeconds")) or 0
        duration = float(seconds) if 0 < seconds <= _MAX_DURATION else LEASE_DURATION
        return cls(text(spec.get("holderIdentity")), duration, parse_time(spec.get("renewTime")))


def new_lease(ref: LeaseRef, identity: str, duration: float, now: float) -> Object:
    """A Lease that ``identity`` creates for itself. ``now``: epoch seconds, shown to users, never compared."""
    metadata = {"namespace": ref.namespace, "name": ref.name, "labels": dict(LEASE_LABELS)}
    return {"metadata": metadata, "spec": {**_held_by(identity, duration, now), "leaseTransitions": 0}}


def acquired_lease(stored: Object, identity: str, duration: float, now: float) -> Object:
    """The Lease after ``identity`` has taken it over."""
    spec = mapping(stored.get("spec"))
    transitions = (number(spec.get("leaseTransitions")) or 0) + 1
    held = {**spec, **_held_by(identity, duration, now), "leaseTransitions": transitions}
    metadata = {**stored["metadata"], "labels": {**mapping(stored["metadata"].get("labels")), **LEASE_LABELS}}
    return {**stored, "metadata": metadata, "spec": held}


def renewed_lease(stored: Object, duration: float, now: float) -> Object:
    """The Lease after its holder has renewed it."""
    times = {"leaseDurationSeconds": _seconds(duration), "renewTime": format_micro_time(now)}
    return {**stored, "spec": {**stored["spec"], **times}}


def released_lease(stored: Object, now: float) -> Object:
    """The Lease after its holder has released it: a candidate may take it at once."""
    return {**stored, "spec": {**stored["spec"], "holderIdentity": "", "renewTime": format_micro_time(now)}}


def _held_by(identity: str, duration: float, now: float) -> Object:
    moment = format_micro_time(now)
    times = {"leaseDurationSeconds": _seconds(duration), "acquireTime": moment, "renewTime": moment}
    return {"holderIdentity": identity, **times}


def _seconds(duration: float) -> int:
    """The duration in whole seconds, rounded up."""
    return max(1, math.ceil(duration))


class LeaseObservation:
    """Measures for how long a Lease has been unchanged, in seconds of our monotonic clock.

    Clocks of different machines are never compared: only the time between two observations counts, from the response of
    the first. A restored etcd reuses resource versions, so the holder and the time of the renewal must be the same,
    too.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = math.inf

    def note(self, stored: Object, received: float) -> None:
        """Record an observation, and the time of its response."""
        metadata, spec = stored["metadata"], mapping(stored.get("spec"))
        seen = (metadata.get("uid"), metadata.get("resourceVersion"), spec.get("holderIdentity"), spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._since = seen, received

    def age(self, now: float) -> float:
        """For how long the Lease has been unchanged at ``now``; 0 before the first observation."""
        return max(now - self._since, 0.0)
