"""Restarts: what one costs, how long it waits, and when there is no budget left.

A restart is decided by counting the attempt up in the status; deleting the old pods and making new ones follows from
that. Every restart is bounded by the job's budget but those that are the cluster's own fault (not ``charged``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tf_dist.core.facts import Facts, Occurrence
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.policies import Answered, Decision
from tf_dist.core.status import Failure, Pause, Phase, Status
from tf_dist.core.text import describe_all
from tf_dist.core.times import round_time


def restart_job(job: Job, status: Status, facts: Facts, answered: Answered, now: float) -> Status:
    """Every pod anew; costs one restart however many replicas had failed."""
    first = answered[:1]
    if not _affordable(job, status, facts, first):
        return over_budget(job, status, now, _sentence(job, answered), _failure(answered, now))
    status = forget(_spend(status, first), facts.current, facts)
    anew = replace(
        status,
        attempts=status.attempts.next_job(),
        seen=frozenset(),
        succeeded=frozenset(),
        failure=_failure(answered, now),
    )
    return _paused(job, anew, {"": _ran_for(facts, facts.current, now)}, now, _sentence(job, answered))


def restart_tasks(job: Job, status: Status, facts: Facts, answered: Answered, now: float) -> Status:
    """Every pod of the tasks in question anew; one restart a task."""
    by_task = {occurrence.spec.type: (occurrence, decision) for occurrence, decision in reversed(answered)}
    if not _affordable(job, status, facts, by_task.values()):
        return over_budget(job, status, now, _sentence(job, answered), _failure(answered, now))
    status = replace(_spend(status, by_task.values()), failure=_failure(answered, now))
    ran: dict[str, float | None] = {}
    for type_ in by_task:
        replicas = [replica for replica in facts.current if replica.type == type_]
        status = forget(status, replicas, facts)
        status = replace(status, attempts=status.attempts.next_task(type_))
        ran[type_] = _ran_for(facts, replicas, now)
    seen, succeeded = (
        frozenset(replica for replica in group if replica.type not in by_task)
        for group in (status.seen, status.succeeded)
    )
    return _paused(job, replace(status, seen=seen, succeeded=succeeded), ran, now, _sentence(job, answered))


def restart_pods(job: Job, status: Status, facts: Facts, answered: Answered, now: float) -> Status:
    """The replicas in question anew; one restart a replica."""
    by_replica = {
        occurrence.replica: (occurrence, decision)
        for occurrence, decision in reversed(answered)
        if occurrence.replica is not None
    }
    if not _affordable(job, status, facts, by_replica.values()):
        return over_budget(job, status, now, _sentence(job, answered), _failure(answered, now))
    status = replace(_spend(status, by_replica.values()), failure=_failure(answered, now))
    ran: dict[str, float | None] = {}
    for replica in by_replica:
        status = forget(status, [replica], facts)
        status = replace(status, attempts=status.attempts.next_pod(replica), seen=status.seen - {replica})
        ran[str(replica)] = _ran_for(facts, [replica], now)
    return _paused(job, status, ran, now, _sentence(job, answered))


def over_budget(job: Job, status: Status, now: float, what: str, failure: Failure | None = None) -> Status:
    """Failed: one restart more than the budget has."""
    message = f"{what}; no restart is left (spent {charged(job, status)})"
    return replace(status, failure=failure or status.failure).to(Phase.FAILED, now, "BackoffLimitExceeded", message)


def failure_of(occurrence: Occurrence, now: float) -> Failure:
    """The record of an occurrence that the status keeps."""
    exit_ = occurrence.exit
    return Failure(
        event=occurrence.event.value,
        replica=str(occurrence.replica) if occurrence.replica else occurrence.spec.type,
        code=exit_.code if exit_ else None,
        reason=exit_.reason if exit_ else "",
        message=exit_.message if exit_ else "",
        at=now,
    )


def _failure(answered: Answered, now: float) -> Failure:
    return failure_of(answered[0][0], now)


def spent(job: Job, status: Status, facts: Facts) -> int:
    """Restarts that count against the budget: with those by the kubelet in living pods where the job counts them."""
    return charged(job, status) + (_by_kubelet(facts, facts.current) if _counts_containers(job) else 0)


def charged(job: Job, status: Status) -> int:
    """The part of ``spent`` that is in the memory already."""
    return status.charged_restarts + (status.container_restarts if _counts_containers(job) else 0)


def _counts_containers(job: Job) -> bool:
    return job.run_policy.container_restarts_count


def _affordable(job: Job, status: Status, facts: Facts, answered: Iterable[tuple[Occurrence, Decision]]) -> bool:
    limit = job.run_policy.max_restarts
    more = sum(decision.charged for _, decision in answered)
    return limit is None or more == 0 or spent(job, status, facts) + more <= limit


def _spend(status: Status, answered: Iterable[tuple[Occurrence, Decision]]) -> Status:
    restarts = dict(status.restarts)
    for occurrence, decision in answered:
        if decision.charged:
            restarts[occurrence.event.value] = restarts.get(occurrence.event.value, 0) + 1
    return replace(status, restarts=restarts)


def forget(status: Status, replicas: Iterable[ReplicaId], facts: Facts) -> Status:
    """Pods that go take their restart counters with them: keep what they had spent."""
    return replace(status, container_restarts=status.container_restarts + _by_kubelet(facts, replicas))


def _by_kubelet(facts: Facts, replicas: Iterable[ReplicaId]) -> int:
    return sum(facts.current[replica].restarts for replica in replicas if replica in facts.current)


def _ran_for(facts: Facts, replicas: Iterable[ReplicaId], now: float) -> float | None:
    """How long the longest-lived of the pods has run, in seconds; None if no pod is left to tell."""
    starts = [facts.current[replica].started_at for replica in replicas if replica in facts.current]
    return max((now - start for start in starts if start is not None), default=None)


def _paused(job: Job, status: Status, ran: Mapping[str, float | None], now: float, what: str) -> Status:
    pauses = dict(status.pauses)
    backoff = job.run_policy.backoff
    for key, seconds in ran.items():
        before = pauses.get(key)
        # A pod that is gone has run since its last restart, for all that anybody knows.
        healthy = before is not None and (now - before.until if seconds is None else seconds) >= backoff.healthy
        count = 1 if before is None or healthy else before.count + 1
        pauses[key] = Pause(count, round_time(now + backoff.delay(count)))
    wait = max(pauses[key].until for key in ran) - now
    budget = job.run_policy.max_restarts
    spent = f"restart {charged(job, status)}" + ("" if budget is None else f" of {budget}")
    later = f" in {wait:.0f} s" if wait > 0 else ""
    event = status.failure.event if status.failure else ""
    return replace(status, pauses=pauses).to(Phase.RESTARTING, now, event, f"{what}; {spent}{later}")


def _sentence(job: Job, answered: Answered) -> str:
    return describe_all(job, [occurrence for occurrence, _ in answered])
