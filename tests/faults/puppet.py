"""A driver process on strings: a client behind a proxy of its own, clocks of its own, a mandate, and a sudden end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import Any

from tests.driver.harness import START, Crash, CrashingCluster
from tests.faults.proxy import Passed, Proxy
from tests.faults.site import Site
from tf_dist.cluster.api import NODES, PODS, QUEUES, RESOURCE_QUOTAS, TFJOBS, Object
from tf_dist.cluster.http import ApiServer
from tf_dist.cluster.rest import RestCluster
from tf_dist.driver.arbiter import LeaseArbiter
from tf_dist.driver.lease import LeaseRef
from tf_dist.driver.lease_mandate import LeaseMandate
from tf_dist.driver.leasebook import LeaseBook
from tf_dist.driver.loop import Driver
from tf_dist.driver.mandate import Always, Mandate
from tf_dist.driver.settings import DriverSettings
from tf_dist.driver.tenure import Tenure
from tf_dist.errors import ClusterError

SHARED = LeaseRef("default", "tf-dist-controller")
ADMISSIONS = LeaseRef("default", "tf-dist-controller-admissions")
Told = Callable[["Puppet", Passed], None]


class Company(Enum):
    """Which drivers there are."""

    ALONE = "one, without a Lease"
    REPLICAS = "two that take turns in one Lease"
    PEERS = "two with a Lease each"


class Wire(CrashingCluster):
    """Passes every call on. Right after one of the writes the process may die, or be stopped while others go on."""

    nap: tuple[int, Callable[[], None]] | None = None

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        counted = super()._counted(call)

        def slept(*args: Any, **kwargs: Any) -> Any:
            try:
                return counted(*args, **kwargs)
            finally:
                if self.nap is not None and self.writes >= self.nap[0]:
                    (_, sleep), self.nap = self.nap, None
                    sleep()

        return slept


class HandArbiter(LeaseArbiter):
    """Keeps its Lease only when ``beat`` is called."""

    due = 0.0

    def start(self, *, sees_all: bool) -> None:
        self._sees_all = sees_all

    def beat(self, now: float) -> None:
        """Whatever is due by now."""
        if self._sees_all and now >= self.due:
            self.due = now + self._tenure.step()


class Puppet:
    """One driver process. It looks and acts only when ``work`` is called; its reflectors follow the cluster by threads.

    ``skew`` is how far its wall clock is off, ``offset`` where its monotonic clock began.
    """

    def __init__(
        self, site: Site, server: ApiServer, company: Company, number: int, *, retries: int, told: Told
    ) -> None:
        host, _, port = server.app.url.removeprefix("http://").partition(":")
        self.site = site
        self.number = number
        self.skew = 0.0
        self._offset = 1000.0 * number
        self.proxy = Proxy((host, int(port)), lambda passed: told(self, passed))
        self.proxy.__enter__()
        self.client = RestCluster(self.proxy.url, token=server.token, retries=retries, sleep=lambda _: None, stall=20.0)
        self.wire = Wire(self.client)
        self.tenure: Tenure | None = None
        self.book: LeaseBook | None = None
        self._tenure_due = self._book_due = 0.0
        self.mandate = self._mandate(company)
        admissions = ADMISSIONS if company is Company.REPLICAS else None
        self.arbiter = None if company is Company.ALONE else self._arbiter()
        self.driver = Driver(
            self.wire,
            clock=self.wall,
            monotonic=self.monotonic,
            mandate=self.mandate,
            settings=DriverSettings(volcano_jobs=False, admissions=admissions, arbitrates=self.arbiter is not None),
            arbiter=self.arbiter,
        )
        self.dead = False

    def _mandate(self, company: Company) -> Mandate:
        if company is Company.ALONE:
            return Always("")
        shared = company is Company.REPLICAS
        ref = SHARED if shared else LeaseRef("default", f"driver-{self.number}")
        who = f"process-{self.number}"
        self.tenure = Tenure(self.client, ref, who, shared=shared, clock=self.wall, monotonic=self.monotonic)
        self.book = LeaseBook(self.client, who, monotonic=self.monotonic)
        return LeaseMandate(self.tenure, self.book)

    def _arbiter(self) -> HandArbiter:
        return HandArbiter(self.client, stands=self.mandate.valid, monotonic=self.monotonic)

    # Its clocks

    def wall(self) -> float:
        return START + self.site.seconds + self.skew

    def monotonic(self) -> float:
        return self._offset + self.site.seconds

    # Its life

    def beat(self) -> None:
        """Whatever it does about Leases that is due by now."""
        if self.tenure is None or self.book is None or self.dead:
            return
        if self.monotonic() >= self._tenure_due:
            self._tenure_due = self.monotonic() + self.tenure.step()
        if self.monotonic() >= self._book_due:
            self._book_due = self.monotonic() + self.book.look()
        if self.arbiter is not None:
            self.arbiter.beat(self.monotonic())

    def work(self) -> int:
        """Once round its loop; how many actions it took. It may die of it."""
        if self.dead:
            return 0
        self.beat()
        try:
            return self._round()
        except Crash:
            self.die()
        except ClusterError:
            self.driver._everything = True
        return 0

    def _round(self) -> int:
        """As the driver's own loop does it, but for waiting."""
        driver = self.driver
        if not driver.caches.followed:
            driver.caches.prepare()
            for reflector in driver.caches._reflectors.values():
                reflector._pause = _short_pause
            driver.caches.start()
        if self.mandate.valid():
            driver._take_up()
        if not driver.caches.wait_synced(0.02):
            return 0
        if not self.mandate.valid():
            driver._everything = True
            return 0
        return driver.step(driver._queue.take())

    def doom(self, writes: int) -> None:
        """Have it die right after so many more writes of the driver have reached the server."""
        self.wire.after = self.wire.writes + writes

    def stop_for_a_while(self, writes: int, meanwhile: Callable[[], None]) -> None:
        """Have it stopped (as by SIGSTOP) in the middle of what it does, after so many more writes."""
        self.wire.nap = (self.wire.writes + writes, meanwhile)

    def die(self) -> None:
        """The process is gone: nothing is given back, and what it sent may still be under way."""
        if not self.dead:
            self.dead = True
            self.proxy.disconnect()
            self.driver.stop()
            self.client.close()

    def leave(self) -> None:
        """A clean end: it gives its Lease back."""
        if not self.dead:
            self.dead = True
            self.driver.stop()
            if self.tenure is not None:
                with suppress(ClusterError):
                    self.tenure.stop()
            self.client.close()

    def close(self) -> None:
        """After the story: nothing of it is left."""
        self.die()
        self.proxy.__exit__()

    # What it sees

    def sees_all(self) -> bool:
        """Whether its caches hold what the cluster does."""
        caches, memory = self.driver.caches, self.site.memory
        if self.dead or not caches.followed:
            return False
        kinds = [kind for kind in (TFJOBS, PODS, NODES, RESOURCE_QUOTAS, QUEUES) if kind in caches._reflectors]
        return all(_versions(memory.list(kind).items) == _versions(caches._reflectors[kind].items()) for kind in kinds)


def _versions(objects: Iterable[Object]) -> set[Any]:
    return {(obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]) for obj in objects}


def _short_pause(failures: int) -> float:
    return 0.002 * min(failures, 8)
