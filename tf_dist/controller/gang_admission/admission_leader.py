"""Admission leader: the one driver that admits gangs for the whole cluster, elected by a Lease.

Drivers of single jobs, of namespaces and of the whole cluster share its nodes. So those that see all of it stand for
one Lease in a place that they all know, and the holder writes the verdict into every job; each job's own driver
does what follows from that. A driver that may not see all of it leaves the decision to a holder that it sees living,
and decides about its own jobs where there is none: what is free it cannot know, and leaves to the cluster's scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tf_dist.cluster.api import LEASES, Cluster
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.leadership import Standalone
from tf_dist.controller.leases.lease import (
    CONTROLLER_LEASE,
    DRIVER_ADMISSION_LEADER,
    LEASE_DURATION,
    RENEW_INTERVAL,
    LeaseObservation,
    LeaseRecord,
    admission_leader_lease,
    boottime,
)
from tf_dist.controller.leases.lease_monitor import LEASE_POLL_INTERVAL
from tf_dist.core.api import names
from tf_dist.errors import ClusterError, Forbidden, NotFound


class LeaseAdmissionLeader:
    """Decides while it holds the cluster's Lease for that.

    ``cluster``: for Leases; ``namespace``: where that Lease is; ``wanted``: whether this driver wants it;
    ``controller``: the Lease of the controller of all namespaces that this is, "" if it is none.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str = names.SYSTEM_NAMESPACE,
        wanted: Callable[[], bool] = lambda: True,
        controller: str = "",
        duration: float = LEASE_DURATION,
        renew_every: float = RENEW_INTERVAL,
        monotonic: Callable[[], float] = boottime,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        # Two drivers of one process are two candidates: each has a name of its own. One that believes to hold the Lease
        # beside another gives nothing away: both would have to write into one list of intentions.
        self._ref = admission_leader_lease(namespace)
        self._sees_all = self._started = self._stands = False
        self._wanted: Callable[[], bool] = lambda: self._sees_all and wanted()
        self._elector = LeaderElector(
            cluster,
            self._ref,
            shared=True,
            labels={names.DRIVER: DRIVER_ADMISSION_LEADER},
            annotations={CONTROLLER_LEASE: controller},
            wanted=self._wanted,
            fenced=True,
            duration=duration,
            renew_every=renew_every,
            monotonic=monotonic,
            runtime=runtime,
        )
        self._seen = LeaseObservation()
        self._other_lives = False
        self._due = -math.inf

    @property
    def identity(self) -> str:
        """What it calls itself in the Lease."""
        return self._elector.identity

    @property
    def epoch(self) -> int:
        """Grows whenever the Lease was won anew: others may have decided in between."""
        return self._elector.epoch

    def start(self, *, sees_all: bool) -> None:
        """Be a candidate for the Lease while everything can be seen, from now on and not from its next look on.

        ``sees_all``: whether all nodes, pods, jobs and queues can be seen now.
        """
        self._sees_all = sees_all
        stood, self._stands = self._stands, self._wanted()
        if self._stands and not stood:
            self._elector.wake()
        if sees_all and not self._started:
            self._started = True
            self._elector.start()

    def stop(self) -> None:
        """Give the Lease back."""
        self._elector.stop()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, from any thread, when the Lease was won or lost."""
        self._elector.listen(lambda _: listener())

    def decides(self) -> bool:
        """While the Lease is ours for sure, or if we cannot stand for it and see no holder."""
        return self._elector.valid() if self._is_candidate() else not self._sees_another()

    def for_all(self) -> bool:
        """Whether it decides for the jobs of all drivers: while the Lease is ours."""
        return self._sees_all and self._elector.valid()

    def pause(self) -> float:
        """While it does not decide: seconds until it should be asked again (inf: the listener is called)."""
        return math.inf if self._is_candidate() else max(0.0, self._due - self._monotonic())

    def _is_candidate(self) -> bool:
        return self._sees_all and not isinstance(self._elector.problem, Forbidden | NotFound)

    def _sees_another(self) -> bool:
        now = self._monotonic()
        if now >= self._due:
            self._due = now + LEASE_POLL_INTERVAL
            self._other_lives = self._another_holds_it()
        return self._other_lives

    def _another_holds_it(self) -> bool:
        try:
            stored = self._cluster.get(LEASES, *self._ref)
        except (Forbidden, NotFound):
            return False
        except ClusterError:
            return True  # An error says nothing about the holder: two leaders are worse than a late admission.
        self._seen.note(stored, self._monotonic())
        return bool(LeaseRecord.of(stored).holder) and not self._seen.expired(self._monotonic())


AdmissionLeader = LeaseAdmissionLeader | Standalone
"""Whether a driver decides about places."""
