"""Driving one job from here: a Lease of this process's own, and a driver that acts under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from tf_dist.client.connect import Connection
from tf_dist.client.jobs import no_namespace
from tf_dist.client.ownership import leave_to_volcano
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Cluster
from tf_dist.cluster.kube import KubeContext
from tf_dist.core import names
from tf_dist.core.model import Dialect, JobKey
from tf_dist.driver.arbiter import LeaseArbiter, system_namespace
from tf_dist.driver.lease import TIMEOUT, own_ref
from tf_dist.driver.lease_mandate import LeaseMandate
from tf_dist.driver.leasebook import LeaseBook, sweep
from tf_dist.driver.loop import Driver
from tf_dist.driver.refs import JobRef
from tf_dist.driver.settings import DriverSettings
from tf_dist.driver.tenure import Tenure
from tf_dist.errors import Forbidden, NotFound, Rejected, Unavailable

_PATIENCE: Final = 30.0  # seconds for the first heartbeat
_QUICK: Final = 2.0  # and for a request about it, once the driver is to end


@contextmanager
def inline_driver(
    connection: Connection, dialect: Dialect, key: JobKey, *, takes_over: bool = False
) -> Iterator[Mapping[str, str]]:
    """Drive a job, that is still to be created, for as long as this lasts; the annotations that make it ours.

    ``takes_over``: also drive it if it is there already and its driver is dead. The Lease is there before the job, so
    that nobody takes a job for abandoned that is only young, and it goes last. Nothing is driven where the cluster sees
    to its jobs itself. ClusterError when there can be no Lease.
    """
    if connection.place is None:
        yield {}
        return
    if dialect is Dialect.VOLCANO:
        leave_to_volcano(connection.cluster, key.name)
    ref = JobRef(VOLCANO_JOBS if dialect is Dialect.VOLCANO else TFJOBS, key.namespace, key.name)
    # What one job does not need is not asked for: the role of who drives TFJobs has nothing of Volcano's.
    volcano = ref.resource is VOLCANO_JOBS
    with leased_driver(
        connection.place, connection.cluster, key.namespace, only=ref, takes_over=takes_over, volcano_jobs=volcano
    ) as (_, mandate):
        yield {names.DRIVER: mandate.ref}


@contextmanager
def leased_driver(
    place: KubeContext,
    cluster: Cluster,
    namespace: str,
    *,
    only: JobRef | None = None,
    takes_over: bool = False,
    volcano_jobs: bool = False,
    rung: Callable[[JobRef], object] = lambda _: None,
) -> Iterator[tuple[Driver, LeaseMandate]]:
    """A driver under a Lease of its own, which goes last; it drives the jobs of a namespace that name it, or ``only``.

    ``takes_over``: also jobs that nobody drives, or whose driver is dead; ``volcano_jobs``: Volcano's, too, which its
    role must allow; ``rung``: see ``Driver``. ClusterError when there can be no Lease.
    """
    with ExitStack() as stack:
        # A heartbeat comes again by itself, and must not wait behind anything.
        leases = stack.enter_context(place.cluster(connections=2, retries=0, timeout=TIMEOUT))
        tenure = Tenure(leases, own_ref(namespace), shared=False)
        stack.callback(tenure.stop)
        book, clear = LeaseBook(leases, tenure.identity), partial(sweep, leases, namespace)
        mandate = LeaseMandate(tenure, book, takes_over=takes_over, chores=clear)
        stack.callback(mandate.stop)
        system = system_namespace()
        settings = DriverSettings(
            namespace=namespace, only=only, arbitrates=True, volcano_jobs=volcano_jobs, system_namespace=system
        )
        arbiter = LeaseArbiter(leases, namespace=system, stands=mandate.valid)
        driver = Driver(cluster, settings=settings, mandate=mandate, arbiter=arbiter, rung=rung)
        _begin(tenure)
        mandate.start()
        stack.callback(driver.stop)
        driver.start()
        # A Lease that cannot be deleted soon runs out by itself.
        stack.callback(leases.hurry, _QUICK)
        yield driver, mandate


def _begin(tenure: Tenure) -> None:
    """Have the Lease before anything else; ClusterError at once when we may not, or there is no place for it."""
    tenure.step()
    match tenure.problem:
        case NotFound() as error:
            raise no_namespace(error, tenure.ref.namespace)
        case Forbidden() | Rejected() as error:
            raise error
    tenure.start()
    if not tenure.wait(_PATIENCE):
        raise tenure.problem or Unavailable(f"lease {tenure.ref} cannot be had", hint="try again")
