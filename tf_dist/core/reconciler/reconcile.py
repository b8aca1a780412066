"""``reconcile``: from what is observed of a job to its next status and the actions that follow.

Three steps. Read: one snapshot of the job, its status and its pods (``job_context``). Decide: the transition rules lead
to the next status (``transitions``). Act: the status to write (``status_writer``), the events (``job_events``), and the
pods and objects that follow from the status alone (``sync``). At last: when time alone would change the plan.

Level-triggered: it depends on the present state, not on what changed. Called again after its actions it does nothing;
interrupted anywhere, it goes on from the status that was written.

Not every change of the status is worth a write: the number of ready pods changes with every pod. Such changes are
written together, and the caller keeps them in ``Observed.last_status`` until then; what a crash loses of them is
observed again in the pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tf_dist.core.integrations.dispatch import retry_at
from tf_dist.core.model.assignment import Wait
from tf_dist.core.model.context import (
    Action,
    Create,
    DeleteJob,
    Observed,
    PatchJob,
    Plan,
    ReconcileContext,
    WriteStatus,
)
from tf_dist.core.model.job import Job
from tf_dist.core.model.status import LIVE, NO_PODS, RUNNING, Phase, Status
from tf_dist.core.model.status_codec import ADOPTED, load_status
from tf_dist.core.model.timestamps import round_time
from tf_dist.core.reconciler.commands import command_actions
from tf_dist.core.reconciler.job_context import is_in_future, read_context, without_clock_skew
from tf_dist.core.reconciler.job_events import document_notes, job_events
from tf_dist.core.reconciler.status_writer import build_status, ready_replicas
from tf_dist.core.reconciler.sync import backoff_until, sync_job
from tf_dist.core.reconciler.transitions import apply_transitions, next_transition_at

# Seconds from one write of a status to the next, when only numbers differ, and when replicas are done besides.
STATUS_WRITE_INTERVAL: Final = 10.0
COMPLETION_WRITE_INTERVAL: Final = 1.0
# The same when pods have been created and nothing else is new: most jobs have more to say before that (an image that is
# pulled, a start), and who looks at the job sees its pods.
CREATION_WRITE_INTERVAL: Final = 60.0
# Seconds for each gang whose turn comes before, when only the words differ in which a job says why it waits: at each
# resync all of them do, as they name what is free now. So 100,000 waiting jobs cost some 20 writes a second in all,
# and those that are next are as up to date as others.
REWORD_INTERVAL_PER_RANK: Final = 0.25


def reconcile(job: Job, observed: Observed, status: Status | None = None) -> Plan:
    """What to do about ``job`` now. ``status`` spares parsing ``observed.stored_status`` again."""
    stored = load_status(observed.stored_status) if status is None else status
    if observed.deleting or job.managed_elsewhere:
        return Plan(stored)
    before = without_clock_skew(job, observed.last_status or stored, observed.now)
    if _expired(job, before, observed.now):
        return Plan(before, (DeleteJob(),))
    if before.finished and before.reason == ADOPTED:
        return Plan(before, wake_at=_expires_at(job, before))

    s = read_context(job, before, observed)
    s = apply_transitions(s)

    write_at = _status_write_at(stored, s)
    written = write_at is not None and write_at <= s.now
    actions: list[Action] = []
    if written:
        s = replace(s, status=replace(s.status, reported=s.now))
        # First: a controller that dies after it is continued from there.
        actions.append(WriteStatus(build_status(s)))
    # Before what may fail: what the status says already no later pass says again.
    actions += job_events(before, s)
    if written and stored.created is None:
        actions += document_notes(s)
    if _fills_in_spec(s):
        actions.append(PatchJob({"spec": dict(job.spec_defaults)}))
    actions += sync_job(s)
    # Last: a controller that may not delete Commands has done all else by then.
    actions += command_actions(before, s)
    if _expired(job, s.status, s.now):
        return Plan(s.status, (*actions, DeleteJob()))
    return Plan(s.status, tuple(actions), s.next_of(_wake_at(s), None if written else write_at, _seen_at(s, actions)))


def _fills_in_spec(s: ReconcileContext) -> bool:
    """Whether the job's spec lacks what its original controller writes into it.

    One that is not accepted is left as it is: the API server would refuse it with the patch, too.
    """
    accepted = s.status.phase in LIVE and s.status.refused_spec is None
    return bool(s.requested_job.spec_defaults) and accepted


def _status_write_at(stored: Status, s: ReconcileContext) -> float | None:
    """When the status must be written (0: at once; None: it is what is stored)."""
    after, reported, verdict = s.status, stored.reported, s.observed.verdict
    if after == stored:
        return None
    if reported is None or is_in_future(reported, s.now):
        return 0.0
    if isinstance(verdict, Wait) and after == replace(stored, message=after.message, reported=after.reported):
        return round_time(reported + REWORD_INTERVAL_PER_RANK * verdict.rank)
    if (after.phase, after.reason) != (stored.phase, stored.reason):
        return 0.0
    numbers = replace(
        stored,
        message=after.message if stored.reason == after.reason == RUNNING else stored.message,
        counts=after.counts,
        observed_replicas=after.observed_replicas,
        container_restarts=after.container_restarts,
        # Its message may differ each time, and each write of a status leads to another pass.
        last_error=after.last_error if stored.last_error and after.last_error else stored.last_error,
        reported=after.reported,
        **_completed(stored, after),
    )
    if after != replace(numbers, succeeded=after.succeeded):
        return 0.0
    if after != numbers or _all_ready(s.job, after) > _all_ready(s.job, stored):
        return round_time(reported + COMPLETION_WRITE_INTERVAL)
    return round_time(reported + (CREATION_WRITE_INTERVAL if _only_created(stored, after) else STATUS_WRITE_INTERVAL))


def _all_ready(job: Job, status: Status) -> bool:
    return ready_replicas(job, status) >= sum(spec.replicas for spec in job.replica_specs)


def _only_created(stored: Status, after: Status) -> bool:
    """Whether a status differs from the stored one only in pods that have been created and have not started."""
    seen = replace(stored, counts=after.counts, observed_replicas=after.observed_replicas, reported=after.reported)
    before, now = (
        {type_: begun for type_, counts in status.counts.items() if (begun := replace(counts, pending=0)) != NO_PODS}
        for status in (stored, after)
    )
    return after == seen and before == now


def _completed(stored: Status, after: Status) -> dict[str, Any]:
    """Whether all pods have their nodes is observed again in the pods, as numbers are: no reason for a write."""
    place = stored.admission
    if place is None or after.admission is None:
        return {}
    kept = replace(place, complete=after.admission.complete or place.complete, incomplete=after.admission.incomplete)
    if after.admission.complete is None:
        return {"admission": kept}
    return {"admission": kept, "requeues": after.requeues, "not_before": after.not_before}


def _seen_at(s: ReconcileContext, actions: Sequence[Action]) -> float | None:
    """When to look at what is created if nothing is heard of it before: no scheduler is at work, or no kubelet.

    That it is there is no news to the controller that has created it.
    """
    if not any(isinstance(action, Create) for action in actions):
        return None
    # A job that restarts, or is scaled, says so until its new pods are counted.
    interval = CREATION_WRITE_INTERVAL if s.status.phase is Phase.PENDING else STATUS_WRITE_INTERVAL
    return round_time(s.now + interval)


def _expires_at(job: Job, status: Status) -> float | None:
    if not status.finished or job.run_policy.ttl is None or status.completion_time is None:
        return None
    return round_time(status.completion_time + job.run_policy.ttl)


def _expired(job: Job, status: Status, now: float) -> bool:
    at = _expires_at(job, status)
    return at is not None and at <= now


def _wake_at(s: ReconcileContext) -> float | None:
    """The earliest moment at which time alone changes the plan."""
    backoffs: list[float] = []
    if s.status.backoffs and s.status.phase in LIVE:
        backoffs = [backoff_until(s.status, replica) for replica in s.job.replicas if replica not in s.facts.current]
    return s.next_of(_expires_at(s.job, s.status), next_transition_at(s), retry_at(s), *backoffs)
