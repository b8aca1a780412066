"""Leases as values: what a stored Lease says, what is written into it, and for how long it has been unchanged.

How two drivers never act at once, with any clocks and networks:

- A holder counts its leadership from before it sent the renewal that the server accepted, and ends it early by a
  margin.
- A driver that believes a holder dead has seen its Lease unchanged for the Lease's own duration, by its own monotonic
  clock, counted from after it first saw that version. No two clocks are ever compared.
- A Lease that replicas share changes hands by a write: the next holder writes its name, or another driver *breaks* it.
  Both writes carry the resourceVersion that was watched, so a renewal that is still under way fails.
- The Lease of a single process (label ``tf-dist.dev/driver=inline``) is only read by others, who need no right to write
  it: its holder is dead when the Lease was unchanged for its duration when it was asked for.
- That a holder is dead (its Lease unchanged, broken, or absent) is believed for ``DEAD_VERDICT_VALID_FOR`` seconds
after it was asked for. A driver that acquires a broken or absent Lease, or renews its own after it had lapsed, waits
``TAKEOVER_DELAY`` seconds before it acts: by then no driver goes on believing it.
"""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tf_dist.cluster.api import LEASES, Cluster, Object
from tf_dist.core.api import names
from tf_dist.core.api.fieldpath import mapping, number, text
from tf_dist.core.api.timestamps import format_micro_time
from tf_dist.errors import Forbidden

LEASE_DURATION: Final = 15.0
RENEW_INTERVAL: Final = 5.0
DEAD_VERDICT_VALID_FOR: Final = 5.0
# Longer than a verdict by a fourth, for clocks that do not run at the same speed.
TAKEOVER_DELAY: Final = 6.25
# Seconds: no driver's Lease holds longer; one that says so was not written by a driver.
_MAX_DURATION: Final = 86_400
BROKEN_BY: Final = names.ANNOTATION_PREFIX + "broken-by"
"""Annotation of a Lease: the replica that has taken it from a dead one."""
CONTROLLER_LEASE: Final = names.ANNOTATION_PREFIX + "controller"
"""Annotation of the admission leader's Lease: the Lease of the controller of all namespaces that holds it, "" if it is
held by another driver."""
NAMESPACES: Final = names.ANNOTATION_PREFIX + "namespaces"
"""Annotation of a controller's Lease: the namespaces whose jobs it drives, with commas between (none: all)."""
DRIVER_INLINE: Final = "inline"
DRIVER_CONTROLLER: Final = "controller"
DRIVER_ADMISSION_LEADER: Final = "arbiter"


# Seconds that go on while the machine sleeps: on Linux time.monotonic stops then, and a laptop that wakes up would be
# sure of a Lease that it lost hours ago. (CLOCK_MONOTONIC is the one that goes on on macOS.)
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


_NO_ANNOTATIONS: Final[Mapping[str, str]] = {}


def boottime() -> float:
    """Seconds that only go forward, also while the machine sleeps or this process is stopped."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


LEASE_REQUEST_TIMEOUT: Final = 5.0
"""Seconds that a request about a Lease may take: one that hangs longer would cost the Lease."""

CONTROLLER_NAME: Final = "tf-dist-controller"


def controller_lease_name(namespaces: tuple[str, ...]) -> str:
    """The Lease of the replicas that drive these namespaces (none: all).

    Replicas that drive the same share one. Others have their own, since they could not stand in for each other; that
    no job has two drivers is seen to by each job's claim.
    """
    match sorted(set(namespaces)):
        case []:
            return CONTROLLER_NAME
        case [only]:
            return f"{CONTROLLER_NAME}-{only}"
        case several:
            return f"{CONTROLLER_NAME}-{names.short_hash(*several, length=10)}"


def admissions_lease_name(controller: str, namespace: str | None) -> str:
    """The Lease in which those replicas write down which jobs of a namespace (None: all) they are about to admit."""
    return f"{controller}-admissions" if namespace is None else f"{controller}-admissions-{names.short_hash(namespace)}"


class LeaseRef(NamedTuple):
    """Where a Lease is, and how a job names the driver that holds it: ``namespace/name``."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> LeaseRef | None:
        """The reference that a driver's name is; None for a driver without a Lease."""
        namespace, slash, name = text.partition("/")
        return cls(namespace, name) if slash and namespace and name and "/" not in name else None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def create_lease(cluster: Cluster, ref: LeaseRef, body: Object) -> Object:
    """Create a Lease. Forbidden is usual for one that was installed: roles name Leases, and a creation has no name."""
    try:
        return cluster.create(LEASES, ref.namespace, body)
    except Forbidden as error:
        text = f"there is no lease {ref}, and it may not be created: {error}"
        raise Forbidden(text, hint="create it again: tf-dist install | kubectl apply -f -") from error


def unique_identity() -> str:
    """A name for this process that no other has: its machine, and a random part."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def unique_lease_ref(namespace: str) -> LeaseRef:
    """A place for a Lease of this process's own, which was never used before."""
    return LeaseRef(namespace, f"tf-dist-{uuid.uuid4().hex[:12]}")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a stored Lease says. ``holder`` "": none. ``duration``: seconds that it holds unrenewed."""

    holder: str
    duration: float
    broken: bool

    @classmethod
    def of(cls, stored: Object) -> LeaseRecord:
        """Read a Lease of any writer."""
        spec = mapping(stored.get("spec"))
        seconds = number(spec.get("leaseDurationSeconds")) or 0
        broken = BROKEN_BY in (stored["metadata"].get("annotations") or {})
        return cls(
            text(spec.get("holderIdentity")), float(seconds) if 0 < seconds <= _MAX_DURATION else LEASE_DURATION, broken
        )


def new_lease(
    ref: LeaseRef,
    identity: str,
    duration: float,
    now: float,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] = _NO_ANNOTATIONS,
) -> Object:
    """A Lease that ``identity`` creates for itself. ``now``: epoch seconds, shown to people and never compared."""
    spec = {**_holder_spec(identity, duration, now), "leaseTransitions": 0}
    metadata = {"namespace": ref.namespace, "name": ref.name, "labels": dict(labels)}
    return {"metadata": {**metadata, **({"annotations": dict(annotations)} if annotations else {})}, "spec": spec}


def acquired_lease(
    stored: Object, identity: str, duration: float, now: float, annotations: Mapping[str, str] = _NO_ANNOTATIONS
) -> Object:
    """The Lease as ``identity`` takes it over; ``annotations``: on top of its own."""
    if annotations:
        metadata = stored["metadata"]
        own = {**(metadata.get("annotations") or {}), **annotations}
        stored = {**stored, "metadata": {**metadata, "annotations": own}}
    spec = mapping(stored.get("spec"))
    transitions = (number(spec.get("leaseTransitions")) or 0) + 1
    return _with_spec(
        stored, {**spec, **_holder_spec(identity, duration, now), "leaseTransitions": transitions}, broken_by=None
    )


def renewed_lease(stored: Object, duration: float, now: float) -> Object:
    """The Lease as its holder renews it."""
    spec = {**stored["spec"], "leaseDurationSeconds": _seconds(duration), "renewTime": format_micro_time(now)}
    return {**stored, "spec": spec}


def is_inline_lease(stored: Object) -> bool:
    """Whether it is the Lease of a single process, which no other ever acquires."""
    return (stored["metadata"].get("labels") or {}).get(names.DRIVER) == DRIVER_INLINE


def released_lease(stored: Object, now: float) -> Object:
    """The Lease as its holder gives it back: the next may take it, and use it at once unless it is broken, too."""
    return {**stored, "spec": {**stored["spec"], "holderIdentity": "", "renewTime": format_micro_time(now)}}


def broken_lease(stored: Object, by: str) -> Object:
    """The Lease as ``by`` takes it away from a holder that is dead, or from none."""
    return _with_spec(stored, {**mapping(stored.get("spec")), "holderIdentity": ""}, broken_by=by)


def _holder_spec(identity: str, duration: float, now: float) -> dict[str, Any]:
    moment = format_micro_time(now)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": _seconds(duration),
        "acquireTime": moment,
        "renewTime": moment,
    }


def _seconds(duration: float) -> int:
    """Whole seconds, never fewer than the holder counts on."""
    return max(1, math.ceil(duration))


def _with_spec(stored: Object, spec: Object, *, broken_by: str | None) -> Object:
    metadata = stored["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != BROKEN_BY}
    if broken_by is not None:
        annotations[BROKEN_BY] = broken_by
    return {**stored, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


class LeaseObservation:
    """How long a Lease has looked the same to us, in seconds of a monotonic clock. Absence is a look, too.

    Only what lies between two looks counts, from the answer of the first. An absent Lease has no version that would
    tell that it came and went in between, so it must be looked at closely: a gap of half a duration starts anew. An
    etcd that was restored gives the same versions again, so who holds it, and since when, has to be the same, too.
    ``duration``: that of a Lease which is absent from the beginning.
    """

    def __init__(self, duration: float = LEASE_DURATION) -> None:
        self.duration = duration
        self._gap = duration / 2
        self._version: tuple[object, ...] | None = None
        self._since = math.inf
        self._last = -math.inf

    def note(self, stored: Object | None, received: float) -> None:
        """What a look brought (None: there is none), and when its answer came."""
        version: tuple[object, ...] | None = None
        if stored is not None:
            metadata, spec = stored["metadata"], mapping(stored.get("spec"))
            version = metadata.get("uid"), metadata.get("resourceVersion")
            version += spec.get("holderIdentity"), spec.get("renewTime")
            self.duration = LeaseRecord.of(stored).duration
        closely = version is not None or received - self._last <= self._gap
        if version != self._version or not closely:
            self._version, self._since = version, received
        self._last = received

    def age(self, now: float) -> float:
        """For how long it has looked the same, at ``now``; 0 before the first look."""
        return max(now - self._since, 0.0)

    def expired(self, now: float) -> bool:
        """Whether it has looked the same for the Lease's own duration (the last known one, where it is absent)."""
        return self.age(now) >= self.duration


_ADMISSION_LEADER_LEASE_NAME: Final = "tf-dist-arbiter"


_PENDING_ADMISSIONS_LEASE_NAME: Final = "tf-dist-admissions"


SYSTEM_NAMESPACE_VARIABLE: Final = "TF_DIST_SYSTEM_NAMESPACE"


def system_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """Where all drivers of a cluster meet: what $TF_DIST_SYSTEM_NAMESPACE says, else the default.

    They must agree on it. A driver that may not write there, or does not find it, decides for no other.
    """
    return environ.get(SYSTEM_NAMESPACE_VARIABLE) or names.SYSTEM_NAMESPACE


def admission_leader_lease(namespace: str = names.SYSTEM_NAMESPACE) -> LeaseRef:
    """The Lease of the driver that decides about places for all."""
    return LeaseRef(namespace, _ADMISSION_LEADER_LEASE_NAME)


def pending_admissions_lease(namespace: str = names.SYSTEM_NAMESPACE) -> LeaseRef:
    """The Lease in which that one writes down what it is about to give away."""
    return LeaseRef(namespace, _PENDING_ADMISSIONS_LEASE_NAME)
