"""The leader of the jobs of a namespace, for display. Controllers do not decide with it.

A controller observes a Lease for its whole duration, and uses only its own clock. A command cannot wait that long. It
compares the time of the last renewal with the clock of this machine, with a tolerance for differences of the clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tf_dist.cluster.api import LEASES, Cluster, Resource
from tf_dist.cluster.lease import LeaseRecord, LeaseRef, leader_lease, system_namespace
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import ClusterError, NotFound

# Seconds by which the clocks of two machines may differ.
_TOLERANCE: Final = 120.0


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The leader of one kind of job in a namespace, according to the Leases."""

    lease: LeaseRef  # the Lease that shows it
    holder: str  # the leading process; "": there is no leader
    last: str = ""  # the last renewal of an expired Lease (RFC 3339); "": it is held, was released, or never existed
    cluster: bool = False  # whether this is the Lease of the whole cluster

    def __str__(self) -> str:
        scope = "the cluster" if self.cluster else f"namespace {self.lease.namespace}"
        return f"{self.holder} leads {scope} (Lease {self.lease})" if self.holder else f"nobody leads {scope}"


def leader_status(cluster: Cluster, kind: Resource, namespace: str, now: float) -> LeaderStatus | None:
    """The leader of jobs of ``kind`` in ``namespace`` at ``now`` (epoch seconds); None if that is unknown."""
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
    # A Lease that cannot be read may have a holder.
    return max(found, key=lambda one: one.last) if len(found) == 2 else None


def nobody_leads(status: LeaderStatus | None) -> str:
    """A sentence that reports a missing leader; "" if a process leads, or if that is unknown."""
    if status is None or status.holder:
        return ""
    if not status.last:
        return "no controller leads the job's namespace or the cluster: the job waits until one does"
    where = "the cluster" if status.cluster else f"namespace {status.lease.namespace}"
    return (
        f"no controller leads {where}: the last one renewed its Lease {status.lease} at {status.last}, "
        "and the job waits until another one leads"
    )
