"""``reconcile``: from the observation of a job to its next status and the actions.

1. Read one snapshot of the job, its status and its pods (``job_context``).
2. Decide: the transition rules lead to the next status (``transitions``).
3. Write the status (``status_writer``) and record events (``job_events``).
4. Act: delete and create what follows from the status alone (``job_objects``).
5. Compute when time alone changes the plan (``_wake_at``).

The function is level-triggered: it depends on the current state, not on changes. A second call after its actions does
nothing. After an interruption, it continues from the written status. A status is written immediately if its memory
differs, and within seconds if only shown fields differ, because the number of ready pods changes with every pod. The
caller keeps such a status in ``Observed.last_status`` until then. After a crash, the pods show these fields again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tf_dist.core.integrations.dispatch import integration_actions, retry_at
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
from tf_dist.core.model.fieldpath import updated
from tf_dist.core.model.job import Job
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import LIVE, NO_PODS, Phase, Status
from tf_dist.core.model.status_codec import load_status, memory
from tf_dist.core.model.timestamps import round_time
from tf_dist.core.reconciler.commands import command_actions
from tf_dist.core.reconciler.job_context import is_in_future, read_context, without_clock_skew
from tf_dist.core.reconciler.job_events import document_notes, job_events, spec_events
from tf_dist.core.reconciler.job_objects import backoff_until, cleanup, missing_objects
from tf_dist.core.reconciler.status_writer import build_status, ready_replicas
from tf_dist.core.reconciler.transitions import apply_transitions, next_transition_at

# Seconds within which differences are written that are only shown, or that the pods show again.
SHOWN_WITHIN: Final = 10.0
# The same if pods have been created and no pod has started. Most jobs write their status for another reason before
# this: 600 gangs of 8 pods cost one write each instead of two (``api.gang8_unscheduled``).
CREATED_WITHIN: Final = 60.0
# Seconds for each gang ahead of a waiting gang, if the result is longer: the messages of all waiting jobs name the free
# capacity and change at each resync. Therefore 100,000 waiting jobs together cost at most 35 writes per second.
WAITING_WITHIN_PER_RANK: Final = 0.25
# Characters of a text in the status. An API server rejects an object of more than 1.5 MB, and the status repeats texts.
MAX_TEXT: Final = 4_096


def reconcile(job: Job, observed: Observed, status: Status | None = None) -> Plan:
    """The plan for ``job`` now. ``status``: the parsed ``observed.stored_status``, if the caller has it."""
    stored = load_status(observed.stored_status) if status is None else status
    if observed.deleting or job.managed_elsewhere:
        return Plan(stored)
    before = without_clock_skew(job, observed.last_status or stored, observed.now)
    if _expired(job, before, observed.now):
        return Plan(before, (DeleteJob(),))
    if before.finished and before.reason == Reason.ADOPTED:
        return Plan(before, wake_at=_expires_at(job, before))

    s = read_context(job, before, observed)
    s = apply_transitions(s)
    s = updated(s, status=_with_limited_texts(s.status))

    write_at = _write_at(stored, s)
    written = write_at is not None and write_at <= s.now
    actions: list[Action] = []
    if written:
        # First: if this controller dies later, the next controller continues from this status.
        actions.append(WriteStatus(build_status(s)))
    # Before actions that may fail: later passes do not repeat the Events of a written status.
    actions += job_events(s)
    actions += spec_events(s.before, s.status, observed.unknown_keys)
    if written and stored.created is None:
        actions += document_notes(s)
    if observed.status_only:
        return Plan(s.status, tuple(actions))
    # Fields that the job's original controller writes into the spec. The API server rejects a patch of an invalid spec.
    accepted = s.status.phase in LIVE and s.status.refused_spec is None
    if s.requested_job.spec_defaults and accepted:
        actions.append(PatchJob({"spec": dict(job.spec_defaults)}))
    actions += cleanup(s)
    actions += integration_actions(s)
    actions += missing_objects(s)
    # Last: a controller that may not delete Commands has then done everything else.
    actions += command_actions(s)
    if _expired(job, s.status, s.now):
        return Plan(s.status, (*actions, DeleteJob()))
    return Plan(s.status, tuple(actions), s.next_of(_wake_at(s), None if written else write_at, _seen_at(s, actions)))


def _with_limited_texts(status: Status) -> Status:
    """The status with texts of limited length, because gang schedulers, kubelets and servers wrote parts of them."""
    failure = status.failure
    if failure is not None:
        failure = updated(failure, message=_limited(failure.message), reason=_limited(failure.reason))
    return updated(status, message=_limited(status.message), last_error=_limited(status.last_error), failure=failure)


def _limited(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _write_at(stored: Status, s: ReconcileContext) -> float | None:
    """When to write the status (0: now; None: it is unchanged).

    A difference in the memory is written now. The same applies when the last replica becomes ready, because users wait
    for this.
    """
    if s.status == stored:
        return None
    last = s.observed.last_written
    if last is None or is_in_future(last, s.now) or memory(s.status) != memory(stored):
        return 0.0
    if _all_ready(s.job, s.status) and not _all_ready(s.job, stored):
        return 0.0
    return round_time(last + _shown_within(s))


def _shown_within(s: ReconcileContext) -> float:
    if isinstance(s.verdict, Wait):
        return max(SHOWN_WITHIN, WAITING_WITHIN_PER_RANK * s.verdict.rank)
    started = any(replace(counts, pending=0) != NO_PODS for counts in s.status.counts.values())
    return SHOWN_WITHIN if started or s.status.phase is not Phase.PENDING else CREATED_WITHIN


def _all_ready(job: Job, status: Status) -> bool:
    return ready_replicas(job, status) >= sum(spec.replicas for spec in job.replica_specs)


def _seen_at(s: ReconcileContext, actions: Sequence[Action]) -> float | None:
    """When to check created objects if no event arrives. The creation by this controller does not count as an event."""
    created = any(isinstance(action, Create) for action in actions)
    return round_time(s.now + _shown_within(s)) if created else None


def _expires_at(job: Job, status: Status) -> float | None:
    if not status.finished or job.run_policy.ttl is None or status.completion_time is None:
        return None
    return round_time(status.completion_time + job.run_policy.ttl)


def _expired(job: Job, status: Status, now: float) -> bool:
    at = _expires_at(job, status)
    return at is not None and at <= now


def _wake_at(s: ReconcileContext) -> float | None:
    """The earliest time at which time alone changes the plan."""
    backoffs: list[float] = []
    if s.status.backoffs and s.status.phase in LIVE:
        backoffs = [backoff_until(s.status, replica) for replica in s.job.replicas if replica not in s.facts.current]
    return s.next_of(_expires_at(s.job, s.status), next_transition_at(s), retry_at(s), *backoffs)
