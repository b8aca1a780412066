"""Who leads the jobs of a namespace, for people who look at it. No controller decides on it.

A controller decides on Leases by its own clock alone; a person who has just come has seen no Lease for any time, so
here the time of its last renewal is compared with the clock of this machine, with more tolerance than clocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tf_dist.cluster.api import LEASES, Cluster, Resource
from tf_dist.cluster.lease import LeaseRecord, LeaseRef, leader_lease, system_namespace
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import ClusterError, NotFound

# Seconds for which a Lease that is not renewed may be the fault of two clocks.
_TOLERANCE: Final = 120.0


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """What the Leases say of who leads one kind of jobs in a namespace."""

    lease: LeaseRef  # the one that says it
    holder: str  # the process that leads; "": nobody does
    last: str = ""  # when the last holder renewed it (RFC 3339); "": there was none, or it gave the Lease back
    cluster: bool = False  # whether it leads the whole cluster

    def __str__(self) -> str:
        scope = "the cluster" if self.cluster else f"namespace {self.lease.namespace}"
        return f"{self.holder} leads {scope} (Lease {self.lease})" if self.holder else f"nobody leads {scope}"


def leader_status(cluster: Cluster, kind: Resource, namespace: str, now: float) -> LeaderStatus | None:
    """Who leads jobs of ``kind`` in ``namespace`` at ``now`` (epoch seconds); None where that may not be read."""
    found: list[LeaderStatus] = []
    for scope in (None, namespace):
        ref = leader_lease(kind, scope, system_namespace())
        try:
            lease = cluster.get(LEASES, *ref)
        except NotFound:
            found.append(LeaderStatus(ref, "", cluster=scope is None))
            continue
        except ClusterError:
            continue
        record = LeaseRecord.of(lease)
        if not record.holder or record.renewed is None:
            found.append(LeaderStatus(ref, "", cluster=scope is None))
        elif now < record.renewed + record.duration + _TOLERANCE:
            return LeaderStatus(ref, record.holder, cluster=scope is None)
        else:
            found.append(LeaderStatus(ref, "", format_time(record.renewed), cluster=scope is None))
    # A Lease that may not be read may have a holder.
    return max(found, key=lambda one: one.last) if len(found) == 2 else None


def nobody_leads(status: LeaderStatus | None) -> str:
    """That nobody leads, in a sentence; "" where somebody does, or where that cannot be known."""
    if status is None or status.holder:
        return ""
    if not status.last:
        return "no controller leads the job's namespace or the cluster: the job waits until one does"
    where = "the cluster" if status.cluster else f"namespace {status.lease.namespace}"
    return (
        f"no controller leads {where}: the last one renewed its Lease {status.lease} at {status.last}, "
        "and the job waits until another one leads"
    )
