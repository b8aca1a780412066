"""Manager of the controller process: its controllers, their leader election, probes and metrics.

A replica that does not lead keeps its informers current, so that it can act immediately when it is elected. A replica
that loses the Lease becomes such a standby. Controllers that use client-go exit in this case. Here, each write checks
the Lease.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from tf_dist.cluster.api import Cluster
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.concurrency import Service
from tf_dist.cluster.lease import CONTROLLER_NAME, LEASE_DURATION, RENEW_INTERVAL, unique_identity
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import LeaseLeadership
from tf_dist.controller.observability import health
from tf_dist.controller.observability.health import HealthServer, ProbeResponse, probe_response
from tf_dist.controller.observability.prometheus_metrics import CONTENT_TYPE, PrometheusRecorder
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.model import names

_LOG = logging.getLogger(__name__)
# Seconds after which a worker or an informer counts as stuck: much longer than all attempts of a request together.
_WORKER_STUCK_AFTER: Final = 1800.0
INFORMER_STUCK_AFTER: Final = 600.0


class ShutdownTimeouts(NamedTuple):
    """Seconds from the request to stop until something is ended in any case."""

    requests: float = 4.0  # requests of controllers
    lease_requests: float = 12.0  # requests for Leases
    process: float | None = 18.0  # the process itself (None: never)


SHUTDOWN_TIMEOUTS: Final = ShutdownTimeouts()
_CONTROLLER: Final = ControllerSettings(workers=16, volcano_jobs=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """Settings of a controller process."""

    namespaces: tuple[str, ...] = ()  # lead only these namespaces (empty: the cluster)
    system_namespace: str = names.SYSTEM_NAMESPACE  # the namespace of the cluster's Leases
    metrics_port: int = 8080  # for probes and metrics (0: any free port)
    controller: ControllerSettings = _CONTROLLER  # the settings that all its controllers share
    duration: float = LEASE_DURATION  # seconds after which another replica takes over from a replica that died
    renew_every: float = RENEW_INTERVAL  # seconds between renewals of a Lease
    identity: str = ""  # this replica's name in Leases ("": generated)
    worker_stuck: float = _WORKER_STUCK_AFTER  # seconds after which a worker counts as stuck


def tune_garbage_collector() -> None:
    """Raise the thresholds of the garbage collector, in a process that is only a controller.

    The caches of a controller contain many long-lived objects without cycles. With Python's default thresholds, garbage
    collection takes half of a cold start.
    """
    gc.set_threshold(100_000, 20, 100)


def limit_shutdown_time(
    cluster: RestCluster, leases: RestCluster, timeouts: ShutdownTimeouts = SHUTDOWN_TIMEOUTS
) -> None:
    """Limit the time of ``Manager.stop``, which follows: a server that does not answer cannot delay the exit.

    Requests have a moment to finish. Then the Lease is released through its own client. The manifest's
    ``terminationGracePeriodSeconds`` is longer than all these times.
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
    """Reconciles the jobs of a cluster, or of some namespaces, while it is their leader.

    Use it as a context manager, or call ``start`` and ``stop``. ``cluster`` is for the controllers. ``lease_cluster``
    is for Leases, so that a renewal never waits for other requests (None: the same as ``cluster``). ``recorder``: see
    ``PrometheusRecorder``. Pass its ``called`` to the clients.
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
        self.identity = settings.identity or unique_identity()
        scopes: tuple[str | None, ...] = tuple(sorted(set(settings.namespaces))) or (None,)
        self._pairs = [self._pair(cluster, lease_cluster or cluster, namespace) for namespace in scopes]
        self.port = settings.metrics_port  # after ``start``, the port in use
        self._stack = ExitStack()

    def _pair(self, cluster: Cluster, leases: Cluster, namespace: str | None) -> tuple[LeaseLeadership, Controller]:
        """The leadership and the controller of one scope."""
        settings = replace(self._settings.controller, namespace=namespace, component=CONTROLLER_NAME)
        leadership = LeaseLeadership(
            leases,
            settings.job_kinds,
            namespace,
            system=self._settings.system_namespace,
            identity=self.identity,
            duration=self._settings.duration,
            renew_every=self._settings.renew_every,
            recorder=self.recorder,
        )
        return leadership, Controller(cluster, settings=settings, recorder=self.recorder, leadership=leadership)

    def leads(self) -> bool:
        """Whether this process is now the leader of any kind of job in any of its scopes."""
        return any(leadership.kinds() for leadership, _ in self._pairs)

    # Lifecycle

    def start(self) -> Self:
        """Start the informers and leader election. Raises ClusterError if the port is in use."""
        with ExitStack() as stack:
            pages = {
                "/healthz": lambda: probe_response(self.unhealthy()),
                "/readyz": lambda: probe_response(self.unready()),
                "/metrics": lambda: ProbeResponse(200, self.recorder.exposition(), CONTENT_TYPE),
            }
            server = HealthServer(pages, port=self.port)
            self.port = server.server_port
            server.start()
            stack.callback(server.stop)
            for leadership, controller in self._pairs:
                # Leases are released after the controllers have stopped writing.
                leadership.start()
                stack.callback(leadership.stop)
                controller.start()
                stack.callback(controller.stop)
            self._stack = stack.pop_all()
        _LOG.info("started manager identity=%s port=%d", self.identity, self.port)
        return self

    def stop(self) -> None:
        """Stop the controllers after their current work, then release the Leases. Jobs continue to run."""
        self._stack.close()

    # Probes

    def unhealthy(self) -> str:
        """The reason to restart this process; "" if it is healthy."""
        found: list[str] = []
        for _, controller in self._pairs:
            found += health.stuck_threads(
                controller.readings(), worker=self._settings.worker_stuck, informer=INFORMER_STUCK_AFTER
            )
            if controller.informers.rights_changed():
                found.append("the right to list all nodes and pods has changed")
        return "; ".join(found)

    def unready(self) -> str:
        """What this replica lacks to become the leader; "" if it is ready. A standby is ready."""
        every = [controller.informers for _, controller in self._pairs]
        if not all(informers.synced() for informers in every):
            problems = [problem for informers in every for problem in informers.problems()]
            return "some informers have not synced yet" + (f": {'; '.join(problems)}" if problems else "")
        missing = sorted({f"{kind.plural}.{kind.group}" for informers in every for kind in informers.missing()})
        return f"the cluster does not serve {', '.join(missing)}: install its definition" if missing else ""
