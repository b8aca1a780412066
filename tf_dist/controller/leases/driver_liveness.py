"""Whether a job has a driver that lives, for people who look at it: in words, and wrong in neither direction for long.

No driver decides on it. A driver decides on Leases by its own clock alone (``tf_dist.controller.leases.lease``); a
person who has just come has seen no Lease for any time, so here the time of its last renewal is compared with the clock
of this machine, with more tolerance than clocks differ.
"""

from __future__ import annotations

from typing import Final

from tf_dist.cluster.api import LEASES, Cluster, Object
from tf_dist.controller.leases.lease import (
    CONTROLLER_LEASE,
    DRIVER_ADMISSION_LEADER,
    DRIVER_CONTROLLER,
    NAMESPACES,
    LeaseRecord,
    LeaseRef,
    controller_lease_name,
    is_inline_lease,
    system_namespace,
)
from tf_dist.core.api import names
from tf_dist.core.api.fieldpath import mapping, text
from tf_dist.core.api.timestamps import format_time, parse_time
from tf_dist.core.reconciler.ownership import driver_of, is_claimed, managed_elsewhere
from tf_dist.errors import ClusterError, NotFound

# Seconds for which a Lease that is not renewed may be the fault of two clocks.
_TOLERANCE: Final = 120.0
# Likewise where a job is to be left to it: that a program drives the job itself instead does no harm.
_SHORT_TOLERANCE: Final = 15.0
# Seconds that a driver has to take a new job. One of a local cluster has no Lease, and shows in no other way.
_CLAIMED_WITHIN: Final = 30.0


def controller_lives(cluster: Cluster, namespace: str, now: float) -> bool:
    """Whether a controller of all namespaces, or of this one among others, is alive; False where that cannot be known.

    Only the Leases of the system namespace are seen. A controller of all namespaces that was installed into another one
    is known there while it decides about places for all, as it does; one of single namespaces is not.
    """
    try:
        found = cluster.list(LEASES, system_namespace(), labels=names.DRIVER).items
    except ClusterError:
        return False
    return any(_drives(one, namespace) and _alive(one, now, _SHORT_TOLERANCE) for one in found)


def _drives(lease: Object, namespace: str) -> bool:
    """Whether it is the Lease of a controller of that namespace; one of several says so itself."""
    metadata = lease["metadata"]
    annotations, kind = mapping(metadata.get("annotations")), mapping(metadata.get("labels")).get(names.DRIVER)
    if kind != DRIVER_CONTROLLER:
        return kind == DRIVER_ADMISSION_LEADER and bool(annotations.get(CONTROLLER_LEASE))
    if metadata["name"] in (controller_lease_name(()), controller_lease_name((namespace,))):
        return True
    return namespace in text(annotations.get(NAMESPACES)).split(",")


def no_living_driver(cluster: Cluster, job: Object, now: float) -> str:
    """Why nothing drives a stored job at present, in a sentence; "" where it is driven, or where that cannot be known.

    ``job``: one that is not over. ``now``: epoch seconds.
    """
    if managed_elsewhere(job):
        return ""
    driver = driver_of(job)
    ref = LeaseRef.parse(driver)
    if driver and not is_claimed(job) and _waited(job, now, _CLAIMED_WITHIN):
        return (
            f"its annotation {names.DRIVER} names the driver {driver}, which has not taken the job; "
            "it is not admitted; remove the annotation to leave it to the controller"
        )
    try:
        if ref is not None:
            return _gone(cluster, ref, now)
        return "" if driver else _no_controller(cluster, job, now)
    except ClusterError:
        return ""  # Leases that may not be read say nothing


def _gone(cluster: Cluster, ref: LeaseRef, now: float) -> str:
    try:
        lease = cluster.get(LEASES, *ref)
    except NotFound:
        return f"its driver {ref} has ended; the job waits until another driver takes it over"
    if _alive(lease, now):
        return ""
    what = "the program that drove it" if is_inline_lease(lease) else "its controller"
    return f"{what} is not alive: Lease {ref}{_renewed(lease)}; the job waits until a driver takes it over"


def _no_controller(cluster: Cluster, job: Object, now: float) -> str:
    namespace = system_namespace()
    leases = cluster.list(LEASES, namespace, labels=names.DRIVER).items
    if any(_alive(lease, now) for lease in leases):
        return ""
    if not leases and not _waited(job, now, _CLAIMED_WITHIN):
        return ""
    return f"no controller is alive in {namespace}: the job waits until one is"


def _waited(job: Object, now: float, seconds: float) -> bool:
    """Whether a job is older than that."""
    created = parse_time(mapping(job.get("metadata")).get("creationTimestamp"))
    return created is not None and now >= created + seconds


def _alive(lease: Object, now: float, tolerance: float = _TOLERANCE) -> bool:
    record = LeaseRecord.of(lease)
    renewed = parse_time(mapping(lease.get("spec")).get("renewTime"))
    return bool(record.holder) and renewed is not None and now < renewed + record.duration + tolerance


def _renewed(lease: Object) -> str:
    renewed = parse_time(mapping(lease.get("spec")).get("renewTime"))
    return "" if renewed is None else f" was renewed last at {format_time(renewed)}"
