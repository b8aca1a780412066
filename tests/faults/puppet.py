"""Processes with a controller: production code with all its threads, on a separate simulated network."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any, cast

from tests.faults.documents import TEAM, Shape
from tests.faults.simulation import Process, SimulatedRuntime
from tests.faults.site import Site, memory_of
from tests.faults.wire import Network, Server, Wire
from tf_dist.client.controller_host import ControllerHost
from tf_dist.cluster.api import VOLCANO_JOBS, Resource
from tf_dist.cluster.client.client_config import KubeContext
from tf_dist.cluster.lease import LEASE_REQUEST_TIMEOUT
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import Leadership, LeaseLeadership, Standalone
from tf_dist.controller.settings import ControllerSettings
from tf_dist.errors import ClusterError

# Seconds of a resync that never happens, because controllers must react to notifications alone.
_NEVER = 1e9
_LOOK_EVERY = 2.0


class Scope(Enum):
    """What a process leads, and how long it runs."""

    ALONE = "everything, without a Lease"
    CLUSTER = "the cluster, in turns with its replicas"
    NAMESPACE = "a namespace, as an Airflow worker does"
    RUN = "a namespace until its own job has ended, as tf-dist run does"


class Puppet:
    """A process. It starts when time advances.

    ``kinds`` are the kinds of jobs that it may lead. ``job`` is the name and shape of the job that a ``RUN`` submits.
    """

    def __init__(
        self,
        site: Site,
        server: Server,
        scope: Scope,
        number: int,
        kinds: tuple[Resource, ...],
        *,
        skew: float = 0.0,
        rate: float = 1.0,
        retries: int = 3,
        workers: int = 4,
        job: tuple[str, Shape] | None = None,
    ) -> None:
        self.site, self.scope, self.kinds = site, scope, kinds
        self.process = Process(site.simulation, f"process {number}", skew=skew, rate=rate)
        self.runtime = SimulatedRuntime(self.process)
        self.network = Network(server, self.process)
        self.leaving = self.left = False
        self.host: ControllerHost | None = None
        self._controller: Controller | None = None
        self._job = job
        clocks: dict[str, Any] = {"clock": self.process.wall, "monotonic": self.process.monotonic}
        cluster = Wire(self.network, retries=retries)
        self.leadership: Leadership = Standalone()
        if scope in (Scope.NAMESPACE, Scope.RUN):
            self.host = ControllerHost(
                cast("KubeContext", self),
                cluster,
                TEAM,
                kinds,
                on_led=cluster.forget,  # a new controller has seen nothing, so no object is too old for it
                runtime=self.runtime,
                **clocks,
            )
            self.host._settings = replace(self.host._settings, workers=workers, resync=_NEVER, resync_waiting=_NEVER)
            self.leadership = self.host.leadership
            for leading in (self.leadership, *self.leadership.electors.values()):
                leading.identity = self.process.name  # the name in the logs
        else:
            settings = ControllerSettings(
                volcano_jobs=VOLCANO_JOBS in kinds, workers=workers, resync=_NEVER, resync_waiting=_NEVER
            )
            if scope is Scope.CLUSTER:
                self.leadership = LeaseLeadership(
                    self.cluster(), kinds, None, identity=self.process.name, runtime=self.runtime, **clocks
                )
            self._controller = Controller(
                cluster, settings=settings, leadership=self.leadership, runtime=self.runtime, **clocks
            )
        self.process.spawn(self._live, "main")

    def cluster(self, **_: Any) -> Wire:
        """A client for Leases."""
        return Wire(self.network, retries=0, timeout=LEASE_REQUEST_TIMEOUT)

    @property
    def leases(self) -> bool:
        """Whether the process leads by Leases."""
        return isinstance(self.leadership, LeaseLeadership)

    @property
    def controller(self) -> Controller | None:
        """The current controller of the process, or None."""
        return self._controller if self.host is None else self.host.controller

    @property
    def sees_nodes(self) -> bool:
        """Whether the controller knows the free capacity."""
        return self.controller is not None and self.controller.informers.sees_nodes

    @property
    def dead(self) -> bool:
        """Whether the process has ended, for any reason."""
        return self.process.dead or self.left

    # Life cycle

    def _live(self) -> None:
        if self.host is None:
            self.leadership.start()
            assert self._controller is not None
            self._controller.start()
            return
        try:
            self.host.start()
        except ClusterError:
            self.left = True  # the user sees the error
            return
        if self._job is not None:
            self._run_job(*self._job)

    def _run_job(self, called: str, shape: Shape) -> None:
        self.site.submit(called, shape)
        pause = self.runtime.event()
        while (found := self.site.job(called)) is not None:
            if memory_of(found[1]).get("phase") in ("Completed", "Failed", "Terminated"):
                break
            pause.wait(_LOOK_EVERY)
        self.leave()

    def leave(self) -> None:
        """End cleanly: finish the current work, and release the Leases."""
        if not self.dead and not self.leaving:
            self.leaving = True
            self.site.note(f"{self.process.name} leaves")
            self.process.spawn(self._leave, "leave")

    def _leave(self) -> None:
        if self.host is not None:
            self.host.stop()
        elif self._controller is not None:
            self._controller.stop()
            self.leadership.stop()
        self.left = True

    def die(self) -> None:
        """Kill the process. Its Leases are not released, and its requests may still be under way."""
        if not self.process.dead:
            self.site.note(f"{self.process.name} is killed")
            self.process.kill()
