"""An embedded cluster without a controller: clients that wait for a job lead its namespace until a controller runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tf_dist.cluster.api import JOB_KINDS, LEASES, TFJOBS, Cluster, Resource
from tf_dist.cluster.lease import LEASE_DURATION, LeaseRef, leader_lease, new_lease, system_namespace
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import LeaseLeadership
from tf_dist.controller.settings import ControllerSettings
from tf_dist.local.embedded import EmbeddedCluster


class LeaderlessCluster(EmbeddedCluster):
    """An embedded cluster without its controller."""

    def _start_controller(self, stack: ExitStack) -> None: ...


@contextmanager
def controller(cluster: Cluster, namespace: str | None = None) -> Iterator[LeaseLeadership]:
    """A controller of the cluster or of a namespace in threads, with the settings of a Deployment."""
    leadership = LeaseLeadership(cluster, JOB_KINDS, namespace, system=system_namespace())
    leadership.start()
    try:
        found = Controller(cluster, settings=ControllerSettings(namespace=namespace), leadership=leadership)
        found.start()
        try:
            yield leadership
        finally:
            found.stop()
    finally:
        leadership.stop()


def held_lease(
    cluster: Cluster,
    now: float,
    *,
    kind: Resource = TFJOBS,
    namespace: str | None = None,
    duration: float = LEASE_DURATION,
) -> LeaseRef:
    """A Lease of the cluster or of a namespace, held by another process and renewed at ``now``."""
    ref = leader_lease(kind, namespace)
    cluster.create(LEASES, ref.namespace, new_lease(ref, "another", duration, now))
    return ref
