"""One job's pass: what is known of it, the plan the core makes, and its execution."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from tf_dist.cluster.api import Cluster
from tf_dist.core import names
from tf_dist.core.actions import Action, Emit, Plan, WriteStatus
from tf_dist.core.gang.model import Admit, Verdict
from tf_dist.core.invalid import hold
from tf_dist.core.observed import Observed, PodView
from tf_dist.core.reconcile import reconcile
from tf_dist.core.schedulers.table import scheduler_of, taken_on
from tf_dist.core.sizes import foreseen
from tf_dist.core.status import Status
from tf_dist.core.status_codec import NEWER_FORMAT, NewerFormat, stored_status
from tf_dist.core.tf_config import endpoints
from tf_dist.driver.apply import Applier
from tf_dist.driver.caches import Caches
from tf_dist.driver.ledger import Known, Ledger
from tf_dist.driver.mandate import Mandate
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JobRef

_LOG = logging.getLogger(__name__)


class Steward:
    """Plans and acts for single jobs. Thread-safe for different jobs. ``clock``: epoch seconds."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        ledger: Ledger,
        applier: Applier,
        *,
        clock: Callable[[], float],
        mandate: Mandate,
        recorder: Recorder,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._ledger = ledger
        self._applier = applier
        self._clock = clock
        self._mandate = mandate
        self._recorder = recorder
        self._left_alone: dict[JobRef, str] = {}  # jobs of which was said that they are, and their uids

    def drive(self, ref: JobRef, known: Known, verdict: Verdict | None, *, again: bool = False) -> Plan:
        """One pass. Whatever the cluster answers to it is raised. ``again``: the one before did not come to its end."""
        if known.newer is not None:
            return self._leave(ref, known, known.newer)
        self._left_alone.pop(ref, None)
        if self._is_anothers(known) and not known.status.finished:
            _LOG.info("%s: its driver %s is gone; driven by %s now", ref, known.driver, self._mandate.ref)
            self._caches.confirm(ref, known.uid)
        key = names.owned_key(ref.namespace, known.uid)
        gone = self._caches.departed.of(key)
        plan = self.plan(known, verdict, obstacle=None if again else "", gone=gone)
        self._applier.apply(ref, known.stored, plan)
        self._caches.departed.forget(key, gone)
        self._ledger.remember(ref, known, plan.status)
        self._record(known, plan.status)
        return plan

    def _leave(self, ref: JobRef, known: Known, problem: NewerFormat) -> Plan:
        """Touch neither the job nor its pods, and say so once."""
        if self._left_alone.get(ref) != known.uid:
            self._left_alone[ref] = known.uid
            _LOG.warning("%s is left alone: %s", ref, problem)
            told = Emit("Warning", NEWER_FORMAT, f"{problem} ({problem.hint})")
            self._applier.apply(ref, known.stored, Plan(known.status, (told,)))
        return Plan(known.status)

    @property
    def left_alone(self) -> frozenset[str]:
        """The jobs (by uid) that are left alone, as was said."""
        return frozenset(self._left_alone.values())

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._left_alone.pop(ref, None)

    def tell(self, ref: JobRef, known: Known, verdict: Verdict | None) -> Plan:
        """Write a verdict into a job of another driver, as that one would; what follows from it is that one's to do.

        A place that the job cannot take yet is told again when it can. Its pods are listed first, if it has any: those
        that its driver made, and our watch has not brought yet, must not be taken for evicted ones.
        """
        if known.status.seen:
            self._caches.confirm(ref, known.uid)
        plan = self.plan(known, verdict, driver=known.driver)
        told = _only(plan, WriteStatus, Emit)
        if isinstance(verdict, Admit) and plan.status.admission is None:
            told = replace(told, wake_at=plan.wake_at)
        self._applier.apply(ref, known.stored, told)
        self._record(known, plan.status)
        return told

    def _is_anothers(self, known: Known) -> bool:
        return known.driver not in ("", self._mandate.ref)

    def stall(self, ref: JobRef, known: Known, obstacle: str, *, rejected: bool = False) -> None:
        """Write into a job what keeps it from going on, and do nothing else for it.

        Not into one that is still to be taken over: with its first status it would be ours, its pods not looked for.
        """
        if self._is_anothers(known):
            return
        plan = self.plan(known, obstacle=obstacle, rejected=rejected)
        self._applier.apply(ref, known.stored, _only(plan, WriteStatus))
        self._record(known, plan.status)

    def plan(
        self,
        known: Known,
        verdict: Verdict | None = None,
        *,
        driver: str | None = None,
        obstacle: str | None = None,
        rejected: bool = False,
        gone: tuple[PodView, ...] = (),
    ) -> Plan:
        """What would be done now (by ``driver``, if not by us); raises what keeps the job from being read."""
        now, stored, job, reading = self._clock(), known.stored, known.job, known.reading
        if known.problem is not None:
            raise known.problem
        if job is None:
            if reading.refused is None:
                raise RuntimeError("neither a job nor a reason why not")
            return hold(stored, known.status, reading.refused, now)
        pods = self._ledger.pod_views(job, self._caches.pods(known.ref.namespace, known.uid))
        gang = known.gang if driver is None else None
        scheduler = scheduler_of(job, taken_on(job, known.remembered or known.status, gang))
        # Asked before its objects are: they are followed from then on.
        served = None if scheduler is None else self._caches.served(scheduler)
        observed = Observed(
            now=now,
            stored_status=stored_status(stored),
            pods=pods,
            gone=gone,
            unready=self._caches.unready(pod.node for pod in pods if pod.node and not pod.finished),
            recovery_timeout=self._caches.recovery_timeout(job.scheduling.queue),
            objects=self._caches.objects(known.ref.namespace, known.uid),
            verdict=verdict,
            addresses=self._addresses(known, verdict, len(pods)),
            deleting="deletionTimestamp" in stored["metadata"],
            driver=self._mandate.ref if driver is None else driver,
            remembered=known.remembered,
            served=served,
            gang=gang,
            obstacle=obstacle,
            rejected=rejected,
            # Whose job it is says how it reads it: that one may be of another release.
            accepted=reading.accepted if driver is None else None,
            refused=reading.refused if driver is None else None,
            verdict_only=driver is not None,
        )
        return reconcile(job, observed, known.status)

    def _addresses(self, known: Known, verdict: Verdict | None, pods: int) -> dict[str, str]:
        """Asked only when a pod may have to be made."""
        if known.job is None or known.status.finished:
            return {}
        job = foreseen(known.job, known.status, verdict)
        if pods >= len(job.replicas):
            return {}
        return dict(self._cluster.addresses(known.stored, endpoints(job)))

    def _record(self, known: Known, after: Status) -> None:
        before = known.status
        if before.admission is None and after.admission is not None:
            self._recorder.admitted(max(0.0, after.admission.at - (after.created or after.admission.at)))
        for cause, count in after.restarts.items():
            for _ in range(count - before.restarts.get(cause, 0)):
                self._recorder.restarted(cause)
        for reason, count in after.disruptions.items():
            for _ in range(count - before.disruptions.get(reason, 0)):
                self._recorder.disrupted(reason)


def _only(plan: Plan, *kinds: type[Action]) -> Plan:
    return Plan(plan.status, tuple(action for action in plan.actions if isinstance(action, kinds)))
