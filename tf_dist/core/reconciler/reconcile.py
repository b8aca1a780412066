"""``reconcile``: from what is observed of a job to its next status and the actions that follow.

Level-triggered: it depends on the present state, not on what changed. It applies the transition rules to the status
(``apply_transitions``), derives the actions from that status alone (``sync_job``), and says when to reconcile again.
Called again after its actions it does nothing; interrupted anywhere, it goes on from the status that was written.

Not every change of the status is worth a write: the number of ready pods changes with every pod. Such changes are
written together, and the caller keeps them in ``Observed.last_status`` until then; what a crash loses of them is
observed again in the pods.

Times in a stored status are bounded first (``without_clock_skew``): none of the past lies in the future, and no wait is
longer than it would be if it began now. So a driver whose clock was an hour ahead costs a job one write and no waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, overload

from tf_dist.core.api.assignment import PendingReason, Wait, chosen_job, granted_job
from tf_dist.core.api.context import (
    Action,
    DeleteJob,
    EmitEvent,
    Observed,
    PatchJob,
    Plan,
    ReconcileContext,
    WriteStatus,
)
from tf_dist.core.api.fieldpath import mapping
from tf_dist.core.api.job import Dialect, Job
from tf_dist.core.api.status import (
    COMMAND_ISSUED,
    LIVE,
    RESIZED,
    RUNNING,
    STOPPED,
    SUSPENDED,
    Admission,
    Phase,
    RestartBackoff,
    Status,
)
from tf_dist.core.api.status_codec import ADOPTED, load_status
from tf_dist.core.api.timestamps import round_time
from tf_dist.core.dialects.volcano_extensions.scheduler_annotations import unused_annotations
from tf_dist.core.integrations.dispatch import (
    integration_of,
    names_idle_scheduler,
    retry_at,
    with_default_scheduler,
    with_verdict,
)
from tf_dist.core.reconciler.commands import command_actions
from tf_dist.core.reconciler.invalid_spec import spec_events, with_accepted_spec
from tf_dist.core.reconciler.requeue import (
    NODE_EXCLUDED_FOR,
    pod_deadline,
    requeue_backoff,
)
from tf_dist.core.reconciler.restarts import container_events
from tf_dist.core.reconciler.status_writer import build_status
from tf_dist.core.reconciler.sync import backoff_until, sync_job
from tf_dist.core.reconciler.tfjob_messages import SAID_BY_OPERATOR, operator_events
from tf_dist.core.reconciler.transitions import apply_transitions, next_transition_at

_WARNINGS: Final = frozenset({Phase.FAILED, Phase.RESTARTING, Phase.TERMINATING, Phase.TERMINATED, *STOPPED})
_SETBACKS: Final = frozenset(
    {
        PendingReason.PREEMPTED,
        PendingReason.EVICTED,
        PendingReason.SCHEDULE_TIMEOUT,
        PendingReason.PODS_REJECTED,
        PendingReason.RECOVERY_TIMEOUT,
        PendingReason.WAITING_FOR_LOST_NODE,
        PendingReason.UNREADABLE,
    }
)


# A Command has its own event.
_EXPECTED: Final = frozenset({"JobCreated", "PodsPending", RUNNING, COMMAND_ISSUED})
_STARTED_AT_ONCE: Final = frozenset({"", "JobCreated", "Resumed"})

# Seconds from one write of a status to the next, when only numbers differ, and when replicas are done besides.
STATUS_WRITE_INTERVAL: Final = 10.0
COMPLETION_WRITE_INTERVAL: Final = 1.0
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
    current = _with_circumstances(job, before, observed)
    observed = with_verdict(job, current, observed)
    after, facts = apply_transitions(job, current, observed)
    granted = granted_job(job, after)
    actions: list[Action] = []
    # The status is written first: a driver that dies after it is continued from there.
    report_at = _status_write_at(stored, after, observed)
    if report_at is not None and report_at <= observed.now:
        after = replace(after, reported=observed.now)
        report_at = None
        actions.append(WriteStatus(build_status(granted, after, observed.stored_status, observed.now)))
    # What the status says already no later pass says again: an action that fails must not lose it.
    actions += (*_transition_events(job, before, after), *operator_events(granted, before, after, observed.pods))
    actions += (*spec_events(before, after), *container_events(before, after, facts))
    if _fills_in_spec(job, after, observed):
        actions.append(PatchJob({"spec": dict(job.spec_defaults)}))
    actions += sync_job(granted, after, facts, observed, pod_deadline(granted, after, observed.now))
    if stored.created is None and report_at is None and not integration_of(job, after):
        actions += _notes(job)
    # Last: a driver that may not delete Commands has done all else by then.
    actions += command_actions(before, after, observed)
    if _expired(job, after, observed.now):
        return Plan(after, (*actions, DeleteJob()))
    context = ReconcileContext(granted, after, facts, observed, chosen_job(job, after))
    return Plan(after, tuple(actions), context.next_of(_wake_at(context), report_at))


def _fills_in_spec(job: Job, after: Status, observed: Observed) -> bool:
    """Whether the job's spec lacks what its original controller writes into it, and this driver is to write it.

    One that is not accepted is left as it is: the API server would refuse it with the patch, too.
    """
    return bool(job.spec_defaults) and after.phase in LIVE and after.refused is None and not observed.verdict_only


def _notes(job: Job) -> Iterator[EmitEvent]:
    """What a user should know once of a document that was accepted; ``validate`` says the same."""
    templates = [spec.template for spec in job.replica_specs] if job.dialect is Dialect.VOLCANO else []
    job_level = {"spec": {"schedulerName": job.scheduling.scheduler_name}}
    unused = [key for _, key in unused_annotations(job.annotations, templates)] if templates else []
    if unused:
        message = f"tf-dist does not use {', '.join(unused)}: tf-dist validate says what each is for"
        yield EmitEvent("Warning", "AnnotationsNotUsed", message[:1000])
    if any(names_idle_scheduler(job, mapping(one.get("spec"))) for one in (job_level, *templates)):
        message = (
            "tf-dist decides where the pods go, so they are left to the cluster's default scheduler, not to volcano"
        )
        yield EmitEvent("Normal", "SchedulerNameNotUsed", message)


def _transition_events(job: Job, before: Status, after: Status) -> Iterator[EmitEvent]:
    """The Kubernetes Event of the transition, if it deserves one."""
    if _deserves_event(job, before, after):
        grave = after.reason in _SETBACKS or (after.phase in _WARNINGS and after.reason not in (RESIZED, SUSPENDED))
        yield EmitEvent("Warning" if grave else "Normal", after.reason, after.message)


def _deserves_event(job: Job, before: Status, after: Status) -> bool:
    """Whether a Kubernetes Event is recorded: what is expected of a job is in its conditions only."""
    if job.dialect is Dialect.TFJOB_V1 and after.reason in SAID_BY_OPERATOR:
        return False
    if _event_key(after) == _event_key(before) or after.reason in _EXPECTED:
        return False
    return after.reason != "Admitted" or before.reason not in _STARTED_AT_ONCE


def _event_key(status: Status) -> tuple[object, ...]:
    """What one Event is recorded for; each resize has its own, though the reason is the same."""
    return status.reason, status.attempts, status.message if status.reason == RESIZED else ""


def _with_circumstances(job: Job, status: Status, observed: Observed) -> Status:
    """The status with what does not depend on pods: the driver, the scheduler, the last error, the accepted spec."""
    status = with_default_scheduler(job, _with_driver(status, observed.driver), observed.gang)
    if observed.last_error not in (None, status.last_error):
        status = replace(status, last_error=observed.last_error)
    return with_accepted_spec(status, observed.accepted, observed.refused)


def _with_driver(status: Status, driver: str) -> Status:
    """The status with the driver, which other drivers respect; a job that is over keeps the one it had."""
    if not driver or status.finished or status.driver == driver:
        return status
    return replace(status, driver=driver)


def _status_write_at(stored: Status, after: Status, observed: Observed) -> float | None:
    """When ``after`` must be written (0: at once; None: it is what is stored)."""
    if after == stored:
        return None
    now, reported = observed.now, stored.reported
    if reported is None or is_in_future(reported, now):
        return 0.0
    verdict = observed.verdict
    if isinstance(verdict, Wait) and after == replace(stored, message=after.message, reported=after.reported):
        return round_time(reported + REWORD_INTERVAL_PER_RANK * verdict.rank)
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
    return round_time(reported + (STATUS_WRITE_INTERVAL if after == numbers else COMPLETION_WRITE_INTERVAL))


def _completed(stored: Status, after: Status) -> dict[str, Any]:
    """Whether all pods have their nodes is observed again in the pods, as numbers are: no reason for a write."""
    place = stored.admission
    if place is None or after.admission is None:
        return {}
    kept = replace(place, complete=after.admission.complete or place.complete, incomplete=after.admission.incomplete)
    if after.admission.complete is None:
        return {"admission": kept}
    return {"admission": kept, "requeues": after.requeues, "not_before": after.not_before}


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
    retry = retry_at(s.job, s.status, s.observed)
    return s.next_of(_expires_at(s.job, s.status), next_transition_at(s), retry, *backoffs)


# Seconds by which the clocks of a cluster may differ: less is not worth a write of every job at a fail-over.
CLOCK_SKEW_TOLERANCE: Final = 5.0


def is_in_future(moment: float, now: float) -> bool:
    """Whether the time of a past event lies after ``now``."""
    return moment > now + CLOCK_SKEW_TOLERANCE


def without_clock_skew(job: Job, status: Status, now: float) -> Status:
    """``status`` with its times bounded; the same object when none of them is ahead."""
    pause = requeue_backoff(job.uid, max(1, status.requeues))
    bounded = replace(
        status,
        since=_past(status.since, now),
        created=_past(status.created, now),
        start_time=_past(status.start_time, now),
        completion_time=_past(status.completion_time, now),
        admission=_admission(status.admission, now),
        failure=status.failure and replace(status.failure, at=_past(status.failure.at, now)),
        backoffs={key: _pause(job, pause, now) for key, pause in status.backoffs.items()},
        policy_timeouts={key: _past(since, now) for key, since in status.policy_timeouts.items()},
        not_before=_within(status.not_before, pause, now),
        refused_nodes={node: _within(at, pause + NODE_EXCLUDED_FOR, now) for node, at in status.refused_nodes.items()},
    )
    return status if bounded == status else bounded


@overload
def _past(moment: float, now: float) -> float: ...
@overload
def _past(moment: float | None, now: float) -> float | None: ...
def _past(moment: float | None, now: float) -> float | None:
    return now if moment is not None and is_in_future(moment, now) else moment


def _within(until: float, longest: float, now: float) -> float:
    return round_time(now + longest) if until > now + longest + CLOCK_SKEW_TOLERANCE else until


def _pause(job: Job, pause: RestartBackoff, now: float) -> RestartBackoff:
    return replace(pause, until=_within(pause.until, job.run_policy.backoff.delay(pause.count), now))


def _admission(place: Admission | None, now: float) -> Admission | None:
    if place is None:
        return None
    return replace(
        place,
        at=_past(place.at, now),
        resized=_past(place.resized, now),
        complete=_past(place.complete, now),
        incomplete=_past(place.incomplete, now),
    )
