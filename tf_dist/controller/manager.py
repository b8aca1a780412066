"""Manager of the controller process: its drivers, leader election, probes and metrics.

A replica that does not hold the Lease watches the cluster all the same, so that it acts at once when it is elected. A
replica that loses the Lease goes on as a stand-by. (Controllers built on client-go end themselves then, because nothing
else keeps their work back; here every write asks whether the Lease is still ours, and a warm cache is worth keeping.)
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from tf_dist.cluster.api import Cluster
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.concurrency import Service
from tf_dist.controller.driver import Driver
from tf_dist.controller.driver_settings import DriverSettings
from tf_dist.controller.gang_admission.admission_leader import LeaseAdmissionLeader
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.leadership import LeaseLeadership
from tf_dist.controller.leases.lease import (
    CONTROLLER_NAME,
    LEASE_DURATION,
    NAMESPACES,
    RENEW_INTERVAL,
    LeaseRef,
    admissions_lease_name,
    controller_lease_name,
)
from tf_dist.controller.leases.lease_monitor import LeaseMonitor
from tf_dist.controller.observability import health
from tf_dist.controller.observability.health import HealthServer, ProbeResponse, probe_response
from tf_dist.controller.observability.prometheus import CONTENT_TYPE, PrometheusRecorder

_LOG = logging.getLogger(__name__)
# Seconds after which a worker or an informer counts as stuck: far above what all tries of a request may take together.
_WORKER_STUCK_AFTER: Final = 1800.0
INFORMER_STUCK_AFTER: Final = 600.0


class ShutdownTimeouts(NamedTuple):
    """Seconds after the request to stop: until requests of drivers are aborted, until those about Leases are, and until
    the process ends in any case (None: it does not)."""

    requests: float = 4.0
    lease_requests: float = 12.0
    process: float | None = 18.0


SHUTDOWN_TIMEOUTS: Final = ShutdownTimeouts()
_DRIVER: Final = DriverSettings(workers=16, volcano_jobs=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """Settings of a controller.

    ``namespaces``: drive the jobs of these only (none: of all). ``lease_namespace``: where its Lease is.
    ``metrics_port``: for probes and metrics (0: any free one). ``driver``: what its drivers have in common.
    ``duration``: seconds after which the next replica takes over from one that died; ``renew_every``: seconds between
    renewals. ``identity``: this replica's name in the Lease ("": made up).
    """

    namespaces: tuple[str, ...] = ()
    lease_namespace: str = "default"
    metrics_port: int = 8080
    driver: DriverSettings = _DRIVER
    duration: float = LEASE_DURATION
    renew_every: float = RENEW_INTERVAL
    identity: str = ""
    worker_stuck: float = _WORKER_STUCK_AFTER


def tune_garbage_collector() -> None:
    """For a process that is a controller and nothing else: its caches are many objects that live long and form no
    cycles, and Python's collector, as it is set, takes half of a cold start to go through them again and again.
    """
    gc.set_threshold(100_000, 20, 100)


def limit_shutdown_time(
    cluster: RestCluster, leases: RestCluster, timeouts: ShutdownTimeouts = SHUTDOWN_TIMEOUTS
) -> None:
    """Before ``Manager.stop``: see to it that a server which does not answer cannot hold up the end of the process.

    What is in the middle of a request has a moment to finish it, and the Lease is given back after that, through a
    client of its own. The manifest's ``terminationGracePeriodSeconds`` leaves room for all of it.
    """

    def exit_now() -> None:
        _LOG.error("failed to stop in time, exiting, the lease will expire: seconds=%g", timeouts.process)
        os._exit(1)

    for seconds, step in zip(timeouts, (cluster.cancel, leases.cancel, exit_now), strict=True):
        if seconds is not None:
            timer = threading.Timer(seconds, step)
            timer.daemon = True
            timer.start()


class Manager(Service):
    """Drives a cluster's jobs while it holds the Lease. Use it as a context manager, or ``start`` and ``stop``.

    ``cluster``: for the drivers; ``lease_cluster``: for Leases, so that a heartbeat never waits behind other requests
    (None: the same). ``recorder``: see ``PrometheusRecorder``; give its ``called`` to the clients.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ManagerSettings,
        *,
        recorder: PrometheusRecorder | None = None,
        lease_cluster: Cluster | None = None,
    ) -> None:
        self.recorder = recorder or PrometheusRecorder()
        self._settings = settings
        self._leases = lease_cluster or cluster
        ref = LeaseRef(settings.lease_namespace, controller_lease_name(settings.namespaces))
        self.elector = LeaderElector(
            self._leases,
            ref,
            settings.identity,
            shared=True,
            annotations={NAMESPACES: ",".join(sorted(set(settings.namespaces)))} if settings.namespaces else None,
            duration=settings.duration,
            renew_every=settings.renew_every,
            recorder=self.recorder,
        )
        spaces: tuple[str | None, ...] = tuple(sorted(set(settings.namespaces))) or (None,)
        self._pairs = [self._pair(cluster, namespace) for namespace in spaces]
        self._health = HealthServer(self._pages(), port=settings.metrics_port)
        self._stack = ExitStack()

    def _pair(self, cluster: Cluster, namespace: str | None) -> tuple[LeaseLeadership, Driver]:
        """A driver of one namespace, or of all, and its leadership."""
        lease_monitor = LeaseMonitor(self._leases, self.elector.identity)
        leadership = LeaseLeadership(self.elector, lease_monitor)
        settings = replace(
            self._settings.driver,
            namespace=namespace,
            component=CONTROLLER_NAME,
            admissions=LeaseRef(self.elector.ref.namespace, admissions_lease_name(self.elector.ref.name, namespace)),
            can_lead_admission=True,
        )
        admission_leader = LeaseAdmissionLeader(
            self._leases,
            namespace=settings.system_namespace,
            wanted=leadership.valid,
            controller=str(self.elector.ref) if namespace is None else "",
            duration=self._settings.duration,
            renew_every=self._settings.renew_every,
        )
        return leadership, Driver(
            cluster, settings=settings, recorder=self.recorder, leadership=leadership, admission_leader=admission_leader
        )

    @property
    def port(self) -> int:
        """Where probes and metrics are served."""
        return self._health.port

    # Its life

    def start(self) -> Self:
        """Begin to follow the cluster and to stand for the Lease. ClusterError when the port is taken."""
        with ExitStack() as stack:
            self._health.start()
            stack.callback(self._health.stop)
            # The Lease is given back when no driver can act any more.
            stack.callback(self.elector.stop)
            for leadership, driver in self._pairs:
                leadership.start()
                stack.callback(leadership.stop)
                driver.start()
                stack.callback(driver.stop)
            self.elector.start()
            self._stack = stack.pop_all()
        _LOG.info("started manager lease=%s identity=%s port=%d", self.elector.ref, self.elector.identity, self.port)
        return self

    def stop(self) -> None:
        """End the drivers after what they are in the middle of, then give the Lease back; jobs go on as they are."""
        self._stack.close()

    # What probes ask

    def _pages(self) -> dict[str, Callable[[], ProbeResponse]]:
        return {
            "/healthz": lambda: probe_response(self.unhealthy()),
            "/readyz": lambda: probe_response(self.unready()),
            "/metrics": lambda: ProbeResponse(200, self.recorder.exposition(), CONTENT_TYPE),
        }

    def unhealthy(self) -> str:
        """Why this process should be started anew; "" while it should not."""
        ages = [driver.liveness.age() for _, driver in self._pairs if not driver.liveness.alive()]
        found = [f"the driver has not come round for {max(ages):.0f} s"] if ages else []
        for _, driver in self._pairs:
            found += health.stuck_threads(
                driver.readings(), worker=self._settings.worker_stuck, informer=INFORMER_STUCK_AFTER
            )
        return "; ".join(found)

    def unready(self) -> str:
        """What is missing before this replica could drive; "" for nothing. A stand-by is ready."""
        every = [driver.informers for _, driver in self._pairs]
        if not all(informers.synced() for informers in every):
            problems = [problem for informers in every for problem in informers.problems()]
            return "not everything has been listed yet" + (f": {'; '.join(problems)}" if problems else "")
        missing = sorted({f"{kind.plural}.{kind.group}" for informers in every for kind in informers.missing()})
        return f"the cluster does not serve {', '.join(missing)}: install its definition" if missing else ""
