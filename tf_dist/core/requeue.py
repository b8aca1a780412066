"""The rules by which a job gives its place back and waits again: somebody else needs it, or it was of no use.

Its pods are all stale then, and go. That costs no restart: the job did nothing wrong. Replicas that are done stay done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from tf_dist.core import restarts
from tf_dist.core.facts import Facts, Occurrence
from tf_dist.core.gang.model import Preempt
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.names import short_hash
from tf_dist.core.policies import GRAVITY, decide
from tf_dist.core.policy_model import Action, Event
from tf_dist.core.schedulers.table import scheduler_of
from tf_dist.core.situation import Situation
from tf_dist.core.status import PREEMPTED, Failure, Phase, Status
from tf_dist.core.text import listed
from tf_dist.core.times import format_time, round_time
from tf_dist.core.unpinning import refuse, stuck_nodes

SCHEDULE_TIMEOUT: Final = "ScheduleTimeout"
PODS_REJECTED: Final = "PodsRejected"

# Seconds: how long a gang that was admitted may be without all its nodes, where the job does not say; the pause before
# it tries again, doubling up to the longest.
TIMEOUT: Final = 300.0
_FIRST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
# So much of a pause depends on the job: gangs that failed together do not come back together.
_SPREAD: Final = 0.1
_DIGITS: Final = 36

_ENDS: Final = {
    Action.FAIL_JOB: Phase.FAILED,
    Action.TERMINATE_JOB: Phase.TERMINATING,
    Action.ABORT_JOB: Phase.ABORTING,
    Action.COMPLETE_JOB: Phase.COMPLETING,
}


def give_way(s: Situation) -> Status | None:
    """Another gang gets the place. The job's policy for evictions says whether it waits for another one, or ends."""
    verdict = s.observed.verdict
    if not s.live or s.status.admission is None or not isinstance(verdict, Preempt):
        return None
    message = f"gave its place to {verdict.by}" if verdict.by else "gave its place up"
    message += f": {verdict.message}" if verdict.message else ""
    told = replace(s.status, failure=Failure(event=PREEMPTED, message=message, at=s.now))
    action = _answer(s)
    if action in _ENDS:
        return told.to(_ENDS[action], s.now, PREEMPTED, message)
    count = {PREEMPTED: s.status.restarts.get(PREEMPTED, 0) + 1}
    return requeued(replace(s, status=told), PREEMPTED, message, restarts={**s.status.restarts, **count})


def _answer(s: Situation) -> Action | None:
    """The gravest of what the policy table answers when pods of this job are evicted."""
    evicted = (
        Occurrence(event=Event.POD_EVICTED, spec=spec, replica=ReplicaId(spec.type, index))
        for spec in s.job.replica_specs
        for index in range(spec.replicas)
    )
    answers = {decide(s.job, occurrence, s.now).action for occurrence in evicted}
    return next((action for action in GRAVITY if action in answers), None)


def release(s: Situation) -> Status | None:
    """Some pods have found no node in time, or cannot be made: the whole place is given back.

    It is tried for again after a pause, or as soon as the job has another spec.
    """
    due = release_at(s.job, s.status, s.facts)
    if not s.live or due is None:
        return None
    if s.observed.rejected:
        return _released(s, PODS_REJECTED, f"the cluster refuses pods of the gang: {s.observed.obstacle}", "")
    if s.now < due:
        return None
    return _released(s, SCHEDULE_TIMEOUT, _unplaced_text(s), f" within {timeout(s.job):g} s")


def _released(s: Situation, reason: str, why: str, when: str) -> Status:
    pause = requeue_pause(s.job.uid, s.status.requeues + 1)
    not_before = round_time(s.now + pause)
    message = f"{why}{when}; the gang gave its place back and tries again at {format_time(not_before)}"
    stuck = {*s.status.refused_nodes, *stuck_nodes(s.job, s.status, s.facts)}
    return requeued(
        s,
        reason,
        message,
        requeues=s.status.requeues + 1,
        not_before=not_before,
        refused_nodes=refuse(s.status.refused_nodes, stuck, not_before),
        failure=Failure(event=reason, message=why, at=s.now),
    )


def requeued(s: Situation, reason: str, message: str, **fields: Any) -> Status:
    """The job without its place, all of its pods stale: it waits for another one."""
    status = restarts.forget(s.status, s.facts.current, s.facts)
    anew = replace(
        status,
        attempts=status.attempts.next_job(),
        seen=frozenset(),
        start_time=None,
        admission=None,
        pauses={},
        **fields,
    )
    return anew.to(Phase.PENDING, s.now, reason, message)


def requeue_pause(uid: str, count: int) -> float:
    """Seconds before a gang that was released for the ``count``-th time in a row tries again."""
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(count - 1, 30))
    length = 5
    part = int(short_hash(uid, count, length=length), _DIGITS) / float(_DIGITS**length)
    return float(pause * (1 - _SPREAD * part))


def timeout(job: Job) -> float:
    """Seconds that pods of an admitted gang may be without a node, until it has been complete."""
    return job.scheduling.timeout or TIMEOUT


def release_at(job: Job, status: Status, facts: Facts) -> float | None:
    """When the gang is released if nothing changes; None if every pod has its node, or once had.

    A gang scheduler that binds pods has its own patience with those that a gang can do without.
    """
    if status.admission is None or status.admission.complete is not None:
        return None
    scheduler = scheduler_of(job, status)
    if scheduler is not None and scheduler.pods_first:
        return None
    since = min((since for _, since in _unplaced(job, status, facts)), default=None)
    return None if since is None else round_time(since + timeout(job))


def _unplaced(job: Job, status: Status, facts: Facts) -> Iterator[tuple[ReplicaId, float]]:
    """The replicas without a node, and since when they could have one.

    One whose pod is not there counts only where nothing but a refusal can have kept it from being made.
    """
    admission = status.admission
    at = admission.at if admission is not None else 0.0
    expected = not facts.stale and not status.pauses
    for spec in job.replica_specs:
        for replica in (ReplicaId(spec.type, index) for index in range(spec.replicas)):
            pod = facts.current.get(replica)
            if replica in facts.succeeded:
                continue
            if pod is None:
                if expected and spec.depends is None and replica not in status.seen:
                    yield replica, at
            elif not pod.has_node and not pod.deleting:
                yield replica, max(at, pod.created_at or at)


def is_complete(job: Job, facts: Facts) -> bool:
    """Whether every replica that is not done has its node."""
    missing = (replica for replica in job.replicas if replica not in facts.succeeded)
    return all(replica in facts.current and facts.current[replica].has_node for replica in missing)


def _unplaced_text(s: Situation) -> str:
    replicas = [replica for replica, _ in _unplaced(s.job, s.status, s.facts)]
    pods = (s.facts.current.get(replica) for replica in replicas)
    words = next((pod.unschedulable for pod in pods if pod is not None and pod.unschedulable), "")
    return f"{listed(replicas)} got no node" + (f" ({words})" if words else "")
