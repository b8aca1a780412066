"""Leases as values: where they are, what a stored Lease says, what is written into it, how long it was unchanged."""

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

LEASE_DURATION: Final = 15.0
RENEW_INTERVAL: Final = 5.0
LEASE_REQUEST_TIMEOUT: Final = 5.0
"""Seconds that a request about a Lease may take: one that hangs longer would cost the Lease."""
# Seconds: no Lease of ours holds longer; one that says so was written by somebody else.
_MAX_DURATION: Final = 86_400

CONTROLLER_NAME: Final = "tf-dist-controller"
_LEASE_NAMES: Final = {TFJOBS.kind: CONTROLLER_NAME, VOLCANO_JOBS.kind: f"{CONTROLLER_NAME}-volcano"}
LEASE_LABELS: Final[Mapping[str, str]] = {names.LEADER: "controller"}
"""Labels of every Lease by which a controller leads."""

SYSTEM_NAMESPACE_VARIABLE: Final = "TF_DIST_SYSTEM_NAMESPACE"

# Seconds that go on while the machine sleeps: on Linux time.monotonic stops then, and a laptop that wakes up would be
# sure of a Lease that it lost hours ago. (CLOCK_MONOTONIC is the one that goes on on macOS.)
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def boottime() -> float:
    """Seconds that only go forward, also while the machine sleeps or this process is stopped."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def system_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """Where the Lease of the cluster's controller is: what $TF_DIST_SYSTEM_NAMESPACE says, else the default."""
    return environ.get(SYSTEM_NAMESPACE_VARIABLE) or names.SYSTEM_NAMESPACE


def unique_identity() -> str:
    """A unique name for this process: its machine, and a random part."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class LeaseRef(NamedTuple):
    """Where a Lease is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def leader_lease(kind: Resource, namespace: str | None, system: str = names.SYSTEM_NAMESPACE) -> LeaseRef:
    """The Lease whose holder leads the jobs of ``kind`` in a namespace (None: in the cluster)."""
    return LeaseRef(namespace or system, _LEASE_NAMES[kind.kind])


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a stored Lease says, whoever wrote it."""

    holder: str  # "": none
    duration: float  # seconds that it holds unrenewed
    renewed: float | None  # when it was renewed last: epoch seconds by its holder's clock

    @classmethod
    def of(cls, stored: Object) -> LeaseRecord:
        """Read a Lease of any writer."""
        spec = mapping(stored.get("spec"))
        seconds = number(spec.get("leaseDurationSeconds")) or 0
        duration = float(seconds) if 0 < seconds <= _MAX_DURATION else LEASE_DURATION
        return cls(text(spec.get("holderIdentity")), duration, parse_time(spec.get("renewTime")))


def new_lease(ref: LeaseRef, identity: str, duration: float, now: float) -> Object:
    """A Lease that ``identity`` creates for itself. ``now``: epoch seconds, shown to people and never compared."""
    metadata = {"namespace": ref.namespace, "name": ref.name, "labels": dict(LEASE_LABELS)}
    return {"metadata": metadata, "spec": {**_held_by(identity, duration, now), "leaseTransitions": 0}}


def acquired_lease(stored: Object, identity: str, duration: float, now: float) -> Object:
    """The Lease as ``identity`` takes it over."""
    spec = mapping(stored.get("spec"))
    transitions = (number(spec.get("leaseTransitions")) or 0) + 1
    held = {**spec, **_held_by(identity, duration, now), "leaseTransitions": transitions}
    metadata = {**stored["metadata"], "labels": {**mapping(stored["metadata"].get("labels")), **LEASE_LABELS}}
    return {**stored, "metadata": metadata, "spec": held}


def renewed_lease(stored: Object, duration: float, now: float) -> Object:
    """The Lease as its holder renews it."""
    times = {"leaseDurationSeconds": _seconds(duration), "renewTime": format_micro_time(now)}
    return {**stored, "spec": {**stored["spec"], **times}}


def released_lease(stored: Object, now: float) -> Object:
    """The Lease as its holder gives it back: the next may take it at once."""
    return {**stored, "spec": {**stored["spec"], "holderIdentity": "", "renewTime": format_micro_time(now)}}


def _held_by(identity: str, duration: float, now: float) -> Object:
    moment = format_micro_time(now)
    times = {"leaseDurationSeconds": _seconds(duration), "acquireTime": moment, "renewTime": moment}
    return {"holderIdentity": identity, **times}


def _seconds(duration: float) -> int:
    """Whole seconds, never fewer than the holder counts on."""
    return max(1, math.ceil(duration))


class LeaseObservation:
    """For how long a Lease has looked the same to us, in seconds of our monotonic clock.

    No two clocks are ever compared: only what lies between two looks counts, from the answer of the first. An etcd that
    was restored gives the same versions again, so who holds it, and since when, has to be the same, too.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = math.inf

    def note(self, stored: Object, received: float) -> None:
        """What a look brought, and when its answer came."""
        metadata, spec = stored["metadata"], mapping(stored.get("spec"))
        seen = (metadata.get("uid"), metadata.get("resourceVersion"), spec.get("holderIdentity"), spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._since = seen, received

    def age(self, now: float) -> float:
        """For how long it has looked the same, at ``now``; 0 before the first look."""
        return max(now - self._since, 0.0)
