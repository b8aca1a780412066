"""Reconciliation of one job: its observed state, and the plan of the core, which the plan executor carries out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tf_dist.controller.informers.informer_set import InformerSet, JobPods
from tf_dist.controller.job_index import JobEntry, JobIndex
from tf_dist.controller.plan_executor import PlanExecutor
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.integrations.dispatch import integration_of
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Verdict, current_job
from tf_dist.core.model.context import Action, EmitEvent, Observed, Plan, WriteStatus
from tf_dist.core.model.fieldpath import LazyMapping
from tf_dist.core.model.job import Job
from tf_dist.core.model.pods import PodView, pod_views
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Status
from tf_dist.core.model.status_codec import NewerStatusFormat, stored_status
from tf_dist.core.podbuilder.tf_config import tf_config_endpoints
from tf_dist.core.reconciler.accepted_spec import plan_for_invalid_spec
from tf_dist.core.reconciler.job_context import with_default_scheduler
from tf_dist.core.reconciler.reconcile import reconcile

_LOG = logging.getLogger(__name__)


class JobReconciler:
    """Plans and acts for single jobs. Thread-safe for different jobs."""

    def __init__(
        self,
        context: ControllerContext,
        informers: InformerSet,
        job_index: JobIndex,
        executor: PlanExecutor,
    ) -> None:
        self._cluster, self._clock, self._recorder = context.cluster, context.clock, context.recorder
        self._informers = informers
        self._job_index = job_index
        self._executor = executor
        self._skipped: dict[JobRef, str] = {}  # jobs that were logged as skipped, and their uids
        # When a status was written last, or that job was reconciled first, and its uid.
        self._written: dict[JobRef, tuple[str, float]] = {}

    def reconcile(
        self, ref: JobRef, known: JobEntry, verdict: Verdict | None, *, again: bool = False, brief: bool = False
    ) -> tuple[Plan, bool]:
        """One pass; errors of the cluster are raised. Its plan, and whether something of that is left for another pass.

        ``again``: the pass before failed. ``brief``: where the plan admits a gang, only that is written now.
        """
        if known.newer is not None:
            return self._skip_newer_format(ref, known, known.newer), False
        self._skipped.pop(ref, None)
        seen = self._informers.pods_with_gone(ref.namespace, known.uid)
        plan = self.plan(known, verdict, seen=seen, last_error=None if again else "")
        left = brief and known.status.admission is None and plan.status.admission is not None
        self._apply(ref, known, _only_actions(plan, WriteStatus, EmitEvent) if left else plan)
        self._informers.deleted_pods.forget(names.owned_by_key(ref.namespace, known.uid), seen.gone)
        self._job_index.remember(ref, known, plan.status)
        self._record(known, plan.status)
        return plan, left

    def _skip_newer_format(self, ref: JobRef, known: JobEntry, problem: NewerStatusFormat) -> Plan:
        """Touch neither the job nor its pods, and say so once."""
        if self._skipped.get(ref) != known.uid:
            self._skipped[ref] = known.uid
            _LOG.warning("skipping job=%s: %s", ref, problem)
            delivery = EmitEvent("Warning", Reason.NEWER_STATUS_FORMAT, f"{problem} ({problem.hint})")
            self._executor.apply(ref, known.stored, Plan(known.status, (delivery,)))
        return Plan(known.status)

    @property
    def skipped(self) -> frozenset[str]:
        """The jobs (by uid) that are skipped, as was logged."""
        return frozenset(self._skipped.values())

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._skipped.pop(ref, None)
        self._written.pop(ref, None)

    def _apply(self, ref: JobRef, known: JobEntry, plan: Plan) -> None:
        if self._last_written(known) is None or any(isinstance(action, WriteStatus) for action in plan.actions):
            self._written[ref] = known.uid, self._clock()  # if the write fails, what decides is written all the same
        self._executor.apply(ref, known.stored, plan)

    def _last_written(self, known: JobEntry) -> float | None:
        uid, at = self._written.get(known.ref, ("", 0.0))
        return at if uid == known.uid else None

    def report_stalled(
        self,
        ref: JobRef,
        known: JobEntry,
        last_error: str,
        *,
        rejected: Reason | None = None,
        invalid: bool = False,
    ) -> None:
        """Write into a job what keeps it from going on, and do nothing else for it."""
        plan = self.plan(known, last_error=last_error, rejected=rejected, invalid=invalid)
        kinds = (WriteStatus, EmitEvent) if plan.status.finished else (WriteStatus,)
        self._apply(ref, known, _only_actions(plan, *kinds))
        self._record(known, plan.status)

    def plan(
        self,
        known: JobEntry,
        verdict: Verdict | None = None,
        *,
        seen: JobPods | None = None,
        last_error: str | None = None,
        rejected: Reason | None = None,
        invalid: bool = False,
    ) -> Plan:
        """What would be done now; raises what keeps the job from being read.

        ``seen``: its pods, if they were looked at already.
        """
        now, stored, job, reading = self._clock(), known.stored, known.job, known.reading
        if known.problem is not None:
            raise known.problem
        if job is None:
            if reading.refused is None:
                raise RuntimeError("neither a job nor a reason why not")
            return plan_for_invalid_spec(stored, known.status, reading.refused, now)
        seen = seen or self._informers.pods_with_gone(known.ref.namespace, known.uid)
        pods = pod_views(job, seen.present)
        scheduler = integration_of(job, with_default_scheduler(job, known.remembered or known.status, known.gang))
        # Asked before its objects are: they are followed from then on.
        served = None if scheduler is None else self._informers.served(scheduler)
        observed = Observed(
            now=now,
            stored_status=LazyMapping(lambda: stored_status(stored)),  # looked at where the status is written
            pods=pods,
            departed=seen.gone,
            unready=self._informers.unready(pod.node for pod in pods if pod.node and not pod.finished),
            closed_nodes=self._closed_nodes(job, known.remembered or known.status, pods),
            recovery_timeout=self._informers.recovery_timeout(current_job(job, known.status).scheduling.queue),
            objects=self._informers.objects(known.ref.namespace, known.uid)
            | self._informers.commands(known.ref, known.uid),
            verdict=verdict,
            addresses=self._addresses(known, verdict, len(pods)),
            deleting="deletionTimestamp" in stored["metadata"],
            last_status=known.remembered,
            last_written=now if (written := self._last_written(known)) is None else written,
            served=served,
            gang=known.gang,
            last_error=last_error,
            rejected=rejected,
            invalid=invalid,
            accepted=reading.accepted,
            refused=reading.refused,
        )
        return reconcile(job, observed, known.status)

    def _closed_nodes(self, job: Job, status: Status, pods: Sequence[PodView]) -> dict[str, frozenset[str]]:
        """Asked only when a pod lacks its node."""
        placement = status.admission.placement if status.admission is not None else {}
        if not placement or sum(bool(pod.node) and not pod.deleting for pod in pods) >= len(job.replicas):
            return {}
        pod_specs = {spec.type: spec.pod_spec for spec in current_job(job, status).replica_specs}
        return {
            type_: self._informers.closed(nodes, pod_specs[type_])
            for type_, nodes in placement.items()
            if type_ in pod_specs
        }

    def _addresses(self, known: JobEntry, verdict: Verdict | None, pods: int) -> dict[str, str]:
        """Asked only when a pod may have to be made."""
        if known.job is None or known.status.finished:
            return {}
        job = current_job(known.job, known.status, verdict)
        if pods >= len(job.replicas):
            return {}
        return dict(self._cluster.addresses(dict(known.stored), tf_config_endpoints(job)))

    def _record(self, known: JobEntry, after: Status) -> None:
        before = known.status
        if before.admission is None and after.admission is not None:
            self._recorder.admitted(max(0.0, after.admission.at - (after.created or after.admission.at)))
        for cause, count in after.restarts.items():
            for _ in range(count - before.restarts.get(cause, 0)):
                self._recorder.restarted(cause)
        for reason, count in after.disruptions.items():
            for _ in range(count - before.disruptions.get(reason, 0)):
                self._recorder.disrupted(reason)
        if after.usage is not before.usage and known.job is not None:
            queue = known.job.scheduling.queue
            self._recorder.used(queue, before.usage, after.usage)


def _only_actions(plan: Plan, *kinds: type[Action]) -> Plan:
    return Plan(plan.status, tuple(action for action in plan.actions if isinstance(action, kinds)))
