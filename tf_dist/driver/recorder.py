"""What a driver tells about itself: every method is a thing that is counted, and does nothing here.

A driver calls these wherever something happens; ``tf_dist.driver.metrics`` turns them into Prometheus metrics. They are
called from any thread, often, and must neither block nor raise.
"""

from __future__ import annotations

from collections.abc import Callable

from tf_dist.driver.readings import Readings


class Recorder:
    """Counts nothing. Subclass it to count."""

    def attach(self, source: Callable[[], Readings]) -> None:
        """A driver says how it stands whenever it is asked."""

    def worked(self, waited: float, seconds: float) -> None:
        """A worker has dealt with a key of the work queue, which had waited for it, in so many seconds."""

    def reconcile_failed(self, reason: str) -> None:
        """Looking at a job did not come to its end: ``Conflict``, ``Unavailable``, …, or a ``defect`` of ours."""

    def reconciled(self, seconds: float) -> None:
        """One job was looked at, decided on and acted for, which took ``seconds``."""

    def acted(self, kind: str, result: str) -> None:
        """An action was taken: its kind (``Create``, ``WriteStatus``, …) and how it went (``ok``, or the error)."""

    def admitted(self, waited: float) -> None:
        """A gang got its place after ``waited`` seconds."""

    def undecidable(self, gangs: int) -> None:
        """Of so many gangs more it turned out that they cannot be counted or decided about."""

    def restarted(self, cause: str) -> None:
        """A job, task or replica was restarted because of ``cause`` (``PodFailed``, ``Preempted``, …)."""

    def disrupted(self, reason: str) -> None:
        """A pod was taken away, for a ``reason`` of ``core.disruptions`` (``EvictionByEvictionAPI``, …)."""

    def called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """The API server was asked: Kubernetes' verb, the plural, the HTTP status (0: no answer), and how long."""

    def watch_restarted(self, resource: str, cause: str) -> None:
        """A watch had to begin anew: ``ended``, ``gone``, ``broken``, ``stalled``, …"""

    def heartbeat(self, ok: bool) -> None:
        """The driver's Lease was renewed, or could not be."""

    def leading(self, leads: bool) -> None:
        """This process drives from now on, or no longer."""
