"""Leadership: which kinds of jobs of its scope a controller leads at this moment, each by a Lease."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable
from typing import Final

from tf_dist.cluster.api import JOB_KINDS, Cluster, Resource
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.cluster.lease import LEASE_DURATION, RENEW_INTERVAL, boottime, leader_lease, unique_identity
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.observability.metrics_interface import MetricsRecorder
from tf_dist.core.model import names
from tf_dist.errors import ClusterError


class LeadershipLost(ClusterError):
    """Leadership has ended: what was about to be done is for another controller now."""


# Seconds for which a candidate for several kinds leaves the others to the leader of the first: that is mostly another
# replica, which takes them all.
_HESITATION: Final = 2.0


class LeaseLeadership:
    """Leads ``kinds`` of jobs in ``namespace`` (None: in the cluster), each while its Lease is held.

    The leader of the first kind also leads the others, unless another process leads only those. ``system``: the
    namespace of the cluster's Leases. The other arguments, and ``busy``: see ``LeaderElector``.
    """

    busy: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        cluster: Cluster,
        kinds: Collection[Resource],
        namespace: str | None,
        *,
        system: str = names.SYSTEM_NAMESPACE,
        identity: str = "",
        duration: float = LEASE_DURATION,
        renew_every: float = RENEW_INTERVAL,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = boottime,
        recorder: MetricsRecorder | None = None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self.identity = identity or unique_identity()
        self._monotonic = monotonic
        self._listeners: list[Callable[[], object]] = []
        ordered = [kind for kind in JOB_KINDS if kind in kinds]
        self.electors = {
            kind: LeaderElector(
                cluster,
                leader_lease(kind, namespace, system),
                self.identity,
                wider=leader_lease(kind, None, system) if namespace is not None else None,
                busy=lambda: self.busy(),
                wanted=(lambda: True) if kind is ordered[0] else self._leaves_no_other,
                duration=duration,
                renew_every=renew_every,
                clock=clock,
                monotonic=monotonic,
                recorder=recorder,
                runtime=runtime,
            )
            for kind in ordered
        }
        self._first, *self._others = self.electors.values()
        for elector in self.electors.values():
            elector.listen(self._changed)

    def _leaves_no_other(self) -> bool:
        return self._first.valid() or self._monotonic() - self._first.other_since >= _HESITATION

    def _changed(self) -> None:
        for elector in self._others:
            elector.wake()
        for listener in self._listeners:
            listener()

    # What a controller asks

    def kinds(self) -> frozenset[Resource]:
        """The kinds that are led at this moment."""
        return frozenset(kind for kind, elector in self.electors.items() if elector.valid())

    def remaining(self, kind: Resource) -> float:
        """For how many seconds a kind is surely led (0: it is not)."""
        elector = self.electors.get(kind)
        return elector.remaining() if elector is not None else 0.0

    @property
    def term(self) -> Hashable:
        """Changes whenever a Lease was won anew: what was observed before may be out of date."""
        return tuple((kind, elector.epoch) for kind, elector in self.electors.items() if elector.valid())

    def problem(self) -> ClusterError | None:
        """Why it cannot lead; None while nothing is wrong."""
        return next((one.problem for one in self.electors.values() if one.problem is not None), None)

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener``, from any thread, when what is led has changed."""
        self._listeners.append(listener)

    # Its life

    def step(self) -> None:
        """One attempt, in this thread, before ``start``; ``problem`` says what came of it."""
        for elector in self.electors.values():
            elector.step()

    def start(self) -> None:
        """Begin to stand for the Leases."""
        for elector in self.electors.values():
            elector.start()

    def stop(self) -> None:
        """Give back what is held, once nothing is written under it any more."""
        for elector in reversed(self.electors.values()):
            elector.stop()


class Standalone:
    """Leadership without competitors: it never ends."""

    term: Hashable = None
    busy: Callable[[], bool] = staticmethod(lambda: False)

    def kinds(self) -> frozenset[Resource]:
        """All."""
        return frozenset(JOB_KINDS)

    def remaining(self, kind: Resource) -> float:
        """For ever."""
        return math.inf

    def listen(self, listener: Callable[[], object]) -> None:
        """Nothing ever changes."""

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""


Leadership = LeaseLeadership | Standalone
"""The right of a controller to write."""
