"""Manager of the controller process: its controllers, their leader election, probes and metrics.

A replica that does not lead keeps its informers current, so that it acts at once when it is elected. A replica that
loses the Lease becomes such a standby. (Controllers built on client-go exit then. Here each write checks the Lease.)
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
# Seconds after which a worker or an informer counts as stuck: far above what all tries of a request may take together.
_WORKER_STUCK_AFTER: Final = 1800.0
INFORMER_STUCK_AFTER: Final = 600.0


class ShutdownTimeouts(NamedTuple):
    """Seconds after the request to stop until something is ended in any case."""

    requests: float = 4.0  # requests of controllers
    lease_requests: float = 12.0  # and those about Leases
    process: float | None = 18.0  # the process itself (None: it is not)


SHUTDOWN_TIMEOUTS: Final = ShutdownTimeouts()
_CONTROLLER: Final = ControllerSettings(workers=16, volcano_jobs=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """Settings of a controller process."""

    namespaces: tuple[str, ...] = ()  # lead these only (none: the cluster)
    system_namespace: str = names.SYSTEM_NAMESPACE  # where the cluster's Leases are
    metrics_port: int = 8080  # for probes and metrics (0: any free one)
    controller: ControllerSettings = _CONTROLLER  # what its controllers have in common
    duration: float = LEASE_DURATION  # seconds after which the next replica takes over from one that died
    renew_every: float = RENEW_INTERVAL  # seconds between renewals of a Lease
    identity: str = ""  # this replica's name in Leases ("": made up)
    worker_stuck: float = _WORKER_STUCK_AFTER  # seconds


def tune_garbage_collector() -> None:
    """For a process that is only a controller. Its caches are many objects that live long and form no cycles. With
    Python's default thresholds, collecting them takes half of a cold start.
    """
    gc.set_threshold(100_000, 20, 100)


def limit_shutdown_time(
    cluster: RestCluster, leases: RestCluster, timeouts: ShutdownTimeouts = SHUTDOWN_TIMEOUTS
) -> None:
    """Call it before ``Manager.stop``, so that a server that does not answer cannot delay the end of the process.

    Requests have a moment to finish. The Lease is given back after that, through its own client. The manifest's
    ``terminationGracePeriodSeconds`` is longer than all of it.
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
    """Drives the jobs of a cluster, or of some namespaces, while it leads them. Use it as a context manager, or
    ``start`` and ``stop``.

    ``cluster``: for the controllers; ``lease_cluster``: for Leases, so that a heartbeat never waits behind other
    requests (None: the same). ``recorder``: see ``PrometheusRecorder``; give its ``called`` to the clients.
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
        self.port = settings.metrics_port  # the real one after ``start``
        self._stack = ExitStack()

    def _pair(self, cluster: Cluster, leases: Cluster, namespace: str | None) -> tuple[LeaseLeadership, Controller]:
        """The controller of one scope, and its leadership."""
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
        """Whether it leads anything at this moment."""
        return any(leadership.kinds() for leadership, _ in self._pairs)

    # Its life

    def start(self) -> Self:
        """Start the informers and leader election. ClusterError when the port is taken."""
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
                # Leases are given back when nothing can be written under them any more.
                leadership.start()
                stack.callback(leadership.stop)
                controller.start()
                stack.callback(controller.stop)
            self._stack = stack.pop_all()
        _LOG.info("started manager identity=%s port=%d", self.identity, self.port)
        return self

    def stop(self) -> None:
        """End the controllers after what they are in the middle of, then give the Leases back; jobs go on."""
        self._stack.close()

    # What probes ask

    def unhealthy(self) -> str:
        """Why this process should be started anew; "" while it should not."""
        found: list[str] = []
        for _, controller in self._pairs:
            found += health.stuck_threads(
                controller.readings(), worker=self._settings.worker_stuck, informer=INFORMER_STUCK_AFTER
            )
            if controller.informers.rights_changed():
                found.append("the right to list all nodes and pods has changed")
        return "; ".join(found)

    def unready(self) -> str:
        """What is missing before this replica could lead; "" for nothing. A stand-by is ready."""
        every = [controller.informers for _, controller in self._pairs]
        if not all(informers.synced() for informers in every):
            problems = [problem for informers in every for problem in informers.problems()]
            return "some informers have not synced yet" + (f": {'; '.join(problems)}" if problems else "")
        missing = sorted({f"{kind.plural}.{kind.group}" for informers in every for kind in informers.missing()})
        return f"the cluster does not serve {', '.join(missing)}: install its definition" if missing else ""
