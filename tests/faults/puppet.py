"""Controller processes: the production driver with all its threads, under a mandate, behind a network of its own."""

from __future__ import annotations

from enum import Enum

from tf_dist.controller.gang_admission.admission_leader import LeaseAdmissionLeader
from tf_dist.controller.leases.lease_monitor import LeaseMonitor

from tests.faults.documents import TEAM, Shape
from tests.faults.simulation import Process, SimulatedRuntime
from tests.faults.site import Site
from tests.faults.wire import Network, Server, Wire
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS
from tf_dist.controller.controller import Controller
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.leadership import Leadership, LeaseLeadership, Standalone
from tf_dist.controller.leases.lease import (
    LEASE_REQUEST_TIMEOUT,
    LeaseRef,
    admissions_lease_name,
    controller_lease_name,
)
from tf_dist.controller.settings import ControllerSettings, JobRef

# Seconds: a driver is notified of everything, and nothing waits for its resync.
_NEVER = 1e9


class Reach(Enum):
    """Whose jobs a driver drives."""

    ALONE = "all, and no Lease"
    CLUSTER = "all, in turns with others"
    NAMESPACE = "those of a namespace, in turns with others"
    JOB = "one"


class Puppet:
    """One driver process, composed as the controller and ``tf-dist run`` do it. It lives as soon as time goes on.

    ``job``: the name and shape of the one that it submits and drives.
    """

    def __init__(
        self,
        site: Site,
        server: Server,
        reach: Reach,
        number: int,
        *,
        skew: float = 0.0,
        rate: float = 1.0,
        retries: int = 3,
        workers: int = 4,
        volcano: bool = False,
        intents: int = 500,
        job: tuple[str, Shape] | None = None,
    ) -> None:
        self.site = site
        self.number = number
        self.reach = reach
        self.process = Process(site.simulation, f"driver {number}", skew=skew, rate=rate)
        self.runtime = SimulatedRuntime(self.process)
        self.network = Network(server, self.process)
        self.left = False
        self._job = job
        self._leases = Wire(self.network, retries=0, timeout=LEASE_REQUEST_TIMEOUT)
        self.elector: LeaderElector | None = None
        self.arbiter: LeaseAdmissionLeader | None = None
        self.leadership: Leadership = Standalone("")
        settings = self._settings(workers, volcano, intents)
        if reach is not Reach.ALONE:
            self.leadership = self._lease_mandate()
            self.arbiter = LeaseAdmissionLeader(
                self._leases,
                wanted=self.leadership.valid,
                monotonic=self.process.monotonic,
                runtime=self.runtime,
            )
        self.driver = Controller(
            Wire(self.network, retries=retries),
            clock=self.process.wall,
            monotonic=self.process.monotonic,
            settings=settings,
            leadership=self.leadership,
            admission_leader=self.arbiter,
            runtime=self.runtime,
        )
        self.process.spawn(self._live, "main")

    @property
    def identity(self) -> str:
        """What it calls itself in Leases."""
        return f"process-{self.number}"

    @property
    def dead(self) -> bool:
        """Whether it drives no more, for any reason."""
        return self.process.dead or self.left

    def _settings(self, workers: int, volcano: bool, intents: int) -> ControllerSettings:
        namespace = None if self.reach in (Reach.ALONE, Reach.CLUSTER) else TEAM
        only = admissions = None
        if self._job is not None:
            name, shape = self._job
            kind = VOLCANO_JOBS if shape.dialect == "volcano" else TFJOBS
            only = JobRef(kind, TEAM, name)
        elif self.reach is not Reach.ALONE:
            admissions = LeaseRef("default", admissions_lease_name(self._lease_name(), namespace))
        return ControllerSettings(
            namespace=namespace,
            only=only,
            volcano_jobs=volcano,
            workers=workers,
            resync=_NEVER,
            resync_waiting=_NEVER,
            admissions=admissions,
            can_lead_admission=self.reach is not Reach.ALONE,
            max_pending_admissions=intents,
        )

    def _lease_name(self) -> str:
        return controller_lease_name((TEAM,) if self.reach is Reach.NAMESPACE else ())

    def _lease_mandate(self) -> LeaseLeadership:
        shared = self.reach is not Reach.JOB
        ref = LeaseRef("default", self._lease_name()) if shared else LeaseRef("default", f"inline-{self.number}")
        self.elector = LeaderElector(
            self._leases,
            ref,
            self.identity,
            shared=shared,
            clock=self.process.wall,
            monotonic=self.process.monotonic,
            runtime=self.runtime,
        )
        book = LeaseMonitor(self._leases, self.identity, monotonic=self.process.monotonic)
        return LeaseLeadership(self.elector, book, takes_over=shared, runtime=self.runtime)

    # Its life

    def _live(self) -> None:
        if isinstance(self.leadership, LeaseLeadership) and self.elector is not None:
            if self._job is not None:
                self.elector.start()
                if not self.elector.wait(30.0):
                    self.elector.stop()
                    self.left = True
                    return
                self.site.submit(*self._job, driver=self.leadership.ref)
                self.leadership.start()
                self.driver.start()
            else:
                self.leadership.start()
                self.driver.start()
                self.elector.start()
        else:
            self.driver.start()

    def leave(self) -> None:
        """A clean end: it finishes what it is at, and gives its Lease back."""
        if not self.dead:
            self.site.note(f"{self.process.name} leaves")
            self.process.spawn(self._leave, "leave")

    def _leave(self) -> None:
        self.driver.stop()
        if isinstance(self.leadership, LeaseLeadership):
            self.leadership.stop()
        if self.elector is not None:
            self.elector.stop()
        self.left = True

    def die(self) -> None:
        """The process is gone: nothing is given back, and what it sent may still be under way."""
        if not self.process.dead:
            self.site.note(f"{self.process.name} is killed")
            self.process.kill()
