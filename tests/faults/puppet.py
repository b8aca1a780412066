"""Driver processes: the production driver with all its threads, under a mandate, behind a network of its own."""

from __future__ import annotations

from enum import Enum

from tests.faults.documents import TEAM, Shape
from tests.faults.simulation import Process, SimulatedRuntime
from tests.faults.site import Site
from tests.faults.wire import Network, Server, Wire
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS
from tf_dist.driver.arbiter import LeaseArbiter
from tf_dist.driver.lease import TIMEOUT, LeaseRef, admissions_name, controller_name
from tf_dist.driver.lease_mandate import LeaseMandate
from tf_dist.driver.leasebook import LeaseBook
from tf_dist.driver.loop import Driver
from tf_dist.driver.mandate import Always, Mandate
from tf_dist.driver.refs import JobRef
from tf_dist.driver.settings import DriverSettings
from tf_dist.driver.tenure import Tenure

# Seconds: a driver hears of everything, and nothing waits for it to look at all there is.
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
        self._leases = Wire(self.network, retries=0, timeout=TIMEOUT)
        self.tenure: Tenure | None = None
        self.arbiter: LeaseArbiter | None = None
        self.mandate: Mandate = Always("")
        settings = self._settings(workers, volcano, intents)
        if reach is not Reach.ALONE:
            self.mandate = self._lease_mandate()
            self.arbiter = LeaseArbiter(
                self._leases,
                stands=self.mandate.valid,
                monotonic=self.process.monotonic,
                runtime=self.runtime,
            )
        self.driver = Driver(
            Wire(self.network, retries=retries),
            clock=self.process.wall,
            monotonic=self.process.monotonic,
            settings=settings,
            mandate=self.mandate,
            arbiter=self.arbiter,
            runtime=self.runtime,
        )
        self.process.spawn(self._live, "main")

    @property
    def identity(self) -> str:
        """What it calls itself in Leases."""
        return f"process-{self.number}"

    @property
    def dead(self) -> bool:
        """Whether it drives no more, for whatever reason."""
        return self.process.dead or self.left

    def _settings(self, workers: int, volcano: bool, intents: int) -> DriverSettings:
        namespace = None if self.reach in (Reach.ALONE, Reach.CLUSTER) else TEAM
        only = admissions = None
        if self._job is not None:
            name, shape = self._job
            kind = VOLCANO_JOBS if shape.dialect == "volcano" else TFJOBS
            only = JobRef(kind, TEAM, name)
        elif self.reach is not Reach.ALONE:
            admissions = LeaseRef("default", admissions_name(self._lease_name(), namespace))
        return DriverSettings(
            namespace=namespace,
            only=only,
            volcano_jobs=volcano,
            workers=workers,
            resync=_NEVER,
            admissions=admissions,
            arbitrates=self.reach is not Reach.ALONE,
            intents=intents,
        )

    def _lease_name(self) -> str:
        return controller_name((TEAM,) if self.reach is Reach.NAMESPACE else ())

    def _lease_mandate(self) -> LeaseMandate:
        shared = self.reach is not Reach.JOB
        ref = LeaseRef("default", self._lease_name()) if shared else LeaseRef("default", f"inline-{self.number}")
        self.tenure = Tenure(
            self._leases,
            ref,
            self.identity,
            shared=shared,
            clock=self.process.wall,
            monotonic=self.process.monotonic,
            runtime=self.runtime,
        )
        book = LeaseBook(self._leases, self.identity, monotonic=self.process.monotonic)
        return LeaseMandate(self.tenure, book, takes_over=shared, runtime=self.runtime)

    # Its life

    def _live(self) -> None:
        if isinstance(self.mandate, LeaseMandate) and self.tenure is not None:
            if self._job is not None:
                self.tenure.start()
                if not self.tenure.wait(30.0):
                    self.tenure.stop()
                    self.left = True
                    return
                self.site.submit(*self._job, driver=self.mandate.ref)
                self.mandate.start()
                self.driver.start()
            else:
                self.mandate.start()
                self.driver.start()
                self.tenure.start()
        else:
            self.driver.start()

    def leave(self) -> None:
        """A clean end: it finishes what it is at, and gives its Lease back."""
        if not self.dead:
            self.site.note(f"{self.process.name} leaves")
            self.process.spawn(self._leave, "leave")

    def _leave(self) -> None:
        self.driver.stop()
        if isinstance(self.mandate, LeaseMandate):
            self.mandate.stop()
        if self.tenure is not None:
            self.tenure.stop()
        self.left = True

    def die(self) -> None:
        """The process is gone: nothing is given back, and what it sent may still be under way."""
        if not self.process.dead:
            self.site.note(f"{self.process.name} is killed")
            self.process.kill()
