"""``reconcile``: the one function that decides about a job.

Level-triggered: it looks at what is there, not at what changed. It first moves the job's memory on (``advance``), then
derives what to do from that memory alone (``converge``), and says when to look again. Called again with what its
actions lead to it does nothing; interrupted anywhere, it goes on from the status that was written.

Not every change of the memory is worth a write of its own: how many pods are ready changes with every pod. Such quiet
changes are gathered, while the caller keeps them in ``Observed.remembered``; lost in a crash, they are seen again in
the pods.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tf_dist.core import lost_nodes, recovery
from tf_dist.core.actions import Action, DeleteJob, Emit, Plan, WriteStatus
from tf_dist.core.advance import advance
from tf_dist.core.clock_skew import is_ahead, without_skew
from tf_dist.core.converge import converge, paused_until
from tf_dist.core.ending import deadline_at
from tf_dist.core.facts import Facts
from tf_dist.core.gang.model import UNREADABLE
from tf_dist.core.invalid import spec_news, with_spec
from tf_dist.core.model import Job
from tf_dist.core.observed import Observed
from tf_dist.core.policies import next_due
from tf_dist.core.recovery import WAITS_FOR_NODE
from tf_dist.core.report import report
from tf_dist.core.requeue import PODS_REJECTED, SCHEDULE_TIMEOUT, release_at
from tf_dist.core.schedulers.consult import consulted, look_again_at
from tf_dist.core.schedulers.table import taken_on
from tf_dist.core.sizes import granted
from tf_dist.core.status import LIVE, PREEMPTED, RECOVERY_TIMEOUT, RESIZED, RUNNING, Phase, Status
from tf_dist.core.status_codec import ADOPTED, load_status
from tf_dist.core.times import round_time
from tf_dist.core.unpinning import unpin_at

_WARNINGS = frozenset({Phase.FAILED, Phase.RESTARTING, Phase.TERMINATING, Phase.TERMINATED})
_SETBACKS: Final = frozenset({PREEMPTED, SCHEDULE_TIMEOUT, PODS_REJECTED, RECOVERY_TIMEOUT, WAITS_FOR_NODE, UNREADABLE})


_EXPECTED: Final = frozenset({"JobCreated", "PodsPending", RUNNING})
_WAITED_FOR_NOTHING: Final = frozenset({"", "JobCreated", "Resumed"})

# Seconds from one write of a status to the next, when only numbers differ, and when replicas are done besides.
REPORT_EVERY: Final = 10.0
REPORT_SOON: Final = 1.0


def reconcile(job: Job, observed: Observed, status: Status | None = None) -> Plan:
    """What to do about ``job`` now. ``status`` spares parsing ``observed.stored_status`` again."""
    stored = load_status(observed.stored_status) if status is None else status
    if observed.deleting or job.managed_elsewhere:
        return Plan(stored)
    before = without_skew(job, observed.remembered or stored, observed.now)
    if _expired(job, before, observed.now):
        return Plan(before, (DeleteJob(),))
    if before.finished and before.reason == ADOPTED:
        return Plan(before, wake_at=_expires_at(job, before))
    driven = _kept_from(taken_on(job, _driven_by(before, observed.driver), observed.gang), observed.obstacle)
    driven = with_spec(driven, observed.accepted, observed.refused)
    observed = consulted(job, driven, observed)
    after, facts = advance(job, driven, observed)
    job = granted(job, after)
    actions: list[Action] = []
    report_at = _report_at(stored, after, observed.now)
    if report_at is not None and report_at <= observed.now:
        after = replace(after, reported=observed.now)
        report_at = None
        actions.append(WriteStatus(report(job, after, observed.stored_status, observed.now)))
    actions += converge(job, after, facts, observed)
    if _is_news(before, after):
        grave = after.reason in _SETBACKS or (after.phase in _WARNINGS and after.reason != RESIZED)
        actions.append(Emit("Warning" if grave else "Normal", after.reason, after.message))
    actions += spec_news(before, after)
    if _expired(job, after, observed.now):
        return Plan(after, (*actions, DeleteJob()))
    return Plan(after, tuple(actions), _earliest(_wake_at(job, after, facts, observed), report_at))


def _is_news(before: Status, after: Status) -> bool:
    """Whether people are told by an event: what one expects of a job, its conditions say."""
    if _news(after) == _news(before) or after.reason in _EXPECTED:
        return False
    return after.reason != "Admitted" or before.reason not in _WAITED_FOR_NOTHING


def _news(status: Status) -> tuple[object, ...]:
    """What people are told once; each change of size is news, though the reason is the same."""
    return status.reason, status.attempts, status.message if status.reason == RESIZED else ""


def _driven_by(status: Status, driver: str) -> Status:
    """A job that lives names its driver, so that another one leaves it alone."""
    if not driver or status.finished or status.driver == driver:
        return status
    return replace(status, driver=driver)


def _kept_from(status: Status, obstacle: str | None) -> Status:
    return status if obstacle in (None, status.obstacle) else replace(status, obstacle=obstacle)


def _report_at(stored: Status, after: Status, now: float) -> float | None:
    """When ``after`` has to be written (0: at once; None: it is what is stored)."""
    if after == stored:
        return None
    numbers = replace(
        stored,
        message=after.message if stored.reason == after.reason == RUNNING else stored.message,
        counts=after.counts,
        seen=after.seen,
        container_restarts=after.container_restarts,
        # Its words may differ each time, and a status that is written is seen, which is a reason for another pass.
        obstacle=after.obstacle if stored.obstacle and after.obstacle else stored.obstacle,
        reported=after.reported,
        **_completed(stored, after),
    )
    reported = stored.reported
    if reported is None or is_ahead(reported, now) or after != replace(numbers, succeeded=after.succeeded):
        return 0.0
    return round_time(reported + (REPORT_EVERY if after == numbers else REPORT_SOON))


def _completed(stored: Status, after: Status) -> dict[str, Any]:
    """Whether all pods have their nodes is seen again in the pods, as numbers are."""
    place = stored.admission
    if place is None or after.admission is None:
        return {}
    kept = replace(place, complete=after.admission.complete or place.complete, incomplete=after.admission.incomplete)
    if after.admission.complete is None:
        return {"admission": kept}
    return {"admission": kept, "requeues": after.requeues, "not_before": after.not_before}


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)


def _expires_at(job: Job, status: Status) -> float | None:
    if not status.finished or job.run_policy.ttl is None or status.completion_time is None:
        return None
    return round_time(status.completion_time + job.run_policy.ttl)


def _expired(job: Job, status: Status, now: float) -> bool:
    at = _expires_at(job, status)
    return at is not None and at <= now


def _wake_at(job: Job, status: Status, facts: Facts, observed: Observed) -> float | None:
    """The earliest moment at which time alone changes the answer."""
    look_again = look_again_at(job, status, observed)
    if status.phase not in LIVE:
        return _earliest(_expires_at(job, status), look_again)
    times = [look_again, deadline_at(job, status), release_at(job, status, facts), unpin_at(job, status, facts)]
    times += [*recovery.times(job, status, facts, observed), *lost_nodes.times(job, observed)]
    if status.admission is None:
        times += [status.not_before, *status.refused_nodes.values()]
    if any(counts.pending or counts.failed for counts in facts.counts.values()):
        times.append(next_due(job, status, facts, observed.now))
    if status.pauses:
        times += [paused_until(status, replica) for replica in job.replicas if replica not in facts.current]
    later = [time for time in times if time is not None and time > observed.now]
    return min(later) if later else None
