"""Inline driver: drives jobs from this process, under a Lease of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from tf_dist.client.connection import Connection, refuse_beside_volcano
from tf_dist.client.stored_jobs import namespace_missing_error, now
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.cluster.client.client_config import KubeContext
from tf_dist.controller.driver import Driver
from tf_dist.controller.driver_settings import DriverSettings, JobRef, cluster_domain
from tf_dist.controller.gang_admission.admission_leader import LeaseAdmissionLeader
from tf_dist.controller.leases.driver_liveness import controller_lives
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.leadership import LeaseLeadership
from tf_dist.controller.leases.lease import LEASE_REQUEST_TIMEOUT, system_namespace, unique_lease_ref
from tf_dist.controller.leases.lease_monitor import LeaseMonitor, delete_expired_leases
from tf_dist.core.api import names
from tf_dist.core.api.job import Dialect, JobKey
from tf_dist.core.api.status_codec import FIELD, has_embedded_memory, stored_status, with_embedded_memory
from tf_dist.core.dialects.kubeflow_extensions.accelerators import Accelerators
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.errors import Forbidden, NotFound, Rejected, Unavailable


def claim_job(cluster: Cluster, resource: Resource, stored: Object, me: str) -> Object:
    """Name ``me`` as the driver of the job as it was ``stored``; Conflict if it has changed since, NotFound.

    ``may_claim`` says from which drivers. List the job's pods before: see ``DriverInformers.confirm``.
    Before its first status a job names its driver in an annotation.
    """
    metadata, status = stored["metadata"], stored_status(stored)
    where = metadata["namespace"], metadata["name"]
    if not isinstance(status.get(FIELD), Mapping):
        version = metadata["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, "annotations": {names.DRIVER: me}}}
        return cluster.patch(resource, *where, patch)
    claimed = {**status, FIELD: {**status[FIELD], "driver": me}}
    if has_embedded_memory(stored.get("status")):
        claimed = dict(with_embedded_memory(claimed, resource.kind))
    return cluster.replace(resource, *where, {**stored, "status": claimed}, subresource="status")


_FIRST_RENEWAL: Final = 30.0  # seconds
_QUICK: Final = 2.0  # and for a request about it, once the driver is to end


def is_driven_inline(connection: Connection, choice: DriverChoice, dialect: Dialect, namespace: str) -> bool:
    """Whether the program that waits for a job drives it, too.

    ``auto`` leaves a TFJob to a controller that lives; whether that one has Volcano's Jobs as well cannot be seen.
    """
    if choice is not DriverChoice.AUTO or connection.place is None or dialect is Dialect.VOLCANO:
        return choice is not DriverChoice.CONTROLLER
    return not controller_lives(connection.cluster, namespace, now())


@contextmanager
def inline_driver(
    connection: Connection,
    dialect: Dialect,
    key: JobKey,
    *,
    takes_over: bool,
    choice: DriverChoice = DriverChoice.INLINE,
    accelerators: Accelerators | None = None,
) -> Iterator[Mapping[str, str]]:
    """Drive a job, that is still to be created, for as long as this lasts; the annotations that make it ours.

    ``takes_over``: also drive it if it is there already and its driver is dead. The Lease is there before the job, so
    that no driver takes a new job for abandoned, and it is deleted last. Nothing is driven where the cluster sees
    to its jobs itself, or by ``choice`` a controller does. ClusterError when there can be no Lease.
    """
    if connection.place is None or not is_driven_inline(connection, choice, dialect, key.namespace):
        yield {}
        return
    if dialect is Dialect.VOLCANO:
        refuse_beside_volcano(connection.cluster, key.name)
    ref = JobRef(VOLCANO_JOBS if dialect is Dialect.VOLCANO else TFJOBS, key.namespace, key.name)
    # What one job does not need is not asked for: the role of who drives TFJobs has nothing of Volcano's.
    volcano = ref.resource is VOLCANO_JOBS
    with leased_driver(
        connection.place,
        connection.cluster,
        key.namespace,
        only=ref,
        takes_over=takes_over,
        volcano_jobs=volcano,
        accelerators=accelerators,
    ) as (_, leadership):
        yield {names.DRIVER: leadership.ref}


@contextmanager
def leased_driver(
    place: KubeContext,
    cluster: Cluster,
    namespace: str,
    *,
    only: JobRef | None = None,
    takes_over: bool = False,
    volcano_jobs: bool = False,
    accelerators: Accelerators | None = None,
    on_change: Callable[[JobRef], object] = lambda _: None,
    patience: float = _FIRST_RENEWAL,
) -> Iterator[tuple[Driver, LeaseLeadership]]:
    """A driver under a Lease of its own, which goes last; it drives the jobs of a namespace that name it, or ``only``.

    ``takes_over``: also jobs that have no driver, or whose driver is dead; ``volcano_jobs``: Volcano's, too, which its
    role must allow; ``accelerators``: see ``DriverSettings``;
    ``on_change``: see ``Driver``; ``patience``: seconds until the Lease must be ours. ClusterError when there can be
    none.
    """
    with ExitStack() as stack:
        # A heartbeat comes again by itself, and must not wait behind anything.
        leases = stack.enter_context(place.cluster(connections=2, retries=0, timeout=LEASE_REQUEST_TIMEOUT))
        elector = LeaderElector(leases, unique_lease_ref(namespace), shared=False)
        stack.callback(elector.stop)
        lease_monitor, clear = LeaseMonitor(leases, elector.identity), partial(delete_expired_leases, leases, namespace)
        leadership = LeaseLeadership(elector, lease_monitor, takes_over=takes_over, housekeeping=clear)
        stack.callback(leadership.stop)
        system = system_namespace()
        settings = DriverSettings(
            namespace=namespace,
            only=only,
            can_lead_admission=True,
            volcano_jobs=volcano_jobs,
            system_namespace=system,
            cluster_domain=cluster_domain(),
            accelerators=accelerators or {},
        )
        admission_leader = LeaseAdmissionLeader(leases, namespace=system, wanted=leadership.valid)
        driver = Driver(
            cluster, settings=settings, leadership=leadership, admission_leader=admission_leader, on_change=on_change
        )
        _begin(elector, patience)
        leadership.start()
        stack.callback(driver.stop)
        driver.start()
        # A Lease that cannot be deleted soon runs out by itself.
        stack.callback(leases.hurry, _QUICK)
        yield driver, leadership


def _begin(elector: LeaderElector, patience: float) -> None:
    """Have the Lease before anything else; ClusterError at once when we may not, or there is no place for it."""
    elector.step()
    match elector.problem:
        case NotFound() as error:
            raise namespace_missing_error(error, elector.ref.namespace)
        case Forbidden() | Rejected() as error:
            raise error
    elector.start()
    if not elector.wait(patience):
        raise elector.problem or Unavailable(f"lease {elector.ref} cannot be had", hint="try again")
